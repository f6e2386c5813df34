// Cases: shapes, inputs, an exact answer and tolerances for every kernel. The conformance test, the
// benchmark and the fuzzer read the same list, so what is timed is what was checked.
//
// A kernel author writes add_GROUP_cases(CaseList&) with kernel_case.h; all_cases.cc calls them.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "fathom/base/status.h"
#include "fathom/device/arena.h"
#include "fathom/device/stream.h"
#include "fathom/kernels/conformance/reference_shapes.h"
#include "fathom/kernels/core/exec.h"
#include "fathom/tensor/view.h"
#include "fathom/trace/cost.h"

namespace fathom {

/// What check() found: the measures of the first output, the verdict on all of them.
struct CheckReport {
  bool passed = true;
  double max_abs = 0;
  double max_rel = 0;
  double cos = 1;
  double sqnr_db = 0;
  double diff = 0;
  double rel_l2 = 0;
  std::string budget;   ///< the gates, "A: relL2 <= 0.003; B: diff <= 0.007"
  std::string checked;  ///< of the first output that is not compared whole, "24 of 8192 rows"
  std::string why;      ///< empty if passed; else output, place, found, expected, seed
};

struct OperandInfo {
  std::string name;
  Format format = Format::kNone;
  bool read = false;
  bool written = false;
  bool is_weight = false;
  std::vector<int64_t> dims{};
};

enum class Upload : uint8_t;

/// One case with its data in memory. Copy 0 exists from the start and is what check() reads;
/// further copies let a benchmark walk through more memory than the caches hold.
class CaseInstance {
 public:
  virtual ~CaseInstance() = default;

  /// Why the kernel (its pinned variant) would not take this case; empty if it would.
  virtual std::string why_not(Exec& ex) = 0;

  /// The same of rows [begin, begin + count) of a copy: a variant may be for a call and not for a
  /// piece of it.
  virtual std::string why_not_rows(Exec& ex, int copy, int64_t begin, int64_t count) = 0;

  /// Launches on a copy: in the memory of the host, or of the GPU if that is the backend of `ex`.
  virtual Status run(Exec& ex, int copy) = 0;

  /// Launches on rows [begin, begin + count) of the batch alone, in a copy of its own.
  virtual Status run_rows(Exec& ex, int copy, int64_t begin, int64_t count) = 0;

  /// Bytes of scratch that run() takes from ex.scratch; 0 if no variant takes the case.
  virtual int64_t workspace_bytes(Exec& ex) = 0;

  virtual Cost cost() = 0;

  /// FLOPs by the formula of the contract at the axes of this case; empty if it is in words.
  virtual std::optional<double> stated_flops() = 0;

  /// Values of the signature's axes, "T=1;D=7168".
  virtual std::string shape() = 0;

  virtual std::vector<OperandInfo> operands() = 0;

  /// Rows that run_rows may cut; 0 if the case cannot be cut.
  virtual int64_t batch_rows() const = 0;

  /// Makes sure that `count` copies exist. Errors: OutOfMemory.
  virtual Status make_copies(int count) = 0;
  virtual int num_copies() const = 0;

  /// Bytes that one copy of the operands takes, without guards.
  virtual int64_t bytes_per_copy() const = 0;

  /// Outputs become poison again, operands updated in place get their first values back.
  virtual void reset(int copy) = 0;

  /// The written operands of a copy, byte for byte.
  virtual std::vector<std::byte> output_bytes(int copy) const = 0;

  /// Empty if batch rows [begin, begin + count) of the outputs of both copies are the same bits and
  /// the other rows of copy b are untouched; else which output and row differ.
  virtual std::string compare_rows(int a, int b, int64_t begin, int64_t count) const = 0;

  /// Empty if no byte outside the operands and no read-only operand of the copy has changed.
  virtual std::string check_guards(int copy) const = 0;

  /// Gives every copy a place in memory of a GPU and brings its bytes there. Errors: OutOfMemory.
  virtual Status place_on_gpu(Arena& memory, Stream& stream) = 0;

  /// Brings what the host has of a copy to its place on the GPU, or back. Copies between host and
  /// GPU are in the order of the stream; the caller waits before it looks.
  virtual Status upload(int copy, Upload what, Stream& stream) = 0;
  virtual Status download(int copy, Stream& stream) = 0;

  /// Two cases of equal layout have the same places on a GPU, each in an empty arena.
  virtual std::vector<int64_t> gpu_layout() const = 0;

  /// Holds copy 0 to the gates. The exact answers are computed once, before the first launch.
  virtual CheckReport check() = 0;
};

struct CaseSpec {
  std::string name;       ///< unique in its kernel: "t7_d7168_bf16"
  std::string op{};       ///< the model's name of the step, "q_b_proj"; empty: the kernel's
  bool bench = false;     ///< worth timing: a real shape, left out of the default test run
  std::string phase{};    ///< "prefill", "decode" or empty
  int64_t rows = 0;       ///< column M, where no columns are given and the axes alone say it
  std::string columns{};  ///< split columns of the report where the axes do not say them,
                          ///< "M=1;E=256;topk=8"
  std::string note{};     ///< said in the report, such as experts mapped onto a ring
  std::string part{};     ///< of the model that runs it, "experts", where it is a recorded call
  std::string suite{};    ///< the benchmark suite that alone has this case; empty: any may
  int64_t batch = 0;      ///< columns B and S, where a suite speaks of sequences; 0: it does not
  int64_t seq = 0;
  double flops = 0;  ///< of a call whose operands take long to make; lets a machine leave it out
};

/// What a case of so many tokens is timed as: "decode" up to 128, "prefill" beyond; empty if it is
/// not timed.
std::string phase_of_case(bool timed, int64_t tokens);

/// Spec of a timed case NAME_tTOKENS whose axes say all but the rows.
CaseSpec timed_spec(std::string_view name, std::string_view op, int64_t tokens);

struct Case {
  std::string kernel;
  CaseSpec spec;
  /// Builds inputs from the seed; the same seed gives the same bytes on every machine.
  std::function<std::unique_ptr<CaseInstance>(uint64_t seed)> make;
  /// The same with weights as they lie on a GPU: for kRows16, nvfp4 in pairs and others row-major.
  std::function<std::unique_ptr<CaseInstance>(uint64_t seed)> make_for_gpu{};
};

class RecordedCall;

/// Adds to a list the one case whose call is the recorded one, with that spec.
using CaseOfCall =
    std::function<void(CaseList& one, const RecordedCall& call, const CaseSpec& spec)>;

class CaseList {
 public:
  void add_case(Case c);

  /// How a case is made of a recorded call of that kernel (recorded_call.h).
  void serve_calls(std::string_view kernel, CaseOfCall f);

  /// Null where nobody said how.
  const CaseOfCall* case_of_call(std::string_view kernel) const;

  void set_reference_limit(std::string_view kernel, const ReferenceLimit& limit);

  /// Null for a kernel that is for every point.
  const ReferenceLimit* reference_limit(std::string_view kernel) const;

  const std::vector<Case>& cases() const { return cases_; }

  /// The cases of one kernel, by our name.
  std::vector<const Case*> of(std::string_view kernel) const;

 private:
  std::vector<Case> cases_;
  std::set<std::string> names_;  // "kernel/case"
  std::map<std::string, CaseOfCall, std::less<>> of_calls_;
  std::map<std::string, ReferenceLimit, std::less<>> reference_limits_;
};

/// Every case of every kernel of kernels.def; built at the first call. Building a list generates no
/// data.
const CaseList& all_cases();

}  // namespace fathom
