// NVFP4 products of few rows of x: the warps of a block split K.
//
// A tile is sixteen rows of w, whole in k: one piece of memory. A warp of the block does nothing
// but ask the copy engine for tile after tile; the others have 512 k of every tile each and keep x
// of those in registers. So shared memory is free for weights, and the warps that decode and
// multiply, which bound this kernel, spend no instruction on bringing them. Every warp sums its
// part of a tile. Two tiles later one warp, another for every tile, adds up the parts in the order
// of k and stores, so that nobody waits for the slowest. A row so has the same bits in every batch
// and plan.
#pragma once

#include "fathom/kernels/cuda/codecs.cuh"
#include "fathom/kernels/cuda/launch_cuda.h"
#include "fathom/kernels/cuda/products/warp_split_k/split_k_plan.cuh"
#include "fathom/kernels/cuda/tensor_map.cuh"

namespace fathom::cuda {

using SplitKCursor = TileCursor<kSplitKTokens>;

/// The barriers of a block.
struct SplitKBarriers {
  uint32_t first;
  int slots;

  __device__ SplitKBarriers(const SplitKPlan& plan, uint32_t shared)
      : first(shared + static_cast<uint32_t>(plan.barriers_at())), slots(plan.slots) {}

  /// A tile has come.
  __device__ __forceinline__ uint32_t full(int slot) const { return at(slot); }

  /// All warps that multiply have read it.
  __device__ __forceinline__ uint32_t free(int slot) const { return at(slots + slot); }

  /// All parts of the sums of tile i are there.
  __device__ __forceinline__ uint32_t summed(int i) const {
    return at(2 * slots + (i & (kSplitKBuffers - 1)));
  }

  __device__ void init(int warps) const {
    for (int i = 0; i < slots; ++i) {
      barrier_init(full(i), 1);
      barrier_init(free(i), warps * kWarpArrivals);
    }
    for (int i = 0; i < kSplitKBuffers; ++i)
      barrier_init(summed(i), warps * kWarpArrivals);
    fence_barriers();
  }

 private:
  __device__ __forceinline__ uint32_t at(int i) const {
    return first + static_cast<uint32_t>(i) * 8;
  }
};

/// A slot of the ring, and the parity of how often the ring has gone round.
struct SplitKSlot {
  int slot = 0;
  uint32_t parity = 0;

  __device__ __forceinline__ void next(int slots) {
    if (++slot < slots) return;
    slot = 0;
    parity ^= 1;
  }
};

/// Asks for all tiles of a block; for the lanes of one warp.
__device__ __forceinline__ void bring_tiles(const ProductCall& c,
                                            const SplitKPlan& plan,
                                            const SplitKBarriers& barriers,
                                            const int* starts,
                                            uint32_t shared) {
  SplitKCursor items(c, plan, starts);
  const auto code_bytes = static_cast<uint32_t>(plan.code_bytes);
  const auto scale_bytes = static_cast<uint32_t>(kSplitKRows * plan.scale_row);
  const uint64_t policy = weights_policy(true);  // experts with a second batch of rows are rare
  SplitKSlot at{.slot = 0, .parity = 1};         // the first wait for a free slot ends at once
  SplitKSlot before{.slot = 0, .parity = 0};     // of the last that must have come
  int early = plan.slots - 1;                    // what is asked for at once comes at once, late
  while (items.more()) {
    const TileItem it = items.item();
    int run = items.run();
    items.next_run();
    const int64_t n = int64_t{it.tile} * kSplitKRows;
    const uint8_t* codes = c.w + it.e * c.w_matrix + n * c.w_row;
    const uint8_t* scales = c.scales + it.e * c.scale_matrix + n * c.scale_row;
#pragma unroll 1
    for (; run > 0; --run) {
      const uint32_t full = barriers.full(at.slot);
      const auto slot = static_cast<uint32_t>(at.slot * plan.slot_bytes);
      barrier_wait(barriers.free(at.slot), at.parity);
      if (early > 0) {
        --early;
      } else {
        barrier_wait(barriers.full(before.slot), before.parity);
        before.next(plan.slots);
      }
      if (lane_id() == 0) {
        barrier_expect(full, code_bytes + scale_bytes);
        copy_bytes(shared + slot, codes, code_bytes, full, policy);
        copy_bytes(shared + slot + code_bytes, scales, scale_bytes, full, policy);
      }
      __syncwarp();
      codes += kSplitKRows * c.w_row;
      scales += kSplitKRows * c.scale_row;
      at.next(plan.slots);
    }
  }
}

/// Where a lane reads its two rows of a tile, lane / 4 and the eighth behind it.
struct SplitKTile {
  uint32_t codes[2];
  uint32_t scales[2];

  /// Sixteen bytes of a block of 128 k.
  template <int kBlock, int kRow>
  __device__ __forceinline__ uint4 load_codes() const {
    return load_shared_16(codes[kRow] + kBlock * 64);
  }

  /// The two scales of this lane's 32 k there.
  template <int kBlock, int kRow>
  __device__ __forceinline__ uint32_t load_scales() const {
    return lifted_scales(load_shared_2(scales[kRow] + kBlock * 8));
  }
};

/// The same in slot 0, for a part of k.
struct SplitKLane {
  uint32_t codes;
  uint32_t scales;

  __device__ SplitKLane(const ProductCall& c, const SplitKPlan& plan, int part, uint32_t shared) {
    const int g = lane_id() >> 2;
    const int t = lane_id() & 3;
    codes = shared + static_cast<uint32_t>(g * (c.K / 2) + part * (kSplitK / 2) + t * 16);
    scales = shared + static_cast<uint32_t>(plan.code_bytes + g * plan.scale_row +
                                            part * (kSplitK / 16) + t * 2);
  }

  __device__ __forceinline__ SplitKTile tile(const SplitKPlan& plan, int slot) const {
    const auto at = static_cast<uint32_t>(slot * plan.slot_bytes);
    SplitKTile tile;
    tile.codes[0] = codes + at;
    tile.codes[1] = tile.codes[0] + static_cast<uint32_t>(plan.code_bytes / 2);
    tile.scales[0] = scales + at;
    tile.scales[1] = tile.scales[0] + static_cast<uint32_t>(plan.scale_row * 8);
    return tile;
  }
};

/// x of a warp's k, as the tensor cores take it: lane 4 g + t has 32 k of row g for each block.
struct SplitKX {
  static constexpr int kBlocks = kSplitK / kBlockK;
  uint4 eights[kBlocks][4];  ///< of k; halves of them are operands as they were loaded

  __device__ __forceinline__ void load(const ProductCall& c, const TileItem& it, int part) {
    const int g = lane_id() >> 2;
    const int64_t row = (c.offsets != nullptr ? 0 : it.e * c.x_matrix) + (it.first + g) * c.x_row;
    const Bf16* x = static_cast<const Bf16*>(c.x) + row + part * kSplitK + (lane_id() & 3) * 32;
#pragma unroll
    for (int block = 0; block < kBlocks; ++block) {
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        eights[block][j] =
            g < it.count ? *reinterpret_cast<const uint4*>(x + block * kBlockK + j * 8) : uint4{};
      }
    }
  }

  /// Adds the products of a tile. What comes back follows from what was loaded of it last, and
  /// loads of a warp come in the order in which they were asked for (warp_arrive_after).
  template <int kBlock = 0>
  __device__ __forceinline__ uint32_t multiply(const SplitKTile& tile,
                                               float (&sums)[4],
                                               float (&others)[4]) const {
    if constexpr (kBlock < kBlocks) {
      const uint4 row_g = tile.load_codes<kBlock, 0>();
      const uint4 row_g8 = tile.load_codes<kBlock, 1>();
      const uint32_t scale_g = tile.load_scales<kBlock, 0>();
      const uint32_t scale_g8 = tile.load_scales<kBlock, 1>();
      multiply_half<kBlock, 0>(row_g, row_g8, scale_g, scale_g8, sums, others);
      multiply_half<kBlock, 1>(row_g, row_g8, scale_g, scale_g8, sums, others);
      if constexpr (kBlock + 1 == kBlocks) return row_g.w | row_g8.w | scale_g | scale_g8;
      return multiply<kBlock + 1>(tile, sums, others);
    }
    return 0;
  }

 private:
  template <int kBlock, int kHalf>
  __device__ __forceinline__ void multiply_half(const uint4& row_g,
                                                const uint4& row_g8,
                                                uint32_t scale_g,
                                                uint32_t scale_g8,
                                                float (&sums)[4],
                                                float (&others)[4]) const {
    decode_half<kHalf>(row_g, row_g8, scale_g, scale_g8, [&](int j, const uint4& w) {
      cuda::multiply_half<kHalf>(j % 2 == 0 ? sums : others, w, eights[kBlock][j]);
    });
  }
};

/// The sums of a block's warps.
class SplitKSums {
 public:
  __device__ SplitKSums(const SplitKPlan& plan,
                        const SplitKBarriers& barriers,
                        const unsigned char* memory,
                        uint32_t shared)
      : plan_(plan),
        barriers_(barriers),
        memory_(memory),
        mine_(shared + static_cast<uint32_t>(plan.sums_at()) +
              static_cast<uint32_t>(warp_id() * SplitKPlan::kSums +
                                    (lane_id() & 3) * 2 * kSplitKSumRow + (lane_id() >> 2)) *
                  4) {}

  /// Keeps this warp's sums of tile i: of rows lane / 4 and the eighth behind it, of two tokens.
  __device__ __forceinline__ void keep(int i, const float (&sums)[4], const float (&others)[4]) {
    const uint32_t to =
        mine_ + static_cast<uint32_t>((i & (kSplitKBuffers - 1)) * plan_.buffer_bytes());
    store_float(to, sums[0] + others[0]);
    store_float(to + kSplitKSumRow * 4, sums[1] + others[1]);
    store_float(to + 8 * 4, sums[2] + others[2]);
    store_float(to + (kSplitKSumRow + 8) * 4, sums[3] + others[3]);
    warp_arrive(barriers_.summed(i));
  }

  /// Waits for all parts of tile i. Whoever has come here may fill the buffer of the tile two
  /// before i again: all warps used it before they arrived for tile i.
  __device__ __forceinline__ void wait(int i) const {
    barrier_wait(barriers_.summed(i), static_cast<uint32_t>(i / kSplitKBuffers & 1));
  }

  /// Adds up the parts of tile i and stores its rows, a lane two of a token.
  __device__ __forceinline__ void finish(const ProductCall& c, int tile, const TileItem& it) const {
    constexpr int kPairs = kSplitKRows / 2;
    const float factor = c.factor(it.e) * Nvfp4Codec::kFactor;
    const int n = it.tile * kSplitKRows + lane_id() % kPairs * 2;
    const auto* sums = reinterpret_cast<const float*>(
        memory_ + plan_.sums_at() + (tile & (kSplitKBuffers - 1)) * plan_.buffer_bytes());
    const int64_t matrix = c.offsets != nullptr ? 0 : it.e * c.y_matrix;
    for (int token = lane_id() / kPairs; token < it.count; token += 32 / kPairs) {
      const float* mine = sums + token * kSplitKSumRow + lane_id() % kPairs * 2;
      float2 sum{};
#pragma unroll 4
      for (int part = 0; part < plan_.parts; ++part) {
        const float2 more = *reinterpret_cast<const float2*>(mine + part * SplitKPlan::kSums);
        sum.x += more.x;
        sum.y += more.y;
      }
      if (plan_.y_is_plain) {
        *reinterpret_cast<uint32_t*>(static_cast<Bf16*>(c.y) + (it.first + token) * c.y_row + n) =
            pack_bf16(sum.x * factor, sum.y * factor);
        continue;
      }
      const int64_t x_row = it.first + token;
      const int64_t at = matrix + c.row_of_y(x_row) * c.y_row + n;
      sum.x = c.finished_of(it.e, sum.x * factor, x_row, n);
      sum.y = c.finished_of(it.e, sum.y * factor, x_row, n + 1);
      if (plan_.y_in_pairs) {
        *reinterpret_cast<uint32_t*>(static_cast<Bf16*>(c.y) + at) = pack_bf16(sum.x, sum.y);
        continue;
      }
#pragma unroll 1
      for (int i = 0; i < 2; ++i)
        store_any(c.y, c.y_format, at + i, i == 0 ? sum.x : sum.y);
    }
  }

 private:
  __device__ __forceinline__ static void store_float(uint32_t to, float value) {
    asm volatile("st.shared.f32 [%0], %1;" ::"r"(to), "f"(value) : "memory");
  }

  const SplitKPlan& plan_;
  const SplitKBarriers& barriers_;
  const unsigned char* memory_;
  uint32_t mine_;
};

static __global__ void __launch_bounds__(kMostSplitKThreads, 1)
    split_k_products(const __grid_constant__ ProductCall c,
                     const __grid_constant__ SplitKPlan plan) {
  extern __shared__ __align__(128) unsigned char split_k_shared[];
  const uint32_t shared = shared_address(split_k_shared);
  auto* const starts = reinterpret_cast<int*>(split_k_shared + plan.starts_at());
  const SplitKBarriers barriers(plan, shared);
  if (threadIdx.x == 0) barriers.init(plan.parts);
  if (c.offsets != nullptr) bring_offsets_nearer(c);
  const bool waits = c.offsets != nullptr || c.w_is_made;
  if (waits) {
    wait_for_previous();
  } else {
    let_next_start();  // its weights come while this one computes, where there is room
  }
  if (c.offsets != nullptr)
    find_expert_items<kSplitKTokens>(c, plan.row_tiles, plan.threads(), starts);
  __syncthreads();
  if (warp_id() == plan.parts) {
    bring_tiles(c, plan, barriers, starts, shared);
    return;
  }
  SplitKCursor items(c, plan, starts);
  if (!waits) wait_for_previous();
  const int part = warp_id();
  const SplitKLane lane(c, plan, part, shared);
  SplitKSums sums(plan, barriers, split_k_shared, shared);
  SplitKX x;
  SplitKSlot at;
  TileItem mine{};   // the tile that this warp finishes
  int until = part;  // tiles before the next that it finishes
  const auto zero = static_cast<uint32_t>(plan.parts) >> 31;
  int i = 0;
  /// Finishes tile i - kSplitKLag, where that is this warp's. Called once for every tile, and
  /// kSplitKLag times after them.
  const auto finish_late = [&] {
    if (i < kSplitKLag) return;
    sums.wait(i - kSplitKLag);
    // What is asked second follows from the first; without it ptxas 13.0.88 spills registers.
    if (until == plan.parts - kSplitKLag && i >= kSplitKLag + part)
      sums.finish(c, i - kSplitKLag, mine);
  };
  for (; items.more(); items.next_run()) {
    const TileItem& first = items.item();
    const int run = items.run();
    x.load(c, first, part);
#pragma unroll 1
    for (int tile = 0; tile < run; ++tile, ++i) {
      barrier_wait(barriers.full(at.slot), at.parity);
      float even[4] = {};
      float odd[4] = {};  // a second chain, so that products need not wait for each other
      const uint32_t loaded = x.multiply(lane.tile(plan, at.slot), even, odd);
      warp_arrive_after(barriers.free(at.slot), loaded, zero);
      at.next(plan.slots);
      finish_late();
      sums.keep(i, even, odd);
      if (--until < 0) {
        mine = first;
        mine.tile += tile;
        until = plan.parts - 1;
      }
      if (waits && tile + 1 == run && items.is_last_run()) let_next_start();
    }
  }
  for (int late = 0; late < kSplitKLag; ++late, ++i) {
    finish_late();
    if (--until < 0) until = plan.parts - 1;
  }
}

/// Runs a product that takes_split_k().
inline Status run_split_k(Exec& ex, const ProductCall& c) {
  if (c.T == 0 || c.N == 0 || c.matrices == 0) return {};
  const SplitKPlan plan = split_k_plan(c, ex.device->num_sms);
  const int64_t tiles = int64_t{plan.row_tiles} * plan.batches * c.matrices;
  const int64_t blocks = int64_t{ex.device->num_sms} * plan.blocks;
  return launch_kernel(ex, split_k_products,
                       {.blocks = c.offsets == nullptr ? std::min(blocks, tiles) : blocks,
                        .threads = plan.threads(),
                        .shared_bytes = plan.shared_bytes(c)},
                       c, plan);
}

}  // namespace fathom::cuda
