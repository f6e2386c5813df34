#include "fathom/formats/layout/super_tile.h"
#include "fathom/kernels/cpu/products/tile_weights.h"
#include "fathom/kernels/cpu/products/tiles_amx.h"
#include "fathom/kernels/gemm/fp8_gemm/few_row_loops.h"
#include "fathom/kernels/gemm/fp8_gemm/fp8_pairs_avx512.h"

namespace fathom {
namespace {

/// The scales of sixteen rows, added to the exponents of pairs of bf16. Zeros and NaN stay what
/// they are, what is too small becomes a subnormal, which counts as zero, and what is too large
/// infinite.
struct RowExponents {
  __m512i exponents;  ///< e of each row, at its place in a bf16, twice

  explicit RowExponents(const uint8_t* bytes) {
    const __m512i wide =
        _mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(bytes)));
    const __m512i shifted =
        _mm512_slli_epi32(_mm512_sub_epi32(wide, _mm512_set1_epi32(127)), 7 + 16);
    exponents = _mm512_or_si512(shifted, _mm512_srli_epi32(shifted, 16));
  }

  inline __attribute__((always_inline)) __m512i scale(__m512i pairs) const {
    constexpr short kInfinity = 0x7F80, kNan = 0x7FC0;
    const __m512i sign = _mm512_set1_epi16(static_cast<short>(0x8000));
    const __m512i size = _mm512_andnot_si512(sign, pairs);
    const __mmask32 finite = _mm512_cmplt_epu16_mask(_mm512_sub_epi16(size, _mm512_set1_epi16(1)),
                                                     _mm512_set1_epi16(kNan - 1));
    __m512i scaled = _mm512_adds_epi16(size, exponents);
    scaled = _mm512_max_epi16(scaled, _mm512_setzero_si512());
    scaled = _mm512_min_epi16(scaled, _mm512_set1_epi16(kInfinity));
    scaled = _mm512_mask_mov_epi16(size, finite, scaled);
    // scaled | (pairs & sign)
    return _mm512_ternarylogic_epi32(scaled, pairs, sign, 0xF8);
  }
};

/// Weights are decoded in registers to what the tiles have.
struct Mxfp8FewRows {
  static constexpr int64_t kUnit = 32;
  static constexpr int kRows = 4;
  static constexpr bool kHasGlobal = false;

  static constexpr int groups(int64_t rows) { return rows <= 2 ? 2 : 1; }

  template <int G, int T>
  [[gnu::noinline]] static void pass(const FewRowsPass& a) {
    const E4m3Decoder decoder;
    const FewRowsPass c = a;
    __m512 sum[G][T];
    for (int g = 0; g < G; ++g)
      for (int t = 0; t < T; ++t)
        sum[g][t] = _mm512_setzero_ps();
    for (int64_t b = 0; b < c.k / kUnit; ++b)
      add_step(decoder, c.w + b / 4 * kMxfp8TileBytes, b % 4, c.w_stride, c.x + b * kUnit,
               c.x_stride, sum);
    for (int g = 0; g < G; ++g)
      for (int t = 0; t < T; ++t)
        _mm512_storeu_ps(c.sums + t * kFewRowsStride + g * 16, sum[g][t]);
  }

  static void finish(const FewRowsPass&, int64_t, int64_t) {}

 private:
  static constexpr int64_t kAhead = 4096;

  /// Block `block` of the super-tile at w: eight vectors of quads of k for each group.
  template <int G, int T>
  static inline __attribute__((always_inline)) void add_step(const E4m3Decoder& decoder,
                                                             const uint8_t* w,
                                                             int64_t block,
                                                             int64_t w_stride,
                                                             const float* x,
                                                             int64_t x_stride,
                                                             __m512 (&sum)[G][T]) {
#pragma GCC unroll 2
    for (int g = 0; g < G; ++g) {
      const uint8_t* tile = w + g * w_stride;
      const RowExponents exponents(tile + kMxfp8Scales + block * 16);
      __m512 even[T], odd[T];
      for (int t = 0; t < T; ++t)
        even[t] = odd[t] = _mm512_setzero_ps();
#pragma GCC unroll 8
      for (int q = 0; q < 8; ++q) {
        const uint8_t* codes = tile + block * kMxfp8BlockBytes + q * 64;
        __m512i first, second;
        _mm_prefetch(codes + kAhead, _MM_HINT_T0);
        decoder.decode(codes, first, second);
        add_pairs(exponents.scale(first), x + 4 * q, x_stride, even, odd);
        add_pairs(exponents.scale(second), x + 4 * q + 2, x_stride, even, odd);
      }
      for (int t = 0; t < T; ++t)
        sum[g][t] = _mm512_add_ps(sum[g][t], _mm512_add_ps(even[t], odd[t]));
    }
  }
};

}  // namespace

void decode_mxfp8_tiles_amx(const uint8_t* super_tiles,
                            int64_t count,
                            const uint8_t* next,
                            uint8_t* out) {
  const E4m3Decoder decoder;
  for (int64_t s = 0; s < count; ++s) {
    for (int64_t b = 0; b < 4; ++b) {
      const RowExponents exponents(super_tiles + kMxfp8Scales + b * 16);
      for (int64_t q = 0; q < 8; ++q) {
        __m512i first, second;
        decoder.decode(super_tiles + b * kMxfp8BlockBytes + q * 64, first, second);
        _mm_prefetch(next + b * kMxfp8BlockBytes + q * 64, _MM_HINT_T1);
        _mm512_storeu_si512(out, exponents.scale(first));
        _mm512_storeu_si512(out + 64, exponents.scale(second));
        out += 128;
      }
    }
    super_tiles += kMxfp8TileBytes;
    next += kMxfp8TileBytes;
  }
}

bool mxfp8_few_rows_amx(const Products& p, const WorkItem& item, void* scratch) {
  return FewRowLoops<Mxfp8FewRows>::run(p, item, scratch);
}

void mxfp8_products_amx(const Products& p, const WorkItem& item, void* scratch) {
  if (mxfp8_few_rows_amx(p, item, scratch)) return;
  TileLoops<AmxTiles, Mxfp8TileWeights>::run(p, item, scratch);
}

}  // namespace fathom
