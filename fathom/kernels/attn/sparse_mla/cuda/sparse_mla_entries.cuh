// The lists of a token: which entries count, and the threads of a block.
#pragma once

#include "fathom/kernels/attn/mla_decode/cuda/mla_decode_tiles.cuh"
#include "fathom/kernels/attn/sparse_mla/cuda/sparse_mla_rows.cuh"

namespace fathom::sparse_mla {

using mla_decode::kTileKeys;
using namespace cuda;  // NOLINT: device primitives

/// Threads of a block: two warpgroups compute, behind them come those that gather.
template <int kGatherers>
inline constexpr int kThreadsWith = mla_decode::kBoth + kGatherers* kWarpgroup;

/// The lists of a token, one behind the other, each from its first entry that names a row to its
/// last. Entries between them may still name none. In shared memory: no warp has registers for it.
struct Entries {
  const int32_t* first;   ///< entry i < of_first
  const int32_t* second;  ///< entry i of the others
  int of_first;
  int count;
  int named;       ///< entries that name a row
  int first_tile;  ///< of the piece that this block has
  int num_tiles;

  __device__ __forceinline__ int32_t slot(int i) const {
    return i < of_first ? first[i] : second[i];
  }

  /// The row that entry i names with this slot.
  __device__ __forceinline__ RowName name(const DeviceCall& c, int i, int32_t slot) const {
    return name_row(c, i >= of_first, slot);
  }

  __device__ __forceinline__ RowName name(const DeviceCall& c, int i) const {
    return i < count ? name(c, i, slot(i)) : kNoRow;
  }
};

/// What the threads of a block find in both lists, in shared memory.
struct Findings {
  int first[2];  ///< entry that names a row
  int last[2];
  int named[2];

  __device__ void clear() {
    for (int i = 0; i < 2; ++i) {
      first[i] = INT32_MAX;
      last[i] = -1;
      named[i] = 0;
    }
  }
};

/// Of the entries that a thread has looked at.
struct Found {
  int first = INT32_MAX;
  int last = -1;
  int named = 0;

  __device__ __forceinline__ void take(int entry, bool counts) {
    first = counts && entry < first ? entry : first;
    last = counts ? entry : last;  // entries come in order
    named += counts ? 1 : 0;
  }

  /// Adds those of a warp.
  __device__ __forceinline__ void add_to(Findings& all, int source) const {
    const int warp_named = __reduce_add_sync(0xFFFFFFFFu, named);
    const int warp_first = __reduce_min_sync(0xFFFFFFFFu, first);
    const int warp_last = __reduce_max_sync(0xFFFFFFFFu, last);
    if (lane_id() != 0 || warp_named == 0) return;
    atomicAdd(&all.named[source], warp_named);
    atomicMin(&all.first[source], warp_first);
    atomicMax(&all.last[source], warp_last);
  }
};

/// Looks through the lists of token t, and finds piece `split` of them: pieces are of equal length.
/// All threads of the block; `all` is clear and a barrier has made that known. The gathering
/// warpgroups alone look: their loads come before those of queries then. Integers alone are added,
/// so their order does not matter. `entries` and `all` are in shared memory; all threads may read
/// `entries` behind it.
template <int kGatherers>
__device__ __forceinline__ void find_entries(
    const DeviceCall& c, int64_t t, int split, int splits, Findings& all, Entries& entries) {
  constexpr int kLookers = kGatherers * kWarpgroup;
  constexpr int kAtOnce = 16 / kGatherers;
  const int32_t* lists[2] = {c.sources[0].slots + t * c.sources[0].slots_stride,
                             c.sources[1].slots + t * c.sources[1].slots_stride};
  if (threadIdx.x >= mla_decode::kBoth) {
    const int of_first = c.list_length(0, t);
    const int count = of_first + (c.num_sources > 1 ? c.sources[1].width : 0);
    Found found[2];
    for (int begin = static_cast<int>(threadIdx.x & (kLookers - 1)); begin < count;
         begin += kAtOnce * kLookers) {
      int32_t slots[kAtOnce];
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) {
        const int at = begin + i * kLookers;
        slots[i] = -1;
        if (at < count) slots[i] = at < of_first ? lists[0][at] : lists[1][at - of_first];
      }
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) {
        const int at = begin + i * kLookers;
        const bool second = at >= of_first;
        const bool counts = c.sources[second ? 1 : 0].names(slots[i]);
        found[0].take(at, counts && !second);
        found[1].take(at - of_first, counts && second);
      }
    }
    __syncwarp();
    found[0].add_to(all, 0);
    if (c.num_sources > 1) found[1].add_to(all, 1);
  }
  __syncthreads();
  if (threadIdx.x == 0) {
    int lengths[2];
    for (int i = 0; i < 2; ++i)
      lengths[i] = all.named[i] == 0 ? 0 : all.last[i] - all.first[i] + 1;
    const int total = lengths[0] + lengths[1];
    const int tiles = ceil_div(total, kTileKeys);
    const int each = ceil_div(tiles, splits);
    const int first_tile = min(split * each, tiles);
    entries = {.first = lists[0] + (lengths[0] > 0 ? all.first[0] : 0),
               .second = lists[1] + (lengths[1] > 0 ? all.first[1] : 0) - lengths[0],
               .of_first = lengths[0],
               .count = total,
               .named = all.named[0] + all.named[1],
               .first_tile = first_tile,
               .num_tiles = min(each, tiles - first_tile)};
  }
  __syncthreads();
}

}  // namespace fathom::sparse_mla
