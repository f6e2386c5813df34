// From the checkpoint's layout to the layout of the kernels, once, at load: packing rows, the
// absorbed copies of kv_b, random weights.
#pragma once

#include <cstddef>
#include <cstdint>

#include "fathom/formats/tile_layout.h"
#include "fathom/os/thread_pool.h"
#include "fathom/weights/weight_store.h"

namespace fathom {

/// Row groups from `first_group` on of an item in layout kRows16, as `rows` rows.
Rows16Matrix rows16_slice(const WeightItem& item,
                          std::byte* base,
                          int64_t first_group,
                          int64_t rows);

/// Fills an absorbed copy (kAbsorbedK, kAbsorbedV) from kv_b, which lies in the store already. In
/// bf16 a quantised kv_b is rounded once, to nearest even.
void build_absorbed(const WeightItem& kv_b,
                    const WeightItem& item,
                    std::byte* base,
                    ThreadPool& pool);

/// Fills a vector, table or matrix with random weights of about unit gain, directly in the layout
/// of the kernels. The bytes depend on seed and index alone, not on the number of threads. Norm
/// weights are 1.
void fill_random(
    const WeightItem& item, uint64_t index, std::byte* base, ThreadPool& pool, uint64_t seed);

}  // namespace fathom
