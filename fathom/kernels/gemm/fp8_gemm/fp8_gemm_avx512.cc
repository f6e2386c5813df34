#include "fathom/kernels/gemm/product_loops.h"
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
  static constexpr int64_t kStreamRows = 8;
  static constexpr int64_t kStreamUnit = 4;
  static constexpr int64_t kBlockK = 128;
  static constexpr int64_t kStreamAhead = 2048;  // measured, see GEMM_NOTES.md
  static constexpr int64_t kBlockPairs = kBlockK / 2;
  static constexpr int64_t kChunkBlocks = kChunkK / kBlockK;

  struct alignas(64) PanelMemory {
    uint8_t w[kGroups][kChunkPairs * kPairBytes];
    float scales[kChunkBlocks][kGroups];
    float unused[16 - kChunkBlocks * kGroups];
  };

  struct Panel {
    const PanelMemory* memory;
    int64_t pairs;
  };

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

  static int64_t padded(int64_t columns) { return (columns + 3) / 4 * 4; }

  static Panel load_panel(const Products& p,
                          int64_t group,
                          int num_groups,
                          int64_t k0,
                          int64_t k1,
                          PanelMemory* memory) {
    const Decoder decoder;
    const int64_t quads = padded(k1 - k0) / 4;
    for (int g = 0; g < num_groups; ++g) {
      const uint8_t* codes = p.tiles + (group + g) * p.group_bytes + k0 / 4 * 64;
      for (int64_t q = 0; q < quads; ++q) {
        __m512i first, second;
        decoder.decode(codes + q * 64, first, second);
        prefetch<64>(codes + q * 64 + kChunkK / 4 * 64);  // of the next chunk
        _mm512_store_si512(memory->w[g] + 2 * q * kPairBytes, first);
        _mm512_store_si512(memory->w[g] + (2 * q + 1) * kPairBytes, second);
      }
      for (int64_t b = 0; b * kBlockK < k1 - k0; ++b) {
        memory->scales[b][g] = p.scales[(group + g) * p.group_scales + k0 / kBlockK + b];
      }
    }
    return {memory, quads * 2};
  }

  template <int G, int T>
  static void dot(const Panel& panel, const Bf16* x, int64_t x_stride, float* acc) {
    for (int64_t b = 0; b * kBlockPairs < panel.pairs; ++b) {
      const int64_t left = panel.pairs - b * kBlockPairs;
      F32 sum[G][T];
      set_zero(sum);
      add_pairs(panel.memory->w[0] + b * kBlockPairs * kPairBytes, sizeof panel.memory->w[0],
                x + b * kBlockK, x_stride, left < kBlockPairs ? left : kBlockPairs, sum);
      F32 scale[G], total[G][T];
#pragma GCC unroll 8
      for (int g = 0; g < G; ++g)
        scale[g] = V::splat(panel.memory->scales[b][g]);
      load_sums(acc, kPanelRows, total);
      add_scaled(sum, scale, total);
      store_sums(total, acc, kPanelRows);
    }
  }

  /// One block of at most 128 k of G groups, decoded in registers.
  template <int G, int T>
  static inline __attribute__((always_inline)) void stream_block(const Decoder& decoder,
                                                                 const uint8_t* w,
                                                                 int64_t group_stride,
                                                                 const Bf16* x,
                                                                 int64_t x_stride,
                                                                 int64_t quads,
                                                                 F32 (&sum)[G][T]) {
    for (int64_t q = 0; q < quads; ++q) {
#pragma GCC unroll 8
      for (int g = 0; g < G; ++g) {
        __m512i first, second;
        decoder.decode(w + g * group_stride + q * 64, first, second);
        prefetch<64>(w + g * group_stride + q * 64 + kStreamAhead);
#pragma GCC unroll 8
        for (int t = 0; t < T; ++t) {
          const Bf16* pair = x + t * x_stride + 4 * q;
          sum[g][t] = V::dot_pairs(first, V::splat_pair(pair), sum[g][t]);
          sum[g][t] = V::dot_pairs(second, V::splat_pair(pair + 2), sum[g][t]);
        }
      }
    }
  }

  template <int G, int T>
  static int stream_groups(const Products& p, int64_t group, const Bf16* x, float* acc) {
    const Decoder decoder;
    const uint8_t* w = p.tiles + group * p.group_bytes;
    const float* scales = p.scales + group * p.group_scales;
    F32 total[G][T];
    set_zero(total);
    for (int64_t b = 0; b < p.group_scales; ++b) {
      const int64_t left = p.k - b * kBlockK;
      F32 sum[G][T], scale[G];
      set_zero(sum);
      stream_block(decoder, w + b * kBlockK / 4 * 64, p.group_bytes, x + b * kBlockK,
                   p.x_row_stride, (left < kBlockK ? left : kBlockK) / 4, sum);
#pragma GCC unroll 8
      for (int g = 0; g < G; ++g)
        scale[g] = V::splat(scales[g * p.group_scales + b]);
      add_scaled(sum, scale, total);
    }
    store_sums(total, acc, kStreamPanelRows);
    return G;
  }

  template <int T>
  static int stream(const Products& p, int64_t group, int64_t left, const Bf16* x, float* acc) {
    if constexpr (T <= 4) {
      if (left >= 4) return stream_groups<4, T>(p, group, x, acc);
    }
    if (left >= 2) return stream_groups<2, T>(p, group, x, acc);
    return stream_groups<1, T>(p, group, x, acc);
  }
};

}  // namespace

void fp8_products_avx512(const Products& p, const WorkItem& item, void* scratch) {
  ProductLoops<Fp8Tiles>::run(p, item, scratch);
}

}  // namespace fathom
