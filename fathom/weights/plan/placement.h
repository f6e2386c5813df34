// Where the weights of a model go: on which device, and which part of them. Whoever declares or
// loads weights asks here; models and layers name no device.
#pragma once

#include <cstdint>

#include "fathom/device/memory.h"
#include "fathom/formats/format.h"
#include "fathom/tensor/quant_view.h"

namespace fathom {

/// How the routed experts of a layer are shared out among ranks.
enum class ExpertShards : uint8_t {
  kWidth,   ///< each rank has a part of every expert, as of every other block
  kNumber,  ///< each rank has some experts whole, in order
};

/// The part of a model that one rank of `count` holds.
struct Shard {
  int rank = 0;
  int count = 1;
  ExpertShards experts = ExpertShards::kWidth;

  bool whole() const { return count == 1; }
};

/// Handed to the weight plan, which asks it how each weight lies.
struct Placement {
  DeviceKind device = DeviceKind::kCpu;
  Shard shard = {};

  /// What a weight that is stored in `format` has in memory: one scale for all rows is one for
  /// each. A GPU has MXFP4 in the form of NVFP4, which its products take
  /// (formats/block/mxfp4_as_nvfp4.h).
  Format memory_format(Format format) const;

  /// How a linear weight of `k` columns lies, as the kernels of the device take it: on a CPU in
  /// tiles (kRows16) where the format has them, on a GPU row-major (NVFP4: kPairs).
  WeightLayout layout(Format format, int64_t k) const;

  /// Rows that a matrix needs a multiple of to have another one below it in the same weight.
  int64_t row_step(Format format) const;

  /// Whether matrices below each other keep a global scale each: tiles have one for each group of
  /// rows, a row-major matrix has one.
  bool keeps_global_scales() const { return is_host(); }

  /// Whether rows that need not lie in one matrix should: a GPU is busier with one product.
  bool joins_free_rows() const { return !is_host(); }

  /// Whether experts whose two matrices cannot lie in one may be two stacks.
  bool may_part_experts() const { return !is_host(); }

  /// Of the beginning of each part of a weight, in bytes.
  int64_t alignment() const { return is_host() ? 64 : 256; }

  /// The host can read what lies there.
  bool is_host() const { return device == DeviceKind::kCpu; }
};

}  // namespace fathom
