// FP8 weights as they lie in checkpoints and reference calls.
#include "fathom/kernels/cpu/products/row_major_loops.h"
#include "fathom/kernels/gemm/fp8_gemm/fp8_tiles_avx512.h"

namespace fathom {
namespace {

template <class Decoder, bool kWeight, bool kX>
struct RowMajorFp8Tiles : Fp8Product<Decoder, kWeight, kX> {
  using Base = Fp8Product<Decoder, kWeight, kX>;
  using V = simd::Native;
  using F32 = typename Base::F32;

  static constexpr int kRows = 4;
  static constexpr int64_t kElementBytes = 2;
  static constexpr int64_t kPieceK = 256;
  static constexpr int64_t kPieceTileBytes = 256 * 16;

  static void load(const Products& p,
                   int64_t m,
                   int64_t group,
                   int64_t k0,
                   int64_t columns,
                   uint8_t* tiles,
                   float* scales) {
    // The order of a quad in kRows16: pairs (k, k+1) of four rows, then their pairs (k+2, k+3).
    const __m512i pairs =
        _mm512_broadcast_i32x4(_mm_setr_epi8(0, 1, 4, 5, 8, 9, 12, 13, 2, 3, 6, 7, 10, 11, 14, 15));
    const int64_t n0 = group * 16;
    const int64_t left = p.row_bytes - k0;
    load_rows(p.codes + (m * p.n + n0) * p.row_bytes, p.row_bytes, p.n - n0, k0,
              left < columns ? left : columns, [&](int64_t q, __m512i quad) {
                _mm512_store_si512(tiles + q * 64, _mm512_shuffle_epi8(quad, pairs));
              });
    if constexpr (kWeight) {
      const int64_t blocks_n = (p.n + 127) / 128;
      const int64_t blocks_k = (p.row_bytes + 127) / 128;
      const float* row = p.block_scales + (m * blocks_n + n0 / 128) * blocks_k + k0 / 128;
      for (int64_t b = 0; b < kPieceScales && k0 / 128 + b < blocks_k; ++b)
        scales[b] = row[b];
    }
  }

  template <int G, int T>
  static void pass(const PanelPass& a) {
    const Decoder decoder;
    const Fp8Scales scales{.w = a.panel.scales[0],
                           .w_stride = 16,
                           .x = a.x_scales,
                           .x_stride = a.x_stride / static_cast<int64_t>(sizeof(float))};
    F32 total[G][T];
    load_panel_sums(a, total);
    Base::add_blocks(decoder, a.panel.tiles[0], kPieceBytes, 0, reinterpret_cast<const Bf16*>(a.x),
                     a.x_stride / kElementBytes, a.columns / 4, scales, total);
    store_panel_sums(a, total);
  }

  static void finish(const uint8_t*, const Products&, float*) {}
};

}  // namespace

void fp8_row_major_products_avx512(const Products& p, const WorkItem& item, void* scratch) {
  RowMajorLoops<RowMajorFp8Tiles<E4m3Decoder, true, false>>::run(p, item, scratch);
}

void fp8_row_major_scaled_x_products_avx512(const Products& p,
                                            const WorkItem& item,
                                            void* scratch) {
  RowMajorLoops<RowMajorFp8Tiles<E4m3Decoder, true, true>>::run(p, item, scratch);
}

void e4m3_row_major_products_avx512(const Products& p, const WorkItem& item, void* scratch) {
  RowMajorLoops<RowMajorFp8Tiles<E4m3Decoder, false, false>>::run(p, item, scratch);
}

void e5m2_row_major_products_avx512(const Products& p, const WorkItem& item, void* scratch) {
  RowMajorLoops<RowMajorFp8Tiles<E5m2Decoder, false, false>>::run(p, item, scratch);
}

}  // namespace fathom
