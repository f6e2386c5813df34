// bf16 weights as they lie in checkpoints and reference calls.
#include "fathom/kernels/cpu/products/row_major_loops.h"

namespace fathom {
namespace {

struct RowMajorBf16Tiles {
  using V = simd::Native;
  static constexpr int kRows = 6;
  static constexpr int64_t kElementBytes = 2;
  static constexpr int64_t kWeightBytes = 2;
  static constexpr int64_t kPieceK = 128;
  static constexpr int64_t kPieceTileBytes = 128 * 16 * kWeightBytes;
  static constexpr int64_t kPairBytes = 64;

  static void load(const Products& p,
                   int64_t m,
                   int64_t group,
                   int64_t k0,
                   int64_t columns,
                   uint8_t* tiles,
                   float*) {
    const int64_t n0 = group * 16;
    load_rows(p.codes + (m * p.n + n0) * p.row_bytes, p.row_bytes, p.n - n0, k0 * kWeightBytes,
              columns * kWeightBytes,
              [&](int64_t i, __m512i pairs) { _mm512_store_si512(tiles + i * kPairBytes, pairs); });
  }

  template <int G, int T>
  static void pass(const PanelPass& a) {
    V::F32 sum[G][T];
    load_panel_sums(a, sum);
    for (int64_t p = 0; p < a.columns / 2; ++p) {
      __m512i weights[G];
#pragma GCC unroll 8
      for (int g = 0; g < G; ++g)
        weights[g] = V::load_pairs(a.panel.tiles[g] + p * kPairBytes);
#pragma GCC unroll 8
      for (int t = 0; t < T; ++t) {
        const __m512i pair = V::splat_pair(a.x + t * a.x_stride + 4 * p);
#pragma GCC unroll 8
        for (int g = 0; g < G; ++g)
          sum[g][t] = V::dot_pairs(weights[g], pair, sum[g][t]);
      }
    }
    store_panel_sums(a, sum);
  }

  static void finish(const uint8_t*, const Products&, float*) {}
};

}  // namespace

void bf16_row_major_products_avx512(const Products& p, const WorkItem& item, void* scratch) {
  RowMajorLoops<RowMajorBf16Tiles>::run(p, item, scratch);
}

}  // namespace fathom
