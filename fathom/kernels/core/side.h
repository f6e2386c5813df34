// Whether calls may run beside each other.
#pragma once

#include "fathom/kernels/core/exec.h"

namespace fathom {

/// On the second stream, or in a dry run for a device that has one.
inline bool has_side(const Exec& ex) {
  return ex.side != nullptr || (ex.dry() && ex.device != nullptr);
}

}  // namespace fathom
