// Products of up to sixteen rows of x whose weights, NVFP4 or FP8 blocks, come while the kernel
// before computes.
//
// A block takes half of what a multiprocessor has, and every multiprocessor has one block of a
// launch. So a block of the next launch has room beside it, and fills its slots with weights. This
// kernel lets the next one start when the one before it is done: sooner, blocks of three launches
// would crowd some multiprocessors. Where tiles come late, it does so when few are left
// (work_left). What is left to do between two launches is to bring x, to multiply and to store.
//
// A warp has 256 or 192 k and keeps x of those in registers. It asks for its own weights and x;
// with up to eight rows of x it decodes its first tile of NVFP4 while x comes. Before it multiplies
// it waits for no other warp (but for the blocks of its cluster to have begun, and for scales that
// all share). It leaves the sums of a tile in shared memory. After a round of tiles, which mostly
// is all of them, all threads add up the sums in the order of k. Where K is too long for eight
// warps, the blocks of a cluster have a slice of it each, and send each other their sums.
#pragma once

#include "fathom/kernels/cuda/clusters_at_once.h"
#include "fathom/kernels/cuda/launch_cuda.h"
#include "fathom/kernels/cuda/products/cluster.cuh"
#include "fathom/kernels/cuda/products/prefetched/prefetched_lanes.cuh"
#include "fathom/kernels/cuda/products/prefetched/prefetched_plan.cuh"
#include "fathom/kernels/cuda/tensor_map.cuh"

namespace fathom::cuda {

/// Where the sum of a token and a row lies among those of a tile: four rows together, tokens so
/// that lanes that store have other banks.
__device__ __forceinline__ int sum_place(int token, int row) {
  return token * kPrefetchedRows + (row ^ (token >> 1 & 3) * 4);
}

/// Where a lane whose first row is `row` leaves the first of its sums of a tile, in bytes.
__device__ __forceinline__ uint32_t sums_of_lane(int row) {
  return static_cast<uint32_t>(sum_place((lane_id() & 3) * 2, row)) * 4;
}

/// Leaves a lane's sums of a tile; `to`: the place of the first, of a tile at a multiple of 64.
template <int kTokenGroups>
__device__ __forceinline__ void keep_sums(const PrefetchedSums (&sums)[kTokenGroups], uint32_t to) {
  constexpr uint32_t kToken = kPrefetchedRows * 4;  // bytes
#pragma unroll
  for (uint32_t group = 0; group < kTokenGroups; ++group) {
#pragma unroll
    for (uint32_t i = 0; i < 4; ++i) {
      const uint32_t rows = i / 2 * 8 * 4;  // eight rows on is the other half of a token's 64 bytes
      store_shared_4((to ^ rows) + (group * kPrefetchedTokens + i % 2) * kToken,
                     sums[group][0][i] + sums[group][1][i]);
    }
  }
}

/// Stores four rows of y of matrix e from n on of a token, as any call asks for it.
static __device__ __noinline__ void store_four_of_any(
    const ProductCall& c, int e, int token, int n, float factor, float4 sum) {
  const int64_t at = e * c.y_matrix + c.row_of_y(token) * c.y_row + n;
#pragma unroll 1
  for (int i = 0; i < 4; ++i) {
    store_any(c.y, c.y_format, at + i, c.finished_of(e, sum.x * factor, token, n + i));
    sum = {sum.y, sum.z, sum.w, 0.0f};
  }
}

/// The same. Code that has not run since the last launch comes from far away, so what most calls
/// take is short.
__device__ __forceinline__ void store_four(const ProductCall& c,
                                           const PrefetchedPlan& plan,
                                           int e,
                                           int token,
                                           int n,
                                           float factor,
                                           const float4& sum) {
  if (!plan.y_in_fours) {
    store_four_of_any(c, e, token, n, factor, sum);
    return;
  }
  *reinterpret_cast<uint2*>(static_cast<Bf16*>(c.y) + e * c.y_matrix + token * c.y_row + n) = {
      pack_bf16(sum.x * factor, sum.y * factor), pack_bf16(sum.z * factor, sum.w * factor)};
}

__device__ __forceinline__ float4 sum_of(const float4& a, const float4& b) {
  return {a.x + b.x, a.y + b.y, a.z + b.z, a.w + b.w};
}

/// One block of a launch: its place, and how it adds up its sums. `kStacked`: there may be more
/// matrices than one.
template <int kTokenGroups, bool kStacked>
class PrefetchedBlock {
 public:
  __device__ PrefetchedBlock(const ProductCall& c,
                             const PrefetchedPlan& plan,
                             unsigned char* memory,
                             uint32_t shared)
      : c_(c), plan_(plan), memory_(memory), shared_(shared) {
    auto block = static_cast<int>(blockIdx.x) / plan.slices;
    if constexpr (kStacked) {
      e_ = block / plan.blocks;
      block -= e_ * plan.blocks;
    }
    rank_ = plan.slices > 1 ? static_cast<int>(cluster_rank()) : 0;
    const int after = block - plan.fuller;  // below 0: of those with most tiles
    first_ = block * plan.tiles - max(after, 0);
    tiles_ = min(after < 0 ? plan.tiles : plan.tiles - 1, plan.row_tiles - first_);
    received_full_ = shared + static_cast<uint32_t>(plan.received_full_at());
  }

  __device__ __forceinline__ int rank() const { return rank_; }

  __device__ __forceinline__ int matrix() const { return kStacked ? e_ : 0; }

  /// Within its matrix.
  __device__ __forceinline__ int first() const { return first_; }

  __device__ __forceinline__ int tiles() const { return tiles_; }

  /// Makes the barrier of what other slices send; for one thread.
  __device__ __forceinline__ void expect_sums() const {
    barrier_init(received_full_, 1);
    fence_barriers();
    barrier_expect(received_full_,
                   static_cast<uint32_t>(plan_.slices * c_.T * rows_of_share() * 4));
  }

  /// Tiles of each group of warps; the last ones of some may be missing.
  __device__ __forceinline__ int all() const {
    return (tiles_ + plan_.groups - 1) >> plan_.group_shift;
  }

  /// Adds up the parts of tiles [begin, end) of each group, whose sums the warps have left, and
  /// stores them or sends them to the block of the cluster that does. Of a tile before `late` they
  /// lie in the rows of its warps, of others in its slot.
  __device__ __forceinline__ void finish(int begin, int end, int late, float factor) const {
    constexpr int kFours = kPrefetchedRows / 4;
    constexpr int kTileBytes = PrefetchedPlan::kSumBytes * kTokenGroups;
    const int first = begin << plan_.group_shift;
    const int tiles = min(end << plan_.group_shift, tiles_) - first;
    const int tokens = 1 << plan_.token_shift;
    const int code_bytes = plan_.code_bytes;
    const int slots_bytes = plan_.slots * code_bytes;
    const auto parts = static_cast<int>(kept(static_cast<uint32_t>(plan_.parts)));
#pragma unroll kTokenGroups
    for (int i = static_cast<int>(threadIdx.x); i < tiles * kFours << plan_.token_shift;
         i += static_cast<int>(blockDim.x)) {
      const int row = i % kFours * 4;
      const int token = i / kFours & (tokens - 1);
      const int tile = first + (i / kFours >> plan_.token_shift);
      if (token >= c_.T) continue;
      const int group = tile & (plan_.groups - 1);
      const int of_group = tile >> plan_.group_shift;
      const int warp = group * plan_.parts;
      const bool in_rows = of_group < late;
      const int slot = of_group - static_cast<int>(__umulhi(static_cast<uint32_t>(of_group),
                                                            plan_.slots_inverse)) *
                                      plan_.slots;
      const unsigned char* from = memory_ + sum_place(token, row) * 4 +
                                  (in_rows ? plan_.rows_at(warp) + (of_group - begin) * kTileBytes
                                           : warp * slots_bytes + slot * code_bytes);
      const auto step =
          static_cast<int>(kept(static_cast<uint32_t>(in_rows ? plan_.rows_bytes : slots_bytes)));
      float4 of_part[kPrefetchedWarps];
#pragma unroll
      for (int part = 0; part < kPrefetchedWarps; ++part)
        of_part[part] =
            part < parts ? *reinterpret_cast<const float4*>(from + part * step) : float4{};
      float4 sum = of_part[0];
#pragma unroll
      for (int part = 1; part < kPrefetchedWarps; ++part)
        sum = sum_of(sum, of_part[part]);
      const int row_of_block = tile * kPrefetchedRows + row;
      if (plan_.slices == 1) {
        store_four(c_, plan_, matrix(), token, first_ * kPrefetchedRows + row_of_block, factor,
                   sum);
        continue;
      }
      const auto owner =
          static_cast<int>(__umulhi(static_cast<uint32_t>(row_of_block), plan_.share_inverse));
      const int of_share = row_of_block - owner * plan_.share;
      const uint32_t to =
          shared_ + static_cast<uint32_t>(plan_.received_at() +
                                          ((rank_ * c_.T + token) * plan_.share + of_share) * 4);
      send(address_in_block(to, owner), address_in_block(received_full_, owner), sum, true);
    }
  }

  /// Adds up the slices of this block's share of rows and stores them.
  __device__ __forceinline__ void finish_share(float factor) const {
    barrier_wait(received_full_, 0);
    const int fours = rows_of_share() / 4;
    for (int i = static_cast<int>(threadIdx.x); i < fours << plan_.token_shift;
         i += static_cast<int>(blockDim.x)) {
      const int token = i & ((1 << plan_.token_shift) - 1);
      const int row = (i >> plan_.token_shift) * 4;
      if (token >= c_.T) continue;
      const unsigned char* from = memory_ + plan_.received_at() + (token * plan_.share + row) * 4;
      float4 sum = *reinterpret_cast<const float4*>(from);
#pragma unroll
      for (int slice = 1; slice < kMostPrefetchedSlices; ++slice) {
        if (slice < plan_.slices)
          sum =
              sum_of(sum, *reinterpret_cast<const float4*>(from + slice * c_.T * plan_.share * 4));
      }
      store_four(c_, plan_, matrix(), token, first_ * kPrefetchedRows + rank_ * plan_.share + row,
                 factor, sum);
    }
  }

 private:
  __device__ __forceinline__ int rows_of_share() const {
    return max(0, min(plan_.share, tiles_ * kPrefetchedRows - rank_ * plan_.share));
  }

  const ProductCall& c_;
  const PrefetchedPlan& plan_;
  unsigned char* memory_;
  uint32_t shared_;
  uint32_t received_full_;
  int e_ = 0;  // matrix
  int rank_;   // slice of k
  int first_;  // tile
  int tiles_;
};

template <class Codec, int kTokenGroups>
static __global__ void __launch_bounds__(kPrefetchedThreads, 2)
    prefetched_products(const __grid_constant__ ProductCall c,
                        const __grid_constant__ PrefetchedPlan plan,
                        const __grid_constant__ typename Codec::Maps maps) {
  // Asked for here, an alignment of 1,024 bytes would cost every kernel of this file with variables
  // of its own as many.
  extern __shared__ __align__(128) unsigned char prefetched_shared[];
  const uint32_t shared = shared_address(prefetched_shared);
  if (shared % kSwizzleAlign != 0) __trap();  // variables would lie before it; there are none
  const PrefetchedBlock<kTokenGroups, Codec::kStacked> block(c, plan, prefetched_shared, shared);
  const int e = block.matrix();
  const int warp = uniform_warp();
  const int group = warp / plan.parts;
  const int part = warp - group * plan.parts;
  const int k = (block.rank() * plan.parts + part) * Codec::kPartK;
  typename Codec::Weights weights(plan, shared, warp,
                                  e * c.N + (block.first() + group) * kPrefetchedRows, k);
  const int mine = (block.tiles() - group + plan.groups - 1) >> plan.group_shift;  // tiles
  const uint32_t x_full = shared + static_cast<uint32_t>(plan.x_full_at(warp));
  const uint64_t policy = weights_policy(true);
  if (lane_id() == 0) {
    weights.make_barriers(plan.slots);
    barrier_init(x_full, 1);
    if constexpr (Codec::kSharesScales) {
      if (warp == 0) barrier_init(weights.scales_full(), 1);
    }
    fence_barriers();
    prefetch_map(maps.x);
  }
  __syncwarp();
  if constexpr (Codec::kSharesScales) {
    if (warp == 0) weights.ask_for_shared_scales(maps, block.tiles(), policy);
  }
#pragma unroll 1
  for (int i = 0; i < min(plan.slots, mine); ++i)
    weights.ask(maps, i, i, policy);
  if constexpr (Codec::kStacked) weights.ask_for_scales(c, e);
  if (plan.slices > 1) {
    if (threadIdx.x == 0) block.expect_sums();
    __syncwarp();
    cluster_arrive_relaxed();
  }
  if (Codec::kSharesScales) __syncthreads();              // their barrier is made
  const int first_block = e * plan.blocks * plan.slices;  // of this matrix
  const int num_blocks = Codec::kStacked ? plan.blocks * plan.slices : static_cast<int>(gridDim.x);
  bring_x_nearer(c, e,
                 (static_cast<int>(blockIdx.x) - first_block) * static_cast<int>(blockDim.x) +
                     static_cast<int>(threadIdx.x),
                 num_blocks * static_cast<int>(blockDim.x));
  wait_for_previous();
  const int all = block.all();
  const int let_at = all > plan.slots ? all - plan.left : -1;
  if (let_at < 0) let_next_start();
  // Matrices of FP8 blocks mostly have none, so nothing is kept for them.
  const LoadedFactors factors = Codec::kStacked ? LoadedFactors{} : c.loaded_factors(e);
  const auto zero = static_cast<uint32_t>(plan.parts) >> 31;
  const uint32_t rows = shared + static_cast<uint32_t>(plan.rows_at(warp));
  const int late = all - plan.slots;  // tiles before have others behind them in their slots
  const uint32_t of_lane = kept(sums_of_lane(Codec::row_of_lane()));
  uint32_t rows_left = rows + of_lane;
  int slot = 0;
  uint32_t parity = 0;
  const auto end_tile = [&](int i, const PrefetchedSums(&sums)[kTokenGroups]) {
    __syncwarp();  // sums will lie where x or this tile was
    const uint32_t to = i < late ? rows_left : weights.codes(slot) + of_lane;
    if (i + plan.slots < mine) {
      // Sums come of all that was in the slot.
      const uint32_t known = __float_as_uint(sums[0][0][0]) | __float_as_uint(sums[0][1][0]);
      weights.ask(maps, i + plan.slots, slot, policy, known & zero);
      if (i == let_at) let_next_start();
    }
    keep_sums(sums, to);
    rows_left += PrefetchedPlan::kSumBytes * kTokenGroups;
    if (++slot == plan.slots) {
      slot = 0;
      parity ^= 1;
    }
  };
  typename Codec::template X<kTokenGroups> x;
  const int k_of_x = k + static_cast<int>(e * c.x_matrix);
  // Tiles decoded while x comes. Code for a tile of its own comes from far away too: with sixteen
  // rows of x it costs more than it saves.
  constexpr int kAhead = Codec::kDecodesAhead && kTokenGroups == 1 ? 1 : 0;
  if constexpr (kAhead == 0) {
    x.ask(c, maps, k_of_x, rows, x_full);
    x.take(rows, x_full);
    if (plan.slices > 1) cluster_wait();
    if constexpr (Codec::kSharesScales) barrier_wait(weights.scales_full(), 0);
    if constexpr (Codec::kStacked) weights.take_scales(c);
  } else {
    if (mine > 0) x.ask(c, maps, k_of_x, rows, x_full);
    if constexpr (Codec::kSharesScales) barrier_wait(weights.scales_full(), 0);
    if (mine > 0) {
      barrier_wait(weights.full(0), 0);
      const auto tile = weights.load(0, 0);
      const auto decoded = decode_blocks<Codec::kPartK>(tile);
      x.take(rows, x_full + (decoded.all() & zero));  // or it would be decoded behind the wait
      PrefetchedSums sums[kTokenGroups] = {};
      multiply_decoded(decoded, x, sums);
      multiply_rest(tile, x, sums);
      end_tile(0, sums);
    }
    if (plan.slices > 1) cluster_wait();
  }
  int round_end = 0;
  float factor = 0.0f;
#pragma unroll 1
  for (int round = 0; round < all; round = round_end) {
    round_end = round + plan.round < late ? round + plan.round : all;
    if (kAhead == 0 || round > 0) rows_left = rows + of_lane;
#pragma unroll 1
    for (int i = max(round, kAhead); i < min(round_end, mine); ++i) {
      barrier_wait(weights.full(slot), parity);
      PrefetchedSums sums[kTokenGroups] = {};
      weights.add_tile(i, slot, x, sums);
      end_tile(i, sums);
    }
    __syncthreads();
    factor = (Codec::kStacked ? c.factor(e) : factors.product()) * Codec::kFactor;
    block.finish(round, round_end, late, factor);
    if (round_end < all) __syncthreads();
  }
  if (plan.slices > 1) block.finish_share(factor);
}

/// The map of boxes of eight rows of x and 128 k: two lines of 128 bytes a row.
inline TensorBox box_of_x(const ProductCall& c) {
  constexpr int kLine = 64;  // k in 128 bytes
  return {.data = c.x,
          .type = CU_TENSOR_MAP_DATA_TYPE_BFLOAT16,
          .dims = {kLine, ((c.matrices - 1) * c.x_matrix + c.K) / kLine, c.T},
          .strides = {kLine * 2, c.x_row * 2},
          .box = {kLine, kBlockK / kLine},
          .depth = std::min(c.T, kPrefetchedTokens),
          .swizzle = CU_TENSOR_MAP_SWIZZLE_128B};
}

inline Status make_prefetched_maps(const ProductCall& c, int part_k, PrefetchedNvfp4Maps* maps) {
  const auto weights = [&](const uint8_t* data, int64_t row, int box, CUtensorMapSwizzle swizzle) {
    return TensorBox{.data = data,
                     .dims = {row, c.N, 1},
                     .strides = {row, row * c.N},
                     .box = {box, kPrefetchedRows},
                     .swizzle = swizzle};
  };
  const bool swizzled = part_k / 2 == 128;  // bytes of codes
  FATHOM_TRY(
      make_tensor_map(weights(c.w, c.w_row, part_k / 2,
                              swizzled ? CU_TENSOR_MAP_SWIZZLE_128B : CU_TENSOR_MAP_SWIZZLE_NONE),
                      &maps->codes));
  FATHOM_TRY(make_tensor_map(weights(c.scales, c.scale_row, PrefetchedNvfp4Plan::scale_row(part_k),
                                     CU_TENSOR_MAP_SWIZZLE_NONE),
                             &maps->scales));
  TensorBox x = box_of_x(c);
  FATHOM_TRY(make_tensor_map(x, &maps->x));
  if (part_k % kBlockK == 0) return {};
  x.box[1] = 1;
  return make_tensor_map(x, &maps->x_of_64k);
}

/// Blocks, or clusters of them, that the GPU runs at once with one on a multiprocessor.
template <class Codec>
int64_t prefetched_places(const DeviceInfo& gpu, int slices) {
  if (slices == 1) return gpu.num_sms;
  return std::max<int64_t>(
      1, clusters_at_once(
             gpu.ordinal,
             {.kernel = reinterpret_cast<const void*>(
                  prefetched_products<Codec, kMostPrefetchedTokens / kPrefetchedTokens>),
              .threads = kPrefetchedThreads,
              .shared_bytes = kMostPrefetchedShared + (4 << 10),  // no two on a multiprocessor
              .cluster = slices}));
}

/// Runs a product that takes_prefetched() and whose parts of k are of Codec::kPartK.
template <class Codec>
Status run_prefetched(Exec& ex, const ProductCall& c) {
  using Plan = typename Codec::Plan;
  const auto plan =
      prefetched_plan<Plan>(c, prefetched_places<Codec>(*ex.device, Plan::split(c.K).slices));
  typename Codec::Maps maps{};
  FATHOM_TRY(make_prefetched_maps(c, plan.part_k, &maps));
  const LaunchShape shape{.blocks = int64_t{c.matrices} * plan.blocks * plan.slices,
                          .threads = plan.warps() * 32,
                          .shared_bytes = plan.shared_bytes(),
                          .cluster = plan.slices};
  return launch_kernel(
      ex, c.T <= kPrefetchedTokens ? prefetched_products<Codec, 1> : prefetched_products<Codec, 2>,
      shape, c, plan, maps);
}

}  // namespace fathom::cuda
