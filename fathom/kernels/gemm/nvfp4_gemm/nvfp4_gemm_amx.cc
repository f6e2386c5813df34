#include "fathom/kernels/cpu/products/tile_weights.h"
#include "fathom/kernels/cpu/products/tiles_amx.h"
#include "fathom/kernels/gemm/fp8_gemm/few_row_loops.h"

namespace fathom {
namespace {

// bf16 of code * scale without a multiplication. A code is a sign, an exponent e of -1 to 2 and a
// mantissa of 1 or 1.5, so the product has the bits of scale or of 1.5 * scale, with e added to its
// exponent. The table gives
//
//   sign | (kTop + e) << 7 | (mantissa is 1.5)        0 for zero
//
// from which (kTop << 7) - bits(scale) is taken away, without going below zero: that keeps zeros,
// and a scale of zero takes everything away. Where the lowest bit was set, the difference to
// bits(1.5 * scale) is added, less that bit.
constexpr uint32_t kTop = 136;  // above the exponent of the largest scale

constexpr uint16_t code_bits(uint32_t code) {
  constexpr uint16_t kBits[8] = {0,
                                 (kTop - 1) << 7,
                                 kTop << 7,
                                 kTop << 7 | 1,
                                 (kTop + 1) << 7,
                                 (kTop + 1) << 7 | 1,
                                 (kTop + 2) << 7,
                                 (kTop + 2) << 7 | 1};
  if (code % 8 == 0) return 0;
  return static_cast<uint16_t>(kBits[code % 8] | (code & 8) << 12);
}

/// `vpermw` reads five bits of a lane, of which the fifth belongs to the next code.
struct CodeTable {
  alignas(64) uint16_t bits[32];

  constexpr CodeTable() : bits{} {
    for (uint32_t i = 0; i < 32; ++i)
      bits[i] = code_bits(i % 16);
  }
};

constexpr CodeTable kTable;

/// What the scales of sixteen rows do to the bits of their codes, twice in a 32-bit lane.
struct RowScales {
  __m512i less;  ///< taken away
  __m512i more;  ///< added where the mantissa is 1.5

  static __m512i twice(__m512i high) { return _mm512_or_si512(high, _mm512_srli_epi32(high, 16)); }

  explicit RowScales(const uint8_t* bytes) {
    // Exponent and mantissa at their places in a float16 are the scale times 2^-8; its conversion
    // takes subnormals without a penalty, which a multiplication of float32 would not.
    constexpr uint32_t kHalfBias = 8;
    const __m256i halves = _mm256_slli_epi16(
        _mm256_cvtepu8_epi16(_mm_loadu_si128(reinterpret_cast<const __m128i*>(bytes))), 7);
    const __m512 scale = _mm512_cvtph_ps(halves);
    const __m512i bits = _mm512_castps_si512(scale);
    const __m512i longer = _mm512_castps_si512(_mm512_mul_ps(scale, _mm512_set1_ps(1.5f)));
    const __mmask16 nonzero = _mm512_test_epi32_mask(bits, bits);
    const __m512i top = _mm512_set1_epi32((kTop - kHalfBias) << 23);
    less =
        _mm512_mask_mov_epi32(_mm512_set1_epi32(-1), nonzero, twice(_mm512_sub_epi32(top, bits)));
    more = _mm512_sub_epi32(_mm512_sub_epi32(longer, bits), _mm512_set1_epi32(0x10000));
    more = _mm512_maskz_mov_epi32(nonzero, twice(more));
  }
};

/// Nibble N of every 16-bit lane, times the scale of its row.
template <int N>
inline __attribute__((always_inline)) __m512i scaled_code(__m512i codes,
                                                          __m512i table,
                                                          const RowScales& scales) {
  __m512i bits = codes;
  if constexpr (N > 0) bits = _mm512_srli_epi16(codes, 4 * N);
  bits = _mm512_permutexvar_epi16(bits, table);
  const __mmask32 longer = _mm512_test_epi16_mask(bits, _mm512_set1_epi16(1));
  bits = _mm512_subs_epu16(bits, scales.less);
  return _mm512_mask_add_epi16(bits, longer, bits, scales.more);
}

/// E2M1 times 2^8, and +0 for -0 as tiles have it. Scales are taken times 2^-8, which a float16
/// gives without a penalty for subnormals.
alignas(64) constexpr float kCodes[16] = {
    0, 128, 256, 384, 512, 768, 1024, 1536, 0, -128, -256, -384, -512, -768, -1024, -1536,
};

/// One row of x multiplies the table of codes, and what that gives is looked up and multiplied by
/// the scales of the rows of w; the table serves all groups. More rows look the weight up first.
/// All products of two are exact, x being at most kFewRowsLargest and no product of a normal x and
/// a code subnormal, so both are the product of x and w rounded once.
struct Nvfp4FewRows {
  static constexpr int64_t kUnit = 64;
  static constexpr int kRows = 3;
  static constexpr bool kHasGlobal = true;

  static constexpr int groups(int64_t rows) { return rows == 1 ? 4 : 2; }

  template <int G, int T>
  [[gnu::noinline]] static void pass(const FewRowsPass& a) {
    const FewRowsPass c = a;
    const __m512 table = _mm512_load_ps(kCodes);
    __m512 sum[G][T];
    for (int g = 0; g < G; ++g)
      for (int t = 0; t < T; ++t)
        sum[g][t] = _mm512_setzero_ps();
    const uint8_t* w = c.w;
    const float* x = c.x;
    const int64_t count = c.k / 64;
    for (int64_t s = 0; s < count; ++s) {
      ask<G>(c, s, count);
#pragma GCC unroll 1
      for (int i = 0; i < 4; i += 2) {
        add_step(w, i, c.w_stride, x, c.x_stride, table, sum);
        x += 32;
      }
      w += kSuperTileBytes;
    }
    for (int g = 0; g < G; ++g)
      for (int t = 0; t < T; ++t)
        _mm512_storeu_ps(c.sums + t * kFewRowsStride + g * 16, sum[g][t]);
  }

  static void finish(const FewRowsPass&, int64_t, int64_t) {}

 private:
  static constexpr int64_t kAhead = 4;  // super-tiles

  /// Asks for a super-tile of each group, at the end of k for one of the next groups.
  template <int G>
  static inline __attribute__((always_inline)) void ask(const FewRowsPass& c,
                                                        int64_t s,
                                                        int64_t count) {
    const int64_t at = s + kAhead;
    const int64_t offset =
        at < count ? at * kSuperTileBytes : G * c.w_stride + (at - count) * kSuperTileBytes;
#pragma GCC unroll 4
    for (int g = 0; g < G; ++g)
#pragma GCC unroll 9
      for (int line = 0; line < 9; ++line)
        _mm_prefetch(c.w + offset + g * c.w_stride + line * 64, _MM_HINT_T0);
  }

  /// 32 k: tiles i and i + 1 of the super-tile at w.
  template <int G, int T>
  static inline __attribute__((always_inline)) void add_step(const uint8_t* w,
                                                             int i,
                                                             int64_t w_stride,
                                                             const float* x,
                                                             int64_t x_stride,
                                                             __m512 table,
                                                             __m512 (&sum)[G][T]) {
    __m512 even[G][T], odd[G][T];
    for (int g = 0; g < G; ++g)
      for (int t = 0; t < T; ++t)
        even[g][t] = odd[g][t] = _mm512_setzero_ps();
#pragma GCC unroll 2
    for (int tile = i; tile < i + 2; ++tile) {
      __m512 scale[G];
#pragma GCC unroll 4
      for (int g = 0; g < G; ++g)
        scale[g] = load_scales(w + g * w_stride + kSuperTileScales + tile * 16);
#pragma GCC unroll 2
      for (int z = 0; z < 2; ++z) {
        __m512i codes[G];
#pragma GCC unroll 4
        for (int g = 0; g < G; ++g)
          codes[g] = _mm512_loadu_si512(w + g * w_stride + tile * 128 + z * 64);
        add_codes<0>(codes, scale, table, x, x_stride, even, odd);
        x += 8;
      }
    }
    for (int g = 0; g < G; ++g)
      for (int t = 0; t < T; ++t)
        sum[g][t] = _mm512_add_ps(sum[g][t], _mm512_add_ps(even[g][t], odd[g][t]));
  }

  static inline __attribute__((always_inline)) __m512 load_scales(const uint8_t* bytes) {
    return _mm512_cvtph_ps(_mm256_slli_epi16(
        _mm256_cvtepu8_epi16(_mm_loadu_si128(reinterpret_cast<const __m128i*>(bytes))), 7));
  }

  /// The pairs of k from nibble N of every 16-bit lane on.
  template <int N, int G, int T>
  static inline __attribute__((always_inline)) void add_codes(const __m512i (&codes)[G],
                                                              const __m512 (&scale)[G],
                                                              __m512 table,
                                                              const float* x,
                                                              int64_t x_stride,
                                                              __m512 (&even)[G][T],
                                                              __m512 (&odd)[G][T]) {
    add_column<4 * N>(codes, scale, table, x + 2 * N, x_stride, even);
    add_column<4 * N + 16>(codes, scale, table, x + 2 * N + 1, x_stride, odd);
    if constexpr (N < 3) add_codes<N + 1>(codes, scale, table, x, x_stride, even, odd);
  }

  /// One k: the codes at bit kShift of every lane. A permutation of sixteen reads four bits.
  template <int kShift, int G, int T>
  static inline __attribute__((always_inline)) void add_column(const __m512i (&codes)[G],
                                                               const __m512 (&scale)[G],
                                                               __m512 table,
                                                               const float* x,
                                                               int64_t x_stride,
                                                               __m512 (&sum)[G][T]) {
    if constexpr (T == 1) table = _mm512_mul_ps(table, _mm512_set1_ps(*x));
#pragma GCC unroll 4
    for (int g = 0; g < G; ++g) {
      const __m512i index = kShift == 0 ? codes[g] : _mm512_srli_epi32(codes[g], kShift);
      const __m512 found = _mm512_permutexvar_ps(index, table);
      if constexpr (T == 1) {
        sum[g][0] = _mm512_fmadd_ps(found, scale[g], sum[g][0]);
      } else {
        const __m512 weight = _mm512_mul_ps(found, scale[g]);
#pragma GCC unroll 3
        for (int t = 0; t < T; ++t)
          sum[g][t] = _mm512_fmadd_ps(_mm512_set1_ps(x[t * x_stride]), weight, sum[g][t]);
      }
    }
  }
};

}  // namespace

void decode_nvfp4_tiles_amx(const uint8_t* super_tiles,
                            int64_t count,
                            const uint8_t* next,
                            uint8_t* out) {
  const __m512i table = _mm512_load_si512(kTable.bits);
  for (int64_t s = 0; s < count; ++s) {
    const uint8_t* w = super_tiles + s * kSuperTileBytes;
    for (int64_t line = 0; line < kSuperTileBytes; line += 64)
      _mm_prefetch(next + s * kSuperTileBytes + line, _MM_HINT_T1);
    for (int64_t tile = 0; tile < 4; ++tile) {
      const RowScales scales(w + kSuperTileScales + tile * 16);
      for (int64_t z = 0; z < 2; ++z) {
        const __m512i codes = _mm512_loadu_si512(w + tile * 128 + z * 64);
        _mm512_storeu_si512(out, scaled_code<0>(codes, table, scales));
        _mm512_storeu_si512(out + 64, scaled_code<1>(codes, table, scales));
        _mm512_storeu_si512(out + 128, scaled_code<2>(codes, table, scales));
        _mm512_storeu_si512(out + 192, scaled_code<3>(codes, table, scales));
        out += 256;
      }
    }
  }
}

bool nvfp4_few_rows_amx(const Products& p, const WorkItem& item, void* scratch) {
  return FewRowLoops<Nvfp4FewRows>::run(p, item, scratch);
}

void nvfp4_products_amx(const Products& p, const WorkItem& item, void* scratch) {
  if (nvfp4_few_rows_amx(p, item, scratch)) return;
  TileLoops<AmxTiles, Nvfp4TileWeights>::run(p, item, scratch);
}

}  // namespace fathom
