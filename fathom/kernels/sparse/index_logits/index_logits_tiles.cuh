// Scores of rows of codes, keys from memory straight into the registers that products read: of keys
// on any pages, one by one if they are those of trees.
#pragma once

#include "fathom/kernels/sparse/index_logits/index_logits_products.cuh"

namespace fathom::index_logits {

// ---- keys in registers ----

/// Where the rows of a lane lie.
struct RowPlaces {
  int pages[2];
  int rows[2];
};

/// Tiles of one request's keys, those from `first` to before `end`. Rows outside repeat one within.
struct TileKeys {
  const int32_t* pages;
  int first;
  int end;
  TreeToken token{};  ///< if the keys are those of a token of a tree

  __device__ int inside(int j) const { return index_logits::inside(j, first, end); }

  /// Looks up where the rows of the tile that begins at `begin` lie. kWholePages: a warp's sixteen
  /// rows are in one page. kTrees: rows are those that `token` sees.
  template <bool kWholePages, bool kTrees>
  __device__ __forceinline__ RowPlaces find(const Call& c, int begin) const {
    const int warp_begin = begin + kWarpKeys * cuda::warp_id();
    const int own = warp_begin + cuda::lane_id() / 4;
    RowPlaces places;
    if constexpr (kWholePages) {
      const int any = inside(warp_begin);
      const Call::Place at = c.place(pages, any);
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        places.pages[h] = at.page;
        places.rows[h] = at.row - any + inside(own + 8 * h);
      }
    } else {
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        int place = inside(own + 8 * h);
        if constexpr (kTrees) place = c.place_in_tree(token, place);
        const Call::Place at = c.place(pages, place);
        places.pages[h] = at.page;
        places.rows[h] = at.row;
      }
    }
    return places;
  }
};

/// Starts to bring the rows of a tile.
template <class Rows>
__device__ __forceinline__ void load_tile(const Cuts& cuts,
                                          const RowPlaces& places,
                                          uint64_t policy,
                                          KeyTile<Rows>& tile) {
  const int t = cuda::lane_id() % 4;
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    const std::byte* row = cuts.keys.at(places.pages[h], places.rows[h]);
#pragma unroll
    for (int chunk = 0; chunk < Rows::kChunks; ++chunk)
      tile.chunks[h][chunk] = cuda::load_16(row + Rows::chunk_offset(t, chunk), policy);
    tile.scales[h] =
        *reinterpret_cast<const uint32_t*>(cuts.key_scales.at(places.pages[h], places.rows[h]));
  }
}

/// The logits of a tile.
template <class Rows, bool kOneQuery>
__device__ __forceinline__ void score_tile(const KeyTile<Rows>& tile,
                                           int begin,
                                           int count,
                                           const QueryMemory& memory,
                                           LogitWriter<kOneQuery>& writer) {
  DecodedRows rows;
  Rows::decode(tile.chunks, tile.scales, rows);
  const float factor = rows.template factor<Rows>();
#pragma unroll 1
  for (int i = 0; i < (kOneQuery ? 1 : count); ++i) {
    float d[32];
    start_products(rows, memory.codes_of(i), d);
    cuda::wait_products<0>();
    writer.write(begin, i, d, factor);
  }
}

/// How a kernel is compiled.
template <class RowsOf, bool kWhole, bool kOne, bool kOfTrees = false>
struct Form {
  using Rows = RowsOf;
  static constexpr bool kWholePages = kWhole;
  static constexpr bool kOneQuery = kOne;
  static constexpr bool kTrees = kOfTrees;
  static_assert(!kTrees || (kOneQuery && !kWholePages), "a token of a tree has keys of its own");
};

/// The columns of a stretch.
template <class F>
__device__ __forceinline__ void score_stretch(const Call& c,
                                              const Cuts& cuts,
                                              const Stretch<kTileKeys>& stretch,
                                              int request,
                                              const QueryMemory& memory) {
  using Rows = typename F::Rows;
  const auto& [token, count, own] = stretch.queries;
  if (stretch.tiles == 0) return stretch.hide_others(c);

  constexpr int kBuffers = Rows::kBuffers;
  const uint64_t policy = cuda::weights_policy(cuts.read_once);
  TileKeys keys{.pages = c.pages_of(request), .first = stretch.first_key, .end = stretch.end_key};
  if constexpr (F::kTrees) keys.token = c.tree_token(token, stretch.queries.range(0).end);
  KeyTile<Rows> buffers[kBuffers];
  // Behind the last tile its last row is brought again, so that nothing needs to be asked.
  int next_tile = stretch.first_tile;
  RowPlaces places;
  const auto find_next = [&] {
    places = keys.template find<F::kWholePages, F::kTrees>(c, next_tile);
    next_tile += kTileKeys;
  };
#pragma unroll
  for (int n = 0; n + 1 < kBuffers; ++n) {
    find_next();
    load_tile<Rows>(cuts, places, policy, buffers[n]);
  }
  find_next();
  stretch.hide_others(c);
  __syncthreads();  // products of the request before have read their queries
  load_queries<Rows>(c, token, count, memory);
  cuda::fence_for_products();
  __syncthreads();
  LogitWriter<F::kOneQuery> writer(c, stretch.queries, memory);
  int tile = stretch.first_tile;
#pragma unroll 1
  while (tile < stretch.end_tile()) {
#pragma unroll
    for (int u = 0; u < kBuffers; ++u) {
      load_tile<Rows>(cuts, places, policy, buffers[(u + kBuffers - 1) % kBuffers]);
      find_next();
      score_tile(buffers[u], tile, count, memory, writer);
      tile += kTileKeys;
      if (tile >= stretch.end_tile()) break;
    }
  }
}

template <class F>
__global__ void __launch_bounds__(kThreads, kBlocksOfSm)
    score_codes(const __grid_constant__ Call c, const __grid_constant__ Cuts cuts) {
  extern __shared__ unsigned char logits_shared[];
  const QueryMemory memory = query_memory(logits_shared, cuts.queries);
  cuda::let_next_start();
  cuda::wait_for_previous();
  for_requests<kTileKeys, F::kOneQuery>(c, cuts,
                                        [&](const Stretch<kTileKeys>& stretch, int request) {
                                          score_stretch<F>(c, cuts, stretch, request, memory);
                                        });
}

}  // namespace fathom::index_logits
