// Loading: from a checkpoint into the memory of the plan, in parallel, without a second copy.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "fathom/base/status.h"
#include "fathom/os/thread_pool.h"
#include "fathom/weights/load/fill.h"
#include "fathom/weights/stored_tensors.h"
#include "fathom/weights/weight_store.h"

namespace fathom {

/// Reads the tables of indices, allocates the store, reads and packs every weight, binds the views
/// of the model. Indices, scales and the numbers of routers are checked. Peak memory of the host is
/// the store and the staging, of a plan for a GPU the staging and one kv_b. Errors: OutOfMemory;
/// those of reading; Corrupt for a scale that is negative or not finite and for a number of a
/// router that is not finite, and for an index that is out of range, naming tensor and index.
Result<WeightStore> load_weights(const WeightPlan& plan,
                                 const Checkpoint& checkpoint,
                                 ThreadPool& pool,
                                 const LoadOptions& options = {});

/// Random weights in place of a checkpoint: the same shapes, formats and layouts. Errors:
/// OutOfMemory.
Result<WeightStore> random_weights(const WeightPlan& plan,
                                   ThreadPool& pool,
                                   uint64_t seed,
                                   const LoadOptions& options = {});

/// A small text file of a checkpoint directory, such as config.json. Errors: NotFound, Io, Corrupt
/// beyond max_bytes.
Result<std::string> read_model_text(const std::string& directory,
                                    std::string_view name,
                                    int64_t max_bytes = 4ll << 20);

}  // namespace fathom
