#include "fathom/kernels/gemm/product_loops.h"
#include "fathom/kernels/gemm/tiles_avx512.h"

namespace fathom {
namespace {

struct Bf16Tiles : PairTiles {
  static constexpr bool kHasGlobal = false;
  static constexpr int64_t kStreamRows = 8;
  static constexpr int64_t kStreamUnit = 2;

  struct alignas(64) PanelMemory {};  // the tile stream is the panel

  struct Panel {
    const uint8_t* w;
    int64_t group_stride;
    int64_t pairs;
    Ask ask;
  };

  static int64_t padded(int64_t columns) { return (columns + 1) / 2 * 2; }

  static Panel load_panel(const Products& p,
                          int64_t group,
                          int /*num_groups*/,
                          int64_t k0,
                          int64_t k1,
                          PanelMemory* /*memory*/) {
    return {p.tiles + group * p.group_bytes + k0 / 2 * kPairBytes,
            p.group_bytes,
            (k1 - k0 + 1) / 2,
            {}};
  }

  /// Each block of rows asks for its share of the next chunk, so that memory works all the time.
  static void begin_rows(Panel& panel, int64_t block, int64_t blocks) {
    constexpr int64_t kChunkBytes = kChunkPairs * kPairBytes;
    panel.ask = {panel.w + kChunkBytes + block * kChunkBytes / blocks, kPairBytes / blocks};
  }

  template <int G, int T>
  static void dot(const Panel& panel, const Bf16* x, int64_t x_stride, float* acc) {
    F32 sum[G][T];
    load_sums(acc, kPanelRows, sum);
    add_pairs<true>(panel.w, panel.group_stride, x, x_stride, panel.pairs, sum, panel.ask);
    store_sums(sum, acc, kPanelRows);
  }

  /// Whole rows of x times G groups.
  template <int G, int T>
  static int stream_groups(const Products& p, int64_t group, const Bf16* x, float* acc) {
    F32 sum[G][T];
    set_zero(sum);
    add_pairs(p.tiles + group * p.group_bytes, p.group_bytes, x, p.x_row_stride, p.k / 2, sum);
    store_sums(sum, acc, kStreamPanelRows);
    return G;
  }

  /// As many groups as registers allow: a group is one chain of sums, and eight of them hide the
  /// latency of one.
  template <int T>
  static int stream(const Products& p, int64_t group, int64_t left, const Bf16* x, float* acc) {
    if constexpr (T <= 2) {
      if (left >= 8) return stream_groups<8, T>(p, group, x, acc);
    }
    if constexpr (T <= 6) {
      if (left >= 4) return stream_groups<4, T>(p, group, x, acc);
    }
    if (left >= 2) return stream_groups<2, T>(p, group, x, acc);
    return stream_groups<1, T>(p, group, x, acc);
  }
};

}  // namespace

void bf16_products_avx512(const Products& p, const WorkItem& item, void* scratch) {
  ProductLoops<Bf16Tiles>::run(p, item, scratch);
}

}  // namespace fathom
