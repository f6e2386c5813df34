#include "fathom/formats/minifloat.h"
#include "fathom/kernels/core/elements_avx512.h"
#include "fathom/kernels/quant/amax_avx512.h"
#include "fathom/kernels/quant/nvfp4_quant/nvfp4_quant_rows.h"

namespace fathom::avx512 {
namespace {

/// The value of E4M3 codes 0 .. 0x7E in the low bytes of the lanes.
inline __m512 e4m3_values(__m512i codes) {
  const __m512i normal =
      _mm512_add_epi32(_mm512_slli_epi32(codes, 20), _mm512_set1_epi32((127 - 7) << 23));
  const __m512 subnormal = _mm512_mul_ps(_mm512_cvtepi32_ps(codes), _mm512_set1_ps(0x1p-9f));
  const __mmask16 is_subnormal = _mm512_cmplt_epi32_mask(codes, _mm512_set1_epi32(8));
  return _mm512_mask_mov_ps(_mm512_castsi512_ps(normal), is_subnormal, subnormal);
}

/// Codes of |v| = i/8, exact for even i; for odd i of everything between (i-1)/8 and (i+1)/8, where
/// no two codes meet. What exceeds 6 is cut off at 48.
struct CodeTable {
  alignas(64) uint8_t codes[64] = {};

  constexpr CodeTable() {
    for (int i = 0; i < 64; ++i)
      codes[i] = e2m1_from_float(0.125f * static_cast<float>(i < 48 ? i : 48)).bits;
  }
};

constexpr CodeTable kCodes;

/// Index of |v| in the table, with the sign in bit 6, from u = 4 v; a NaN has that of +-6.
inline __m512i table_index(__m512 u) {
  constexpr int kNoExceptions = _MM_FROUND_NO_EXC;
  constexpr int kLesserMagnitude = 0b1010;  // min(|a|, |b|), sign cleared; of a NaN, the other
  const __m512 cut = _mm512_range_ps(u, _mm512_set1_ps(24.0f), kLesserMagnitude);
  // Twice a whole number, or the odd number between: floor + ceiling.
  const __m512i below = _mm512_cvt_roundps_epi32(cut, _MM_FROUND_TO_NEG_INF | kNoExceptions);
  const __m512i above = _mm512_cvt_roundps_epi32(cut, _MM_FROUND_TO_POS_INF | kNoExceptions);
  const __m512i sign = _mm512_srli_epi32(_mm512_castps_si512(u), 31 - 6);
  constexpr int kOrAnd = 0xF8;  // a | (b & c)
  return _mm512_ternarylogic_epi32(_mm512_add_epi32(below, above), sign, _mm512_set1_epi32(0x40),
                                   kOrAnd);
}

/// Four vectors of indices to 32 bytes of codes, the even one in the low nibble.
inline __m256i packed_codes(__m512i i0, __m512i i1, __m512i i2, __m512i i3) {
  const __m512i order = _mm512_set_epi32(15, 11, 7, 3, 14, 10, 6, 2, 13, 9, 5, 1, 12, 8, 4, 0);
  const __m512i bytes =
      _mm512_packus_epi16(_mm512_packus_epi32(i0, i1), _mm512_packus_epi32(i2, i3));
  const __m512i indices = _mm512_permutexvar_epi32(order, bytes);
  const __m512i magnitudes = _mm512_permutexvar_epi8(indices, _mm512_load_si512(kCodes.codes));
  const __m512i signs = _mm512_and_si512(_mm512_srli_epi16(indices, 3), _mm512_set1_epi8(8));
  const __m512i codes = _mm512_or_si512(magnitudes, signs);
  const __m512i pairs = _mm512_maddubs_epi16(codes, _mm512_set1_epi16(0x1001));  // even + 16 * odd
  return _mm512_cvtepi16_epi8(pairs);
}

/// The largest magnitudes of `count` <= 16 blocks, 0 in the lanes behind. Says whether there may be
/// a NaN.
template <class A>
__m512 block_magnitudes(const A* x, int64_t count, bool& has_nan) {
  if (count == 16) return amax_of_blocks16(x, has_nan);
  has_nan = true;
  alignas(64) float values[16] = {};
  for (int64_t b = 0; b < count; ++b)
    values[b] = amax(x + 16 * b, 16);
  return _mm512_load_ps(values);
}

/// The scale codes of blocks with these largest magnitudes, in the low bytes of the lanes, and what
/// their values are multiplied with.
struct BlockScales {
  __m512i codes;
  __m512 factors;
};

inline BlockScales scale_blocks(__m512 magnitudes, float gs) {
  const __m512 scale = _mm512_set1_ps(gs);
  const __m512 sixth = _mm512_mul_ps(magnitudes, _mm512_set1_ps(1.0f / 6.0f));
  const __m512i codes = e4m3_codes(_mm512_mul_ps(scale, sixth));
  const __m512 one = _mm512_set1_ps(1.0f);
  const __m512 unit = _mm512_mul_ps(e4m3_values(codes), _mm512_div_ps(one, scale));
  const __mmask16 nonzero = _mm512_test_epi32_mask(codes, codes);
  return {codes, _mm512_maskz_div_ps(nonzero, one, unit)};
}

/// Four times x f. A product that a quarter of the largest float exceeds saturates either way, one
/// below the normal numbers is nothing either way; NaN becomes +NaN.
template <class A>
inline __m512 fourfold(const A* x, float factor, __mmask16 mask) {
  const __m512 v = _mm512_mul_ps(load16(x, mask), _mm512_set1_ps(factor));
  const __mmask16 nan = _mm512_cmp_ps_mask(v, v, _CMP_UNORD_Q);
  return _mm512_mask_mov_ps(_mm512_mul_ps(v, _mm512_set1_ps(4.0f)), nan, _mm512_set1_ps(24.0f));
}

/// The codes of `count` <= 4 blocks. Inline for whole groups of four, whose masks are then
/// constants.
template <class A>
[[gnu::always_inline]] inline void store_blocks(const A* x,
                                                const float* factors,
                                                uint8_t* q,
                                                int64_t count) {
  const auto index = [&](int64_t i) {
    return table_index(fourfold(x + 16 * i, factors[i], i < count ? 0xFFFF : 0));
  };
  const __m256i bytes = packed_codes(index(0), index(1), index(2), index(3));
  _mm256_mask_storeu_epi64(q, static_cast<__mmask8>((1 << count) - 1), bytes);
}

/// The same for four blocks of finite numbers whose factors have room for two bits more.
template <class A>
[[gnu::always_inline]] inline void store_plain_blocks(const A* x,
                                                      const float* factors,
                                                      uint8_t* q) {
  const auto index = [&](int64_t i) {
    const __m512 values = load16(x + 16 * i, 0xFFFF);
    return table_index(_mm512_mul_ps(values, _mm512_set1_ps(4.0f * factors[i])));
  };
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(q),
                      packed_codes(index(0), index(1), index(2), index(3)));
}

/// Blocks whose scales are computed before their values are read again, from the first-level cache:
/// the chain from the values to a factor is long, and so many of them overlap.
constexpr int64_t kBlocksAtOnce = 512;

/// Stores the scales of `count` <= 512 blocks from block `begin` on, and their factors. True if all
/// blocks are plain (store_plain_blocks).
template <class A>
bool scale_segment(const Nvfp4Row& row, int64_t begin, int64_t count, float* factors) {
  const auto* x = static_cast<const A*>(row.x);
  bool plain = true;
  for (int64_t b = 0; b < count; b += 16) {
    const int64_t some = count - b < 16 ? count - b : 16;
    bool has_nan = false;
    const __m512 magnitudes = block_magnitudes(x + 16 * (begin + b), some, has_nan);
    const BlockScales scales = scale_blocks(magnitudes, row.gs);
    _mm512_store_ps(factors + b, scales.factors);
    const __mmask16 room = _mm512_cmp_ps_mask(scales.factors, _mm512_set1_ps(0x1p120f), _CMP_LT_OQ);
    plain = plain && !has_nan && room == 0xFFFF;
    alignas(16) uint8_t bytes[16];
    _mm_store_si128(reinterpret_cast<__m128i*>(bytes), _mm512_cvtepi32_epi8(scales.codes));
    uint8_t* to = row.scales + (begin + b) / 4 * row.scale_step;
    int64_t i = 0;
    for (; i + 4 <= some; i += 4, to += row.scale_step) {
      __builtin_memcpy(to, bytes + i, 4);
      prefetch_to_write(to + 64);  // swizzled: the line of a row four further on
    }
    for (int64_t last = i; last < some; ++last)
      to[last - i] = bytes[last];
  }
  return plain;
}

template <class A>
void quantise_row(const Nvfp4Row& row) {
  const auto* x = static_cast<const A*>(row.x);
  const auto* next_x = static_cast<const A*>(row.next_x);
  constexpr int64_t kPerLine = 64 / static_cast<int64_t>(sizeof(A));
  alignas(64) float factors[kBlocksAtOnce];
  for (int64_t begin = 0; begin < row.num_blocks; begin += kBlocksAtOnce) {
    const int64_t left = row.num_blocks - begin;
    const int64_t count = left < kBlocksAtOnce ? left : kBlocksAtOnce;
    const bool plain = scale_segment<A>(row, begin, count, factors);
    for (int64_t b = 0; b < count; b += 4) {
      const int64_t at = begin + b;
      for (int64_t i = 0; i < 64; i += kPerLine)
        prefetch_to_read(next_x + 16 * at + i);
      prefetch_to_write(row.next_q + 8 * at);
      if (plain && b + 4 <= count) {
        store_plain_blocks(x + 16 * at, factors + b, row.q + 8 * at);
      } else {
        store_blocks(x + 16 * at, factors + b, row.q + 8 * at, count - b < 4 ? count - b : 4);
      }
    }
  }
}

}  // namespace

void nvfp4_quant_row(const Nvfp4Row& row) {
  if (row.format == Format::kBf16) return quantise_row<Bf16>(row);
  if (row.format == Format::kF16) return quantise_row<F16>(row);
  quantise_row<float>(row);
}

}  // namespace fathom::avx512
