#include "fathom/kernels/cpu/products/panel_loops.h"
#include "fathom/kernels/cpu/products/tiles_avx2.h"

namespace fathom {
namespace {

struct Bf16Tiles : FloatTiles {
  static constexpr bool kHasGlobal = false;

  struct alignas(64) PanelMemory {
    float w[kChunkK + 1][16];
  };

  struct Panel {
    const float* w;
    int64_t columns;
  };

  static Panel load_panel(
      const Products& p, int64_t group, int64_t k0, int64_t k1, PanelMemory* memory) {
    const uint8_t* pairs = p.tiles + group * p.group_bytes + k0 / 2 * 64;
    for (int64_t k = 0; k < k1 - k0; k += 2) {
      for (int half = 0; half < 2; ++half) {
        const __m256i lanes = load_lanes(pairs + k / 2 * 64 + half * 32);
        V::store(memory->w[k] + half * 8, first_of_pair(lanes));
        V::store(memory->w[k + 1] + half * 8, second_of_pair(lanes));
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

void bf16_products_avx2(const Products& p, const WorkItem& item, void* scratch) {
  PanelLoops<Bf16Tiles>::run(p, item, scratch);
}

}  // namespace fathom
