// Weights of a checkpoint, brought into the layout of the plan: tiles, pairs, or rows as stored.
#pragma once

#include <vector>

#include "fathom/weights/checkpoint/checkpoint.h"
#include "fathom/weights/load/fill.h"
#include "fathom/weights/plan/weight_plan.h"

namespace fathom {

/// A source for fill_store. The checkpoint outlives it, the items their jobs. Errors of the source
/// and its jobs: those of reading; Corrupt for a scale that is negative or not finite and for a
/// number of a router that is not finite, naming tensor and index.
JobSource checkpoint_source(const Checkpoint& checkpoint);

/// Whether the tables of indices hold what they may hold: read before memory for the weights is
/// taken, so that jobs need not look again. Errors: those of reading; Corrupt for a number that is
/// out of range, naming tensor, element and range.
Status check_index_tables(const WeightPlan& plan, const Checkpoint& checkpoint);

}  // namespace fathom
