#include "fathom/kernels/cpu/products/panel_loops.h"
#include "fathom/kernels/gemm/fp8_gemm/fp8_quads_avx2.h"

namespace fathom {
namespace {

struct Fp8Tiles : Fp8Quads {
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
