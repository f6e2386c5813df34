// Products of few rows of x with NVFP4 or FP8 weights: the warps of a block split K.
//
// A tile is sixteen rows of w, whole in k: one piece of memory. A warp of the block does nothing
// but ask the copy engine for tile after tile; the others have 512 k of every tile each and keep x
// of those in registers. So shared memory is free for weights, and the warps that decode and
// multiply, which bound this kernel for NVFP4, spend no instruction on bringing them. Every warp
// sums its part of a tile. Two tiles later one warp, another for every tile, adds up the parts in
// the order of k and stores, so that nobody waits for the slowest. A row so has the same bits in
// every batch and plan. What a slot of shared memory holds and what a warp does with it is up to
// the weights: SplitKNvfp4, SplitKFp8.
#pragma once

#include "fathom/kernels/cuda/launch_cuda.h"
#include "fathom/kernels/cuda/products/warp_split_k/split_k_fp8.cuh"
#include "fathom/kernels/cuda/products/warp_split_k/split_k_nvfp4.cuh"

namespace fathom::cuda {

/// Asks for all tiles of a block; for the lanes of one warp.
template <class Weights>
__device__ __forceinline__ void bring_tiles(const ProductCall& c,
                                            const SplitKPlan& plan,
                                            const typename Weights::Maps& maps,
                                            const SplitKBarriers& barriers,
                                            const int* starts,
                                            uint32_t shared) {
  SplitKCursor items(c, plan, starts);
  const uint64_t policy = weights_policy(true);  // experts with a second batch of rows are rare
  SplitKSlot at{.slot = 0, .parity = 1};         // the first wait for a free slot ends at once
  SplitKSlot before{.slot = 0, .parity = 0};     // of the last that must have come
  int early = plan.slots - 1;                    // what is asked for at once comes at once, late
  while (items.more()) {
    const TileItem it = items.item();
    int run = items.run();
    items.next_run();
    typename Weights::Source from(c, it);
#pragma unroll 1
    for (; run > 0; --run) {
#pragma unroll
      for (int step = 0; step < Weights::kSlotsOfTile; ++step) {
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
          barrier_expect(full, from.bytes(plan));
          from.bring(plan, maps, step, shared + slot, full, policy);
        }
        __syncwarp();
        at.next(plan.slots);
      }
      from.next_tile(c);
    }
  }
}

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

  /// Adds up the parts of tile i and stores its eight gated outputs, a lane two of a token.
  __device__ __forceinline__ void finish_gated(const ProductCall& c,
                                               int tile,
                                               const TileItem& it,
                                               float codes_factor) const {
    constexpr int kOutputs = kSplitKRows / 2;
    static_assert(kSplitKTokens * kOutputs / 2 == 32, "a pass of the lanes");
    const int token = lane_id() / (kOutputs / 2);
    if (token >= it.count) return;
    const int pair = lane_id() % (kOutputs / 2) * 2;
    const float factor = c.factor(it.e) * codes_factor;
    const auto* mine =
        reinterpret_cast<const float*>(memory_ + plan_.sums_at() +
                                       (tile & (kSplitKBuffers - 1)) * plan_.buffer_bytes()) +
        token * kSplitKSumRow + pair;
    float2 gate{};
    float2 up{};
#pragma unroll 2
    for (int part = 0; part < plan_.parts; ++part) {
      const float2 of_gate = *reinterpret_cast<const float2*>(mine + part * SplitKPlan::kSums);
      const float2 of_up =
          *reinterpret_cast<const float2*>(mine + part * SplitKPlan::kSums + kOutputs);
      gate.x += of_gate.x;
      gate.y += of_gate.y;
      up.x += of_up.x;
      up.y += of_up.y;
    }
    const uint32_t both = pack_bf16(swiglu(gate.x * factor, up.x * factor, c.gate_limit),
                                    swiglu(gate.y * factor, up.y * factor, c.gate_limit));
    Bf16* const to =
        static_cast<Bf16*>(c.y) + (it.first + token) * c.y_row + it.tile * kOutputs + pair;
    if (plan_.y_in_pairs) {
      *reinterpret_cast<uint32_t*>(to) = both;
    } else {
      to[0].bits = static_cast<uint16_t>(both);
      to[1].bits = static_cast<uint16_t>(both >> 16);
    }
  }

  /// Adds up the parts of tile i and stores its rows, a lane two of a token.
  __device__ __forceinline__ void finish(const ProductCall& c,
                                         int tile,
                                         const TileItem& it,
                                         float codes_factor) const {
    constexpr int kPairs = kSplitKRows / 2;
    const float factor = c.factor(it.e) * codes_factor;
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

template <class Weights>
__global__ void __launch_bounds__(kMostSplitKThreads, 1)
    split_k_products(const __grid_constant__ ProductCall c,
                     const __grid_constant__ SplitKPlan plan,
                     const __grid_constant__ typename Weights::Maps maps) {
  extern __shared__ __align__(kSplitKAlign) unsigned char split_k_shared[];
  unsigned char* const memory = Weights::first_slot(split_k_shared);
  const uint32_t shared = shared_address(memory);
  auto* const starts = reinterpret_cast<int*>(memory + plan.starts_at());
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
    bring_tiles<Weights>(c, plan, maps, barriers, starts, shared);
    return;
  }
  SplitKCursor items(c, plan, starts);
  if (!waits) wait_for_previous();
  const int part = warp_id();
  const typename Weights::Lane lane(c, plan, part, shared);
  SplitKSums sums(plan, barriers, memory, shared);
  typename Weights::X x;
  SplitKRing ring{plan, barriers, static_cast<uint32_t>(plan.parts) >> 31};
  TileItem mine{};   // the tile that this warp finishes
  int until = part;  // tiles before the next that it finishes
  int i = 0;
  const auto finish_mine = [&] {
    if constexpr (Weights::kGated) {
      sums.finish_gated(c, i - kSplitKLag, mine, Weights::kFactor);
    } else {
      sums.finish(c, i - kSplitKLag, mine, Weights::kFactor);
    }
  };
  /// Finishes tile i - kSplitKLag, where that is this warp's. Called once for every tile, and
  /// kSplitKLag times after them.
  const auto finish_late = [&] {
    if (i < kSplitKLag) return;
    sums.wait(i - kSplitKLag);
    // What is asked second follows from the first; without it ptxas 13.0.88 spills registers.
    if (until == plan.parts - kSplitKLag && i >= kSplitKLag + part) finish_mine();
  };
  for (; items.more(); items.next_run()) {
    const TileItem& first = items.item();
    const int run = items.run();
    x.load(c, plan, first, part);
#pragma unroll 1
    for (int tile = 0; tile < run; ++tile, ++i) {
      float even[4] = {};
      float odd[4] = {};  // a second chain, so that products need not wait for each other
      x.begin_tile(c, plan, first.e, first.tile + tile, part);
      x.add_tile(lane, ring, even, odd);
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
template <class Weights>
Status run_split_k(Exec& ex, const ProductCall& c) {
  if (c.T == 0 || c.N == 0 || c.matrices == 0) return {};
  const SplitKPlan plan = split_k_plan<Weights>(c, ex.device->num_sms);
  typename Weights::Maps maps;
  FATHOM_TRY(Weights::make_maps(c, plan, &maps));
  const int64_t tiles = int64_t{plan.row_tiles} * plan.batches * c.matrices;
  const int64_t blocks = int64_t{ex.device->num_sms} * plan.blocks;
  return launch_kernel(ex, split_k_products<Weights>,
                       {.blocks = c.offsets == nullptr ? std::min(blocks, tiles) : blocks,
                        .threads = plan.threads(),
                        .shared_bytes = plan.shared_bytes(c)},
                       c, plan, maps);
}

}  // namespace fathom::cuda
