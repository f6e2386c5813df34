// A row that the blocks of a cluster hold in registers, a stretch each. All count the same bins of
// their own keys and meet; then every block looks at the others' bins, of which few decide, and
// knows the bin that holds rank K, how many keys of each block lie above it and how many in it. The
// keys of a bin that has few go to all blocks, so that each ranks them, and writes what it takes of
// its own behind what the blocks before it take. Nobody waits for a block that gathers.
//
//   block r:  stretch r, bins | cluster meets | bin of rank K, keys of it to all | cluster meets |
//             cut, positions of stretch r
#pragma once

#include "fathom/kernels/cuda/products/cluster.cuh"
#include "fathom/kernels/sparse/topk_rows/topk_row.cuh"

namespace fathom::topk_rows {

/// Clears what rounds count in. A barrier follows before it is used.
__device__ __forceinline__ void clear_rounds(Shared& s) {
  const auto tid = static_cast<int>(threadIdx.x);
#pragma unroll
  for (int i = 0; i < kRounds; ++i)
    reinterpret_cast<uint4*>(s.keys)[i * kThreads + tid] = make_uint4(0, 0, 0, 0);
  auto* words = reinterpret_cast<int*>(s.rounds);
  for (int i = tid; i < static_cast<int>(sizeof(s.rounds) / sizeof(int)); i += kThreads)
    words[i] = 0;
  if (tid == 0) s.num_listed = 0;
}

/// The bins of this block in a round.
__device__ __forceinline__ uint32_t* bins_of_round(Shared& s, int round) {
  return s.keys + round * kBins;
}

/// Numbers of the blocks before this one, added up by every warp.
__device__ __forceinline__ int sum_before(const int (&of_blocks)[kMostBlocks], int rank) {
  const int lane = cuda::lane_id();
  return __reduce_add_sync(kAllLanes, lane < kMostBlocks && lane < rank ? of_blocks[lane] : 0);
}

/// Finds the bin of rank k over the bins of a round of all blocks, k no more than they hold. Says
/// in the round what each block has above and inside of it. By all threads of the cluster; begins
/// with a barrier and ends with one.
__device__ inline Picked pick_in_cluster(Shared& s, int round, int k, int blocks) {
  const int lane = cuda::lane_id();
  const int warp = cuda::warp_id();
  uint32_t* bins = bins_of_round(s, round);
  Round& r = s.rounds[round];
  __syncthreads();
  const int of_own = sum_of_four(reinterpret_cast<const uint4*>(bins)[threadIdx.x]);
  const int group_of_own = __reduce_add_sync(kAllLanes, of_own);
  if (lane == 0) r.own_groups[warp] = group_of_own;
  cuda::cluster_sync();

  // Warp w has the bins of block w: first the sums of 128 each.
  const auto block = static_cast<unsigned>(warp);
  const bool has_block = warp < blocks;
  int theirs = 0;
  if (has_block && lane < kWarps) {
    theirs = *cuda::in_block(&r.own_groups[lane], block);
    atomicAdd(&r.groups[lane], theirs);
  }
  __syncthreads();
  const int of_group = lane < kWarps ? r.groups[lane] : 0;
  const int upto_group = cuda::sum_up_to_lane(of_group);
  const int group = __ffs(static_cast<int>(__ballot_sync(kAllLanes, upto_group >= k))) - 1;
  const int above_group = __shfl_sync(kAllLanes, upto_group - of_group, group);

  // Then those of the group that holds the rank, four a lane.
  constexpr int kQuadsOfGroup = kBins / kWarps / 4;
  static_assert(kQuadsOfGroup == 32);
  uint4 fine = make_uint4(0, 0, 0, 0);
  if (has_block) {
    fine = cuda::in_block(reinterpret_cast<uint4*>(bins), block)[kQuadsOfGroup * group + lane];
    if (fine.x != 0) atomicAdd(&r.bins[4 * lane], static_cast<int>(fine.x));
    if (fine.y != 0) atomicAdd(&r.bins[4 * lane + 1], static_cast<int>(fine.y));
    if (fine.z != 0) atomicAdd(&r.bins[4 * lane + 2], static_cast<int>(fine.z));
    if (fine.w != 0) atomicAdd(&r.bins[4 * lane + 3], static_cast<int>(fine.w));
  }
  __syncthreads();
  const uint4 all = reinterpret_cast<const uint4*>(r.bins)[lane];
  const int of_quad = sum_of_four(all);
  const int upto = above_group + cuda::sum_up_to_lane(of_quad);
  const int holder = __ffs(static_cast<int>(__ballot_sync(kAllLanes, upto >= k))) - 1;
  const PickedOfFour p(all, upto - of_quad, k);
  const int index = __shfl_sync(kAllLanes, p.index, holder);
  const Picked picked{static_cast<uint32_t>(4 * (kQuadsOfGroup * group + holder) + index),
                      __shfl_sync(kAllLanes, p.above, holder),
                      __shfl_sync(kAllLanes, p.count, holder)};

  // What block w has before the bin, and in it.
  int before = lane < group ? theirs : 0;
  int inside = 0;
  if (lane < holder) before += sum_of_four(fine);
  if (lane == holder) {
    const uint32_t counts[4] = {fine.x, fine.y, fine.z, fine.w};
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      if (i < index) before += static_cast<int>(counts[i]);
      if (i == index) inside = static_cast<int>(counts[i]);
    }
  }
  before = __reduce_add_sync(kAllLanes, before);
  inside = __reduce_add_sync(kAllLanes, inside);
  if (has_block && lane == 0) {
    r.above[warp] = before;
    r.inside[warp] = inside;
  }
  __syncthreads();
  return picked;
}

/// What a block takes of its stretch.
struct Share {
  Cut cut;
  int first;         ///< of the row's results
  int equal_before;  ///< keys equal to the cut in the blocks before
};

/// The share of the k largest elements of all blocks, which have more. By all threads of the
/// cluster; no block touches memory of another one after it.
__device__ inline Share share_of_block(Shared& s, const Held& held, int k, int blocks) {
  const auto rank = static_cast<int>(cuda::cluster_rank());
  held.each([&](uint32_t key) { atomicAdd(&bins_of_round(s, 0)[SizeBins::bin(key)], 1u); });
  Picked p = pick_in_cluster(s, 0, k, blocks);
  Window w = SizeBins::window(p.bin);
  int first = sum_before(s.rounds[0].above, rank);
  int inside_before = sum_before(s.rounds[0].inside, rank);
  k -= p.above;
  // A bin of the last round is one key: 2^30 keys of the first one at most, 2^11 times fewer a
  // round.
  for (int round = 1; p.count > kListed && w.top != w.bottom; ++round) {
    uint32_t* bins = bins_of_round(s, round);
    w.shift = shift_of(w.top - w.bottom);
    held.each([&](uint32_t key) {
      if (w.holds(key)) atomicAdd(&bins[w.bin(key)], 1u);
    });
    p = pick_in_cluster(s, round, k, blocks);
    w.narrow(p.bin);
    first += sum_before(s.rounds[round].above, rank);
    inside_before = sum_before(s.rounds[round].inside, rank);
    k -= p.above;
  }
  if (w.top == w.bottom) {
    cuda::cluster_sync();  // the others have read the bins of this block
    return {{w.top, k, p.count}, first + min(k, inside_before), inside_before};
  }
  held.each([&](uint32_t key) {
    if (!w.holds(key)) return;
    const int at = inside_before + atomicAdd(&s.num_listed, 1);
    for (int block = 0; block < blocks; ++block)
      *cuda::in_block(&s.listed[at], static_cast<unsigned>(block)) = key;
  });
  cuda::cluster_sync();
  const Cut cut = rank_listed(s, p.count, k);
  int greater_before = 0;
  int equal_before = 0;
  for (int i = cuda::lane_id(); i < inside_before; i += 32) {
    greater_before += s.listed[i] > cut.key ? 1 : 0;
    equal_before += s.listed[i] == cut.key ? 1 : 0;
  }
  greater_before = __reduce_add_sync(kAllLanes, greater_before);
  equal_before = __reduce_add_sync(kAllLanes, equal_before);
  return {cut, first + greater_before + min(cut.taken, equal_before), equal_before};
}

}  // namespace fathom::topk_rows
