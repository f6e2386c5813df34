// The largest magnitude of values with AVX-512, shared by the quantisers. Included by _avx512.cc
// files only. The same bits as amax_of(): NaN is skipped, none gives 0.
#pragma once

#include <immintrin.h>

#include "fathom/kernels/core/elements_avx512.h"

namespace fathom::avx512 {

// ---- 16-bit formats: magnitudes are ordered like their codes ----

inline constexpr uint16_t kBf16Infinity = 0x7F80;
inline constexpr uint16_t kF16Infinity = 0x7C00;

/// Lanes 0 .. count-1 of thirty-two; count may be anything.
inline __mmask32 first_lanes32(int64_t count) {
  if (count >= 32) return 0xFFFFFFFF;
  return count <= 0 ? __mmask32{0} : static_cast<__mmask32>((1ull << count) - 1ull);
}

/// The largest of eight unsigned 16-bit lanes.
inline uint32_t max_of_lanes(__m128i v) {
  // The processor has a horizontal minimum; that of the complement is it.
  const __m128i ones = _mm_set1_epi16(-1);
  return 0xFFFFu &
         ~static_cast<uint32_t>(_mm_extract_epi16(_mm_minpos_epu16(_mm_xor_si128(v, ones)), 0));
}

/// Largest code of the magnitudes of n 16-bit numbers; beyond that of infinity if there is a NaN.
inline __m512i largest_codes(const uint16_t* x, int64_t n) {
  const __m512i magnitude = _mm512_set1_epi16(0x7FFF);
  __m512i largest = _mm512_setzero_si512();
  for (int64_t i = 0; i < n; i += 32) {
    const __m512i v = _mm512_maskz_loadu_epi16(first_lanes32(n - i), x + i);
    largest = _mm512_max_epu16(largest, _mm512_and_si512(v, magnitude));
  }
  return largest;
}

/// The same, NaN left out.
inline __m512i largest_number_codes(const uint16_t* x, int64_t n, uint16_t infinity) {
  const __m512i magnitude = _mm512_set1_epi16(0x7FFF);
  const __m512i last = _mm512_set1_epi16(static_cast<short>(infinity));
  __m512i largest = _mm512_setzero_si512();
  for (int64_t i = 0; i < n; i += 32) {
    const __m512i v = _mm512_maskz_loadu_epi16(first_lanes32(n - i), x + i);
    const __m512i m = _mm512_and_si512(v, magnitude);
    largest = _mm512_mask_max_epu16(largest, _mm512_cmple_epu16_mask(m, last), largest, m);
  }
  return largest;
}

/// The largest of thirty-two unsigned 16-bit lanes.
inline uint32_t max_of_lanes32(__m512i v) {
  const __m256i half = _mm256_max_epu16(_mm512_castsi512_si256(v), _mm512_extracti64x4_epi64(v, 1));
  return max_of_lanes(
      _mm_max_epu16(_mm256_castsi256_si128(half), _mm256_extracti128_si256(half, 1)));
}

/// Code of the largest magnitude of n 16-bit numbers.
inline uint32_t amax_code(const void* x, int64_t n, uint16_t infinity) {
  const auto* p = static_cast<const uint16_t*>(x);
  const uint32_t code = max_of_lanes32(largest_codes(p, n));
  if (code <= infinity) [[likely]]
    return code;
  return max_of_lanes32(largest_number_codes(p, n, infinity));
}

// ---- max |x[i]|, i < n ----

inline float amax(const Bf16* x, int64_t n) {
  const auto code = static_cast<int>(amax_code(x, n, kBf16Infinity));
  return _mm_cvtss_f32(_mm_castsi128_ps(_mm_cvtsi32_si128(code << 16)));
}

inline float amax(const F16* x, int64_t n) {
  const auto code = static_cast<int>(amax_code(x, n, kF16Infinity));
  return _mm_cvtss_f32(_mm_cvtph_ps(_mm_cvtsi32_si128(code)));
}

inline float amax(const float* x, int64_t n) {
  __m512 largest = _mm512_setzero_ps();
  for (int64_t i = 0; i < n; i += kLanes) {
    // Of two operands one of which is NaN, the processor takes the second.
    largest = _mm512_max_ps(_mm512_abs_ps(load16(x + i, first_lanes(n - i))), largest);
  }
  return _mm512_reduce_max_ps(largest);
}

// ---- the largest magnitudes of sixteen blocks of 16 values, one a lane ----

/// The maximum of the two halves of each 128-bit lane: those of a in the low half of the result's
/// lanes, those of b in the high half.
inline __m512i max_halves64(__m512i a, __m512i b) {
  return _mm512_max_epu16(_mm512_unpacklo_epi64(a, b), _mm512_unpackhi_epi64(a, b));
}

/// The same for the halves of each 64-bit element.
inline __m512i max_halves32(__m512i a, __m512i b) {
  const __m512i even = _mm512_castps_si512(
      _mm512_shuffle_ps(_mm512_castsi512_ps(a), _mm512_castsi512_ps(b), _MM_SHUFFLE(2, 0, 2, 0)));
  const __m512i odd = _mm512_castps_si512(
      _mm512_shuffle_ps(_mm512_castsi512_ps(a), _mm512_castsi512_ps(b), _MM_SHUFFLE(3, 1, 3, 1)));
  return _mm512_max_epu16(even, odd);
}

/// Codes of the largest magnitudes in the low halves of the lanes; of blocks with a NaN, beyond the
/// code of infinity.
inline __m512i amax_codes_of_blocks(const uint16_t* x) {
  const __m512i magnitude = _mm512_set1_epi16(0x7FFF);
  const auto blocks = [&](int64_t pair) {  // two blocks: lanes 0, 1 and lanes 2, 3 of 128 bits
    return _mm512_and_si512(_mm512_loadu_si512(x + 32 * pair), magnitude);
  };
  // Pairs 0 .. 7; each lane of a level holds numbers of twice as many pairs.
  const __m512i p01 = max_halves64(blocks(0), blocks(1));  // 4 numbers a pair
  const __m512i p23 = max_halves64(blocks(2), blocks(3));
  const __m512i p45 = max_halves64(blocks(4), blocks(5));
  const __m512i p67 = max_halves64(blocks(6), blocks(7));
  const __m512i p0123 = max_halves32(p01, p23);  // 2 numbers a pair, in one 32-bit element
  const __m512i p4567 = max_halves32(p45, p67);
  const __m512i low = _mm512_set1_epi32(0xFFFF);
  // Elements 0 .. 3 of every 128-bit lane: pairs 0 .. 3, and 4 .. 7 of the other.
  const __m512i first =
      _mm512_max_epu16(_mm512_and_si512(p0123, low), _mm512_srli_epi32(p0123, 16));
  const __m512i second =
      _mm512_max_epu16(_mm512_and_si512(p4567, low), _mm512_srli_epi32(p4567, 16));
  // Lanes 0, 1 belong to the even blocks, 2, 3 to the odd ones: bring block 2p to element p of one
  // vector, its other half to the other.
  const __m512i near = _mm512_shuffle_i64x2(first, second, _MM_SHUFFLE(2, 0, 2, 0));
  const __m512i far = _mm512_shuffle_i64x2(first, second, _MM_SHUFFLE(3, 1, 3, 1));
  const __m512i both = _mm512_max_epu16(near, far);
  // Elements: even blocks of pairs 0 .. 3, odd ones, then of pairs 4 .. 7.
  const __m512i order = _mm512_set_epi32(15, 11, 14, 10, 13, 9, 12, 8, 7, 3, 6, 2, 5, 1, 4, 0);
  return _mm512_permutexvar_epi32(order, both);
}

/// One block after the other.
template <class A>
__m512 amax_of_each_block(const A* x) {
  alignas(64) float values[16];
  for (int64_t b = 0; b < 16; ++b)
    values[b] = amax(x + 16 * b, 16);
  return _mm512_load_ps(values);
}

// has_nan: whether there may be a NaN among the values.

inline __m512 amax_of_blocks16(const float* x, bool& has_nan) {
  has_nan = true;
  return amax_of_each_block(x);
}

inline __m512 amax_of_blocks16(const Bf16* x, bool& has_nan) {
  const __m512i codes = amax_codes_of_blocks(reinterpret_cast<const uint16_t*>(x));
  has_nan = _mm512_cmpgt_epi32_mask(codes, _mm512_set1_epi32(kBf16Infinity)) != 0;
  if (has_nan) [[unlikely]]
    return amax_of_each_block(x);
  return _mm512_castsi512_ps(_mm512_slli_epi32(codes, 16));
}

inline __m512 amax_of_blocks16(const F16* x, bool& has_nan) {
  const __m512i codes = amax_codes_of_blocks(reinterpret_cast<const uint16_t*>(x));
  has_nan = _mm512_cmpgt_epi32_mask(codes, _mm512_set1_epi32(kF16Infinity)) != 0;
  if (has_nan) [[unlikely]]
    return amax_of_each_block(x);
  return _mm512_cvtph_ps(_mm512_cvtepi32_epi16(codes));
}

}  // namespace fathom::avx512
