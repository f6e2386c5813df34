// ops.md: every op with its shapes, kernel, cost and call sites.
#pragma once

#include <span>
#include <string>

#include "fathom/report/docs/source_links.h"
#include "fathom/report/record/dry_trace.h"
#include "fathom/report/recording.h"

namespace fathom {

/// Tables of each phase (attention, feed-forward of each kind of layer, what is outside of layers);
/// then, over all variations: the kernels of each op, the ops of each strategy of the experts and
/// of each form of attention, and where each op is named.
std::string write_op_doc(const Recording& recording,
                         std::span<const Variation> variations,
                         const SourceLinks& links);

}  // namespace fathom
