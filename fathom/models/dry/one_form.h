// Whether steps of any number of rows take the same variants.
#pragma once

#include "fathom/models/model.h"

namespace fathom {

/// Unsupported, naming an op, if a step of a token or two takes another variant for it than steps
/// of more do, or runs it where those do not: asked of dry runs with options.kernels, which are
/// batch invariant. Errors: those of dry_run.
Status check_one_form(const Model& model, const DryRunOptions& options);

}  // namespace fathom
