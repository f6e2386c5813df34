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
#pragma GCC unroll 8
    for (int g = 0; g < G; ++g) {
#pragma GCC unroll 8
      for (int t = 0; t < T; ++t)
        sum[g][t] = V::load(acc + t * kPanelRows + g * 16);
    }
    add_pairs<true>(panel.w, panel.group_stride, x, x_stride, panel.pairs, sum, panel.ask);
    store_sums(sum, acc, kPanelRows);
  }

  /// Whole rows of x times G groups.
  template <int G, int T>
  static void stream_groups(const Products& p, const uint8_t* w, const Bf16* x, float* acc) {
    F32 sum[G][T];
    set_zero(sum);
    add_pairs(w, p.group_bytes, x, p.x_row_stride, p.k / 2, sum);
    store_sums(sum, acc, kStreamPanelRows);
  }

  template <int G, int T>
  static void store_sums(const F32 (&sum)[G][T], float* acc, int64_t acc_stride) {
#pragma GCC unroll 8
    for (int g = 0; g < G; ++g) {
#pragma GCC unroll 8
      for (int t = 0; t < T; ++t)
        V::store(acc + t * acc_stride + g * 16, sum[g][t]);
    }
  }

  /// As many groups as accumulators allow: a group is one chain of sums, and eight of them hide the
  /// latency of one.
  template <int T>
  static int stream_rows(
      const Products& p, const uint8_t* w, int64_t left, const Bf16* x, float* acc) {
    if constexpr (T <= 2) {
      if (left >= 8) return stream_groups<8, T>(p, w, x, acc), 8;
    }
    if constexpr (T <= 6) {
      if (left >= 4) return stream_groups<4, T>(p, w, x, acc), 4;
    }
    if (left >= 2) return stream_groups<2, T>(p, w, x, acc), 2;
    return stream_groups<1, T>(p, w, x, acc), 1;
  }

  static int stream(
      const Products& p, int64_t group, int64_t left, const Bf16* x, int rows, float* acc) {
    const uint8_t* w = p.tiles + group * p.group_bytes;
    switch (rows) {
      case 1:
        return stream_rows<1>(p, w, left, x, acc);
      case 2:
        return stream_rows<2>(p, w, left, x, acc);
      case 3:
        return stream_rows<3>(p, w, left, x, acc);
      case 4:
        return stream_rows<4>(p, w, left, x, acc);
      case 5:
        return stream_rows<5>(p, w, left, x, acc);
      case 6:
        return stream_rows<6>(p, w, left, x, acc);
      case 7:
        return stream_rows<7>(p, w, left, x, acc);
      default:
        return stream_rows<8>(p, w, left, x, acc);
    }
  }
};

}  // namespace

void bf16_products_avx512(const Products& p, const WorkItem& item, void* scratch) {
  ProductLoops<Bf16Tiles>::run(p, item, scratch);
}

}  // namespace fathom
