// Recordings of runs that do not happen: the model code itself on views without data.
#pragma once

#include <string>
#include <vector>

#include "fathom/device/device.h"
#include "fathom/models/model.h"
#include "fathom/report/recording.h"
#include "fathom/runtime/draft/speculative.h"

namespace fathom {

/// The sizes of the steps that are recorded.
struct TraceShape {
  int64_t batch = 1;             ///< requests of every phase
  int64_t prompt_tokens = 1024;  ///< new tokens of each request in prefill
  int64_t kv_len = 4096;  ///< keys a decoded token sees; tokens cached before the chunked prefill
  int num_threads = 1;    ///< sizes workspaces, nothing that is printed
  /// The variants that would run it; null: none is asked for.
  const KernelSet* kernels = nullptr;
  /// What runs it, with kernels of its own; null: a CPU. The model is made for the same device.
  const DeviceInfo* gpu = nullptr;
  /// Drafts of each request in a step that verifies; the model takes them (check_speculative).
  Speculative speculative = Speculative::kOff;
  DraftShape drafts = {};
};

/// The phases a model has at that shape: prefill, prefill_chunked (a prefix is cached), decode, and
/// draft where there is a draft layer. With drafts also verify, and draft_chain where the draft
/// layer runs on its own output, both with what is sampled behind them. Errors: InvalidArgument for
/// lengths beyond the model's context; those of dry_run and make_phase.
Result<std::vector<TracePhase>> dry_phases(const Model& model, const TraceShape& shape);

/// One of them. Errors: InvalidArgument for a phase the model does not have.
Result<TracePhase> dry_phase(const Model& model, std::string_view name, const TraceShape& shape);

/// The form of attention that ran in a phase, "mha", "chunked", "absorbed" or "fused_rope": the row
/// of the table that its ops carry. Empty if no op does.
std::string attention_form_of(const TracePhase& phase);

/// A way to run a model, as flags say it, and what it then runs.
struct Variation {
  std::string flags;  ///< "--format bf16"; "as recorded"; "--as deepseek-v2-lite"
  std::vector<TracePhase> phases;
  std::string refusal;  ///< why the model cannot be run so; there are no phases then
};

/// The variation that drafts trees by the model's own layer.
inline constexpr std::string_view kDraftingFlags = "--speculative mtp --speculative-topk 2";

/// What else there is to run: the same configuration in every `--format`, with every strategy of
/// the experts and every form of attention, and the other built-in models, each with layers enough
/// to have one of every kind; drafts as trees; last, sampling. The first is the model itself. What
/// cannot run (a strategy that does not take a format) says why. Errors: those of open_model and
/// dry_run other than that.
Result<std::vector<Variation>> dry_variations(const Model& model, const TraceShape& shape);

}  // namespace fathom
