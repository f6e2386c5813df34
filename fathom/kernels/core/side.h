// Whether calls may run beside each other, and where.
#pragma once

#include <array>

#include "fathom/device/stream.h"
#include "fathom/kernels/core/exec.h"

namespace fathom {

/// A stream beside the first one of a device.
enum class SideNumber : uint8_t { kFirst, kSecond };

/// By SideNumber. Exec::side is the first of them.
using SideStreams = std::array<SideStream, 2>;

/// On streams of their own, or in a dry run for a device that has some.
inline bool has_side(const Exec& ex) {
  return ex.side != nullptr || (ex.dry() && ex.device != nullptr);
}

/// Not in a dry run.
inline SideStream& stream_of(const Exec& ex, SideNumber side) {
  return ex.side[static_cast<size_t>(side)];
}

}  // namespace fathom
