// FP8 weights of products whose warps split K: how tiles come by quarters, and what a warp does
// with one.
//
// Codes become f16 (E4m3Eight), and so does x, when it is loaded: the 128 k of a row that share a
// scale of weights are multiplied by a power of two (BlockInF16), which is taken back when the sum
// of the block is scaled, in float32 as it is without.
#pragma once

#include "fathom/kernels/cuda/products/warp_split_k/f16_codes.cuh"
#include "fathom/kernels/cuda/products/warp_split_k/split_k_slots.cuh"
#include "fathom/kernels/cuda/tensor_map.cuh"

namespace fathom::cuda {

/// The weights of all matrices as [panels of 128 k][rows of all][128 bytes].
struct SplitKFp8Maps {
  CUtensorMap w;
};

/// Where the tiles of a matrix lie from one on; for the warp that brings them.
struct SplitKFp8Source {
  int row;

  __device__ __forceinline__ SplitKFp8Source(const ProductCall& c, const TileItem& it)
      : row(it.e * c.N + it.tile * kSplitKRows) {}

  __device__ __forceinline__ static uint32_t bytes(const SplitKPlan& plan) {
    return static_cast<uint32_t>(plan.code_bytes);
  }

  /// Panel `step` of each part's four, in one box. For one lane.
  __device__ __forceinline__ void bring(const SplitKPlan& plan,
                                        const SplitKFp8Maps& maps,
                                        int step,
                                        uint32_t to,
                                        uint32_t full,
                                        uint64_t policy) const {
    copy_box(to, maps.w, 0, row, step * plan.parts, full, policy);
  }

  __device__ __forceinline__ void next_tile(const ProductCall& /*c*/) { row += kSplitKRows; }
};

/// As SplitKFp8Source, of eight gate rows and the eight up rows of the same outputs.
struct GatedSplitKFp8Source {
  int group;

  __device__ __forceinline__ GatedSplitKFp8Source(const ProductCall& c, const TileItem& it)
      : group(it.e * (c.N / 8) + it.tile) {}

  __device__ __forceinline__ static uint32_t bytes(const SplitKPlan& plan) {
    return SplitKFp8Source::bytes(plan);
  }

  __device__ __forceinline__ void bring(const SplitKPlan& plan,
                                        const SplitKFp8Maps& maps,
                                        int step,
                                        uint32_t to,
                                        uint32_t full,
                                        uint64_t policy) const {
    copy_gated_box(to, maps.w, 0, group, step * plan.parts, full, policy);
  }

  __device__ __forceinline__ void next_tile(const ProductCall& /*c*/) { ++group; }
};

/// Where a lane reads its two rows of a slot, lane / 4 and the eighth behind it: in each 32 k, two
/// chunks of sixteen. Lanes that read at once touch all banks: those of a row the even or the odd
/// chunks, as the swizzle has them, those of the next row the others.
struct SplitKFp8Lane {
  static constexpr uint32_t kEighth = 8 * kPanelRowBytes;  ///< from a row to the eighth behind it

  uint32_t chunk;  ///< the first, in slot 0; the second is at this address xor 16

  __device__ SplitKFp8Lane(const ProductCall& /*c*/,
                           const SplitKPlan& /*plan*/,
                           int part,
                           uint32_t shared)
      : chunk(shared + static_cast<uint32_t>(part * kSplitKRows * kPanelRowBytes) +
              panel_offset(lane_id() >> 2, (lane_id() & 3) * 2)) {}
};

/// x of a warp's k in f16, as the tensor cores take it: lane 4 g + t has 32 k of row g for each
/// block, times a power of two.
template <bool kGated>
class SplitKFp8X {
 public:
  __device__ __forceinline__ void load(const ProductCall& c,
                                       const SplitKPlan& plan,
                                       const TileItem& it,
                                       int part) {
    load_split_k_rows(c, it, part * kBlockK, plan.parts * kBlockK, eights_);
#pragma unroll
    for (uint32_t& exponents : x_exponents_)
      exponents = 0;
#pragma unroll
    for (int block = 0; block < kSplitKBlocks; ++block)
      make_f16(block);
  }

  /// Before add_tile(): asks for the scales of tile `tile`, which come while its weights do.
  __device__ __forceinline__ void begin_tile(
      const ProductCall& c, const SplitKPlan& plan, int e, int tile, int part) {
    const int block = (lane_id() & 3) * plan.parts + part;
    int row = tile * kSplitKRows;
    if constexpr (kGated) row = tile * (kSplitKRows / 2) + (lane_id() & 4) / 4 * (c.N / 2);
    scale_ = block_scale(c, e, row / kBlockK, block);
  }

  /// Adds the products of the next tile in the ring, a slot for each block.
  __device__ __forceinline__ void add_tile(const SplitKFp8Lane& lane,
                                           SplitKRing& ring,
                                           float (&total)[4],
                                           float (&/*others*/)[4]) const {
#pragma unroll
    for (int block = 0; block < kSplitKBlocks; ++block) {
      ring.wait();
      const uint32_t from = lane.chunk + static_cast<uint32_t>(ring.at.slot * ring.plan.slot_bytes);
      float even[4] = {};
      float odd[4] = {};  // a second chain, so that products need not wait for each other
#pragma unroll
      for (uint32_t i = 0; i < 2; ++i) {
        const uint4 row_g = load_shared_16(from ^ i << 4);
        const uint4 row_g8 = load_shared_16((from ^ i << 4) + SplitKFp8Lane::kEighth);
        if (i == 1) ring.give_back(row_g.w | row_g8.w);
        E4m3Eight(row_g.x, row_g.y, row_g8.x, row_g8.y).multiply(eights_[block][2 * i], even, odd);
        E4m3Eight(row_g.z, row_g.w, row_g8.z, row_g8.w)
            .multiply(eights_[block][2 * i + 1], even, odd);
      }
      const float scale = __shfl_sync(0xFFFFFFFFu, scale_, block);
      const float scale_8 = kGated ? __shfl_sync(0xFFFFFFFFu, scale_, 4 + block) : scale;
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        total[j] =
            fmaf((j < 2 ? scale : scale_8) * x_scale(block, j & 1), even[j] + odd[j], total[j]);
      }
    }
  }

 private:
  __device__ __forceinline__ void make_f16(int block) {
    const BlockInF16 f16(eights_[block]);
#pragma unroll
    for (int i = 0; i < 2; ++i)
      x_exponents_[i] |= f16.exponent_of_sums(i) << 8 * block;
  }

  /// What takes back the power of two of a block of row 2 t + i of x, of which a lane has sums.
  __device__ __forceinline__ float x_scale(int block, int i) const {
    return __uint_as_float((x_exponents_[i] >> 8 * block & 0xFFu) << 23);
  }

  uint4 eights_[kSplitKBlocks][4];
  uint32_t x_exponents_[2];  ///< a byte a block: registers are few
  float scale_;  ///< of the tile to add, for block lane % 4; of its up rows in every second quad
};

struct SplitKFp8 : SplitKFp8Plan {
  using Source = SplitKFp8Source;
  using Lane = SplitKFp8Lane;
  using X = SplitKFp8X<false>;
  static constexpr bool kGated = false;
  using Maps = SplitKFp8Maps;
  static constexpr float kFactor = 1.0f;

  /// The first that the swizzle of the copy engine begins at.
  __device__ __forceinline__ static unsigned char* first_slot(unsigned char* memory) {
    const uint32_t at = shared_address(memory);
    return memory + ((at + 1023) / 1024 * 1024 - at);
  }

  static Status make_maps(const ProductCall& c, const SplitKPlan& plan, Maps* maps) {
    return make_tensor_map({.data = c.w,
                            .dims = {kBlockK, int64_t{c.N} * c.matrices, c.K / kBlockK},
                            .strides = {c.w_row, kBlockK},
                            .box = {kBlockK, kSplitKRows},
                            .depth = plan.parts,
                            .swizzle = CU_TENSOR_MAP_SWIZZLE_128B},
                           &maps->w);
  }
};

struct GatedSplitKFp8 : SplitKFp8 {
  using Source = GatedSplitKFp8Source;
  using X = SplitKFp8X<true>;
  static constexpr bool kGated = true;

  static Status make_maps(const ProductCall& c, const SplitKPlan& plan, Maps* maps) {
    return make_gated_map({.data = c.w,
                           .row_bytes = c.w_row,
                           .half_rows = c.N / 2,
                           .columns = kBlockK,
                           .groups = int64_t{c.N} * c.matrices / 8,
                           .lasts = c.K / kBlockK,
                           .last_bytes = kBlockK,
                           .box = {kBlockK, 1, plan.parts},
                           .swizzle = CU_TENSOR_MAP_SWIZZLE_128B},
                          &maps->w);
  }
};

}  // namespace fathom::cuda
