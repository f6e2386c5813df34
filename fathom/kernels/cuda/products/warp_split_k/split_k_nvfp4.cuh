// NVFP4 weights of products whose warps split K: how tiles come, and what a warp does with one.
#pragma once

#include "fathom/kernels/cuda/codecs.cuh"
#include "fathom/kernels/cuda/products/warp_split_k/split_k_slots.cuh"
#include "fathom/kernels/cuda/tensor_map.cuh"

namespace fathom::cuda {

/// Where the tiles of a matrix lie from one on; for the warp that brings them.
struct SplitKNvfp4Source {
  const uint8_t* codes;
  const uint8_t* scales;

  __device__ __forceinline__ SplitKNvfp4Source(const ProductCall& c, const TileItem& it) {
    const int64_t n = int64_t{it.tile} * kSplitKRows;
    codes = c.w + it.e * c.w_matrix + n * c.w_row;
    scales = c.scales + it.e * c.scale_matrix + n * c.scale_row;
  }

  __device__ __forceinline__ static uint32_t bytes(const SplitKPlan& plan) {
    return static_cast<uint32_t>(plan.code_bytes + kSplitKRows * plan.scale_row);
  }

  /// For one lane.
  template <class Maps>
  __device__ __forceinline__ void bring(const SplitKPlan& plan,
                                        const Maps& /*maps*/,
                                        int /*step*/,
                                        uint32_t to,
                                        uint32_t full,
                                        uint64_t policy) const {
    const auto code_bytes = static_cast<uint32_t>(plan.code_bytes);
    copy_bytes(to, codes, code_bytes, full, policy);
    copy_bytes(to + code_bytes, scales, static_cast<uint32_t>(kSplitKRows * plan.scale_row), full,
               policy);
  }

  __device__ __forceinline__ void next_tile(const ProductCall& c) {
    codes += kSplitKRows * c.w_row;
    scales += kSplitKRows * c.scale_row;
  }
};

/// Where a lane reads its two rows of a tile, lane / 4 and the eighth behind it.
struct SplitKNvfp4Tile {
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
struct SplitKNvfp4Lane {
  uint32_t codes;
  uint32_t scales;

  __device__ SplitKNvfp4Lane(const ProductCall& c,
                             const SplitKPlan& plan,
                             int part,
                             uint32_t shared) {
    const int g = lane_id() >> 2;
    const int t = lane_id() & 3;
    codes = shared + static_cast<uint32_t>(g * (c.K / 2) + part * (kSplitK / 2) + t * 16);
    scales = shared + static_cast<uint32_t>(plan.code_bytes + g * plan.scale_row +
                                            part * (kSplitK / 16) + t * 2);
  }

  __device__ __forceinline__ SplitKNvfp4Tile tile(const SplitKPlan& plan, int slot) const {
    const auto at = static_cast<uint32_t>(slot * plan.slot_bytes);
    SplitKNvfp4Tile tile;
    tile.codes[0] = codes + at;
    tile.codes[1] = tile.codes[0] + static_cast<uint32_t>(plan.code_bytes / 2);
    tile.scales[0] = scales + at;
    tile.scales[1] = tile.scales[0] + static_cast<uint32_t>(plan.scale_row * 8);
    return tile;
  }
};

/// x of a warp's k, as the tensor cores take it: lane 4 g + t has 32 k of row g for each block.
struct SplitKNvfp4X {
  static constexpr int kBlocks = kSplitKBlocks;
  uint4 eights[kBlocks][4];  ///< of k; halves of them are operands as they were loaded

  __device__ __forceinline__ void load(const ProductCall& c,
                                       const SplitKPlan& /*plan*/,
                                       const TileItem& it,
                                       int part) {
    load_split_k_rows(c, it, part * kSplitK, kBlockK, eights);
  }

  __device__ __forceinline__ void begin_tile(
      const ProductCall& /*c*/, const SplitKPlan& /*plan*/, int /*e*/, int /*tile*/, int /*part*/) {
  }

  /// Adds the products of the next tile in the ring.
  __device__ __forceinline__ void add_tile(const SplitKNvfp4Lane& lane,
                                           SplitKRing& ring,
                                           float (&sums)[4],
                                           float (&others)[4]) const {
    ring.wait();
    ring.give_back(multiply(lane.tile(ring.plan, ring.at.slot), sums, others));
  }

  /// Adds the products of a tile. What comes back follows from what was loaded of it last, and
  /// loads of a warp come in the order in which they were asked for (warp_arrive_after).
  template <int kBlock = 0>
  __device__ __forceinline__ uint32_t multiply(const SplitKNvfp4Tile& tile,
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

/// As SplitKNvfp4Source, of eight gate rows and the eight up rows of the same outputs.
struct GatedSplitKNvfp4Source : SplitKNvfp4Source {
  const uint8_t* up_codes;
  const uint8_t* up_scales;

  __device__ __forceinline__ GatedSplitKNvfp4Source(const ProductCall& c, const TileItem& it)
      : SplitKNvfp4Source(c, it) {
    const int64_t rows = int64_t{it.tile} * kSplitKRows / 2;  // too many that the tile has skipped
    codes -= rows * c.w_row;
    scales -= rows * c.scale_row;
    up_codes = codes + c.N / 2 * c.w_row;
    up_scales = scales + c.N / 2 * c.scale_row;
  }

  template <class Maps>
  __device__ __forceinline__ void bring(const SplitKPlan& plan,
                                        const Maps& /*maps*/,
                                        int /*step*/,
                                        uint32_t to,
                                        uint32_t full,
                                        uint64_t policy) const {
    const auto code_bytes = static_cast<uint32_t>(plan.code_bytes / 2);
    const auto scale_bytes = static_cast<uint32_t>(kSplitKRows / 2 * plan.scale_row);
    copy_bytes(to, codes, code_bytes, full, policy);
    copy_bytes(to + code_bytes, up_codes, code_bytes, full, policy);
    copy_bytes(to + 2 * code_bytes, scales, scale_bytes, full, policy);
    copy_bytes(to + 2 * code_bytes + scale_bytes, up_scales, scale_bytes, full, policy);
  }

  __device__ __forceinline__ void next_tile(const ProductCall& c) {
    codes += kSplitKRows / 2 * c.w_row;
    up_codes += kSplitKRows / 2 * c.w_row;
    scales += kSplitKRows / 2 * c.scale_row;
    up_scales += kSplitKRows / 2 * c.scale_row;
  }
};

struct SplitKNvfp4 : SplitKNvfp4Plan {
  using Source = SplitKNvfp4Source;
  using Lane = SplitKNvfp4Lane;
  using X = SplitKNvfp4X;
  static constexpr bool kGated = false;
  static constexpr float kFactor = Nvfp4Codec::kFactor;

  struct Maps {};

  __device__ __forceinline__ static unsigned char* first_slot(unsigned char* memory) {
    return memory;
  }

  static Status make_maps(const ProductCall& /*c*/, const SplitKPlan& /*plan*/, Maps* /*maps*/) {
    return {};
  }
};

struct GatedSplitKNvfp4 : SplitKNvfp4 {
  using Source = GatedSplitKNvfp4Source;
  static constexpr bool kGated = true;
};

}  // namespace fathom::cuda
