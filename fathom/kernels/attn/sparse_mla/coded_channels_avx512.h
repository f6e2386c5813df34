// Codes of rows (e4m3, e2m1) with a scale for each group of channels, as bf16: 32 channels at a
// time, multiplied in float32 and rounded to nearest even. Included by _avx512.cc files only.
#pragma once

#include "fathom/kernels/attn/ragged_attention/attend_avx512.h"

namespace fathom::avx512 {

/// The bf16 code of each of the 16 codes of e2m1, twice.
struct E2m1ToBf16 {
  uint16_t codes[32];

  constexpr E2m1ToBf16() : codes() {
    for (unsigned i = 0; i < 32; ++i) {
      codes[i] = static_cast<uint16_t>(float_bits(internal::kE2m1Values[i % 16]) >> 16);
    }
  }
};

alignas(64) inline constexpr E2m1ToBf16 kE2m1ToBf16;

/// Sixteen bf16 as floats.
inline __m512 widen(__m256i codes) {
  return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(codes), 16));
}

// ---- sixteen scales as floats; lanes from `count` on are not read and hold anything ----

/// 2^(code - 127): 2^-127 is subnormal, code 255 is NaN.
inline __m512 load_scales(const Ue8m0* p, int64_t count) {
  const __m512i code = _mm512_cvtepu8_epi32(_mm_maskz_loadu_epi8(first_lanes(count), p));
  __m512i bits = _mm512_slli_epi32(code, 23);
  bits = _mm512_mask_mov_epi32(bits, _mm512_cmpeq_epi32_mask(code, _mm512_setzero_si512()),
                               _mm512_set1_epi32(0x00400000));
  bits = _mm512_mask_mov_epi32(bits, _mm512_cmpeq_epi32_mask(code, _mm512_set1_epi32(255)),
                               _mm512_set1_epi32(0x7FC00000));
  return _mm512_castsi512_ps(bits);
}

inline __m512 load_scales(const E4m3* p, int64_t count) {
  return widen(_mm512_castsi512_si256(load32(p, count < kLanes ? count : kLanes)));
}

inline __m512 load_scales(const float* p, int64_t count) {
  return load16(p, first_lanes(count));
}

/// `count` scales as floats; `out` has room for whole vectors.
template <class Scale>
void widen_scales(const Scale* scales, int64_t count, float* out) {
  for (int64_t i = 0; i < count; i += kLanes)
    _mm512_store_ps(out + i, load_scales(scales + i, count - i));
}

// ---- 32 codes as bf16; those from `count` on, a multiple of sixteen, are zero and not read ----

inline __m512i load_codes(const E4m3* values, int64_t d, int64_t count) {
  return load32(values + d, count);
}

/// Two e2m1 a byte, the even channel in the low nibble.
inline __m512i load_codes(const uint8_t* values, int64_t d, int64_t count) {
  const __m128i bytes = _mm_maskz_loadu_epi8(first_lanes(count / 2), values + d / 2);
  const __m512i pair = _mm512_cvtepu8_epi32(bytes);
  const __m512i codes = _mm512_or_si512(_mm512_and_si512(pair, _mm512_set1_epi32(15)),
                                        _mm512_slli_epi32(_mm512_srli_epi32(pair, 4), 16));
  return _mm512_permutexvar_epi16(codes, _mm512_load_si512(kE2m1ToBf16.codes));
}

/// Channels [0, width) of a row, code * scales[channel / group]; width and group are multiples of
/// sixteen. `out` is written in vectors of 32.
template <class Code>
void decode_channels(
    const Code* values, int64_t width, int64_t group, const float* scales, Bf16* out) {
  for (int64_t d = 0; d < width; d += 32) {
    const float low_scale = scales[d / group];
    const float high_scale = d + 16 < width ? scales[(d + 16) / group] : 0.0f;
    const __m512i codes = load_codes(values, d, width - d);
    const __m512 low =
        _mm512_mul_ps(widen(_mm512_castsi512_si256(codes)), _mm512_set1_ps(low_scale));
    const __m512 high =
        _mm512_mul_ps(widen(_mm512_extracti64x4_epi64(codes, 1)), _mm512_set1_ps(high_scale));
    _mm512_storeu_si512(out + d, bf16_pairs(high, low));
  }
}

}  // namespace fathom::avx512
