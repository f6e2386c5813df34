// Ragged attention on the tensor cores of Hopper: bf16, keys of 192 numbers, values of 128.
//
// A block takes 128 queries of one head: two warpgroups of 64 each compute, on their own, a third
// brings blocks of 128 keys and values, two ahead. One warpgroup's softmax runs under the other's
// products.
#pragma once

#include "fathom/kernels/attn/ragged_attention/ragged_attention_rows.cuh"

namespace fathom::ragged {

inline constexpr int kTileQueries = 128;
inline constexpr int kBlockKeys = 128;
inline constexpr int kTileDq = 192;
inline constexpr int kTileDv = 128;

inline constexpr uint32_t kPanelBytes = 128 * kPanelRowBytes;
inline constexpr int kKeyPanels = kTileDq / kPanelColumns;
inline constexpr int kValuePanels = kTileDv / kPanelColumns;

/// Shared memory, in bytes from a multiple of 1024.
inline constexpr uint32_t kKeysAt = kKeyPanels * kPanelBytes;
inline constexpr uint32_t kValuesAt = 3 * kKeyPanels * kPanelBytes;
inline constexpr uint32_t kBarriersAt = kValuesAt + 2 * kValuePanels * kPanelBytes;
inline constexpr int64_t kSharedBytes = kBarriersAt + kBarrierBytes + 1024;

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
        copy_rows<kKeyPanels, kPanelBytes>(
            c.k, t.request.first_key + first, kv_head, left,
            shared + kKeysAt + static_cast<uint32_t>(stage * kKeyPanels) * kPanelBytes, row,
            kBlockKeys, kWarpgroup / 8);
      } else {
        copy_rows<kValuePanels, kPanelBytes>(
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

__device__ __forceinline__ void attend_blocks(const Call& c,
                                              const Tile& t,
                                              uint32_t shared,
                                              Barriers bars,
                                              int wg,
                                              float (&o)[kSums],
                                              RowPair& rows) {
  const float scale = c.scale * 1.44269504f;
  const uint32_t queries = shared + static_cast<uint32_t>(wg) * 64 * kPanelRowBytes;
  const SeenByAll seen(c, t, 64 * wg);
#pragma unroll
  for (int i = 0; i < kSums; ++i)
    o[i] = 0.0f;
  for (int i = 0; i < t.num_blocks; ++i) {
    const int stage = i & 1;
    const auto parity = static_cast<uint32_t>((i >> 1) & 1);
    const int first = (t.first_block + i) * kBlockKeys;
    float s[kScores];
    barrier_wait(bars.full(stage, 0), parity);
    score_block<kKeyPanels, kPanelBytes>(
        s, queries, shared + kKeysAt + static_cast<uint32_t>(stage * kKeyPanels) * kPanelBytes);
    free_stage(bars.free(stage, 0));
    if (!seen.holds(first, kBlockKeys)) mask_block(s, rows, first);
    weigh(s, o, rows, scale);
    add_weighted<kPanelBytes>(
        o, s, rows, seen.two_terms,
        shared + kValuesAt + static_cast<uint32_t>(stage * kValuePanels) * kPanelBytes,
        [&] { barrier_wait(bars.full(stage, 1), parity); });
    free_stage(bars.free(stage, 1));
  }
}

__global__ void __launch_bounds__(kBlockThreads, 1)
    attend_tiles(const __grid_constant__ Call c, int64_t tiles_each_head) {
  extern __shared__ unsigned char raw_shared[];
  let_next_start();
  wait_for_previous();
  const Tile t = tile_of<kTileQueries, kBlockKeys>(c, tiles_each_head);
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
    copy_rows<kKeyPanels, kPanelBytes>(c.q, t.request.first_query + t.first, t.head, t.num_queries,
                                       shared, row, wg * 64 + 64, kWarpgroup / 8);
    commit_copies();
    wait_copies<0>();
    fence_for_products();
    named_sync(1 + wg, kWarpgroup);
    float o[kSums];
    RowPair rows = rows_of_lane(c, t, 64 * wg);
    attend_blocks(c, t, shared, bars, wg, o, rows);
    store_rows(c, t, 64 * wg, 0, c.lse.data != nullptr, c.scale * 1.44269504f, o, rows);
  }
}

}  // namespace fathom::ragged
