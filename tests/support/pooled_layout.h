// A layout with a ring and rows that are pooled from it, for tests of batches and caches.
#pragma once

#include "fathom/models/cache_layout.h"

namespace fathom {

/// A ring of twelve rows with a window of eight, and rows of four tokens, each pooled from eight
/// entries: its own and those of the row before it.
inline CacheLayout pooled_rows() {
  const PageCodec codec = PageCodec::dense("rows", Format::kF32, 1, nullptr);
  return {.block_tokens = 8,
          .groups = {{.name = "state",
                      .layers = {0},
                      .extent = CacheExtent::kWindow,
                      .window = 8,
                      .rows = 12,
                      .codec = codec},
                     {.name = "rows",
                      .layers = {0},
                      .tokens_per_row = 4,
                      .rows = 2,
                      .pool_ring = 0,
                      .pool_entries = 8,
                      .codec = codec}}};
}

}  // namespace fathom
