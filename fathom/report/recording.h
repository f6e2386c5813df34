// A recording: what a model did, or would do, in each phase, with names for every axis. All
// documents of `fathom trace` are printed from it, of dry runs and of real ones alike.
#pragma once

#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "fathom/base/status.h"
#include "fathom/models/config/config.h"
#include "fathom/report/axis_names.h"
#include "fathom/tensor/inspect.h"
#include "fathom/trace/recorder.h"
#include "fathom/weights/weight_store.h"

namespace fathom {

/// What an operand is to the model; traffic is summed by it.
enum class OperandKind : uint8_t {
  kActivation,
  kWeight,  ///< sized by the model alone
  kCache,   ///< pages of keys, rings of rows
  kTable,   ///< rotary angles
  kIndex,   ///< ids, offsets, lengths
};

struct TraceOperand {
  std::string_view name;
  Format format = Format::kNone;
  bool read = false;
  bool written = false;
  OperandKind kind = OperandKind::kActivation;
  std::vector<AxisName> axes;
  std::vector<int64_t> dims;

  std::string symbols() const;  ///< "[T, Nh*Dq]"
  std::string numbers() const;  ///< "[T, 24576]"
  std::string sizes() const;    ///< "[128, 24576]"
  /// "[T, Nh*Dq] = [T, 24576]"; one half where both say the same.
  std::string shape() const;
};

/// Compulsory bytes of a call by what they are; their sum is the cost of the contract.
struct Traffic {
  int64_t weights = 0;
  int64_t cache = 0;
  int64_t activations = 0;  ///< and everything else: indexes, tables
};

struct WrittenStatistics {
  std::string_view operand;
  TensorStatistics value;
};

/// One call of a kernel, or several that are alike: figures are those of one.
struct TraceOp {
  std::string_view op;
  std::string_view kernel;
  std::string_view variant;  ///< empty in a dry run without a plan
  CallSite site;             ///< where the op is named
  CallSite launch;           ///< where the kernel is launched
  std::vector<ScopeName> scopes;
  Backend backend = Backend::kDry;
  int selection_row = -1;
  /// Those that are there and not empty. Equal calls share one list: a step has thousands.
  std::shared_ptr<const std::vector<TraceOperand>> shared_operands;
  Cost cost;
  Traffic traffic;
  std::vector<WrittenStatistics> statistics;  ///< of a probed run
  int64_t start_ns = 0;
  int64_t end_ns = 0;
  int step = 0;       ///< place of its pass in TracePhase::steps
  int64_t calls = 1;  ///< in a dry run requests of one size stand in one scope (kAlikeRequests)

  const std::vector<TraceOperand>& operands() const { return *shared_operands; }

  /// Index of the scope of that name, such as "layer"; -1 outside of one.
  int index_in(std::string_view scope) const;

  const TraceOperand* operand(std::string_view name) const;
};

/// True if two calls are the same work: op, kernel, variant, operands with formats, names and
/// sizes.
bool same_call(const TraceOp& a, const TraceOp& b);

/// One pass of the model, by the clock of the whole pass.
struct TraceStep {
  int64_t start_ns = 0;
  int64_t end_ns = 0;
  int64_t tokens = 0;
  /// On a GPU, where ops are timed by marks and lie one behind the other between start and end:
  /// what the step takes as one graph without marks, and the same in one stream. 0: start to end is
  /// it.
  int64_t graph_ns = 0;
  int64_t one_stream_ns = 0;

  int64_t duration_ns() const { return graph_ns > 0 ? graph_ns : end_ns - start_ns; }
};

struct TracePhase {
  std::string name;   ///< "prefill", "prefill_chunked", "decode", "draft"
  std::string title;  ///< what the step is, for people
  std::vector<TraceOp> ops;
  std::vector<TraceStep> steps;  ///< of real runs
  /// Sizes that each symbol of the step took, ascending.
  std::map<std::string, std::vector<int64_t>> step_sizes;

  /// The ops of the first step.
  std::span<const TraceOp> first_step() const;

  /// Calls of kernels in all steps.
  int64_t calls() const;
};

struct Recording {
  std::string title;    ///< preset or directory
  std::string model;    ///< for file heads: "deepseek-r1-nvfp4"
  std::string command;  ///< the arguments that make it again
  std::vector<std::pair<std::string, std::string>> settings;  ///< device, formats, strategy, ...
  ModelConfig config;
  SymbolTable symbols;
  std::vector<WeightSummary> weights;
  bool timed = false;
  bool has_variants = false;  ///< every op must have one
  int64_t begin_ns = 0;       ///< of a timed recording, by the clock of its ops
  std::vector<TracePhase> phases;
};

/// Records with names for all axes. `statistics` are those of the recorder; empty without.
/// Errors: those of name_axes; Internal for a kernel that is not in the catalogue.
Result<TracePhase> make_phase(std::string name,
                              std::string title,
                              std::span<const OpRecord> records,
                              std::span<const TensorStatistics> statistics,
                              const SymbolTable& symbols);

/// Keeps the ops of layers first .. last, and those outside of all layers.
void keep_layers(TracePhase& phase, int first, int last);

/// The operands of one side: "x bf16 [T, H] = [T, 7168], w nvfp4 [...]".
std::string inputs_text(const TraceOp& op);
std::string outputs_text(const TraceOp& op);

}  // namespace fathom
