// A call as a recording has it, and the case of the same call: what a model runs is what is checked
// and timed, with nothing typed in between.
//
// Beside its cases a group says how one is made of a call:
//
//   list.serve_calls("silu_mul", [](CaseList& one, const RecordedCall& call, const CaseSpec& spec)
//   {
//     add_gate_case<SiluMul>(one, oracle::silu,
//                            {.spec = spec, .t = call.dim("y", 0), .i = call.dim("y", 1)});
//   });
//
// The case has the operands of the call, with their formats and sizes, and rows of the last axis as
// far apart as there (the first axis may be strided further in a model). What the contract does not
// see as an operand and no context gives (scales, epsilons) is the author's.
#pragma once

#include <string>
#include <string_view>

#include "fathom/kernels/conformance/cases.h"
#include "fathom/trace/record.h"

namespace fathom {

/// What no operand of a call shows.
struct CallContext {
  int64_t tokens = 0;          ///< of the step, padding included
  int router_groups = 1;       ///< of the model's experts
  int router_groups_kept = 1;  ///< that a token chooses from
  int64_t keys = 0;            ///< of a request, with those of the step
  int64_t page_rows = 1;       ///< of a page of the cache that the next attention reads
  int64_t ring_rows = 1;       ///< of a request's window there
  bool compressed = false;     ///< attention over windows and compressed rows: DeepSeek-V4

  bool operator==(const CallContext&) const = default;
};

class RecordedCall {
 public:
  RecordedCall(const OpRecord& record, const CallContext& context)
      : record_(record), context_(context) {}

  const OpRecord& record() const { return record_; }

  const CallContext& context() const { return context_; }

  const Cost& cost() const { return record_.cost; }

  /// False for an optional operand that is left out.
  bool has(std::string_view operand) const { return find(operand) != nullptr; }

  // Of an operand that the call has.
  int rank(std::string_view operand) const;
  int64_t dim(std::string_view operand, int axis) const;
  Format format(std::string_view operand) const;
  /// Elements between two rows of the last axis.
  int64_t row_gap(std::string_view operand) const;

 private:
  const OperandRecord* find(std::string_view operand) const;
  const OperandRecord& get(std::string_view operand) const;

  OpRecord record_;
  CallContext context_;
};

/// The case of a call, by what the kernel's group says in `list`. Errors: NotFound for a kernel
/// whose group does not say it.
Result<Case> make_case_of_call(const CaseList& list,
                               const RecordedCall& call,
                               const CaseSpec& spec);

/// In what the case differs from the call: an operand, its format or sizes, FLOPs or bytes. Empty
/// if it is the same call.
std::string difference_from(const RecordedCall& call, CaseInstance& instance);

}  // namespace fathom
