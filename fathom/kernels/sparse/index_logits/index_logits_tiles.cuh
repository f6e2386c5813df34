// Scores of e4m3 and e2m1 rows of 128 channels on the FP8 tensor cores of Hopper, up to 64 heads.
//
// A warpgroup is a block of its own, four on a multiprocessor: while one multiplies, others weigh
// what they have multiplied, and all wait for memory. It takes some tokens of a request, whose
// queries stay in shared memory, and 64 keys at a time, which come from memory straight into the
// registers that the product reads them from. Keys are the rows of a product and heads its columns:
// d[64 keys x 64 heads] = keys queries^T in four steps of 32 channels. A lane holds sixteen heads
// of two keys,
//
//   d[4 j + 2 h + e]   key 16 w + 8 h + lane / 4, head 8 j + 2 (lane % 4) + e,   w: the warp
//
// weighs and adds them, and the four lanes of a key add up theirs.
#pragma once

#include "fathom/kernels/cuda/products/warpgroup_products.cuh"
#include "fathom/kernels/sparse/index_logits/index_logits_codes.cuh"

namespace fathom::index_logits {

// ---- keys in registers ----

/// What a lane has of a tile: rows lane / 4 and lane / 4 + 8 of its warp's sixteen.
template <class Rows>
struct KeyTile {
  uint4 chunks[2][Rows::kChunks];
  uint32_t scales[2];
};

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

// ---- products ----

/// The logit of key lane / 4 + 8 (lane % 2) of the warp, of which the four lanes of a key have each
/// sixteen heads.
__device__ __forceinline__ float weigh_heads(const float (&d)[32], const float (&weights)[16]) {
  float sums[2][2] = {};
#pragma unroll
  for (int j = 0; j < 8; ++j) {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        const float x = d[4 * j + 2 * h + e];
        sums[h][e] = fmaf(x + fabsf(x), weights[2 * j + e], sums[h][e]);  // NaN stays
      }
    }
  }
  const float first = sums[0][0] + sums[0][1];
  const float second = sums[1][0] + sums[1][1];
  const bool odd = (cuda::lane_id() & 1) != 0;
  float sum = odd ? second : first;
  sum += __shfl_xor_sync(kAllLanes, odd ? first : second, 1);
  return sum + __shfl_xor_sync(kAllLanes, sum, 2);
}

__device__ __forceinline__ void load_weights(const QueryMemory& query, float (&weights)[16]) {
  const auto* quads = reinterpret_cast<const float4*>(query.weights[cuda::lane_id() % 4]);
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const float4 quad = quads[i];
    weights[4 * i] = quad.x;
    weights[4 * i + 1] = quad.y;
    weights[4 * i + 2] = quad.z;
    weights[4 * i + 3] = quad.w;
  }
}

/// The products of a tile of keys with the heads of a query, weighed and added: of this lane's key,
/// without its factor.
__device__ __forceinline__ float score(const DecodedRows& rows,
                                       const QueryMemory& query,
                                       const float (&weights)[16]) {
  const uint64_t heads = cuda::rows_operand(cuda::shared_address(query.codes));
  float d[32];
  cuda::begin_products();
#pragma unroll
  for (int step = 0; step < 4; ++step) {
    const uint32_t a[4] = {rows.words[0][2 * step], rows.words[1][2 * step],
                           rows.words[0][2 * step + 1], rows.words[1][2 * step + 1]};
    cuda::multiply_codes(d, a, heads + static_cast<uint64_t>(step) * (32 / 16), step > 0);
  }
  cuda::commit_products();
  cuda::wait_products<0>();
  return weigh_heads(d, weights);
}

/// What writes the logits of tiles.
template <bool kOneQuery>
class Scorer {
 public:
  /// Queries have been laid out.
  __device__ Scorer(const Call& c, const Queries& queries, const QueryMemory* memory)
      : c_(c), queries_(queries), memory_(memory) {
    const int lane = cuda::lane_id();
    offset_ = kWarpKeys * cuda::warp_id() + 8 * (lane & 1) + lane / 4;
    most_ = lane % 4 < 2 ? c.columns : 0;  // two of the lanes that have a logit write nothing
    if constexpr (kOneQuery) {
      load_weights(memory[0], weights_);
      range_ = queries.range(0);
      row_ = c.logits[queries.token];
    }
  }

  template <class Rows>
  __device__ __forceinline__ void run(int begin, const KeyTile<Rows>& tile) {
    DecodedRows rows;
    Rows::decode(tile.chunks, tile.scales, rows);
    const float factor = Rows::factor((cuda::lane_id() & 1) != 0 ? rows.scales[1] : rows.scales[0]);
    const int j = begin + offset_;
    if constexpr (kOneQuery) {
      const float logit = score(rows, memory_[0], weights_) * factor;
      if (j < most_) row_[j] = range_.sees(j) ? logit : -INFINITY;
    } else {
#pragma unroll 1
      for (int i = 0; i < queries_.count; ++i) {
        const Call::Range range = queries_.range(i);
        float logit = -INFINITY;
        if (begin < range.end && begin + kTileKeys > range.first) {  // the same in all threads
          load_weights(memory_[i], weights_);
          const float sum = score(rows, memory_[i], weights_);
          if (range.sees(j)) logit = sum * factor;
        }
        if (j < most_) c_.logits[queries_.token + i][j] = logit;
      }
    }
  }

 private:
  const Call& c_;
  const Queries& queries_;
  const QueryMemory* memory_;
  int offset_;  ///< of this lane's key in a tile
  int most_;    ///< keys that are written are below it
  float weights_[16];
  Call::Range range_;
  float* row_;
};

/// How a kernel is compiled.
template <class RowsOf, bool kWhole, bool kOne, bool kOfTrees = false>
struct Form {
  using Rows = RowsOf;
  static constexpr bool kWholePages = kWhole;
  static constexpr bool kOneQuery = kOne;
  static constexpr bool kTrees = kOfTrees;
  static_assert(!kTrees || (kOneQuery && !kWholePages), "a token of a tree has keys of its own");
};

/// Columns [begin, end) of tokens of one request.
template <class F>
__device__ __forceinline__ void score_request(const Call& c,
                                              const Cuts& cuts,
                                              int request,
                                              int token,
                                              int count,
                                              int begin,
                                              int end,
                                              QueryMemory* memory) {
  using Rows = typename F::Rows;
  Queries queries{token, count, {0, 0}};
  queries.find_ranges(c, request);
  const int first_key = queries.first_key(c);
  const int end_key = min(end, queries.end_key());
  const int first_tile = max(begin, first_key / kTileKeys * kTileKeys);
  const int tiles = tiles_of<kTileKeys>(first_tile, end_key);
  if (tiles == 0) return hide_columns(c, token, count, begin, end);

  constexpr int kBuffers = Rows::kBuffers;
  const uint64_t policy = cuda::weights_policy(cuts.read_once);
  TileKeys keys{.pages = c.pages_of(request), .first = first_key, .end = end_key};
  if constexpr (F::kTrees) keys.token = c.tree_token(token, queries.range(0).end);
  KeyTile<Rows> buffers[kBuffers];
  // Behind the last tile its last row is brought again, so that nothing needs to be asked.
  int next_tile = first_tile;
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
  hide_columns(c, token, count, begin, first_tile);
  hide_columns(c, token, count, min(end, first_tile + tiles * kTileKeys), end);
  __syncthreads();  // products of the request before have read their queries
  load_queries<Rows>(c, token, count, memory);
  cuda::fence_for_products();
  __syncthreads();
  Scorer<F::kOneQuery> scorer(c, queries, memory);
  int tile = first_tile;
  const int behind = first_tile + tiles * kTileKeys;
#pragma unroll 1
  while (tile < behind) {
#pragma unroll
    for (int u = 0; u < kBuffers; ++u) {
      load_tile<Rows>(cuts, places, policy, buffers[(u + kBuffers - 1) % kBuffers]);
      find_next();
      scorer.run(tile, buffers[u]);
      tile += kTileKeys;
      if (tile >= behind) break;
    }
  }
}

template <class F>
__global__ void __launch_bounds__(kThreads, kBlocksOfSm)
    score_codes(const __grid_constant__ Call c, const __grid_constant__ Cuts cuts) {
  extern __shared__ unsigned char logits_shared[];
  const uint32_t raw = cuda::shared_address(logits_shared);
  auto* memory = reinterpret_cast<QueryMemory*>(logits_shared + (kAtom - raw % kAtom) % kAtom);
  cuda::let_next_start();
  cuda::wait_for_previous();
  const BlockPart<kTileKeys> part(c, cuts);
  if constexpr (F::kOneQuery) {
    score_request<F>(c, cuts, c.request_of(part.number), part.number, 1, part.begin, part.end,
                     memory);
  } else {
    part.for_requests(c, cuts, [&](int request, int token, int count) {
      score_request<F>(c, cuts, request, token, count, part.begin, part.end, memory);
    });
  }
}

}  // namespace fathom::index_logits
