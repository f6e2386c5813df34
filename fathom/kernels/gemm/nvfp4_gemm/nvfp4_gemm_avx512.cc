#include "fathom/kernels/cpu/products/stream_loops.h"
#include "fathom/kernels/gemm/nvfp4_gemm/nvfp4_tiles_avx512.h"

namespace fathom {
namespace {

struct Nvfp4Tiles : Nvfp4Product {
  static constexpr bool kHasGlobal = true;
  static constexpr int kGroups = 1;  // memory is read as one long stream
  static constexpr int kRows = 8;
  static constexpr int64_t kBlockRows = 32;  // rows of x stay in the second-level cache
  static constexpr int64_t kPassK = 16384;   // weights: 144 KiB
  static constexpr int64_t kUnit = 64;
  static constexpr int64_t kAhead = 16 * kSuperTileBytes;  // measured, see GEMM_NOTES.md

  template <int G, int T>
  static void pass(const Pass& a) {
    const uint8_t* w = a.p.tiles + a.group * a.p.group_bytes + a.k0 / 64 * kSuperTileBytes;
    // In front of the sums: behind them, the compiler works it out anew for every prefetch.
    const int64_t ahead = a.index == 0 ? kAhead : 0;
    F32 total[G][T];
    load_sums(a, total);
    add_super_tiles(w, a.columns / 64, ahead, a.x, a.x_stride, total);
    store_sums(a, total);
  }
};

}  // namespace

void nvfp4_products_avx512(const Products& p, const WorkItem& item, void* scratch) {
  StreamLoops<Nvfp4Tiles>::run(p, item, scratch);
}

}  // namespace fathom
