// Random weights in place of a checkpoint: the same shapes, formats and layouts.
#pragma once

#include <cstdint>

#include "fathom/weights/load/fill.h"

namespace fathom {

/// A source for fill_store: matrices of about unit gain, norms of 1, biases of 0, drawn directly in
/// the layout of the plan. The bytes depend on the seed, the place of an item in the plan and, for
/// what ranks share out, the rank; never on the number of threads. Where a sink repeats, parts of
/// more than about 32 MiB have that period, so that gigabytes take no longer than the sink needs.
/// The plan outlives the source.
JobSource random_source(const WeightPlan& plan, uint64_t seed);

}  // namespace fathom
