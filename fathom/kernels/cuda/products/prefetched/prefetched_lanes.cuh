// What the warps of a prefetched product have in registers (prefetched_products.cuh): x of their k,
// the tile of weights that they multiply, and its sums.
#pragma once

#include "fathom/kernels/cuda/codecs.cuh"
#include "fathom/kernels/cuda/products/prefetched/prefetched_plan.cuh"
#include "fathom/kernels/cuda/tensor_map.cuh"

namespace fathom::cuda {

struct PrefetchedNvfp4Maps {
  CUtensorMap codes;     ///< boxes of sixteen rows of w and the k of a warp
  CUtensorMap scales;    ///< theirs, or those of all warps of a block
  CUtensorMap x;         ///< boxes of eight rows and 128 k
  CUtensorMap x_of_64k;  ///< and 64 k
};

/// How the kPartK k of a warp are shared out over lanes. Lane 4 g + t has row g. Of each block of
/// 128 k it has the 32 from 32 t on. Of 64 k that are left it has half of each eight of the first
/// 32 (t < 2) or the last 32: the first four (t even) or the second four (t odd).
template <int kPartK>
struct PrefetchedPart {
  static_assert(kPartK == 256 || kPartK == 192);
  static constexpr int kBlocks = kPartK / kBlockK;
  static constexpr bool kHasRest = kPartK % kBlockK != 0;
  static constexpr int kCodeBytes = PrefetchedNvfp4Plan::code_bytes(kPartK);
  static constexpr int kRowBytes = kPartK / 2;  // of codes
  static constexpr bool kSharesScales = PrefetchedNvfp4Plan::shares_scales(kPartK);
  static constexpr int kScaleRow = PrefetchedNvfp4Plan::scale_row(kPartK);

  /// Rows of a lane are this and the eighth behind. Of neighbouring lanes' rows one has its codes
  /// in the lower and one in the upper banks: by the swizzle, or rows of 96 bytes two apart.
  __device__ __forceinline__ static int row_of_lane() {
    const int g = lane_id() >> 2;
    if constexpr (kHasRest) return (g & 4) | (g & 1) << 1 | (g >> 1 & 1);
    return (g & 1) * 4 + (g >> 1);
  }
};

/// x of a warp's k, as the tensor cores take it: that of rows g and, of two groups, g + 8.
template <int kTokenGroups, int kPartK>
struct PrefetchedX {
  using Part = PrefetchedPart<kPartK>;
  static constexpr int kBlockBytes = kPrefetchedTokens * kBlockK * 2;
  uint4 eights[kTokenGroups][Part::kBlocks][4];  ///< of k
  uint2 rest[kTokenGroups][4];                   ///< fours of 64 k that are left

  /// Asks for the first eight rows by way of shared memory: a box has one or two lines of 128 bytes
  /// for a row, so that the eight lanes of a phase read from all banks. The second eight come from
  /// memory at once.
  template <class Maps>
  __device__ __forceinline__ void ask(
      const ProductCall& c, const Maps& maps, int k, uint32_t rows, uint32_t barrier) {
    warp_expect(barrier, static_cast<uint32_t>(min(c.T, kPrefetchedTokens) * (kPartK * 2)));
#pragma unroll
    for (int block = 0; block < Part::kBlocks; ++block)
      warp_copy_box(rows + block * kBlockBytes, maps.x, 0, k / 64 + block * 2, 0, barrier);
    if constexpr (Part::kHasRest) {
      warp_copy_box(rows + Part::kBlocks * kBlockBytes, maps.x_of_64k, 0,
                    k / 64 + Part::kBlocks * 2, 0, barrier);
    }
    if constexpr (kTokenGroups == 2) {
      const int t = lane_id() & 3;
      const int token = kPrefetchedTokens + (lane_id() >> 2);
      const Bf16* x = static_cast<const Bf16*>(c.x) + min(token, c.T - 1) * c.x_row + k;
#pragma unroll
      for (int block = 0; block < Part::kBlocks; ++block) {
#pragma unroll
        for (int j = 0; j < 4; ++j)
          eights[1][block][j] =
              *reinterpret_cast<const uint4*>(x + block * kBlockK + t * 32 + j * 8);
      }
      if constexpr (Part::kHasRest) {
#pragma unroll
        for (int j = 0; j < 4; ++j)
          rest[1][j] = *reinterpret_cast<const uint2*>(x + Part::kBlocks * kBlockK + t / 2 * 32 +
                                                       j * 8 + t % 2 * 4);
      }
    }
  }

  /// Takes the first eight rows when they are there. Lanes without a row get what lies there;
  /// nothing of theirs is stored.
  __device__ __forceinline__ void take(uint32_t rows, uint32_t barrier) {
    const int t = lane_id() & 3;
    const auto chunk_at = [&](int block, int line, int chunk) {
      return rows +
             static_cast<uint32_t>(block * kBlockBytes + line * 128 + (chunk ^ (line & 7)) * 16);
    };
    barrier_wait(barrier, 0);
#pragma unroll
    for (int block = 0; block < Part::kBlocks; ++block) {
#pragma unroll
      for (int j = 0; j < 4; ++j)
        eights[0][block][j] = load_shared_16(chunk_at(block, lane_id() >> 1, t % 2 * 4 + j));
    }
    if constexpr (Part::kHasRest) {
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        const uint32_t chunk = chunk_at(Part::kBlocks, lane_id() >> 2, t / 2 * 4 + j);
        rest[0][j] = load_shared_8(chunk + static_cast<uint32_t>(t % 2 * 8));
      }
    }
  }
};

/// A warp's place in its block; read from a lane, so that the compiler keeps what follows from it
/// once for all lanes.
__device__ __forceinline__ int uniform_warp() {
  return __shfl_sync(~0u, warp_id(), 0);
}

/// The slots of a warp and its rows of w: of its first tile, and from one tile to the next.
template <int kSlotBytes>
class PrefetchedSlots {
 public:
  __device__ PrefetchedSlots(const PrefetchedPlan& plan, uint32_t shared, int warp, int first_row)
      : codes_(shared + static_cast<uint32_t>(plan.codes_at(warp))),
        full_(shared + static_cast<uint32_t>(plan.full_at(warp))),
        row_(first_row),
        step_(plan.groups * kPrefetchedRows) {}

  /// Makes the barriers; for one lane.
  __device__ __forceinline__ void make_barriers(int slots) const {
#pragma unroll 1
    for (int slot = 0; slot < slots; ++slot)
      barrier_init(full(slot), 1);
  }

  __device__ __forceinline__ uint32_t codes(int slot) const {
    return codes_ + static_cast<uint32_t>(slot * kSlotBytes);
  }

  __device__ __forceinline__ uint32_t full(int slot) const {
    return full_ + static_cast<uint32_t>(slot) * 8;
  }

 protected:
  uint32_t codes_;
  uint32_t full_;
  int row_;
  int step_;
};

/// The weights of a warp: its slots, and what it asks for.
template <int kPartK>
class PrefetchedWeights : public PrefetchedSlots<PrefetchedPart<kPartK>::kCodeBytes> {
 public:
  using Part = PrefetchedPart<kPartK>;
  using Slots = PrefetchedSlots<Part::kCodeBytes>;
  using Slots::codes;
  using Slots::full;

  __device__ PrefetchedWeights(
      const PrefetchedPlan& plan, uint32_t shared, int warp, int first_row, int k)
      : Slots(plan, shared, warp, first_row),
        scales_(shared + static_cast<uint32_t>(plan.scales_at(warp))),
        scales_full_(shared + static_cast<uint32_t>(plan.scales_full_at())),
        k_(k) {
    const int row = Part::row_of_lane();
    const int t = lane_id() & 3;
    const int chunk = Part::kHasRest ? t : t ^ row;
    codes_of_lane_ = kept(codes_ + static_cast<uint32_t>(row * Part::kRowBytes + chunk * 16));
    const int of_part = Part::kSharesScales ? warp % plan.parts * (kPartK / 16) : 0;
    scales_of_lane_ =
        kept(scales_ + static_cast<uint32_t>(row * Part::kScaleRow + of_part + t * 2));
  }

  /// Asks for the scales of all tiles; for one warp of the block, which has made `scales_full`.
  __device__ __forceinline__ void ask_for_shared_scales(const PrefetchedNvfp4Maps& maps,
                                                        int tiles,
                                                        uint64_t policy) const {
    warp_expect(scales_full_,
                static_cast<uint32_t>(tiles * PrefetchedNvfp4Plan::kSharedScaleBytes));
#pragma unroll 1
    for (int i = 0; i < tiles; ++i) {
      warp_copy_box(scales_ + static_cast<uint32_t>(i * PrefetchedNvfp4Plan::kSharedScaleBytes),
                    maps.scales, k_ / 16, row_ + i * kPrefetchedRows, 0, scales_full_, policy);
    }
  }

  __device__ __forceinline__ uint32_t scales_full() const {
    return scales_full_;
  }

  /// Asks for this warp's tile i. `zero` is known when what was in the slot is not needed any more.
  __device__ __forceinline__ void ask(
      const PrefetchedNvfp4Maps& maps, int i, int slot, uint64_t policy, uint32_t zero = 0) const {
    const int row = row_ + i * step_;
    constexpr uint32_t kScales = Part::kSharesScales ? 0 : PrefetchedNvfp4Plan::kScaleBytes;
    warp_expect(full(slot), Part::kCodeBytes + kScales + zero);
    warp_copy_box(codes(slot), maps.codes, k_ / 2, row, 0, full(slot), policy);
    if constexpr (!Part::kSharesScales) {
      warp_copy_box(scales_ + static_cast<uint32_t>(slot * PrefetchedNvfp4Plan::kScaleBytes),
                    maps.scales, k_ / 16, row, 0, full(slot), policy);
    }
  }

  /// What a lane has of a tile: of its two rows 32 k of each block, and 16 of those left. A word
  /// has two of each eight k (formats/layout/pair_layout.h).
  struct Tile {
    uint4 codes[Part::kBlocks][2];
    uint32_t scales[Part::kBlocks][2];
    uint2 rest_codes[2];
    uint32_t rest_scales[2];
  };

  /// Tile i, which is in `slot`.
  __device__ __forceinline__ Tile load(int i, int slot) const {
    const uint32_t codes = codes_of_lane_ + static_cast<uint32_t>(slot * Part::kCodeBytes);
    const uint32_t scales =
        scales_of_lane_ + static_cast<uint32_t>(Part::kSharesScales
                                                    ? i * PrefetchedNvfp4Plan::kSharedScaleBytes
                                                    : slot * PrefetchedNvfp4Plan::kScaleBytes);
    Tile tile;
#pragma unroll
    for (uint32_t half = 0; half < 2; ++half) {
      const uint32_t of_half = codes + half * 8 * Part::kRowBytes;
#pragma unroll
      for (uint32_t block = 0; block < Part::kBlocks; ++block) {
        tile.codes[block][half] = load_shared_16(of_half ^ block * 64);
        tile.scales[block][half] = load_shared_2(scales + half * 8 * Part::kScaleRow + block * 8);
      }
      if constexpr (Part::kHasRest) {
        const auto t = static_cast<uint32_t>(lane_id() & 3);
        tile.rest_codes[half] = load_shared_8(of_half - t * 8 + Part::kBlocks * 64);
        tile.rest_scales[half] = load_shared_2(scales - t * 2 + t / 2 * 2 +
                                               half * 8 * Part::kScaleRow + Part::kBlocks * 8);
      }
    }
    return tile;
  }

  /// Adds the products of tile i, which is in `slot`.
  template <class X, class Sums>
  __device__ __forceinline__ void add_tile(int i, int slot, const X& x, Sums& sums) const {
    multiply_tile(load(i, slot), x, sums);
  }

 private:
  using Slots::codes_;
  using Slots::row_;
  using Slots::step_;

  uint32_t scales_;
  uint32_t scales_full_;
  uint32_t codes_of_lane_;  // those of its first row, block and slot
  uint32_t scales_of_lane_;
  int k_;
};

/// The sums of a tile and 8 rows of x: two chains, so that products need not wait for each other.
using PrefetchedSums = float[2][4];

/// A tile's blocks of 128 k as the tensor cores take them.
template <int kPartK>
struct PrefetchedDecoded {
  using Part = PrefetchedPart<kPartK>;
  uint4 halves[Part::kBlocks][2][4];

  /// Known when all of it is decoded, and no sooner.
  __device__ __forceinline__ uint32_t all() const {
    uint32_t all = 0;
#pragma unroll
    for (int i = 0; i < Part::kBlocks * 8; ++i) {
      const uint4& w = halves[i / 8][i / 4 % 2][i % 4];
      all = all | w.x | w.y;
      all = all | w.z | w.w;
    }
    return all;
  }
};

/// Decodes half kHalf of a block; calls product(j, w) as decode_half does.
template <int kHalf, class Tile, class Product>
__device__ __forceinline__ void decode_of_tile(const Tile& tile, int block, Product product) {
  decode_half<kHalf>(tile.codes[block][0], tile.codes[block][1],
                     lifted_scales(tile.scales[block][0]), lifted_scales(tile.scales[block][1]),
                     product);
}

template <int kPartK>
__device__ __forceinline__ PrefetchedDecoded<kPartK> decode_blocks(
    const typename PrefetchedWeights<kPartK>::Tile& tile) {
  PrefetchedDecoded<kPartK> decoded;
#pragma unroll
  for (int block = 0; block < PrefetchedPart<kPartK>::kBlocks; ++block) {
    decode_of_tile<0>(tile, block, [&](int j, const uint4& w) { decoded.halves[block][0][j] = w; });
    decode_of_tile<1>(tile, block, [&](int j, const uint4& w) { decoded.halves[block][1][j] = w; });
  }
  return decoded;
}

/// Adds the products of half kHalf of eight k j of a block.
template <int kHalf, int kTokenGroups, int kPartK>
__device__ __forceinline__ void multiply_eight(const uint4& w,
                                               const PrefetchedX<kTokenGroups, kPartK>& x,
                                               int block,
                                               int j,
                                               PrefetchedSums (&sums)[kTokenGroups]) {
#pragma unroll
  for (int group = 0; group < kTokenGroups; ++group)
    multiply_half<kHalf>(sums[group][j & 1], w, x.eights[group][block][j]);
}

/// Adds the products of a tile's decoded blocks.
template <int kTokenGroups, int kPartK>
__device__ __forceinline__ void multiply_decoded(const PrefetchedDecoded<kPartK>& decoded,
                                                 const PrefetchedX<kTokenGroups, kPartK>& x,
                                                 PrefetchedSums (&sums)[kTokenGroups]) {
#pragma unroll
  for (int block = 0; block < PrefetchedPart<kPartK>::kBlocks; ++block) {
#pragma unroll
    for (int j = 0; j < 4; ++j)
      multiply_eight<0>(decoded.halves[block][0][j], x, block, j, sums);
#pragma unroll
    for (int j = 0; j < 4; ++j)
      multiply_eight<1>(decoded.halves[block][1][j], x, block, j, sums);
  }
}

/// Adds the products of what a tile has behind its blocks of 128 k.
template <int kTokenGroups, int kPartK>
__device__ __forceinline__ void multiply_rest(const typename PrefetchedWeights<kPartK>::Tile& tile,
                                              const PrefetchedX<kTokenGroups, kPartK>& x,
                                              PrefetchedSums (&sums)[kTokenGroups]) {
  if constexpr (PrefetchedPart<kPartK>::kHasRest) {
    const auto codes = [&](int half) {
      return make_uint4(tile.rest_codes[half].x, tile.rest_codes[half].y, 0, 0);
    };
    decode_half<0>(codes(0), codes(1), lifted_scales(tile.rest_scales[0]),
                   lifted_scales(tile.rest_scales[1]), [&](int j, const uint4& w) {
#pragma unroll
                     for (int group = 0; group < kTokenGroups; ++group) {
                       const uint2& four = x.rest[group][j];
                       multiply_half<0>(sums[group][j & 1], w, make_uint4(four.x, four.y, 0, 0));
                     }
                   });
  }
}

/// Adds the products of a tile.
template <int kTokenGroups, int kPartK>
__device__ __forceinline__ void multiply_tile(const typename PrefetchedWeights<kPartK>::Tile& tile,
                                              const PrefetchedX<kTokenGroups, kPartK>& x,
                                              PrefetchedSums (&sums)[kTokenGroups]) {
#pragma unroll
  for (int block = 0; block < PrefetchedPart<kPartK>::kBlocks; ++block) {
    decode_of_tile<0>(tile, block,
                      [&](int j, const uint4& w) { multiply_eight<0>(w, x, block, j, sums); });
    decode_of_tile<1>(tile, block,
                      [&](int j, const uint4& w) { multiply_eight<1>(w, x, block, j, sums); });
  }
  multiply_rest(tile, x, sums);
}

/// NVFP4 in parts of kK k.
template <int kK>
struct PrefetchedNvfp4 {
  using Plan = PrefetchedNvfp4Plan;
  using Maps = PrefetchedNvfp4Maps;
  using Weights = PrefetchedWeights<kK>;
  template <int kTokenGroups>
  using X = PrefetchedX<kTokenGroups, kK>;
  static constexpr int kPartK = kK;
  static constexpr bool kSharesScales = PrefetchedPart<kK>::kSharesScales;
  static constexpr bool kStacked = false;  ///< matrices, with scales that warps load themselves
  static constexpr bool kDecodesAhead = true;
  static constexpr float kFactor = Nvfp4Codec::kFactor;

  __device__ __forceinline__ static int row_of_lane() { return PrefetchedPart<kK>::row_of_lane(); }
};

}  // namespace fathom::cuda
