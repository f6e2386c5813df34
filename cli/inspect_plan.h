// The plans that `inspect` prints: weights by format, memory on a device, the kernel of each op.
#pragma once

#include <cstdint>
#include <string>

#include "fathom/base/status.h"
#include "fathom/device/device.h"
#include "fathom/models/model.h"

namespace fathom::cli {

/// The machine of a plan.
struct PlanDevice {
  std::string name;          ///< "cpu", "8xh200"
  std::string gpu;           ///< "h200"; empty: the CPU
  int count = 1;             ///< of them
  int64_t memory_bytes = 0;  ///< of all
  double gb_per_s = 0;       ///< of one, by the data sheet; 0: the CPU, which has no roof here
  double bf16_tflops = 0;
  bool is_default = false;  ///< nobody named it
};

/// "cpu", "h200", "8xh200", ...; empty: cpu, or 8xh200 for a preset, which is too large for this
/// machine. Errors: InvalidArgument with the known names.
Result<PlanDevice> plan_device(const std::string& name, bool preset);

struct PlanOptions {
  PlanDevice device;
  int64_t max_model_len = 0;  ///< 0: the model's
  int64_t max_num_seqs = 8;
  int threads = 1;
  const KernelSet* kernels = nullptr;  ///< of `gpu`, or of this machine's CPU
  const DeviceInfo* gpu = nullptr;     ///< whose kernels these are; null: this machine's CPU
  std::string kernels_of;              ///< "h200", "this CPU"
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
/// InvalidArgument for a length beyond the model's context.
Result<MemoryVerdict> memory_plan_text(const Model& model, const PlanOptions& options);

/// "8xh200 (the default of --as; --device plans for another machine), 1.03 TiB of memory".
std::string device_text(const PlanDevice& device);

/// Every distinct op of a decode step and of a prefill chunk: shape, kernel, variant, how often it
/// is called at batch 1 and 64, the time that the device's roof allows for either.
Result<std::string> kernel_plan_text(const Model& model, const PlanOptions& options);

}  // namespace fathom::cli
