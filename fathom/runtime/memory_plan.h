// The memory plan: what an engine will take, worked out before anything is read or allocated.
//
//   weights      the formats and shapes of the tensors
//   step         the high-water marks of dry runs of the largest steps (executor/step_memory.h)
//   cache        slots for max_num_seqs sequences, and blocks for as many or for what remains
#pragma once

#include <cstdint>
#include <string>

#include "fathom/base/status.h"
#include "fathom/models/model.h"
#include "fathom/runtime/executor/step_memory.h"

namespace fathom {

/// How many blocks are wanted.
enum class KvSizing : uint8_t {
  kByRequest,  ///< max_num_seqs sequences of max_model_len; fewer if memory is short
  kRemaining,  ///< all that the budget leaves (`serve`), at most 16 Mi tokens
};

struct MemoryRequest {
  int64_t max_model_len = 0;  ///< 0: the model's, lowered to what fits
  int64_t max_num_seqs = 8;
  int64_t max_num_batched_tokens = 512;
  int64_t num_ids = 1;      ///< of the tokenizer
  int64_t max_queries = 1;  ///< of a sequence that decodes: 1 and its drafts
  bool drafts = false;      ///< passes of the draft layer
  bool trees = false;       ///< drafts may be trees
  int num_threads = 1;
  const KernelSet* kernels = nullptr;  ///< those that will run
  const DeviceInfo* gpu = nullptr;     ///< whose memory it is; null: the host's
  KvSizing sizing = KvSizing::kByRequest;
  double memory_fraction = 0.9;  ///< of available_bytes
  int64_t available_bytes = 0;   ///< free memory before the weights are loaded; 0: not known
};

/// Rings and states of a sequence: its own, and those of a snapshot that prefix hits start from.
inline constexpr int64_t kSlotsOfSequence = 2;

struct MemoryPlan {
  int64_t weight_bytes = 0;
  MemoryNeeds step;
  CacheLayout cache;
  int64_t num_blocks = 0;
  int64_t num_slots = 0;  ///< for rings and states: one a sequence, and as many snapshots
  int64_t cache_bytes = 0;
  int64_t max_model_len = 0;
  bool lowered = false;  ///< max_model_len is below the model's context, to fit
  int64_t available_bytes = 0;
  int64_t budget_bytes = 0;  ///< memory_fraction of it
  StepShape shape;

  int64_t total_bytes() const { return fixed_bytes() + cache_bytes; }

  /// All but the cache.
  int64_t fixed_bytes() const {
    return weight_bytes + step.activation_bytes + step.scratch_bytes + step.hidden_bytes;
  }

  int64_t cached_tokens() const { return num_blocks * cache.block_tokens; }

  /// A table of the regions, and how many sequences of three lengths fit.
  std::string text() const;
};

/// Plans for a model, which may be dry. Errors: InvalidArgument for a max_model_len beyond the
/// model's; OutOfMemory for what cannot fit, naming what is needed, what is there, and the flag
/// that changes it.
Result<MemoryPlan> plan_memory(const Model& model, const MemoryRequest& request);

}  // namespace fathom
