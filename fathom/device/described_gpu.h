// GPUs by name, for plans on machines that have none.
#pragma once

#include <optional>
#include <string_view>
#include <vector>

#include "fathom/device/device.h"

namespace fathom {

/// What kernels ask of such a GPU when they choose a variant and size a workspace. Its ordinal is
/// -1: it is described and cannot be asked. Nothing for a name that is not known.
std::optional<DeviceInfo> described_gpu(std::string_view name);

/// "h100", "h200", ...
std::vector<std::string_view> described_gpu_names();

}  // namespace fathom
