// The plans that `inspect` prints: weights by format, memory on a device, the kernel of each op.
#pragma once

#include <cstdint>
#include <string>

#include "fathom/base/status.h"
#include "fathom/models/model.h"

namespace fathom::cli {

struct PlanOptions {
  std::string device;         ///< "cpu", "h200", "8xh200", ...; empty: cpu, or 8xh200 for a preset
  int64_t max_model_len = 0;  ///< 0: the model's
  int64_t max_num_seqs = 8;
  int threads = 1;
  const KernelSet* kernels = nullptr;  ///< of this machine's CPU
  bool preset = false;  ///< too large for this machine is then no reason to plan for it
};

struct MemoryVerdict {
  std::string text;
  std::string verdict;
  bool fits = false;
};

/// Tensors by role and format: count, parameters, bytes, share.
Result<std::string> weights_table(const Model& model);

/// Weights, step memory, and the cache as bytes per sequence and per token; the same for a sequence
/// of 4k, 128k, 1M tokens and of the context; how many sequences of three lengths fit. Errors:
/// InvalidArgument for a length beyond the model's context and for more sequences of it than a dry
/// run has room for.
Result<MemoryVerdict> memory_plan_text(const Model& model, const PlanOptions& options);

/// Every distinct op of a decode step and of a prefill chunk: shape, kernel, variant, the time that
/// the device's roof allows for batch 1 and 64.
Result<std::string> kernel_plan_text(const Model& model, const PlanOptions& options);

}  // namespace fathom::cli
