// Attention of ragged requests on the tensor cores of Hopper: what tiles of any widths share. A
// block is three warpgroups: two have 64 queries each and compute, one brings blocks of keys and
// values. Scores stay in registers: as accumulators of one product they are, packed, the operand of
// the next.
#pragma once

#include <cmath>

#include "fathom/kernels/attn/ragged_attention/ragged_attention_call.cuh"
#include "fathom/kernels/cuda/tensor_core.cuh"

namespace fathom::ragged {

using namespace cuda;  // NOLINT: device primitives

inline constexpr int kBlockThreads = 3 * kWarpgroup;
inline constexpr int kTwoTermKeys = 512;  ///< up to here a weight enters as two bf16

// ---- what a block works on ----

/// Barriers of stage s: keys filled, values filled, keys free, values free.
struct Barriers {
  uint32_t base;

  __device__ uint32_t full(int stage, int values) const {
    return base + 8 * static_cast<uint32_t>(2 * stage + values);
  }

  __device__ uint32_t free(int stage, int values) const { return full(stage, values) + 32; }

  __device__ void init() const {
    for (int stage = 0; stage < 2; ++stage) {
      for (int values = 0; values < 2; ++values) {
        barrier_init(full(stage, values), kWarpgroup);
        barrier_init(free(stage, values), 8 * kWarpArrivals);  // warps that compute
      }
    }
    fence_barriers();
  }
};

inline constexpr int64_t kBarrierBytes = 8 * 8;

/// Queries of a head and the blocks of keys that they see. Blocks past the last tile have none.
struct Tile {
  Request request;
  int64_t head = 0;
  int64_t first = 0;  ///< of the request's queries
  int num_queries = 0;
  int first_block = 0;  ///< of the keys
  int num_blocks = 0;
};

/// Tiles of a head follow each other, so that its keys stay in the cache; the last queries, which
/// see the most keys, come first.
template <int kTileQueries, int kBlockKeys>
__device__ inline Tile tile_of(const Call& c, int64_t tiles_each_head) {
  Tile t;
  const auto block = static_cast<int64_t>(blockIdx.x);
  t.head = block / tiles_each_head;
  int64_t index = tiles_each_head - 1 - (block - t.head * tiles_each_head);
  for (int b = 0; b < c.B; ++b) {
    const Request r = request_of(c, b);
    const int64_t tiles = (r.queries + kTileQueries - 1) / kTileQueries;
    if (index < tiles) {
      t.request = r;
      t.first = index * kTileQueries;
      const int64_t left = r.queries - t.first;
      t.num_queries = left < kTileQueries ? static_cast<int>(left) : kTileQueries;
      const int64_t begin = r.seen(c, t.first).begin;
      int64_t end = r.seen(c, t.first + t.num_queries - 1).end;
      if (end > r.keys) end = r.keys;
      t.first_block = static_cast<int>(begin / kBlockKeys);
      const int64_t last = (end + kBlockKeys - 1) / kBlockKeys;
      t.num_blocks = last > t.first_block ? static_cast<int>(last - t.first_block) : 0;
      return t;
    }
    index -= tiles;
  }
  return t;
}

/// The most tiles that T queries of B requests make: what each of them really has is in memory of
/// the GPU, and a captured graph must stay right when it changes.
inline int64_t most_tiles(const Call& c, int64_t tile_queries) {
  return c.T == 0 ? 0 : c.T / tile_queries + c.B;
}

/// Rows first .. of a head to panels; rows from `count` on are zeros and not read.
template <int kPanelsOfRow, uint32_t kPanelBytes>
__device__ __forceinline__ void copy_rows(const HeadRows& from,
                                          int64_t first,
                                          int64_t head,
                                          int64_t count,
                                          uint32_t to,
                                          int row,
                                          int num_rows,
                                          int step) {
  const int chunk = static_cast<int>(threadIdx.x) & 7;
  const auto* data = static_cast<const Bf16*>(from.data) + from.offset(first, head) + 8 * chunk;
#pragma unroll 4
  for (; row < num_rows; row += step) {
    const bool exists = row < count;
    const Bf16* at = data + (exists ? row * from.token_stride : 0);
    const uint32_t place = to + panel_offset(row, chunk);
#pragma unroll
    for (int panel = 0; panel < kPanelsOfRow; ++panel) {
      copy_chunk(place + static_cast<uint32_t>(panel) * kPanelBytes, at + panel * kPanelColumns,
                 exists);
    }
  }
}

// ---- what a warpgroup sees ----

/// The two rows of a lane: keys they see, maximum of scores, sum of this lane's weights.
struct RowPair {
  int begin[2];
  int end[2];
  float max[2] = {-INFINITY, -INFINITY};
  float sum[2] = {0.0f, 0.0f};
  bool two_terms[2];
};

/// The first of the lane's rows among the 64 of its warpgroup; the other one lies 8 below.
__device__ __forceinline__ int row_of_lane() {
  return (warp_id() & 3) * 16 + lane_id() / 4;
}

/// Of a warpgroup whose queries begin at row `first_row` of the tile.
__device__ inline RowPair rows_of_lane(const Call& c, const Tile& t, int first_row) {
  RowPair rows;
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    const int row = first_row + row_of_lane() + 8 * h;
    VisibleKeys seen = t.request.seen(c, t.first + row);
    if (row >= t.num_queries) seen = {0, 0};
    if (seen.end > t.request.keys) seen.end = t.request.keys;
    rows.begin[h] = static_cast<int>(seen.begin);
    rows.end[h] = static_cast<int>(seen.end);
    rows.two_terms[h] = seen.end - seen.begin <= kTwoTermKeys;
  }
  return rows;
}

/// What every row of a warpgroup sees, and whether some row takes its weights in two terms.
struct SeenByAll {
  int64_t begin;
  int64_t end;
  bool two_terms;

  __device__ SeenByAll(const Call& c, const Tile& t, int first_row) {
    const int64_t low = t.first + first_row;
    const int64_t high =
        t.first + (t.num_queries < first_row + 64 ? t.num_queries : first_row + 64) - 1;
    const VisibleKeys of_first = t.request.seen(c, low);
    const VisibleKeys of_last = t.request.seen(c, high < low ? low : high);
    begin = of_last.begin;
    end = of_first.end;
    two_terms = min(of_first.end - of_first.begin, of_last.end - of_last.begin) <= kTwoTermKeys;
  }

  __device__ bool holds(int first, int count) const {
    return first >= begin && first + count <= end;
  }
};

// ---- scores, weights and sums in registers ----

/// Scores of 64 queries and a block of keys, over kPanels panels of both.
template <int kPanels, uint32_t kPanelBytes, int kScores>
__device__ __forceinline__ void score_block(float (&s)[kScores], uint32_t queries, uint32_t keys) {
  begin_products();
#pragma unroll
  for (int panel = 0; panel < kPanels; ++panel) {
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      const auto at = static_cast<uint32_t>(panel) * kPanelBytes + static_cast<uint32_t>(k) * 32;
      multiply_rows(s, rows_operand(queries + at), rows_operand(keys + at), panel + k > 0);
    }
  }
  commit_products();
  wait_products<0>();
}

template <int kScores>
__device__ __forceinline__ void mask_block(float (&s)[kScores], const RowPair& rows, int first) {
  const int column = first + 2 * (lane_id() & 3);
#pragma unroll
  for (int i = 0; i < kScores; ++i) {
    const int key = column + i / 4 * 8 + (i & 1);
    const int h = i >> 1 & 1;
    if (key < rows.begin[h] || key >= rows.end[h]) s[i] = -INFINITY;
  }
}

__device__ __forceinline__ float quad_max(float x) {
  x = fmaxf(x, __shfl_xor_sync(0xFFFFFFFFu, x, 1));
  return fmaxf(x, __shfl_xor_sync(0xFFFFFFFFu, x, 2));
}

__device__ __forceinline__ float quad_sum(float x) {
  x += __shfl_xor_sync(0xFFFFFFFFu, x, 1);
  return x + __shfl_xor_sync(0xFFFFFFFFu, x, 2);
}

/// Turns scores into weights, in place, and shrinks what was summed under the old maximum. `scale`
/// makes logits to base 2 of scores, and is not negative.
template <int kScores, int kSums>
__device__ __forceinline__ void weigh(float (&s)[kScores],
                                      float (&o)[kSums],
                                      RowPair& rows,
                                      float scale) {
  float bias[2];
  float shrink[2];
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    float most = rows.max[h];
#pragma unroll
    for (int i = 0; i < kScores / 4; ++i)
      most = fmaxf(most, fmaxf(s[4 * i + 2 * h], s[4 * i + 2 * h + 1]));
    most = quad_max(most);
    const float base = most == -INFINITY ? 0.0f : most;
    shrink[h] = exp2_approx((rows.max[h] - base) * scale);
    bias[h] = base * scale;
    rows.max[h] = most;
    rows.sum[h] *= shrink[h];
  }
#pragma unroll
  for (int i = 0; i < kScores; ++i) {
    const int h = i >> 1 & 1;
    s[i] = exp2_approx(fmaf(s[i], scale, -bias[h]));
    rows.sum[h] += s[i];
  }
#pragma unroll
  for (int i = 0; i < kSums; ++i)
    o[i] *= shrink[i >> 1 & 1];
}

/// o += weights times values of a block of 4 * kWords keys.
template <uint32_t kPanelBytes, int kSums, int kWords>
__device__ __forceinline__ void add_values(float (&o)[kSums],
                                           const uint32_t (&words)[kWords],
                                           uint32_t values) {
  begin_products();
#pragma unroll
  for (int k = 0; k < kWords / 4; ++k) {
    const uint32_t a[4] = {words[4 * k], words[4 * k + 1], words[4 * k + 2], words[4 * k + 3]};
    multiply_columns(
        o, a, columns_operand(values + static_cast<uint32_t>(k) * 16 * kPanelRowBytes, kPanelBytes),
        true);
  }
  commit_products();
  wait_products<0>();
}

/// The same from weights in float32, rounded to bf16, with what that leaves where `two_terms`.
/// wait() returns when the values are there.
template <uint32_t kPanelBytes, int kScores, int kSums, class Wait>
__device__ __forceinline__ void add_weighted(float (&o)[kSums],
                                             const float (&s)[kScores],
                                             const RowPair& rows,
                                             bool two_terms,
                                             uint32_t values,
                                             Wait wait) {
  uint32_t words[kScores / 2];
#pragma unroll
  for (int k = 0; k < kScores / 2; ++k)
    words[k] = pack_bf16(s[2 * k], s[2 * k + 1]);
  wait();
  add_values<kPanelBytes>(o, words, values);
  if (!two_terms) return;
#pragma unroll
  for (int k = 0; k < kScores / 2; ++k)
    words[k] = rows.two_terms[k & 1] ? pack_bf16_rest(s[2 * k], s[2 * k + 1], words[k]) : 0;
  add_values<kPanelBytes>(o, words, values);
}

/// Behind wait_products(), where the lanes of a warp have met; they read by products alone.
__device__ __forceinline__ void free_stage(uint32_t barrier) {
  if (arrives_for_warp()) barrier_arrive(barrier);
}

/// Divides sums and stores them from column `first_column` on, and lse where `has_lse`. `scale` is
/// that of weigh().
template <int kSums>
__device__ __forceinline__ void store_rows(const Call& c,
                                           const Tile& t,
                                           int first_row,
                                           int first_column,
                                           bool has_lse,
                                           float scale,
                                           const float (&o)[kSums],
                                           RowPair& rows) {
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    float sum = quad_sum(rows.sum[h]);
    const int row = first_row + row_of_lane() + 8 * h;
    if (row >= t.num_queries) continue;
    const int64_t token = t.request.first_query + t.first + row;
    float most = rows.max[h] * scale;
    float shrink = 1.0f;
    if (c.sinks != nullptr && c.sinks[t.head] != -INFINITY) {
      const float sink = c.sinks[t.head] * 1.44269504f;
      const float with = fmaxf(most, sink);
      shrink = exp2_approx(most - with);
      sum = sum * shrink + exp2_approx(sink - with);
      most = with;
    }
    const float factor = sum == 0.0f ? 0.0f : c.out_scale * shrink / sum;
    const int64_t at = c.o.offset(token, t.head) + first_column + 2 * (lane_id() & 3);
#pragma unroll
    for (int i = 0; i < kSums / 4; ++i) {
      const float low = o[4 * i + 2 * h] * factor;
      const float high = o[4 * i + 2 * h + 1] * factor;
      if (c.o.format == Format::kBf16) {
        *reinterpret_cast<uint32_t*>(static_cast<Bf16*>(c.o.data) + at + 8 * i) =
            pack_bf16(low, high);
      } else {
        *reinterpret_cast<float2*>(static_cast<float*>(c.o.data) + at + 8 * i) = {low, high};
      }
    }
    if (!has_lse || (lane_id() & 3) != 0) continue;
    const float lse = most + log2f(sum);
    static_cast<float*>(c.lse.data)[c.lse.offset(token, t.head)] =
        sum == 0.0f ? -INFINITY : (c.lse_base == LseBase::kE ? lse * 0.693147181f : lse);
  }
}

}  // namespace fathom::ragged
