#include "fathom/formats/layout/super_tile.h"
#include "fathom/kernels/cpu/products/panel_loops.h"
#include "fathom/kernels/cpu/products/tiles_avx2.h"
#include "fathom/kernels/gemm/fp8_gemm/fp8_quads_avx2.h"

namespace fathom {
namespace {

/// Weights are decoded with their scales, so the product is that of float32.
struct Mxfp8Tiles : Fp8Quads {
  static constexpr bool kHasGlobal = false;
  static constexpr int64_t kBlockK = 32;

  struct alignas(64) PanelMemory {
    float w[kChunkK][16];
  };

  struct Panel {
    const float* w;
    int64_t columns;
  };

  /// 2^e of eight rows. The byte is the exponent of a float32, but for 0, which is 2^-127.
  static F32 load_scales(const uint8_t* bytes) {
    const __m256i wide =
        _mm256_cvtepu8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(bytes)));
    return _mm256_castsi256_ps(
        _mm256_max_epu32(_mm256_slli_epi32(wide, 23), _mm256_set1_epi32(0x00400000)));
  }

  static Panel load_panel(
      const Products& p, int64_t group, int64_t k0, int64_t k1, PanelMemory* memory) {
    const uint8_t* w = p.tiles + group * p.group_bytes;
    for (int64_t b = k0 / kBlockK; b * kBlockK < k1; ++b) {
      const uint8_t* tile = w + b / 4 * kMxfp8TileBytes;
      const uint8_t* codes = tile + b % 4 * kMxfp8BlockBytes;
      const uint8_t* scales = tile + kMxfp8Scales + b % 4 * 16;
      float(*out)[16] = memory->w + b * kBlockK - k0;
      const F32 low = load_scales(scales);
      const F32 high = load_scales(scales + 8);
      for (int64_t k = 0; k < kBlockK; k += 4)
        decode_quad(codes + k / 4 * 64, out + k);
      for (int64_t k = 0; k < kBlockK; ++k) {
        V::store(out[k], V::mul(V::load(out[k]), low));
        V::store(out[k] + 8, V::mul(V::load(out[k] + 8), high));
      }
    }
    return {memory->w[0], k1 - k0};
  }

  template <int T>
  static void dot(const Panel& panel, const float* x, int64_t x_stride, float* acc) {
    add_to_sums<T>(panel.w, x, x_stride, panel.columns, acc);
  }
};

}  // namespace

void mxfp8_products_avx2(const Products& p, const WorkItem& item, void* scratch) {
  PanelLoops<Mxfp8Tiles>::run(p, item, scratch);
}

}  // namespace fathom
