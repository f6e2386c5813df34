// Pins against what a model runs, before any of its weights are read.
#pragma once

#include "fathom/base/status.h"
#include "fathom/kernels/core/exec.h"
#include "fathom/models/model.h"
#include "fathom/runtime/executor/compute.h"

namespace fathom {

/// Refuses pins that nothing would obey. Passes of each kind and the draw of tokens run on shapes,
/// each pin by itself, with the kernels of `compute`; the model may be dry. A pin that some of them
/// obey stays: a step that it cannot apply to is refused when it comes. So does a pin of a kernel
/// that this model does not run.
/// Errors, each naming the pin: InvalidArgument for a name that is no op of the model and no
/// kernel, and for a variant that no kernel of the pin has, both with near names; Unsupported for a
/// variant that takes none of the calls; those of dry_run.
Status check_pins(const Pins& pins, const Model& model, const Compute& compute);

}  // namespace fathom
