// The streams beside the first one of a device.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "fathom/device/stream.h"

namespace fathom {

/// Which of them.
enum class Side : uint8_t { kFirst, kSecond };

/// By Side. Exec::side is the first of them.
using SideStreams = std::array<SideStream, 2>;

/// Errors: Unavailable without a GPU.
Result<SideStreams> create_side_streams();

}  // namespace fathom
