// From the checkpoint's layout to the layout of the kernels, once, at load: packing rows, the
// absorbed copies of kv_b, random weights.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

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

/// One part of a row-major item with random contents: in 64 bits at a time, those of `random` are
/// drawn, those of `fixed` are set.
struct RandomPart {
  int64_t offset = 0;  ///< in the store
  int64_t bytes = 0;
  uint64_t random = 0;
  uint64_t fixed = 0;
};

/// The parts of an item on a GPU, with weights as those of fill_random.
std::vector<RandomPart> random_parts(const WeightItem& item);

/// The first bytes of a part. They depend on the part and `stream` alone.
void fill_random_part(const RandomPart& part,
                      uint64_t stream,
                      std::span<std::byte> out,
                      ThreadPool& pool);

}  // namespace fathom
