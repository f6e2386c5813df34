// NVFP4 products of up to sixteen rows of x whose weights come while the kernel before computes.
//
// A block takes half of what a multiprocessor has, and there is one of a launch on each: so the
// next launch's block has room beside it and fills its slots with weights. The next kernel is let
// start when the one before this is done: sooner, blocks of three launches would crowd some
// multiprocessors. Where tiles come late, it is let start when a warp has asked for its last. What
// is left to do between two launches is to bring x, to multiply and to store.
//
// A warp has 256 k and keeps x of those in registers. It asks for its own weights and x, waits for
// no other warp before it multiplies (but for the blocks of its cluster to have begun), and leaves
// the sums of a tile in shared memory; after a round of tiles all threads add them up in the order
// of k. Where K is too long for eight warps, the blocks of a cluster have a slice of it each, and
// send each other their sums.
#pragma once

#include "fathom/kernels/cuda/clusters_at_once.h"
#include "fathom/kernels/cuda/codecs.cuh"
#include "fathom/kernels/cuda/launch_cuda.h"
#include "fathom/kernels/cuda/products/cluster.cuh"
#include "fathom/kernels/cuda/products/prefetched/prefetched_plan.cuh"
#include "fathom/kernels/cuda/tensor_map.cuh"

namespace fathom::cuda {

inline constexpr int kPrefetchedBlocks = kPrefetchedK / kBlockK;  ///< of 128 k, of a warp

struct PrefetchedMaps {
  CUtensorMap codes;   ///< boxes of sixteen rows of w and 256 k
  CUtensorMap scales;  ///< theirs
  CUtensorMap x;       ///< boxes of eight rows and 128 k
};

/// x of a warp's k, as the tensor cores take it: lane 4 g + t has 32 k of rows g and, of two
/// groups, g + 8 for each block of 128.
template <int kTokenGroups>
struct PrefetchedX {
  static constexpr int kBlockBytes = PrefetchedPlan::kXBytes / kPrefetchedBlocks;
  uint4 eights[kTokenGroups][kPrefetchedBlocks][4];  ///< of k

  /// Brings the first `boxed` rows by way of shared memory: a box has two lines of 128 bytes for a
  /// row, so that the eight lanes of a phase read from all banks. Lanes without a row get what lies
  /// there; nothing of theirs is stored. The second eight come from memory at once.
  __device__ __forceinline__ void load(
      const ProductCall& c, const PrefetchedMaps& maps, int k, uint32_t rows, uint32_t barrier) {
    if (lane_id() == 0) {
      const int boxed = min(c.T, kPrefetchedTokens);
      barrier_expect(barrier, static_cast<uint32_t>(boxed * (kPrefetchedK * 2)));
#pragma unroll
      for (int block = 0; block < kPrefetchedBlocks; ++block)
        copy_box(rows + block * kBlockBytes, maps.x, 0, k / 64 + block * 2, 0, barrier);
    }
    if constexpr (kTokenGroups == 2) {
      const int token = kPrefetchedTokens + (lane_id() >> 2);
      const Bf16* x =
          static_cast<const Bf16*>(c.x) + min(token, c.T - 1) * c.x_row + k + (lane_id() & 3) * 32;
#pragma unroll
      for (int block = 0; block < kPrefetchedBlocks; ++block) {
#pragma unroll
        for (int j = 0; j < 4; ++j)
          eights[1][block][j] = *reinterpret_cast<const uint4*>(x + block * kBlockK + j * 8);
      }
    }
    const int line = lane_id() >> 1;  // 2 g + t / 2
    const int first_chunk = (lane_id() & 1) * 4;
    __syncwarp();
    barrier_wait(barrier, 0);
#pragma unroll
    for (int block = 0; block < kPrefetchedBlocks; ++block) {
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        eights[0][block][j] =
            load_shared_16(rows + static_cast<uint32_t>(block * kBlockBytes + line * 128 +
                                                        ((first_chunk + j) ^ (line & 7)) * 16));
      }
    }
  }
};

/// The weights of a warp: its slots, and what it asks for.
class PrefetchedWeights {
 public:
  __device__ PrefetchedWeights(const PrefetchedPlan& plan, uint32_t shared, int first_row, int k)
      : plan_(plan),
        codes_(shared + static_cast<uint32_t>(warp_id() * plan.slots * PrefetchedPlan::kCodeBytes)),
        scales_(shared + static_cast<uint32_t>(plan.scales_at() + warp_id() * plan.slots *
                                                                      PrefetchedPlan::kScaleBytes)),
        full_(shared + static_cast<uint32_t>(plan.full_at(warp_id()))),
        row_(first_row),
        k_(k) {}

  __device__ __forceinline__ uint32_t full(int slot) const {
    return full_ + static_cast<uint32_t>(slot) * 8;
  }

  /// Asks for this warp's tile i; for one lane.
  __device__ __forceinline__ void ask(const PrefetchedMaps& maps,
                                      int i,
                                      int slot,
                                      uint64_t policy) const {
    const int row = row_ + i * plan_.groups * kPrefetchedRows;
    barrier_expect(full(slot), PrefetchedPlan::kCodeBytes + PrefetchedPlan::kScaleBytes);
    copy_box(codes_at(slot), maps.codes, k_ / 2, row, 0, full(slot), policy);
    copy_box(scales_at(slot), maps.scales, k_ / 16, row, 0, full(slot), policy);
  }

  /// What lane 4 g + t has of a tile: 32 k of two rows of each block.
  struct Tile {
    uint4 codes[kPrefetchedBlocks][2];
    uint32_t scales[kPrefetchedBlocks][2];

    /// What comes out of every load: known when all have come, in whatever order they are asked
    /// for.
    __device__ __forceinline__ uint32_t all_loads() const {
      uint32_t all = 0;
#pragma unroll
      for (int block = 0; block < kPrefetchedBlocks; ++block) {
#pragma unroll
        for (int half = 0; half < 2; ++half)
          all |= codes[block][half].w | scales[block][half];
      }
      return all;
    }
  };

  /// Rows of a lane are row_of_lane() and the eighth behind: of neighbouring lanes' two rows one is
  /// in the first four and one in the last, whose swizzled chunks are in other banks.
  __device__ __forceinline__ static int row_of_lane() {
    const int g = lane_id() >> 2;
    return (g & 1) * 4 + (g >> 1);
  }

  __device__ __forceinline__ Tile load(int slot) const {
    const int row = row_of_lane();
    const int t = lane_id() & 3;
    Tile tile;
#pragma unroll
    for (int block = 0; block < kPrefetchedBlocks; ++block) {
      const auto chunk = static_cast<uint32_t>((block * 4 + t) ^ row) * 16;
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const auto r = static_cast<uint32_t>(row + half * 8);
        tile.codes[block][half] = load_shared_16(codes_at(slot) + r * 128 + chunk);
        tile.scales[block][half] =
            load_shared_2(scales_at(slot) + r * 16 + static_cast<uint32_t>(block * 8 + t * 2));
      }
    }
    return tile;
  }

 private:
  __device__ __forceinline__ uint32_t codes_at(int slot) const {
    return codes_ + static_cast<uint32_t>(slot * PrefetchedPlan::kCodeBytes);
  }

  __device__ __forceinline__ uint32_t scales_at(int slot) const {
    return scales_ + static_cast<uint32_t>(slot * PrefetchedPlan::kScaleBytes);
  }

  const PrefetchedPlan& plan_;
  uint32_t codes_;
  uint32_t scales_;
  uint32_t full_;
  int row_;
  int k_;
};

/// The sums of a tile and 8 rows of x: two chains, so that products need not wait for each other.
using PrefetchedSums = float[2][4];

/// Adds the products of a tile.
template <int kTokenGroups>
__device__ __forceinline__ void multiply_tile(const PrefetchedWeights::Tile& tile,
                                              const PrefetchedX<kTokenGroups>& x,
                                              PrefetchedSums (&sums)[kTokenGroups]) {
  const auto multiply_block_half = [&]<int kHalf>(int block) {
    const uint4(&codes)[2] = tile.codes[block];
    const uint32_t(&scales)[2] = tile.scales[block];
    decode_half<kHalf>(codes[0], codes[1], lifted_scales(scales[0]), lifted_scales(scales[1]),
                       [&](int j, const uint4& w) {
#pragma unroll
                         for (int group = 0; group < kTokenGroups; ++group)
                           multiply_half<kHalf>(sums[group][j & 1], w, x.eights[group][block][j]);
                       });
  };
#pragma unroll
  for (int block = 0; block < kPrefetchedBlocks; ++block) {
    multiply_block_half.template operator()<0>(block);
    multiply_block_half.template operator()<1>(block);
  }
}

/// Where the sum of a token and a row lies among those of a tile: four rows together, tokens so
/// that lanes that store have other banks.
__device__ __forceinline__ int sum_place(int token, int row) {
  return token * kPrefetchedRows + (row ^ (token >> 1 & 3) * 4);
}

/// Leaves a warp's sums of a tile.
template <int kTokenGroups>
__device__ __forceinline__ void keep_sums(const PrefetchedSums (&sums)[kTokenGroups], float* to) {
  const int row = PrefetchedWeights::row_of_lane();
#pragma unroll
  for (int group = 0; group < kTokenGroups; ++group) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int token = group * kPrefetchedTokens + (lane_id() & 3) * 2 + (i & 1);
      to[sum_place(token, row + (i >> 1) * 8)] = sums[group][0][i] + sums[group][1][i];
    }
  }
}

/// Stores four rows of y from n on of a token, as any call asks for it.
__device__ __noinline__ void store_four_of_any(
    const ProductCall& c, int token, int n, float factor, float4 sum) {
  const int64_t at = c.row_of_y(token) * c.y_row + n;
#pragma unroll 1
  for (int i = 0; i < 4; ++i) {
    store_any(c.y, c.y_format, at + i, c.finished_of(0, sum.x * factor, token, n + i));
    sum = {sum.y, sum.z, sum.w, 0.0f};
  }
}

/// The same. Code that has not run since the last launch comes from far away, so what most calls
/// take is short.
__device__ __forceinline__ void store_four(const ProductCall& c,
                                           const PrefetchedPlan& plan,
                                           int token,
                                           int n,
                                           float factor,
                                           const float4& sum) {
  if (!plan.y_in_fours) {
    store_four_of_any(c, token, n, factor, sum);
    return;
  }
  *reinterpret_cast<uint2*>(static_cast<Bf16*>(c.y) + token * c.y_row + n) = {
      pack_bf16(sum.x * factor, sum.y * factor), pack_bf16(sum.z * factor, sum.w * factor)};
}

__device__ __forceinline__ float4 sum_of(const float4& a, const float4& b) {
  return {a.x + b.x, a.y + b.y, a.z + b.z, a.w + b.w};
}

/// One block of a launch: its place and what is left of its round of tiles.
template <int kTokenGroups>
class PrefetchedBlock {
 public:
  __device__ PrefetchedBlock(const ProductCall& c,
                             const PrefetchedPlan& plan,
                             unsigned char* memory,
                             uint32_t shared)
      : c_(c), plan_(plan), memory_(memory), shared_(shared) {
    const auto block = static_cast<int>(blockIdx.x);
    rank_ = plan.slices > 1 ? static_cast<int>(cluster_rank()) : 0;
    first_ = (plan.slices > 1 ? block / plan.slices : block) * plan.tiles;
    tiles_ = min(plan.tiles, plan.row_tiles - first_);
    received_full_ = shared + static_cast<uint32_t>(plan.received_full_at());
  }

  __device__ __forceinline__ int rank() const { return rank_; }

  __device__ __forceinline__ int first() const { return first_; }

  __device__ __forceinline__ int tiles() const { return tiles_; }

  /// Makes the barrier of what other slices send; for one thread.
  __device__ __forceinline__ void expect_sums() const {
    barrier_init(received_full_, 1);
    fence_barriers();
    barrier_expect(received_full_,
                   static_cast<uint32_t>(plan_.slices * c_.T * rows_of_share() * 4));
  }

  /// Adds up the parts of tiles [begin, end), whose sums the warps have left, and stores them or
  /// sends them to the block of the cluster that does.
  __device__ __forceinline__ void finish(int begin, int end, float factor) const {
    constexpr int kTokens = kTokenGroups * kPrefetchedTokens;
    constexpr int kFours = kPrefetchedRows / 4;
    for (int i = static_cast<int>(threadIdx.x); i < (end - begin) * kTokens * kFours;
         i += plan_.warps() * 32) {
      const int token = i / kFours % kTokens;
      const int row = i % kFours * 4;
      const int of_round = i / (kTokens * kFours);
      if (token >= c_.T) continue;
      const int group = plan_.groups == 1 ? 0 : of_round % plan_.groups;
      const int slot = plan_.groups == 1 ? of_round : of_round / plan_.groups;
      const auto* from = reinterpret_cast<const float4*>(
          memory_ + plan_.rows_at() + group * plan_.parts * PrefetchedPlan::kXBytes +
          (slot * PrefetchedPlan::kSumBytes * kTokenGroups + sum_place(token, row) * 4));
      float4 parts[kPrefetchedWarps];
#pragma unroll
      for (int part = 0; part < kPrefetchedWarps; ++part)
        parts[part] = part < plan_.parts ? from[part * (PrefetchedPlan::kXBytes / 16)] : float4{};
      float4 sum = parts[0];
#pragma unroll
      for (int part = 1; part < kPrefetchedWarps; ++part)
        sum = sum_of(sum, parts[part]);
      const int row_of_block = (begin + of_round) * kPrefetchedRows + row;
      if (plan_.slices == 1) {
        store_four(c_, plan_, token, first_ * kPrefetchedRows + row_of_block, factor, sum);
        continue;
      }
      const auto owner =
          static_cast<int>(__umulhi(static_cast<uint32_t>(row_of_block), plan_.share_inverse));
      const int of_share = row_of_block - owner * plan_.share();
      const uint32_t to =
          shared_ + static_cast<uint32_t>(plan_.received_at() +
                                          ((rank_ * c_.T + token) * plan_.share() + of_share) * 4);
      send(address_in_block(to, owner), address_in_block(received_full_, owner), sum, true);
    }
  }

  /// Adds up the slices of this block's share of rows and stores them.
  __device__ __forceinline__ void finish_share(float factor) const {
    barrier_wait(received_full_, 0);
    const int fours = rows_of_share() / 4;
    for (int i = static_cast<int>(threadIdx.x); i < c_.T * fours; i += plan_.warps() * 32) {
      const int token = i / fours;
      const int row = (i - token * fours) * 4;
      const unsigned char* from = memory_ + plan_.received_at() + (token * plan_.share() + row) * 4;
      float4 sum = *reinterpret_cast<const float4*>(from);
#pragma unroll
      for (int slice = 1; slice < kMostPrefetchedSlices; ++slice) {
        if (slice < plan_.slices)
          sum = sum_of(sum,
                       *reinterpret_cast<const float4*>(from + slice * c_.T * plan_.share() * 4));
      }
      store_four(c_, plan_, token, first_ * kPrefetchedRows + rank_ * plan_.share() + row, factor,
                 sum);
    }
  }

 private:
  __device__ __forceinline__ int rows_of_share() const {
    return max(0, min(plan_.share(), tiles_ * kPrefetchedRows - rank_ * plan_.share()));
  }

  const ProductCall& c_;
  const PrefetchedPlan& plan_;
  unsigned char* memory_;
  uint32_t shared_;
  uint32_t received_full_;
  int rank_;   // slice of k
  int first_;  // tile
  int tiles_;
};

template <int kTokenGroups>
static __global__ void __launch_bounds__(kPrefetchedThreads, 2)
    prefetched_products(const __grid_constant__ ProductCall c,
                        const __grid_constant__ PrefetchedPlan plan,
                        const __grid_constant__ PrefetchedMaps maps) {
  // Asked for here, an alignment of 1,024 bytes would cost every kernel of this file with variables
  // of its own as many.
  extern __shared__ __align__(128) unsigned char prefetched_shared[];
  constexpr int kRound = PrefetchedPlan::round(kTokenGroups);
  const uint32_t shared = shared_address(prefetched_shared);
  if (shared % kSwizzleAlign != 0) __trap();  // variables would lie before it; there are none
  const PrefetchedBlock<kTokenGroups> block(c, plan, prefetched_shared, shared);
  const int group = warp_id() / plan.parts;
  const int part = warp_id() - group * plan.parts;
  const int k = (block.rank() * plan.parts + part) * kPrefetchedK;
  const PrefetchedWeights weights(plan, shared, (block.first() + group) * kPrefetchedRows, k);
  const int mine = (block.tiles() - group + plan.groups - 1) / plan.groups;  // tiles
  const uint32_t x_full = shared + static_cast<uint32_t>(plan.x_full_at(warp_id()));
  const uint64_t policy = weights_policy(true);
  if (lane_id() == 0) {
#pragma unroll 1
    for (int slot = 0; slot < plan.slots; ++slot)
      barrier_init(weights.full(slot), 1);
    barrier_init(x_full, 1);
    fence_barriers();
#pragma unroll 1
    for (int i = 0; i < min(plan.slots, mine); ++i)
      weights.ask(maps, i, i, policy);
    prefetch_map(maps.x);
  }
  if (plan.slices > 1) {
    if (threadIdx.x == 0) block.expect_sums();
    __syncwarp();
    cluster_arrive_relaxed();
  }
  bring_x_nearer(c, 0, static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x),
                 static_cast<int>(gridDim.x * blockDim.x));
  __syncwarp();  // the barriers of this warp are made
  wait_for_previous();
  if (mine <= plan.slots) let_next_start();
  const float factor = c.factor(0) * Nvfp4Codec::kFactor;
  const auto zero = static_cast<uint32_t>(plan.parts) >> 31;
  const uint32_t rows =
      shared + static_cast<uint32_t>(plan.rows_at() + warp_id() * PrefetchedPlan::kXBytes);
  PrefetchedX<kTokenGroups> x;
  x.load(c, maps, k, rows, x_full);
  __syncwarp();  // x has been read where sums will lie
  if (plan.slices > 1) cluster_wait();
  auto* const kept = reinterpret_cast<float*>(prefetched_shared + plan.rows_at() +
                                              warp_id() * PrefetchedPlan::kXBytes);
  const int all = (block.tiles() + plan.groups - 1) / plan.groups;  // of the first group
  int slot = 0;
  uint32_t parity = 0;
#pragma unroll 1
  for (int round = 0; round < all; round += kRound) {
#pragma unroll 1
    for (int i = round; i < min(round + kRound, mine); ++i) {
      barrier_wait(weights.full(slot), parity);
      const PrefetchedWeights::Tile tile = weights.load(slot);
      PrefetchedSums sums[kTokenGroups] = {};
      multiply_tile(tile, x, sums);
      if (i + plan.slots < mine) {
        const uint32_t loaded = __reduce_or_sync(~0u, tile.all_loads());
        if (lane_id() == 0)
          weights.ask(maps, i + plan.slots, slot + static_cast<int>(loaded & zero), policy);
        if (i + plan.slots + 1 == mine) let_next_start();
      }
      keep_sums(sums, kept + (i - round) * kTokenGroups * (PrefetchedPlan::kSumBytes / 4));
      if (++slot == plan.slots) {
        slot = 0;
        parity ^= 1;
      }
    }
    __syncthreads();
    block.finish(round * plan.groups, min((round + kRound) * plan.groups, block.tiles()), factor);
    if (round + kRound < all) __syncthreads();
  }
  if (plan.slices > 1) block.finish_share(factor);
}

inline Status make_prefetched_maps(const ProductCall& c, PrefetchedMaps* maps) {
  const auto weights = [&](const uint8_t* data, int64_t row, int box, CUtensorMapSwizzle swizzle) {
    return TensorBox{.data = data,
                     .dims = {row, c.N, 1},
                     .strides = {row, row * c.N},
                     .box = {box, kPrefetchedRows},
                     .swizzle = swizzle};
  };
  FATHOM_TRY(make_tensor_map(weights(c.w, c.w_row, kPrefetchedK / 2, CU_TENSOR_MAP_SWIZZLE_128B),
                             &maps->codes));
  FATHOM_TRY(
      make_tensor_map(weights(c.scales, c.scale_row, kPrefetchedK / 16, CU_TENSOR_MAP_SWIZZLE_NONE),
                      &maps->scales));
  constexpr int kLine = 64;  // k in 128 bytes
  return make_tensor_map({.data = c.x,
                          .type = CU_TENSOR_MAP_DATA_TYPE_BFLOAT16,
                          .dims = {kLine, c.K / kLine, c.T},
                          .strides = {kLine * 2, c.x_row * 2},
                          .box = {kLine, kBlockK / kLine},
                          .depth = std::min(c.T, kPrefetchedTokens),
                          .swizzle = CU_TENSOR_MAP_SWIZZLE_128B},
                         &maps->x);
}

/// Blocks, or clusters of them, that the GPU runs at once with one on a multiprocessor.
inline int64_t prefetched_places(const DeviceInfo& gpu, int slices) {
  if (slices == 1) return gpu.num_sms;
  return std::max<int64_t>(
      1, clusters_at_once(
             gpu.ordinal,
             {.kernel = reinterpret_cast<const void*>(
                  prefetched_products<kMostPrefetchedTokens / kPrefetchedTokens>),
              .threads = kPrefetchedThreads,
              .shared_bytes = kMostPrefetchedShared + (4 << 10),  // no two on a multiprocessor
              .cluster = slices}));
}

/// Runs a product that takes_prefetched().
inline Status run_prefetched(Exec& ex, const ProductCall& c) {
  const PrefetchedPlan plan =
      prefetched_plan(c, prefetched_places(*ex.device, prefetched_slices(c.K)));
  PrefetchedMaps maps;
  FATHOM_TRY(make_prefetched_maps(c, &maps));
  const LaunchShape shape{
      .blocks = int64_t{(plan.row_tiles + plan.tiles - 1) / plan.tiles} * plan.slices,
      .threads = plan.warps() * 32,
      .shared_bytes = plan.shared_bytes(),
      .cluster = plan.slices};
  return c.T <= kPrefetchedTokens ? launch_kernel(ex, prefetched_products<1>, shape, c, plan, maps)
                                  : launch_kernel(ex, prefetched_products<2>, shape, c, plan, maps);
}

}  // namespace fathom::cuda
