// Ragged attention on the tensor cores of Hopper: bf16, keys of 192 numbers, values of 128.
//
// A block takes 128 queries of one head: two warpgroups of 64 each compute, on their own, a third
// brings blocks of 128 keys and values, two ahead. One warpgroup's softmax runs under the other's
// products. Scores stay in registers: as accumulators of one product they are, packed, the operand
// of the next.
#pragma once

#include <cmath>

#include "fathom/kernels/attn/ragged_attention/ragged_attention_call.cuh"
#include "fathom/kernels/cuda/tensor_core.cuh"

namespace fathom::ragged {

using namespace cuda;  // NOLINT: device primitives

inline constexpr int kTileQueries = 128;
inline constexpr int kBlockKeys = 128;
inline constexpr int kTileDq = 192;
inline constexpr int kTileDv = 128;
inline constexpr int kBlockThreads = 3 * kWarpgroup;
inline constexpr int kTwoTermKeys = 512;  ///< up to here a weight enters as two bf16

inline constexpr uint32_t kPanelBytes = 128 * kPanelRowBytes;
inline constexpr int kKeyPanels = kTileDq / kPanelColumns;
inline constexpr int kValuePanels = kTileDv / kPanelColumns;

/// Shared memory, in bytes from a multiple of 1024.
inline constexpr uint32_t kKeysAt = kKeyPanels * kPanelBytes;
inline constexpr uint32_t kValuesAt = 3 * kKeyPanels * kPanelBytes;
inline constexpr uint32_t kBarriersAt = kValuesAt + 2 * kValuePanels * kPanelBytes;
inline constexpr int64_t kSharedBytes = kBarriersAt + 8 * 8 + 1024;

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

/// What a block works on. Blocks past the last tile have no queries.
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

/// Rows first .. of a head to panels; rows from `count` on are zeros and not read.
template <int kPanelsOfRow>
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

__device__ inline void bring_blocks(const Call& c, const Tile& t, uint32_t shared, Barriers bars) {
  const int row = (static_cast<int>(threadIdx.x) & (kWarpgroup - 1)) / 8;
  const int64_t kv_head = t.head / c.group;
  uint32_t issued = 0;  // the barrier of the copies that are under way
  const auto signal_last = [&] {
    fence_for_products();
    barrier_arrive(issued);
  };
  for (int i = 0; i < t.num_blocks; ++i) {
    const int stage = i & 1;
    const auto parity = static_cast<uint32_t>((i >> 1) & 1) ^ 1u;
    const int64_t first = int64_t{t.first_block + i} * kBlockKeys;
    const int64_t left = t.request.keys - first;
    for (int values = 0; values < 2; ++values) {
      barrier_wait(bars.free(stage, values), parity);
      if (values == 0) {
        copy_rows<kKeyPanels>(
            c.k, t.request.first_key + first, kv_head, left,
            shared + kKeysAt + static_cast<uint32_t>(stage * kKeyPanels) * kPanelBytes, row,
            kBlockKeys, kWarpgroup / 8);
      } else {
        copy_rows<kValuePanels>(
            c.v, t.request.first_key + first, kv_head, left,
            shared + kValuesAt + static_cast<uint32_t>(stage * kValuePanels) * kPanelBytes, row,
            kBlockKeys, kWarpgroup / 8);
      }
      commit_copies();
      if (issued != 0) {
        wait_copies<1>();
        signal_last();
      }
      issued = bars.full(stage, values);
    }
  }
  if (issued == 0) return;
  wait_copies<0>();
  signal_last();
}

inline constexpr int kScores = 64;
inline constexpr int kSums = 64;

/// The two rows of a lane: keys they see, maximum of raw scores, sum of this lane's weights.
struct RowPair {
  int begin[2];
  int end[2];
  float max[2] = {-INFINITY, -INFINITY};
  float sum[2] = {0.0f, 0.0f};
  bool two_terms[2];
};

__device__ __forceinline__ int row_of_lane(int wg) {
  return wg * 64 + (warp_id() & 3) * 16 + lane_id() / 4;
}

__device__ inline RowPair rows_of_lane(const Call& c, const Tile& t, int wg) {
  RowPair rows;
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    const int row = row_of_lane(wg) + 8 * h;
    VisibleKeys seen = t.request.seen(c, t.first + row);
    if (row >= t.num_queries) seen = {0, 0};
    if (seen.end > t.request.keys) seen.end = t.request.keys;
    rows.begin[h] = static_cast<int>(seen.begin);
    rows.end[h] = static_cast<int>(seen.end);
    rows.two_terms[h] = seen.end - seen.begin <= kTwoTermKeys;
  }
  return rows;
}

/// Scores of 64 queries and a block of keys.
__device__ __forceinline__ void score_block(float (&s)[kScores], uint32_t queries, uint32_t keys) {
  begin_products();
#pragma unroll
  for (int panel = 0; panel < kKeyPanels; ++panel) {
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      const auto at = static_cast<uint32_t>(panel) * kPanelBytes + static_cast<uint32_t>(k) * 32;
      multiply_rows(s, rows_operand(queries + at), rows_operand(keys + at), panel + k > 0);
    }
  }
  commit_products();
  wait_products<0>();
}

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

/// Turns scores into weights, in place, and shrinks what was summed under the old maximum.
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

/// o += weights times values of a block; the weights rounded to bf16.
__device__ __forceinline__ void add_values(float (&o)[kSums],
                                           const uint32_t (&words)[kScores / 2],
                                           uint32_t values) {
  begin_products();
#pragma unroll
  for (int k = 0; k < kBlockKeys / 16; ++k) {
    const uint32_t a[4] = {words[4 * k], words[4 * k + 1], words[4 * k + 2], words[4 * k + 3]};
    multiply_columns(
        o, a, columns_operand(values + static_cast<uint32_t>(k) * 16 * kPanelRowBytes, kPanelBytes),
        true);
  }
  commit_products();
  wait_products<0>();
}

/// Behind wait_products(), where the lanes of a warp have met; they read by products alone.
__device__ __forceinline__ void free_stage(uint32_t barrier) {
  if (arrives_for_warp()) barrier_arrive(barrier);
}

__device__ __forceinline__ void attend_blocks(const Call& c,
                                              const Tile& t,
                                              uint32_t shared,
                                              Barriers bars,
                                              int wg,
                                              float (&o)[kSums],
                                              RowPair& rows) {
  const float scale = c.scale * 1.44269504f;
  const uint32_t queries = shared + static_cast<uint32_t>(wg) * 64 * kPanelRowBytes;
  // Of the warpgroup: what every row sees, and whether some row takes its weights in two terms.
  const int64_t low = t.first + wg * 64;
  const int64_t high = t.first + (t.num_queries < wg * 64 + 64 ? t.num_queries : wg * 64 + 64) - 1;
  const VisibleKeys first_row = t.request.seen(c, low);
  const VisibleKeys last_row = t.request.seen(c, high < low ? low : high);
  const int64_t fewest = min(first_row.end - first_row.begin, last_row.end - last_row.begin);
  const bool two_terms = fewest <= kTwoTermKeys;
#pragma unroll
  for (int i = 0; i < kSums; ++i)
    o[i] = 0.0f;
  for (int i = 0; i < t.num_blocks; ++i) {
    const int stage = i & 1;
    const auto parity = static_cast<uint32_t>((i >> 1) & 1);
    const int first = (t.first_block + i) * kBlockKeys;
    float s[kScores];
    barrier_wait(bars.full(stage, 0), parity);
    score_block(s, queries,
                shared + kKeysAt + static_cast<uint32_t>(stage * kKeyPanels) * kPanelBytes);
    free_stage(bars.free(stage, 0));
    if (first < last_row.begin || first + kBlockKeys > first_row.end) mask_block(s, rows, first);
    weigh(s, o, rows, scale);
    uint32_t words[kScores / 2];
#pragma unroll
    for (int k = 0; k < kScores / 2; ++k)
      words[k] = pack_bf16(s[2 * k], s[2 * k + 1]);
    const uint32_t values =
        shared + kValuesAt + static_cast<uint32_t>(stage * kValuePanels) * kPanelBytes;
    barrier_wait(bars.full(stage, 1), parity);
    add_values(o, words, values);
    if (two_terms) {
#pragma unroll
      for (int k = 0; k < kScores / 2; ++k) {
        words[k] = rows.two_terms[k & 1] ? pack_bf16_rest(s[2 * k], s[2 * k + 1], words[k]) : 0;
      }
      add_values(o, words, values);
    }
    free_stage(bars.free(stage, 1));
  }
}

__device__ __forceinline__ void store_rows(
    const Call& c, const Tile& t, int wg, const float (&o)[kSums], RowPair& rows) {
  const float scale = c.scale * 1.44269504f;
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    float sum = quad_sum(rows.sum[h]);
    const int row = row_of_lane(wg) + 8 * h;
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
    const int64_t at = c.o.offset(token, t.head) + 2 * (lane_id() & 3);
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
    if (c.lse.data == nullptr || (lane_id() & 3) != 0) continue;
    const float lse = most + log2f(sum);
    static_cast<float*>(c.lse.data)[c.lse.offset(token, t.head)] =
        sum == 0.0f ? -INFINITY : (c.lse_base == LseBase::kE ? lse * 0.693147181f : lse);
  }
}

__global__ void __launch_bounds__(kBlockThreads, 1)
    attend_tiles(const __grid_constant__ Call c, int64_t tiles_each_head) {
  extern __shared__ unsigned char raw_shared[];
  let_next_start();
  wait_for_previous();
  const Tile t = tile_of(c, tiles_each_head);
  if (t.num_queries == 0) return;
  const uint32_t shared = (shared_address(raw_shared) + 1023) & ~1023u;
  const Barriers bars{shared + kBarriersAt};
  if (threadIdx.x == 0) bars.init();
  __syncthreads();
  const int wg = __shfl_sync(0xFFFFFFFFu, static_cast<int>(threadIdx.x) / kWarpgroup, 0);
  if (wg == 2) {
    give_registers<40>();
    bring_blocks(c, t, shared, bars);
  } else {
    take_registers<232>();
    const int row = wg * 64 + (static_cast<int>(threadIdx.x) & (kWarpgroup - 1)) / 8;
    copy_rows<kKeyPanels>(c.q, t.request.first_query + t.first, t.head, t.num_queries, shared, row,
                          wg * 64 + 64, kWarpgroup / 8);
    commit_copies();
    wait_copies<0>();
    fence_for_products();
    named_sync(1 + wg, kWarpgroup);
    float o[kSums];
    RowPair rows = rows_of_lane(c, t, wg);
    attend_blocks(c, t, shared, bars, wg, o, rows);
    store_rows(c, t, wg, o, rows);
  }
}

}  // namespace fathom::ragged
