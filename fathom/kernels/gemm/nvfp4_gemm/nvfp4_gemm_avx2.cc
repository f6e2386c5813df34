#include "fathom/formats/layout/super_tile.h"
#include "fathom/kernels/cpu/products/panel_loops.h"
#include "fathom/kernels/cpu/products/tiles_avx2.h"

namespace fathom {
namespace {

struct Nvfp4Tiles : FloatTiles {
  static constexpr bool kHasGlobal = true;
  static constexpr int64_t kBlockK = 16;
  static constexpr int64_t kTileBytes = 128;

  struct alignas(64) PanelMemory {
    float w[kChunkK][16];
    float scales[kChunkK / kBlockK][16];
  };

  struct Panel {
    const PanelMemory* memory;
    int64_t columns;
  };

  /// The code in bits kShift .. kShift + 3 of each 32-bit lane: `vpermps` reads the three bits of
  /// the magnitude, the fourth is the sign.
  template <int kShift>
  static F32 decode(__m256i codes) {
    const F32 magnitudes = _mm256_setr_ps(0.0f, 0.5f, 1.0f, 1.5f, 2.0f, 3.0f, 4.0f, 6.0f);
    const F32 value = _mm256_permutevar8x32_ps(magnitudes, _mm256_srli_epi32(codes, kShift));
    const __m256i sign = _mm256_and_si256(_mm256_slli_epi32(codes, 28 - kShift),
                                          _mm256_set1_epi32(static_cast<int>(0x80000000u)));
    return _mm256_or_ps(value, _mm256_castsi256_ps(sign));
  }

  /// Nibble n of the lower and upper 16 bits of lane r are k = 2n and 2n + 1 of row r.
  template <int N>
  static void decode_nibbles(__m256i codes, int half, float (*out)[16]) {
    V::store(out[2 * N] + half * 8, decode<4 * N>(codes));
    V::store(out[2 * N + 1] + half * 8, decode<4 * N + 16>(codes));
    if constexpr (N < 3) decode_nibbles<N + 1>(codes, half, out);
  }

  /// E4M3 without sign: exponent and mantissa moved to their places in a float32 want a factor of
  /// 2^(127-7), which makes subnormals right as well.
  static F32 load_scales(const uint8_t* bytes) {
    const __m256i wide =
        _mm256_cvtepu8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(bytes)));
    return V::mul(_mm256_castsi256_ps(_mm256_slli_epi32(wide, 20)), V::splat(0x1p120f));
  }

  static Panel load_panel(
      const Products& p, int64_t group, int64_t k0, int64_t k1, PanelMemory* memory) {
    const uint8_t* super_tiles = p.tiles + group * p.group_bytes + k0 / 64 * kSuperTileBytes;
    for (int64_t b = 0; b * kBlockK < k1 - k0; ++b) {
      const uint8_t* super_tile = super_tiles + b / 4 * kSuperTileBytes;
      for (int half = 0; half < 2; ++half) {
        const uint8_t* tile = super_tile + b % 4 * kTileBytes + half * 32;
        decode_nibbles<0>(load_lanes(tile), half, memory->w + b * kBlockK);
        decode_nibbles<0>(load_lanes(tile + 64), half, memory->w + b * kBlockK + 8);
        V::store(memory->scales[b] + half * 8,
                 load_scales(super_tile + kSuperTileScales + b % 4 * 16 + half * 8));
      }
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
      const float* scales = panel.memory->scales[k / kBlockK];
      add_scaled(sum, V::load(scales), V::load(scales + 8), acc);
    }
  }
};

}  // namespace

void nvfp4_products_avx2(const Products& p, const WorkItem& item, void* scratch) {
  PanelLoops<Nvfp4Tiles>::run(p, item, scratch);
}

}  // namespace fathom
