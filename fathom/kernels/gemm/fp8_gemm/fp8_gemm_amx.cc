#include "fathom/kernels/cpu/products/tile_weights.h"
#include "fathom/kernels/cpu/products/tiles_amx.h"
#include "fathom/kernels/gemm/fp8_gemm/few_row_loops.h"
#include "fathom/kernels/gemm/fp8_gemm/fp8_pairs_avx512.h"

namespace fathom {
namespace {

/// Sums of a block of 128 k go to memory: its scale is applied where subnormals count, as it is
/// beside tiles.
struct Fp8FewRows {
  static constexpr int64_t kUnit = 32;
  static constexpr int kRows = 4;
  static constexpr bool kHasGlobal = false;

  /// Two chains of sums a row and group; the processor wants eight, and has 32 registers.
  static constexpr int groups(int64_t rows) { return rows <= 2 ? 2 : 1; }

  template <int G, int T>
  [[gnu::noinline]] static void pass(const FewRowsPass& a) {
    const E4m3Decoder decoder;
    const FewRowsPass c = a;
    const float* x = c.x;
    const uint8_t* w = c.w;
    float* out = c.block_sums;
    for (int64_t k0 = 0; k0 < c.k; k0 += 128) {
      __m512 sum[G][T];
      for (int g = 0; g < G; ++g)
        for (int t = 0; t < T; ++t)
          sum[g][t] = _mm512_setzero_ps();
      const int64_t steps = c.k - k0 < 128 ? (c.k - k0) / 32 : 4;
      for (int64_t s = 0; s < steps; ++s) {
        add_step(decoder, w, c.w_stride, x, c.x_stride, sum);
        w += 512;
        x += 32;
      }
      for (int g = 0; g < G; ++g)
        for (int t = 0; t < T; ++t, out += 16)
          _mm512_storeu_ps(out, sum[g][t]);
    }
  }

  static void finish(const FewRowsPass& c, int64_t groups, int64_t rows) {
    for (int64_t g = 0; g < groups; ++g) {
      for (int64_t t = 0; t < rows; ++t) {
        __m512 sum = _mm512_setzero_ps();
        for (int64_t b = 0; b < (c.k + 127) / 128; ++b) {
          const __m512 s = _mm512_loadu_ps(c.block_sums + ((b * groups + g) * rows + t) * 16);
          sum = _mm512_fmadd_ps(s, _mm512_set1_ps(c.scales[g * c.scale_stride + b]), sum);
        }
        _mm512_storeu_ps(c.sums + t * kFewRowsStride + g * 16, sum);
      }
    }
  }

 private:
  static constexpr int64_t kAhead = 4096;

  /// 32 k: eight vectors of quads of k for each group.
  template <int G, int T>
  static inline __attribute__((always_inline)) void add_step(const E4m3Decoder& decoder,
                                                             const uint8_t* w,
                                                             int64_t w_stride,
                                                             const float* x,
                                                             int64_t x_stride,
                                                             __m512 (&sum)[G][T]) {
    __m512 even[G][T], odd[G][T];
    for (int g = 0; g < G; ++g)
      for (int t = 0; t < T; ++t)
        even[g][t] = odd[g][t] = _mm512_setzero_ps();
#pragma GCC unroll 8
    for (int q = 0; q < 8; ++q) {
#pragma GCC unroll 2
      for (int g = 0; g < G; ++g) {
        __m512i first, second;
        _mm_prefetch(w + g * w_stride + q * 64 + kAhead, _MM_HINT_T0);
        decoder.decode(w + g * w_stride + q * 64, first, second);
        add_pairs(first, x + 4 * q, x_stride, even[g], odd[g]);
        add_pairs(second, x + 4 * q + 2, x_stride, even[g], odd[g]);
      }
    }
    for (int g = 0; g < G; ++g)
      for (int t = 0; t < T; ++t)
        sum[g][t] = _mm512_add_ps(sum[g][t], _mm512_add_ps(even[g][t], odd[g][t]));
  }
};

}  // namespace

void decode_fp8_tiles_amx(const uint8_t* codes, int64_t quads, const uint8_t* next, uint8_t* out) {
  const E4m3Decoder decoder;
  for (int64_t q = 0; q < quads; ++q) {
    __m512i first, second;
    decoder.decode(codes + q * 64, first, second);
    _mm_prefetch(next + q * 64, _MM_HINT_T1);
    _mm512_storeu_si512(out + q * 128, first);
    _mm512_storeu_si512(out + q * 128 + 64, second);
  }
}

bool fp8_few_rows_amx(const Products& p, const WorkItem& item, void* scratch) {
  return FewRowLoops<Fp8FewRows>::run(p, item, scratch);
}

void fp8_products_amx(const Products& p, const WorkItem& item, void* scratch) {
  if (fp8_few_rows_amx(p, item, scratch)) return;
  TileLoops<AmxTiles, Fp8TileWeights>::run(p, item, scratch);
}

}  // namespace fathom
