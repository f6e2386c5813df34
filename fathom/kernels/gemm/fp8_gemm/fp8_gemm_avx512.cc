#include "fathom/kernels/gemm/stream_loops.h"
#include "fathom/kernels/gemm/tiles_avx512.h"

namespace fathom {
namespace {

/// E4M3 to bf16, exactly and for every code: both bytes of the bf16 by table.
///
///   bf16 of s.eeee.mmm, normal:  s (eeee + 120) mmm0000     high byte s.(e+120)>>1, low (e&1) mmm
///   0000
///
/// The tables have 128 entries, for the code without its sign; subnormals are m * 2^-9 and become
/// normal bf16, 7F becomes NaN.
struct E4m3Tables {
  alignas(64) uint8_t low[128];
  alignas(64) uint8_t high[128];

  constexpr E4m3Tables() : low{}, high{} {
    for (uint32_t code = 0; code < 128; ++code) {
      const uint32_t exponent = code >> 3;
      const uint32_t mantissa = code & 7;
      uint32_t bits = (exponent + 120) << 7 | mantissa << 4;
      if (code == 127) bits = 0x7FC0;
      if (exponent == 0) {
        // m * 2^-9: 1.xx * 2^(-9 + log2 m)
        const uint32_t log = mantissa >= 4 ? 2 : mantissa >= 2 ? 1 : 0;
        const uint32_t fraction = (mantissa << (7 - log)) & 0x7F;
        bits = mantissa == 0 ? 0 : (127 - 9 + log) << 7 | fraction;
      }
      low[code] = static_cast<uint8_t>(bits & 0xFF);
      high[code] = static_cast<uint8_t>(bits >> 8);
    }
  }
};

constexpr E4m3Tables kTables;

struct Fp8Tiles : PairTiles {
  static constexpr bool kHasGlobal = false;
  static constexpr int kGroups = 4;
  static constexpr int kRows = 4;
  static constexpr int64_t kBlockRows = 64;
  static constexpr int64_t kPassK = 4096;  // weights of four groups: 256 KiB
  static constexpr int64_t kUnit = 4;
  static constexpr int64_t kQuadBytes = 64;
  static constexpr int64_t kBlockQuads = 32;  // of one scale: 128 k
  static constexpr int64_t kAhead = 2048;     // measured, see GEMM_NOTES.md

  struct Decoder {
    __m512i low0 = _mm512_load_si512(kTables.low), low1 = _mm512_load_si512(kTables.low + 64);
    __m512i high0 = _mm512_load_si512(kTables.high), high1 = _mm512_load_si512(kTables.high + 64);
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

  template <int G, int T>
  static void pass(const Pass& a) {
    const Products& p = a.p;
    const Decoder decoder;
    const uint8_t* w = p.tiles + a.group * p.group_bytes + a.k0 / 4 * kQuadBytes;
    const float* scales = p.scales + a.group * p.group_scales + a.k0 / 128;
    const int64_t ahead = a.index == 0 ? kAhead : 0;
    const int64_t quads = a.columns / 4;
    F32 total[G][T];
    load_sums(a, total);
    for (int64_t q = 0; q < quads; q += kBlockQuads) {
      const int64_t left = quads - q;
      F32 sum[G][T], scale[G];
      set_zero(sum);
      add_block(decoder, w + q * kQuadBytes, p.group_bytes, ahead, a.x + 4 * q, a.x_stride,
                left < kBlockQuads ? left : kBlockQuads, sum);
#pragma GCC unroll 8
      for (int g = 0; g < G; ++g) {
        scale[g] = V::splat(scales[g * p.group_scales + q / kBlockQuads]);
      }
      add_scaled(sum, scale, total);
    }
    store_sums(a, total);
  }

  /// The codes of one block of at most 128 k times x.
  template <int G, int T>
  static inline __attribute__((always_inline)) void add_block(const Decoder& decoder,
                                                              const uint8_t* w,
                                                              int64_t group_bytes,
                                                              int64_t ahead,
                                                              const Bf16* x,
                                                              int64_t x_stride,
                                                              int64_t quads,
                                                              F32 (&sum)[G][T]) {
    for (int64_t q = 0; q < quads; ++q) {
#pragma GCC unroll 8
      for (int g = 0; g < G; ++g) {
        const uint8_t* codes = w + g * group_bytes + q * kQuadBytes;
        __m512i first, second;
        decoder.decode(codes, first, second);
        prefetch<kQuadBytes>(codes, ahead);
#pragma GCC unroll 8
        for (int t = 0; t < T; ++t) {
          const Bf16* pair = x + t * x_stride + 4 * q;
          sum[g][t] = V::dot_pairs(first, V::splat_pair(pair), sum[g][t]);
          sum[g][t] = V::dot_pairs(second, V::splat_pair(pair + 2), sum[g][t]);
        }
      }
    }
  }
};

}  // namespace

void fp8_products_avx512(const Products& p, const WorkItem& item, void* scratch) {
  StreamLoops<Fp8Tiles>::run(p, item, scratch);
}

}  // namespace fathom
