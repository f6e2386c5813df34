// Checks of the GPU that need kernels of their own: the number formats, and the ceilings of the
// machine that times are held against.
#pragma once

#include <string>
#include <vector>

#include "fathom/device/device.h"

namespace fathom {

/// Every code of every small format decoded, and float32 values of all exponents (every rounding
/// tie among them) encoded, by the instructions of the GPU and by formats/minifloat.h. What
/// differs, in words.
std::vector<std::string> check_number_formats();

/// Lines that say how fast a copy of 1 GiB is, and what an empty kernel takes inside a graph.
std::vector<std::string> measure_ceilings(const DeviceInfo& device);

}  // namespace fathom
