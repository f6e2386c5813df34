// kernels.md: every kernel with the ops that use it, and each chain of calls up to the model's
// entry.
#pragma once

#include <span>
#include <string>

#include "fathom/report/docs/source_links.h"
#include "fathom/report/record/dry_trace.h"
#include "fathom/report/recording.h"

namespace fathom {

/// Kernels that the recording or a variation reaches, in the order of the catalogue: names in the
/// reference stack, ops, flags that lead to it, and the chains: launch, op, scopes, model.
std::string write_kernel_doc(const Recording& recording,
                             std::span<const Variation> variations,
                             const SourceLinks& links);

}  // namespace fathom
