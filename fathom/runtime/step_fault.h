// What an error means that comes out of a step.
#pragma once

#include "fathom/base/status.h"
#include "fathom/kernels/core/exec.h"

namespace fathom {

/// The error of a forward pass as what it is to the caller. Requests, sizes and kernels were
/// checked before the pass, on shapes: what is refused within it (an arena that is too small,
/// operands that do not fit, a kernel that is missing) is a fault of the engine, so its code
/// becomes Internal and its message stays. Cancelled, Numerical, DeviceLost and Io keep their code,
/// and so does Unsupported where `pins` ask for variants: that choice is the caller's, and is met
/// here first.
Status step_fault(Status status, const Pins* pins);

}  // namespace fathom
