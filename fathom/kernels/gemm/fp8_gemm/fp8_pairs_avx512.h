// FP8 codes to pairs of bf16 in the lanes of sixteen rows.
#pragma once

#include <cstdint>
#include <immintrin.h>

namespace fathom {

/// An 8-bit float to bf16, exactly and for every code: both bytes of the bf16 by table, with 128
/// entries for the code without its sign. Subnormals become normal bf16.
struct Fp8Tables {
  alignas(64) uint8_t low[128];
  alignas(64) uint8_t high[128];

  /// E4M3 with 3 mantissa bits (7F is NaN), E5M2 with 2 (7C is infinity, 7D .. 7F are NaN).
  explicit constexpr Fp8Tables(uint32_t mantissa_bits) : low{}, high{} {
    const uint32_t bias = mantissa_bits == 3 ? 7 : 15;
    for (uint32_t code = 0; code < 128; ++code) {
      const uint32_t exponent = code >> mantissa_bits;
      const uint32_t mantissa = code & ((1u << mantissa_bits) - 1);
      uint32_t bits = (exponent + 127 - bias) << 7 | mantissa << (7 - mantissa_bits);
      if (exponent == 0) {
        // m * 2^(1 - bias - mantissa_bits): 1.xx * 2^(that + log2 m)
        const uint32_t log = mantissa >= 4 ? 2 : mantissa >= 2 ? 1 : 0;
        const uint32_t fraction = (mantissa << (7 - log)) & 0x7F;
        bits = mantissa == 0 ? 0 : (127 + 1 - bias - mantissa_bits + log) << 7 | fraction;
      }
      if (mantissa_bits == 3 && code == 0x7F) bits = 0x7FC0;
      if (mantissa_bits == 2 && code == 0x7C) bits = 0x7F80;
      if (mantissa_bits == 2 && code > 0x7C) bits = 0x7FC0;
      low[code] = static_cast<uint8_t>(bits & 0xFF);
      high[code] = static_cast<uint8_t>(bits >> 8);
    }
  }
};

inline constexpr Fp8Tables kE4m3Tables(3);
inline constexpr Fp8Tables kE5m2Tables(2);

template <const Fp8Tables& kTables>
struct Fp8Decoder {
  __m512i low0 = _mm512_load_si512(kTables.low);
  __m512i low1 = _mm512_load_si512(kTables.low + 64);
  __m512i high0 = _mm512_load_si512(kTables.high);
  __m512i high1 = _mm512_load_si512(kTables.high + 64);
  __m512i sign = _mm512_set1_epi8(static_cast<char>(0x80));

  /// 64 codes at p: the pairs (k, k+1) and (k+2, k+3) of sixteen rows.
  inline __attribute__((always_inline)) void decode(const uint8_t* p,
                                                    __m512i& first,
                                                    __m512i& second) const {
    const __m512i codes = _mm512_loadu_si512(p);
    const __m512i low = _mm512_permutex2var_epi8(low0, codes, low1);
    const __m512i magnitude = _mm512_permutex2var_epi8(high0, codes, high1);
    // magnitude | (codes & sign)
    const __m512i high = _mm512_ternarylogic_epi32(magnitude, codes, sign, 0xF8);
    first = _mm512_unpacklo_epi8(low, high);
    second = _mm512_unpackhi_epi8(low, high);
  }
};

using E4m3Decoder = Fp8Decoder<kE4m3Tables>;
using E5m2Decoder = Fp8Decoder<kE5m2Tables>;

}  // namespace fathom
