// Where the weights of a model go: on which device, and which part of them.
#pragma once

#include <cstdint>

#include "fathom/device/memory.h"

namespace fathom {

/// The part of a model that one rank of `count` holds.
struct Shard {
  int rank = 0;
  int count = 1;

  bool whole() const { return count == 1; }
};

/// Handed to the weight plan with the checkpoint; models and layers name no device.
struct Placement {
  DeviceKind device = DeviceKind::kCpu;
  int ordinal = 0;  ///< of the GPU; 0 on the CPU
  Shard shard = {};
};

}  // namespace fathom
