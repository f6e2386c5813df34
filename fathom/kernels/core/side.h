// Whether calls may run beside each other, and where.
#pragma once

#include "fathom/device/stream.h"
#include "fathom/kernels/core/exec.h"

namespace fathom {

/// Which of Exec::sides.
enum class SideNumber : uint8_t { kFirst, kSecond };

/// On streams of their own, or in a dry run for a device that has some.
inline bool has_side(const Exec& ex) {
  return ex.sides != nullptr || (ex.dry() && ex.device != nullptr);
}

/// Not in a dry run.
inline SideStream& stream_of(const Exec& ex, SideNumber side) {
  return ex.sides->all[static_cast<size_t>(side)];
}

}  // namespace fathom
