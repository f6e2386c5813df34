#include "fathom/kernels/cpu/products/panel_loops.h"
#include "fathom/kernels/cpu/products/tiles_avx2.h"

namespace fathom {
namespace {

struct Fp8Tiles : FloatTiles {
  static constexpr bool kHasGlobal = false;
  static constexpr int64_t kBlockK = 128;

  struct alignas(64) PanelMemory {
    float w[kChunkK][16];
    float scales[16];  // of the blocks of the chunk
  };

  struct Panel {
    const PanelMemory* memory;
    int64_t columns;
  };

  /// Eight E4M3 codes in the low bytes of 32-bit lanes. Exponent and mantissa moved to their places
  /// in a float32 want a factor of 2^(127-7), which makes subnormals right as well; 7F is NaN.
  static F32 decode(__m256i codes) {
    const __m256i magnitude = _mm256_and_si256(codes, _mm256_set1_epi32(0x7F));
    const __m256i sign = _mm256_slli_epi32(_mm256_andnot_si256(_mm256_set1_epi32(0x7F), codes), 24);
    const F32 value =
        V::mul(_mm256_castsi256_ps(_mm256_slli_epi32(magnitude, 20)), V::splat(0x1p120f));
    const __m256i is_nan = _mm256_cmpeq_epi32(magnitude, _mm256_set1_epi32(0x7F));
    const __m256i nan = _mm256_and_si256(is_nan, _mm256_set1_epi32(0x7FC00000));
    return _mm256_or_ps(value, _mm256_castsi256_ps(_mm256_or_si256(sign, nan)));
  }

  /// Eight rows of one k: 16-bit lanes of the tile hold (k, k+1) or (k+2, k+3) of a row.
  static void decode_quad(const uint8_t* tile, float (*out)[16]) {
    const __m256i byte = _mm256_set1_epi32(0xFF);
    for (int half = 0; half < 2; ++half) {
      const __m256i codes = load_lanes(tile + half * 32);  // parts L = 2 half, 2 half + 1
      const __m256i first = _mm256_unpacklo_epi16(codes, _mm256_setzero_si256());
      const __m256i second = _mm256_unpackhi_epi16(codes, _mm256_setzero_si256());
      V::store(out[0] + half * 8, decode(_mm256_and_si256(first, byte)));
      V::store(out[1] + half * 8, decode(_mm256_srli_epi32(first, 8)));
      V::store(out[2] + half * 8, decode(_mm256_and_si256(second, byte)));
      V::store(out[3] + half * 8, decode(_mm256_srli_epi32(second, 8)));
    }
  }

  static Panel load_panel(
      const Products& p, int64_t group, int64_t k0, int64_t k1, PanelMemory* memory) {
    const uint8_t* tile = p.tiles + group * p.group_bytes + k0 / 4 * 64;
    for (int64_t k = 0; k < k1 - k0; k += 4)
      decode_quad(tile + k / 4 * 64, memory->w + k);
    for (int64_t b = 0; b * kBlockK < k1 - k0; ++b) {
      memory->scales[b] = p.scales[group * p.group_scales + k0 / kBlockK + b];
    }
    return {memory, k1 - k0};
  }

  template <int T>
  static void dot(const Panel& panel, const float* x, int64_t x_stride, float* acc) {
    for (int64_t k = 0; k < panel.columns; k += kBlockK) {
      const int64_t left = panel.columns - k;
      F32 sum[2][T];
      set_zero(sum);
      add_columns(panel.memory->w[k], x + k, x_stride, left < kBlockK ? left : kBlockK, sum);
      const F32 scale = V::splat(panel.memory->scales[k / kBlockK]);
      add_scaled(sum, scale, scale, acc);
    }
  }
};

}  // namespace

void fp8_products_avx2(const Products& p, const WorkItem& item, void* scratch) {
  PanelLoops<Fp8Tiles>::run(p, item, scratch);
}

}  // namespace fathom
