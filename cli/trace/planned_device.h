// Devices by name, for dry runs: `--device h200` on a machine that has none.
#pragma once

#include <string>

#include "fathom/device/device.h"

namespace fathom::cli {

/// A device that a dry run plans for.
struct PlannedDevice {
  std::string name;     ///< "cpu", "h200", ...
  DeviceInfo gpu = {};  ///< described; sm 0: the CPU

  bool is_gpu() const { return gpu.sm > 0; }
};

/// Errors: InvalidArgument with the known names and near ones; Unavailable for a GPU in a build
/// that has no kernels for it.
Result<PlannedDevice> planned_device(const std::string& name);

}  // namespace fathom::cli
