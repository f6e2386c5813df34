// Weights in memory of a GPU: rows as the checkpoint has them (NVFP4 in layout kPairs), sent
// through pinned memory.
#pragma once

#include <cstdint>

#include "fathom/base/status.h"
#include "fathom/os/thread_pool.h"
#include "fathom/weights/loader.h"

namespace fathom {

/// load_weights of a plan that is placed on a GPU, the one in use. Errors: those of load_weights;
/// Unavailable without a GPU; Unsupported for formats that no kernel of a GPU takes.
Result<WeightStore> load_weights_to_gpu(const WeightPlan& plan,
                                        const Checkpoint& checkpoint,
                                        ThreadPool& pool,
                                        const LoadOptions& options);

/// random_weights of such a plan. Parts of more than 32 MiB repeat with that period, so that
/// gigabytes take no longer than the GPU needs to write them.
Result<WeightStore> random_weights_on_gpu(const WeightPlan& plan, ThreadPool& pool, uint64_t seed);

}  // namespace fathom
