// FP8 blocks of prefetched products (prefetched_products.cuh): x of a warp's 256 k in f16, its
// weights, and what it does with a tile.
//
// Codes become f16 as in warp_split_k (BlockInF16, E4m3Eight), so x does as well, once.
#pragma once

#include "fathom/kernels/cuda/products/prefetched/prefetched_products.cuh"
#include "fathom/kernels/cuda/products/warp_split_k/f16_codes.cuh"

namespace fathom::cuda {

/// E4M3 with a scale for 128 x 128, one matrix or stacked ones with x of their own. The scales of
/// all tiles of a warp lie in a register, a lane one: of its two blocks of 128 k sixteen tiles.
struct PrefetchedFp8Plan {
  static constexpr int kPartK = 256;
  static constexpr int kBlocks = kPartK / kBlockK;  ///< of a warp
  static constexpr int kSlotBytes = kPrefetchedRows * kPartK;
  static constexpr int kMostTilesOfWarp = 16;
  static constexpr int kMostRounds = 4;

  static int work_left(int /*T*/, int slices) { return slices == 1 ? 6144 : 9216; }

  static PrefetchedSplit split(int K) {
    for (int slices = 1; slices <= kMostPrefetchedSlices; slices *= 2) {
      if (K % (slices * kPartK) == 0 && K / (slices * kPartK) <= kPrefetchedWarps)
        return {.slices = slices, .part_k = kPartK};
    }
    return {};
  }

  static void find_slot(PrefetchedPlan* plan) { plan->code_bytes = kSlotBytes; }

  static bool takes(const ProductCall& c) {
    constexpr int64_t kMost = int64_t{1} << 31;
    return !c.in_pairs && c.w_row == c.K && c.w_matrix == c.w_row * c.N &&
           c.scale_format != Format::kNone && c.scale_row == c.K / kBlockK &&
           int64_t{c.N} * c.matrices < kMost &&
           (c.matrices == 1 || (c.x_matrix % 64 == 0 && c.x_matrix * c.matrices < kMost));
  }
};

struct PrefetchedFp8Maps {
  CUtensorMap codes;  ///< boxes of two panels of sixteen rows of w and 128 k
  CUtensorMap x;      ///< boxes of eight rows and 128 k
};

/// x of a warp's k, in f16 times a power of two for each row and block of 128 k.
template <int kTokenGroups>
class PrefetchedFp8X {
 public:
  static constexpr int kBlocks = PrefetchedFp8Plan::kBlocks;

  __device__ __forceinline__ void ask(
      const ProductCall& c, const PrefetchedFp8Maps& maps, int k, uint32_t rows, uint32_t barrier) {
    x_.ask(c, maps, k, rows, barrier);
  }

  __device__ __forceinline__ void take(uint32_t rows, uint32_t barrier) {
    x_.take(rows, barrier);
#pragma unroll
    for (int group = 0; group < kTokenGroups; ++group) {
      exponents_[group] = 0;
#pragma unroll
      for (int block = 0; block < kBlocks; ++block) {
        const BlockInF16 f16(x_.eights[group][block]);
        exponents_[group] |= f16.exponent_of_sums(0) << 16 * block;
        exponents_[group] |= f16.exponent_of_sums(1) << (16 * block + 8);
      }
      exponents_[group] = kept(exponents_[group]);
    }
  }

  __device__ __forceinline__ const uint4& eight(int group, int block, int i) const {
    return x_.eights[group][block][i];
  }

  /// What takes back the power of two from this lane's sum j of eight rows and a block.
  __device__ __forceinline__ float scale(int group, int block, int j) const {
    return __uint_as_float((exponents_[group] >> (16 * block + 8 * (j & 1)) & 0xFFu) << 23);
  }

 private:
  PrefetchedX<kTokenGroups, PrefetchedFp8Plan::kPartK> x_;
  uint32_t exponents_[kTokenGroups];  ///< a byte a block and sum: registers are few
};

/// The weights of a warp: its slots, and what it asks for.
class PrefetchedFp8Weights : public PrefetchedSlots<PrefetchedFp8Plan::kSlotBytes> {
 public:
  static constexpr int kSlotBytes = PrefetchedFp8Plan::kSlotBytes;
  static constexpr int kBlocks = PrefetchedFp8Plan::kBlocks;
  static constexpr int kPanelBytes = kPrefetchedRows * kPanelRowBytes;

  /// `first_row`: of all matrices.
  __device__ PrefetchedFp8Weights(
      const PrefetchedPlan& plan, uint32_t shared, int warp, int first_row, int k)
      : PrefetchedSlots(plan, shared, warp, first_row), panel_(k / kBlockK) {
    codes_of_lane_ = kept(codes_ + panel_offset(lane_id() >> 2, (lane_id() & 3) * 2));
  }

  /// Asks for this warp's tile i. `zero` is known when what was in the slot is not needed any more.
  __device__ __forceinline__ void ask(
      const PrefetchedFp8Maps& maps, int i, int slot, uint64_t policy, uint32_t zero = 0) const {
    warp_expect(full(slot), kSlotBytes + zero);
    warp_copy_box(codes(slot), maps.codes, 0, row_ + i * step_, panel_, full(slot), policy);
  }

  /// Asks for the scales of all tiles, which no kernel makes: before the wait for the one before.
  __device__ __forceinline__ void ask_for_scales(const ProductCall& c, int e) {
    const int row = min(row_ - e * c.N + lane_id() / kBlocks * step_, c.N - 1);
    const int64_t at =
        e * c.scale_matrix + row / kBlockK * c.scale_row + panel_ + lane_id() % kBlocks;
    if (c.scale_format == Format::kF32) {
      asm volatile("ld.global.b32 %0, [%1];" : "=r"(scales_) : "l"(c.scales + at * 4) : "memory");
    } else {
      asm volatile("ld.global.u8 %0, [%1];" : "=r"(scales_) : "l"(c.scales + at) : "memory");
    }
  }

  /// The scales as numbers, not before this is called.
  __device__ __forceinline__ void take_scales(const ProductCall& c) {
    scales_ = kept(scales_);
    if (c.scale_format != Format::kF32)
      scales_ = __float_as_uint(to_float(Ue8m0{static_cast<uint8_t>(scales_)}));
  }

  /// Adds the products of tile i, which is in `slot`.
  template <int kTokenGroups>
  __device__ __forceinline__ void add_tile(int i,
                                           int slot,
                                           const PrefetchedFp8X<kTokenGroups>& x,
                                           PrefetchedSums (&sums)[kTokenGroups]) const {
    const uint32_t from = codes_of_lane_ + static_cast<uint32_t>(slot * kSlotBytes);
#pragma unroll
    for (int block = 0; block < kBlocks; ++block) {
      float even[kTokenGroups][4] = {};
      float odd[kTokenGroups][4] = {};  // a second chain, so that none waits for the other
#pragma unroll
      for (uint32_t half = 0; half < 2; ++half) {
        const uint32_t at = (from ^ half << 4) + static_cast<uint32_t>(block * kPanelBytes);
        const uint4 row_g = load_shared_16(at);
        const uint4 row_g8 = load_shared_16(at + 8 * kPanelRowBytes);
        const E4m3Eight first(row_g.x, row_g.y, row_g8.x, row_g8.y);
        const E4m3Eight second(row_g.z, row_g.w, row_g8.z, row_g8.w);
#pragma unroll
        for (int group = 0; group < kTokenGroups; ++group) {
          first.multiply(x.eight(group, block, 2 * half), even[group], odd[group]);
          second.multiply(x.eight(group, block, 2 * half + 1), even[group], odd[group]);
        }
      }
      const float scale = __uint_as_float(__shfl_sync(0xFFFFFFFFu, scales_, i * kBlocks + block));
#pragma unroll
      for (int group = 0; group < kTokenGroups; ++group) {
#pragma unroll
        for (int j = 0; j < 4; ++j) {
          sums[group][0][j] = fmaf(scale * x.scale(group, block, j), even[group][j] + odd[group][j],
                                   sums[group][0][j]);
        }
      }
    }
  }

 private:
  uint32_t codes_of_lane_;  // those of its first row, block and slot
  uint32_t scales_ = 0;     // of tile lane / 2 and block lane % 2, as they lie, then as floats
  int panel_;
};

inline Status make_prefetched_maps(const ProductCall& c, int part_k, PrefetchedFp8Maps* maps) {
  FATHOM_TRY(make_tensor_map({.data = c.w,
                              .dims = {kBlockK, int64_t{c.N} * c.matrices, c.K / kBlockK},
                              .strides = {c.w_row, kBlockK},
                              .box = {kBlockK, kPrefetchedRows},
                              .depth = part_k / kBlockK,
                              .swizzle = CU_TENSOR_MAP_SWIZZLE_128B},
                             &maps->codes));
  return make_tensor_map(box_of_x(c), &maps->x);
}

struct PrefetchedFp8 {
  using Plan = PrefetchedFp8Plan;
  using Maps = PrefetchedFp8Maps;
  using Weights = PrefetchedFp8Weights;
  template <int kTokenGroups>
  using X = PrefetchedFp8X<kTokenGroups>;
  static constexpr int kPartK = Plan::kPartK;
  static constexpr bool kSharesScales = false;
  static constexpr bool kStacked = true;
  static constexpr bool kDecodesAhead = false;
  static constexpr float kFactor = 1.0f;

  __device__ __forceinline__ static int row_of_lane() { return lane_id() >> 2; }
};

}  // namespace fathom::cuda
