// NVFP4 products of few rows of x whose k are spread over the warps of a block.
//
// A warp has 512 k of every tile and keeps x of those in registers, so that shared memory is free
// for weights: what memory needs to run at its full rate is on its way, and rows of weights are
// read 256 bytes at a time, the whole of a row at once by the warps of a block. (128 bytes at a
// time are read at 87 % of that rate on an H200: GEMM_CUDA_NOTES.md.) Every warp adds up its part
// of sixteen rows; one warp of a group, another for every tile, adds up the parts in the order of k
// and stores, two tiles later, so that nobody waits for the slowest. So a row has the same bits in
// every batch and plan.
#pragma once

#include "fathom/kernels/cuda/codecs.cuh"
#include "fathom/kernels/cuda/launch_cuda.h"
#include "fathom/kernels/cuda/products/spread/spread_plan.cuh"
#include "fathom/kernels/cuda/tensor_core.cuh"

namespace fathom::cuda {

using SpreadCursor = SweepCursor<kSpreadTokens>;

/// Where a warp stands.
struct SpreadPlace {
  int warp;
  int group;
  int part;

  __device__ explicit SpreadPlace(const SpreadPlan& plan)
      : warp(warp_id()), group(warp / plan.parts), part(warp - group * plan.parts) {}
};

/// The weights of a warp on their way through its slots: the lanes of half a warp bring 256 bytes
/// of a row. Chunks of sixteen bytes of odd rows change places by four, so that neither the copies
/// nor the eight lanes that read at once meet in a bank; those of scales by one in every other four
/// rows. Addresses are those of the tile before plus a constant, as far as rows of x are the same.
template <int kAhead>
class SpreadRing {
 public:
  __device__ SpreadRing(const ProductCall& call,
                        const SpreadPlan& plan,
                        const SpreadPlace& place,
                        const SpreadCursor& items,
                        uint32_t shared)
      : c_(call), plan_(plan), place_(place), items_(items) {
    const uint32_t slots =
        shared + static_cast<uint32_t>(place.warp * kAhead * SpreadPlan::kSlotBytes);
    const auto lane = static_cast<uint32_t>(lane_id());
    const uint32_t odd = lane >> 4;
    const uint32_t chunk = lane & 15;
    to_codes_ = slots + odd * 256 + (chunk ^ odd * 4) * 16;
    to_scales_ =
        slots + SpreadPlan::kCodeBytes + (lane >> 1) * 32 + ((lane & 1) ^ (lane >> 3 & 1)) * 16;
    const uint32_t g = lane >> 2;
    const uint32_t t = lane & 3;
    codes_ = slots + g * 256 + t * 16 + (g & 1) * 64;
    swap_codes_ = (g & 1) != 0 ? -64 : 64;
    scales_ = slots + SpreadPlan::kCodeBytes + g * 32 + t * 2 + (g >> 2) * 16;
    swap_scales_ = (g >> 2) != 0 ? -16 : 16;
  }

  /// Fills a slot with the next tile.
  __device__ __forceinline__ void start(int slot) {
    if (run_ == 0 && items_.more()) go_to_run();
    if (run_ > 0) {
      const auto at = static_cast<uint32_t>(slot * SpreadPlan::kSlotBytes);
      const int64_t two_rows = 2 * c_.w_row;
#pragma unroll
      for (int i = 0; i < kSpreadRows / 2; ++i)
        copy_16_async(to_codes_ + at + static_cast<uint32_t>(i) * 512, from_codes_ + i * two_rows);
      copy_16_async(to_scales_ + at, from_scales_);
      from_codes_ += plan_.tile_rows() * c_.w_row;
      from_scales_ += plan_.tile_rows() * c_.scale_row;
      --run_;
    }
    end_copy_group();
  }

  __device__ __forceinline__ void wait() const {
    wait_copy_groups<kAhead - 1>();
    __syncwarp();
  }

  /// Sixteen bytes of row lane / 4, or of the eighth behind it, of a block of 128 k.
  template <int kMore, int kBlock>
  __device__ __forceinline__ uint4 codes(int slot) const {
    uint4 v;
    asm volatile("ld.shared.v4.b32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                 : "r"(codes_ +
                       static_cast<uint32_t>(slot * SpreadPlan::kSlotBytes +
                                             (kBlock & 1 ? swap_codes_ : 0)) +
                       kMore * 256 + (kBlock & 2) * 64));
    return v;
  }

  /// The two scales of this lane's 32 k there.
  template <int kMore, int kBlock>
  __device__ __forceinline__ uint32_t scales(int slot) const {
    uint16_t two;
    asm volatile("ld.shared.u16 %0, [%1];"
                 : "=h"(two)
                 : "r"(scales_ +
                       static_cast<uint32_t>(slot * SpreadPlan::kSlotBytes +
                                             (kBlock & 2 ? swap_scales_ : 0)) +
                       kMore * 32 + (kBlock & 1) * 8));
    return lifted_scales(two);
  }

 private:
  __device__ void go_to_run() {
    const SweepItem it = items_.item();
    run_ = items_.run();
    items_.next_run();
    const int lane = lane_id();
    const int64_t n = int64_t{it.tile} * plan_.tile_rows() + place_.group * kSpreadRows;
    from_codes_ = c_.w + it.e * c_.w_matrix + (n + (lane >> 4)) * c_.w_row +
                  place_.part * (kSpreadK / 2) + (lane & 15) * 16;
    from_scales_ = c_.scales + it.e * c_.scale_matrix + (n + (lane >> 1)) * c_.scale_row +
                   place_.part * (kSpreadK / 16) + (lane & 1) * 16;
  }

  const ProductCall& c_;
  const SpreadPlan& plan_;
  const SpreadPlace& place_;
  SpreadCursor items_;
  int run_ = 0;  ///< tiles left of those whose addresses follow
  const uint8_t* from_codes_ = nullptr;
  const uint8_t* from_scales_ = nullptr;
  uint32_t to_codes_;
  uint32_t to_scales_;
  uint32_t codes_;
  uint32_t scales_;
  int swap_codes_;
  int swap_scales_;
};

/// x of a warp's k, as the tensor cores take it: lane 4 g + t has 32 k of row g for each block.
struct SpreadX {
  static constexpr int kBlocks = kSpreadK / kBlockK;
  uint32_t pairs[kBlocks][Nvfp4Codec::kGroups][4];

  __device__ __forceinline__ void load(const ProductCall& c,
                                       const SweepItem& it,
                                       int part,
                                       uint32_t zero) {
    const int g = lane_id() >> 2;
    const int64_t row = (c.offsets != nullptr ? 0 : it.e * c.x_matrix) + (it.first + g) * c.x_row;
    const Bf16* x = static_cast<const Bf16*>(c.x) + row + part * kSpreadK + (lane_id() & 3) * 32;
#pragma unroll
    for (int block = 0; block < kBlocks; ++block) {
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        const uint4 eight =
            g < it.count ? *reinterpret_cast<const uint4*>(x + block * kBlockK + j * 8) : uint4{};
        pairs[block][0][j] = eight.x | zero;
        pairs[block][1][j] = eight.y | zero;
        pairs[block][2][j] = eight.z | zero;
        pairs[block][3][j] = eight.w | zero;
      }
    }
  }

  /// Adds the products of a slot.
  template <class Ring, int kBlock = 0>
  __device__ __forceinline__ void multiply(const Ring& ring,
                                           int slot,
                                           float (&sums)[4],
                                           float (&others)[4]) const {
    if constexpr (kBlock < kBlocks) {
      multiply_block<kBlock>(ring.template codes<0, kBlock>(slot),
                             ring.template codes<8, kBlock>(slot),
                             ring.template scales<0, kBlock>(slot),
                             ring.template scales<8, kBlock>(slot), sums, others);
      multiply<Ring, kBlock + 1>(ring, slot, sums, others);
    }
  }

 private:
  template <int kBlock, int i = 0>
  __device__ __forceinline__ void multiply_block(const uint4& row_g,
                                                 const uint4& row_g8,
                                                 uint32_t scale_g,
                                                 uint32_t scale_g8,
                                                 float (&sums)[4],
                                                 float (&others)[4]) const {
    if constexpr (i < Nvfp4Codec::kGroups) {
      uint32_t a[4];
      uint32_t b[4];
      Nvfp4Codec::decode<i>(row_g, scale_g, a);
      Nvfp4Codec::decode<i>(row_g8, scale_g8, b);
      const uint32_t(&v)[4] = pairs[kBlock][i];
      mma_16x8x16(sums, a[0], b[0], a[1], b[1], v[0], v[1]);
      mma_16x8x16(others, a[2], b[2], a[3], b[3], v[2], v[3]);
      multiply_block<kBlock, i + 1>(row_g, row_g8, scale_g, scale_g8, sums, others);
    }
  }
};

/// The sums of a block's warps, and the barriers at which all parts of a tile arrive.
class SpreadSums {
 public:
  __device__ SpreadSums(const SpreadPlan& plan,
                        const SpreadPlace& place,
                        const unsigned char* memory,
                        uint32_t shared)
      : plan_(plan),
        place_(place),
        memory_(memory),
        mine_(shared +
              static_cast<uint32_t>(plan.sums_at() + place.warp * SpreadPlan::kSums * 4 +
                                    (lane_id() >> 2) * kSpreadTokens * 4 + (lane_id() & 3) * 8)),
        barriers_(shared +
                  static_cast<uint32_t>(plan.barriers_at() + place.group * kSpreadBuffers * 8)) {}

  /// Keeps this warp's sums of tile i.
  __device__ __forceinline__ void keep(int i, const float (&sums)[4], const float (&others)[4]) {
    const int buffer = i & (kSpreadBuffers - 1);
    const uint32_t to = mine_ + static_cast<uint32_t>(buffer * plan_.buffer_bytes());
    store_two(to, sums[0] + others[0], sums[1] + others[1]);
    store_two(to + 8 * kSpreadTokens * 4, sums[2] + others[2], sums[3] + others[3]);
    __syncwarp();
    if (lane_id() == 0) barrier_arrive(barriers_ + static_cast<uint32_t>(buffer) * 8);
  }

  /// Waits for all parts of tile i. Whoever has come here may fill the buffer of the tile two
  /// before i again: all warps used it before they arrived for tile i.
  __device__ __forceinline__ void wait(int i) const {
    barrier_wait(barriers_ + static_cast<uint32_t>(i & (kSpreadBuffers - 1)) * 8,
                 static_cast<uint32_t>(i / kSpreadBuffers & 1));
  }

  /// Adds up the parts of tile i and stores its rows.
  __device__ __forceinline__ void finish(const ProductCall& c, int i, const SweepItem& it) const {
    const int n0 = it.tile * plan_.tile_rows() + place_.group * kSpreadRows;
    const float factor = c.factor(it.e) * Nvfp4Codec::kFactor;
    const auto* sums =
        reinterpret_cast<const float*>(memory_ + plan_.sums_at() +
                                       (i & (kSpreadBuffers - 1)) * plan_.buffer_bytes()) +
        place_.group * plan_.parts * SpreadPlan::kSums;
    for (int o = lane_id(); o < it.count * kSpreadRows; o += 32) {
      const int token = o / kSpreadRows;
      const int row = o % kSpreadRows;
      float sum = 0.0f;
#pragma unroll 4
      for (int part = 0; part < plan_.parts; ++part)
        sum += sums[part * SpreadPlan::kSums + row * kSpreadTokens + token];
      const int64_t x_row = it.first + token;
      store_any(
          c.y, c.y_format,
          (c.offsets != nullptr ? 0 : it.e * c.y_matrix) + c.row_of_y(x_row) * c.y_row + n0 + row,
          c.finished_of(it.e, sum * factor, x_row, n0 + row));
    }
  }

 private:
  __device__ __forceinline__ static void store_two(uint32_t to, float a, float b) {
    asm volatile("st.shared.v2.f32 [%0], {%1, %2};" ::"r"(to), "f"(a), "f"(b) : "memory");
  }

  const SpreadPlan& plan_;
  const SpreadPlace& place_;
  const unsigned char* memory_;
  uint32_t mine_;
  uint32_t barriers_;
};

template <int kAhead>
__global__ void __launch_bounds__(kMostSpreadWarps * 32, 1)
    spread_products(const __grid_constant__ ProductCall c,
                    const __grid_constant__ SpreadPlan plan) {
  extern __shared__ __align__(128) unsigned char spread_shared[];
  const uint32_t shared = shared_address(spread_shared);
  auto* const starts = reinterpret_cast<int*>(spread_shared + plan.starts_at());
  const SpreadPlace place(plan);
  if (threadIdx.x == 0) {
    for (int i = 0; i < plan.groups * kSpreadBuffers; ++i)
      barrier_init(shared + static_cast<uint32_t>(plan.barriers_at() + i * 8), plan.parts);
    fence_barriers();
  }
  const bool waits = c.offsets != nullptr || c.w_is_made;
  if (waits) wait_for_previous();
  if (c.offsets != nullptr)
    find_expert_items<kSpreadTokens>(c, plan.row_tiles, plan.warps() * 32, starts);
  SpreadCursor items(c, plan, starts);
  SpreadRing<kAhead> weights(c, plan, place, items, shared);
#pragma unroll 1
  for (int slot = 0; slot < kAhead; ++slot)
    weights.start(slot);
  __syncthreads();
  if (!waits) wait_for_previous();
  SpreadSums sums(plan, place, spread_shared, shared);
  SpreadX x;
  SweepItem mine{};          // the tile that this warp finishes next
  int until = place.part;    // tiles before the next that this warp finishes
  int until_late = 1 << 30;  // tiles before that one is finished
  int slot = 0;
  int i = 0;
  while (items.more()) {
    SweepItem it = items.item();
    int run = items.run();
    items.next_run();
    x.load(c, it, place.part, static_cast<uint32_t>(plan.parts) >> 31);
#pragma unroll 1
    for (; run > 0; --run, ++it.tile, ++i) {
      weights.wait();
      float even[4] = {};
      float odd[4] = {};  // a second chain, so that products need not wait for each other
      x.multiply(weights, slot, even, odd);
      __syncwarp();
      weights.start(slot);
      slot = slot + 1 == kAhead ? 0 : slot + 1;
      if (i >= kSpreadLag) sums.wait(i - kSpreadLag);
      if (--until_late == 0) sums.finish(c, i - kSpreadLag, mine);
      sums.keep(i, even, odd);
      if (--until < 0) {
        mine = it;
        until = plan.parts - 1;
        until_late = kSpreadLag;
      }
      if (run == 1 && !items.more()) let_next_start();
    }
  }
  for (const int end = i; i < end + kSpreadLag; ++i) {
    if (i >= kSpreadLag) sums.wait(i - kSpreadLag);
    if (--until_late == 0) sums.finish(c, i - kSpreadLag, mine);
  }
}

template <int kAhead>
Status launch_spread(Exec& ex, const ProductCall& c, const SpreadPlan& plan) {
  const int64_t tiles = int64_t{plan.row_tiles} * plan.batches * c.matrices;
  const int64_t blocks = ex.device->num_sms;
  return launch_kernel(ex, spread_products<kAhead>,
                       {.blocks = c.offsets == nullptr ? std::min(blocks, tiles) : blocks,
                        .threads = plan.warps() * 32,
                        .shared_bytes = plan.shared_bytes(c)},
                       c, plan);
}

/// Runs a product that takes_spread().
inline Status run_spread(Exec& ex, const ProductCall& c) {
  if (c.T == 0 || c.N == 0 || c.matrices == 0) return {};
  const SpreadPlan plan = spread_plan(c, ex.device->num_sms);
  return plan.ahead == 2 ? launch_spread<2>(ex, c, plan) : launch_spread<3>(ex, c, plan);
}

}  // namespace fathom::cuda
