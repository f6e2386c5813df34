// The memory that steps take besides weights and cache, worked out before any of it is allocated.
//
// Dry runs of the largest steps give the high-water marks. Which steps are the largest is derived:
//
//   activations  Every part of a pass takes memory that grows with its tokens, its requests and the
//                lengths of their contexts; no part takes less for more (attend_request of the
//                chunked form, which goes through keys piece by piece, is written so). The parts do
//                not use the arena at the same time, so each is largest in one of a few steps: all
//                tokens of the budget in one prompt at the end of the context (chunked form), as
//                many fresh ones as the form without a prefix takes, a row of logits for every
//                sequence, all sequences decoding at the end of the context.
//   workspaces   The same on the CPU, whose kernels say what they take for their shapes. Kernels of
//                a GPU split long contexts by the shape of a step and take most somewhere in the
//                middle: there each shape that a step can have is asked for.
#pragma once

#include <algorithm>
#include <cstdint>

#include "fathom/base/status.h"
#include "fathom/models/model.h"

namespace fathom {

/// The largest steps of an executor.
struct StepShape {
  int64_t max_num_seqs = 1;            ///< requests of a step, of both ranges together
  int64_t max_num_batched_tokens = 1;  ///< tokens of a step
  int64_t max_model_len = 1;           ///< tokens of a sequence
  int64_t max_queries = 1;             ///< tokens of a sequence that decodes: 1 and its drafts
  int64_t num_ids = 1;                 ///< ids from here on are padding of the vocabulary
  bool all_logits = false;             ///< prompts may ask for the logits of all their tokens
  bool drafts = false;                 ///< passes of the draft head
  bool trees = false;                  ///< drafts may be trees
  int num_threads = 1;
  const KernelSet* kernels = nullptr;  ///< those that will run; null: workspaces are the CPU's
  const DeviceInfo* gpu = nullptr;     ///< null: the CPU

  /// Rows of logits that a step samples at most.
  int64_t max_samples() const { return max_num_seqs * max_queries; }

  /// Draft passes of a chain at most (Step::chain): each draft but the first comes of one, and the
  /// first of the pass behind a step.
  int64_t most_chained() const { return std::max<int64_t>(max_queries - 2, 1); }

  /// Rows of logits of a step at most, those of padding included.
  int64_t max_logit_rows() const;

  /// Tokens of a prompt that one step takes at most.
  int64_t max_prompt() const { return std::min(max_num_batched_tokens, max_model_len); }

  /// Requests that the decode range is padded to at most.
  int64_t padded_seqs() const;

  /// Tokens of a step at most, those of padding included.
  int64_t max_tokens() const { return max_num_batched_tokens + padded_seqs() * max_queries; }

  /// Tokens of sequences that decode in a step with trees; 0 without trees.
  int64_t tree_tokens() const { return trees ? padded_seqs() * max_queries : 0; }

  /// Makes room in a buffer for the largest step, so that no step allocates.
  void reserve(BatchBuffer& batch, const CacheLayout& layout) const;
};

/// What a step takes where the model runs, sampling included. Errors: Unsupported for a model that
/// has no kernels there, naming the op.
Result<MemoryNeeds> step_memory(const Model& model, const StepShape& shape);

}  // namespace fathom
