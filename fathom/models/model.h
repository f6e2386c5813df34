// Model: the one virtual seam between the engine and an architecture.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>

#include "fathom/base/status.h"
#include "fathom/device/device.h"
#include "fathom/kernels/core/exec.h"
#include "fathom/layers/attention/mla.h"
#include "fathom/layers/ffn/moe.h"
#include "fathom/models/batch.h"
#include "fathom/models/cache_layout.h"
#include "fathom/models/config/config.h"
#include "fathom/weights/weight_store.h"

namespace fathom {

/// How a model runs. What it is comes from its configuration.
struct ModelOptions {
  Format activations = Format::kBf16;    ///< bf16 or f32; the residual stream has it too
  std::optional<Format> kv_format;       ///< bf16, f32, e4m3 or nvfp4; default: the activations'
  std::optional<Format> indexer_format;  ///< of the indexer's keys: bf16, f32, e4m3 or mxfp4
  int64_t page_size = 64;                ///< tokens of a KV page
  int64_t max_positions = 0;  ///< longest context; 0: max_position_embeddings of the configuration
  bool draft = true;          ///< load the draft layer where there is one
  Nvfp4Inputs nvfp4_inputs = Nvfp4Inputs::kExact;  ///< of all products with weights in NVFP4
  /// On a GPU: of each kernel one form for steps of any number of rows
  /// (KernelSet::batch_invariant). Goes with one form of attention, attention.always_absorbed.
  bool batch_invariant = false;
  AttentionOptions attention;
  MoeOptions moe;
  /// Streams of DeepSeek-V4, few tokens: one kernel from a sub-layer to the input of the next
  /// (mhc_chain), whose sums have another order than those of many tokens.
  bool chain_streams = false;

  Format cache_format() const { return kv_format.value_or(activations); }

  /// What the models were trained with, unless said otherwise: e4m3 in V3.2, mxfp4 in V4.
  Format index_format(const ModelConfig& config) const {
    return indexer_format.value_or(config.is_v4() ? Format::kMxfp4 : Format::kE4m3);
  }
};

/// Errors: InvalidArgument naming option, value and what is expected.
Status validate_options(const ModelOptions& options, const ModelConfig& config);

/// A model without its weights until attach(). forward() and draft() are const and keep no state
/// between calls; everything that lives on is in the cache.
class Model {
 public:
  virtual ~Model() = default;

  virtual const ModelConfig& config() const = 0;
  virtual const ModelOptions& options() const = 0;

  /// Every weight, with the place of its view. The model must not move afterwards.
  virtual Status declare_weights(WeightPlan& plan) = 0;

  /// Takes the memory that the declared views point into, and builds what follows from the
  /// configuration. A dry store gives a model for dry runs.
  virtual Status attach(WeightStore store) = 0;

  virtual const WeightStore& weights() const = 0;

  /// Numbers of ForwardOut::hidden a token.
  virtual int64_t state_width() const { return config().hidden_size; }

  /// What it keeps of the tokens it has seen. Batches carry slots and rows of its groups in order.
  virtual CacheLayout cache_layout() const = 0;

  /// One pass over the tokens of a batch. Results lie in the activation arena. Errors: those of the
  /// kernels, such as InvalidArgument for a token id outside the vocabulary.
  virtual Status forward(Exec& ex, const Batch& batch, ForwardOut& out) const = 0;

  virtual bool has_draft() const { return false; }

  /// Whether the tokens of a step may be trees (SequenceStep::parents), each of which attends to
  /// its own path alone.
  virtual bool takes_trees() const { return false; }

  /// The draft head: row i has the token after position i and, of `hidden` [T, H], the state of
  /// position i after the final norm (of the main model, or of an earlier draft step). Logits are
  /// for the token after that. With Batch::state_rows `hidden` has any number of rows, and may be
  /// the memory of Batch::hidden as well: it is read before states are written. Errors: Unsupported
  /// without a draft layer.
  virtual Status draft(Exec& ex, const Batch& batch, const View& hidden, ForwardOut& out) const = 0;
};

/// Memory of one step besides weights and cache.
struct MemoryNeeds {
  int64_t activation_bytes = 0;
  int64_t scratch_bytes = 0;
  int64_t hidden_bytes = 0;  ///< of states that outlive their step; a dry run takes none
};

/// The size of a step without its contents.
struct BatchShape {
  struct Requests {
    int64_t count = 0;
    int64_t new_tokens = 1;  ///< of each request
    int64_t cached = 0;      ///< tokens that each has in its pages
  };

  Requests prefill = {};
  Requests more_prefill = {};  ///< behind them, of another size
  Requests decode = {};
  LogitRows logits = LogitRows::kLast;
  DecodePadding padding = {};
  bool trees = false;  ///< requests that decode are trees
};

enum class DryPass : uint8_t { kForward, kDraft };

struct DryRunOptions {
  int num_threads = 1;                 ///< sizes workspaces
  const KernelSet* kernels = nullptr;  ///< each call takes one of its variants or is refused
  /// The GPU that is planned for, if `kernels` are a GPU's: they choose variants and size
  /// workspaces by its multiprocessors and caches. It is handed on to them; no model or layer reads
  /// it.
  const DeviceInfo* gpu = nullptr;
  Recorder* recorder = nullptr;  ///< gets every op with its cost
  const Pins* pins = nullptr;    ///< null: none
  DryPass pass = DryPass::kForward;
  bool selects_states = false;  ///< a draft pass chooses a row of states for each token
};

/// Runs a forward pass (or the draft head) on shapes alone: no weights, no tokens, no results. It
/// gives the arenas' high-water marks.
Result<MemoryNeeds> dry_run(const Model& model,
                            const BatchShape& shape,
                            const DryRunOptions& options = {});

}  // namespace fathom
