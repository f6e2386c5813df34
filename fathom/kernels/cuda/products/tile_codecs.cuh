// Weights as tiles have them: what a stage of k brings to shared memory, and how it
// becomes the first operand of a warpgroup's product. Exact, as codecs.cuh says.
#pragma once

#include <algorithm>
#include <type_traits>

#include "fathom/kernels/cuda/codecs.cuh"
#include "fathom/kernels/cuda/products/warpgroup_products.cuh"

namespace fathom::cuda {

/// What comes beside weights and activations.
enum class TileSide {
  kNone,
  kRowScales,    ///< of each row of w, sixteen for a stage of w: pairs of bf16, lifted
  kTokenScales,  ///< of each of 128 rows of x, times that of every 128 rows of w: floats
  kTables,       ///< of codes of each row of w, then a scale of each of 128 rows of x: Codec::Side
};

__device__ __forceinline__ void load_shared(uint32_t at, uint32_t (&words)[4]) {
  const uint4 v = load_shared_16(at);
  words[0] = v.x;
  words[1] = v.y;
  words[2] = v.z;
  words[3] = v.w;
}

__device__ __forceinline__ void load_shared(uint32_t at, uint32_t (&words)[2]) {
  asm volatile("ld.shared.v2.b32 {%0, %1}, [%2];" : "=r"(words[0]), "=r"(words[1]) : "r"(at));
}

__device__ __forceinline__ uint32_t load_shared_4(uint32_t at) {
  uint32_t v;
  asm volatile("ld.shared.b32 %0, [%1];" : "=r"(v) : "r"(at));
  return v;
}

__device__ __forceinline__ float load_shared_float(uint32_t at) {
  return __uint_as_float(load_shared_4(at));
}

/// Up to so many rows of x a tile is one of few: it has room for all of them, or is not taken.
inline constexpr int kFewTokens = 32;

/// Tiles of kRowsOfX rows of x, and as many rows of w as their codec says.
template <class C, int kRowsOfX>
struct Tiles {
  using Codec = C;
  static constexpr int kTokens = kRowsOfX;
};

/// The kinds of tiles that products with some weights are cut into, fewer rows of x first. Each is
/// named by its number.
template <class... Kinds>
struct TileShapes {
  static constexpr int kFewestTokens = std::min({Kinds::kTokens...});

  /// Calls f<Codec, kTokens>(number) for every kind.
  template <class F>
  static constexpr void each(F&& f) {
    int number = 0;
    (f.template operator()<typename Kinds::Codec, Kinds::kTokens>(number++), ...);
  }

  /// These behind others.
  template <class... Others>
  using Behind = TileShapes<Others..., Kinds...>;

  /// The kind for experts that have so many rows of x on average: of those with 24, few have more
  /// than 32; of those with 192, two tiles of 128 rows are full enough.
  static constexpr int number_for_experts(int rows) {
    int found = -1;
    each([&]<class, int kTokens>(int number) {
      const int most = kTokens <= kFewTokens ? kTokens * 3 / 4
                       : kTokens <= 64       ? 64
                                             : kTokens * 3 / 2;
      if (found < 0 && (rows <= most || number + 1 == sizeof...(Kinds))) found = number;
    });
    return found;
  }
};

/// bf16 weights: an operand in shared memory as they are. With kExact, sums of 128 k are added up
/// in float32 outside the tensor cores, whose own additions cut off bits.
template <bool kExact>
struct TileBf16 {
  static constexpr bool kBlocksShare = false;  ///< tiles
  static constexpr int kStageK = 64;
  static constexpr int kXElement = 2;   ///< bytes
  static constexpr int kWRow = 128;     ///< bytes of a row of w in a stage
  static constexpr int kWEvery = 1;     ///< stages of x that come with one of w
  static constexpr int kGroups = 2;     ///< warpgroups that compute
  static constexpr int kRowBlocks = 1;  ///< of 64 rows of w, for each warpgroup
  /// Sums of 128 k of 256 rows of x have no registers beside those they are added to.
  using Shapes = std::conditional_t<
      kExact,
      TileShapes<Tiles<TileBf16, 64>, Tiles<TileBf16, 128>>,
      TileShapes<Tiles<TileBf16, 64>, Tiles<TileBf16, 128>, Tiles<TileBf16, 256>>>;
  /// For tiles that a last round of larger ones would not fill.
  using Rest = TileShapes<Tiles<TileBf16, 128>>;
  static constexpr bool kDecoded = false;
  static constexpr int kSteps = 0;  ///< of 16 k, of a stage that is decoded
  static constexpr bool kCodes = false;
  static constexpr int kAddEvery = kExact ? 2 : 0;  ///< stages; 0: one sum over all of k
  static constexpr TileSide kSide = TileSide::kNone;
  static constexpr float kFactor = 1.0f;
};

/// NVFP4 weights in layout kPairs (formats/layout/pair_layout.h), decoded with their scales into
/// registers. A warp decodes for as long as it multiplies 256 rows of x. With fewer rows, four
/// warpgroups keep each scheduler busy with four warps, and share what they read of x.
/// `kSharedByBlocks`: blocks share tiles.
template <int kComputing, bool kSharedByBlocks = false>
struct TileNvfp4 {
  static constexpr bool kBlocksShare = kSharedByBlocks;
  static constexpr int kStageK = 64;
  static constexpr int kXElement = 2;
  static constexpr int kWRow = 32;
  static constexpr int kWEvery = 4;  ///< so that a row of w is brought by 128 bytes
  static constexpr int kGroups = kComputing;
  static constexpr int kRowBlocks = 1;
  using Shapes = TileShapes<Tiles<TileNvfp4<3>, 16>,
                            Tiles<TileNvfp4<4>, 16>,
                            Tiles<TileNvfp4<4>, 32>,
                            Tiles<TileNvfp4<3>, 32>,
                            Tiles<TileNvfp4<4>, 64>,
                            Tiles<TileNvfp4<4>, 128>,
                            Tiles<TileNvfp4<2>, 256>>;
  using Rest =
      TileShapes<Tiles<TileNvfp4<4>, 16>, Tiles<TileNvfp4<4>, 32>, Tiles<TileNvfp4<4>, 64>>;
  static constexpr bool kDecoded = true;
  static constexpr bool kCodes = false;
  static constexpr int kAddEvery = 0;
  static constexpr TileSide kSide = TileSide::kRowScales;
  static constexpr int kSideRow = 64;       ///< bytes
  static constexpr float kFactor = 128.0f;  // 2^126 / 2^119
  static constexpr int kSteps = kStageK / 16;

  /// Where lane's row of 128 bytes of weights, or of 64 of scales, has its first chunk of sixteen;
  /// chunk c is at the address xor 16 c.
  __device__ __forceinline__ static uint32_t w_place(uint32_t row) {
    return row * (kWRow * kWEvery) + ((row & 7) << 4) + (static_cast<uint32_t>(lane_id()) & 3) * 4;
  }

  __device__ __forceinline__ static uint32_t side_place(uint32_t row) {
    return row * kSideRow + ((row >> 1 & 3) << 4);
  }

  /// Fragments of part `part` (of kWEvery) of a stage of weights from step `first` on, an even one.
  template <int kCount>
  __device__ __forceinline__ static void decode(
      uint32_t w, uint32_t side, int part, int first, uint32_t (&a)[kCount][4]) {
    side = (side ^ static_cast<uint32_t>(part << 4)) + 4 * static_cast<uint32_t>(first);
    uint32_t scale[kCount];
    uint32_t scale_8[kCount];
    load_shared(side, scale);
    load_shared(side + 8 * kSideRow, scale_8);
#pragma unroll
    for (int two = 0; two < kCount; two += 2) {  // steps: 32 k
      const uint32_t at = w ^ static_cast<uint32_t>((2 * part + (first + two) / 2) << 4);
      uint32_t row[4];
      uint32_t row_8[4];
      decode_e2m1(load_shared_4(at), row);
      decode_e2m1(load_shared_4(at + 8 * kWRow * kWEvery), row_8);
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const int step = two + i;
        a[step][0] = multiply_pairs(row[2 * i], scale[step]);
        a[step][1] = multiply_pairs(row_8[2 * i], scale_8[step]);
        a[step][2] = multiply_pairs(row[2 * i + 1], scale[step]);
        a[step][3] = multiply_pairs(row_8[2 * i + 1], scale_8[step]);
      }
    }
  }
};

/// Those of one matrix: few rows of x also in tiles that blocks share.
struct TileNvfp4Matrix : TileNvfp4<2> {
  using Shapes = TileNvfp4<2>::Shapes::Behind<Tiles<TileNvfp4<3, true>, 16>,
                                              Tiles<TileNvfp4<4, true>, 16>,
                                              Tiles<TileNvfp4<4, true>, 32>>;
};

/// E4M3 weights with a scale for 128 x 128, decoded into registers; activations in bf16.
struct TileFp8 {
  static constexpr bool kBlocksShare = false;  ///< tiles
  static constexpr int kStageK = 128;
  static constexpr int kXElement = 2;
  static constexpr int kWRow = 128;
  static constexpr int kWEvery = 1;
  static constexpr int kGroups = 2;
  static constexpr int kRowBlocks = 1;
  using Shapes = TileShapes<Tiles<TileFp8, 64>, Tiles<TileFp8, 128>>;
  using Rest = TileShapes<Tiles<TileFp8, 128>>;
  static constexpr bool kDecoded = true;
  static constexpr bool kCodes = false;
  static constexpr int kAddEvery = 1;
  static constexpr TileSide kSide = TileSide::kNone;
  static constexpr float kFactor = 1.0f;
  static constexpr int kSteps = kStageK / 16;

  __device__ __forceinline__ static uint32_t pair_at(uint32_t at) {
    const float2 v =
        __half22float2(__half2(__nv_cvt_fp8x2_to_halfraw2(load_shared_2(at), __NV_E4M3)));
    return pair_of_floats(v.x, v.y);
  }

  /// Where a lane's first row has its pair of the first chunk of sixteen codes; chunk c is at the
  /// address xor 16 c.
  __device__ __forceinline__ static uint32_t w_place(uint32_t row) {
    return row * kWRow + ((row & 7) << 4) + (static_cast<uint32_t>(lane_id()) & 3) * 2;
  }

  /// By pairs: of a word of a chunk a lane needs a half.
  __device__ __forceinline__ static void decode(uint32_t w, uint32_t (&a)[kSteps][4]) {
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
      const uint32_t at = w ^ static_cast<uint32_t>(step << 4);
      a[step][0] = pair_at(at);
      a[step][1] = pair_at(at + 8 * kWRow);
      a[step][2] = pair_at(at + 8);
      a[step][3] = pair_at(at + 8 * kWRow + 8);
    }
  }
};

/// E4M3 weights and activations, multiplied as they are; sums of 128 k are scaled and added up in
/// float32. `kBlocks`: a scale for 128 x 128 weights and one for 128 k of a row of x. A block has
/// twice the rows of w that others have, so it reads half as much of x: at this speed the last
/// cache could not give more.
template <bool kBlocks, int kBlocksOfRows = 2>
struct TileFp8Pair {
  static constexpr bool kBlocksShare = false;  ///< tiles
  static constexpr int kWEvery = 1;
  static constexpr int kGroups = 2;
  static constexpr int kRowBlocks = kBlocksOfRows;
  using Shapes =
      TileShapes<Tiles<TileFp8Pair<kBlocks, 1>, 64>, Tiles<TileFp8Pair<kBlocks, 2>, 128>>;
  using Rest = TileShapes<Tiles<TileFp8Pair<kBlocks, 1>, 128>>;
  static constexpr int kStageK = 128;
  static constexpr int kXElement = 1;
  static constexpr int kWRow = 128;
  static constexpr bool kDecoded = false;
  static constexpr int kSteps = 0;  ///< of 16 k, of a stage that is decoded
  static constexpr bool kCodes = true;
  static constexpr int kAddEvery = 1;
  static constexpr TileSide kSide = kBlocks ? TileSide::kTokenScales : TileSide::kNone;
  static constexpr float kFactor = 1.0f;
};

template <class Shapes>
struct GatedShapes;

/// Tiles of gate and up rows in groups (kGatedRows), whose outputs are gated: those of `Plain` with
/// another order of rows and another end. For calls with offsets.
template <class Plain>
struct Gated : Plain {
  using Shapes = typename GatedShapes<typename Plain::Shapes>::Of;
  using Rest = typename GatedShapes<typename Plain::Rest>::Of;
};

template <class... Kinds>
struct GatedShapes<TileShapes<Kinds...>> {
  using Of = TileShapes<Tiles<Gated<typename Kinds::Codec>, Kinds::kTokens>...>;
};

template <class Codec>
inline constexpr bool kGated = false;
template <class Plain>
inline constexpr bool kGated<Gated<Plain>> = true;

/// Whether whoever multiplies scales sums by those of blocks of weights.
template <class Codec>
inline constexpr bool kHasBlockScales = false;
template <>
inline constexpr bool kHasBlockScales<TileFp8> = true;
template <class Plain>
inline constexpr bool kHasBlockScales<Gated<Plain>> = kHasBlockScales<Plain>;

}  // namespace fathom::cuda
