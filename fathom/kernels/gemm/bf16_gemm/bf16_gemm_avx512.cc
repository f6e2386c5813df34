#include "fathom/kernels/cpu/products/stream_loops.h"
#include "fathom/kernels/cpu/products/tiles_avx512.h"

namespace fathom {
namespace {

struct Bf16Tiles : PairTiles {
  static constexpr bool kHasGlobal = false;
  static constexpr int kGroups = 4;
  static constexpr int kRows = 6;  // 24 chains of sums
  static constexpr int64_t kBlockRows = 96;
  static constexpr int64_t kPassK = 2048;  // weights of four groups: 256 KiB
  static constexpr int64_t kUnit = 2;

  /// Weights that the passes after the first bring into the second-level cache, so that memory does
  /// not wait while the same weights are used again. Each pass asks for its share.
  struct Ask {
    const uint8_t* w = nullptr;
    int64_t step = 0;  // bytes a pair

    template <int G>
    static Ask of(const Pass& a) {
      constexpr int64_t kMostPasses = 8;  // beyond, compute is the longer part by far
      const int64_t share = a.index - 1;
      const int64_t shares = a.count - 1 < kMostPasses ? a.count - 1 : kMostPasses;
      const int64_t bytes = a.columns / 2 * kPairBytes;
      const uint8_t* next = a.k0 + a.columns < a.p.k ? weights(a) + bytes
                                                     : a.p.tiles + (a.group + G) * a.p.group_bytes;
      return {next + bytes / shares * share, kPairBytes / shares};
    }

    static bool wanted(const Pass& a) { return a.index >= 1 && a.index <= 8; }
  };

  static const uint8_t* weights(const Pass& a) {
    return a.p.tiles + a.group * a.p.group_bytes + a.k0 / 2 * kPairBytes;
  }

  template <int G, int T>
  static void pass(const Pass& a) {
    F32 sum[G][T];
    load_sums(a, sum);
    if (Ask::wanted(a)) {
      add_pairs<true>(a, Ask::of<G>(a), sum);
    } else {
      add_pairs<false>(a, {}, sum);
    }
    store_sums(a, sum);
  }

  template <bool kAsk, int G, int T>
  static inline __attribute__((always_inline)) void add_pairs(const Pass& a,
                                                              Ask ask,
                                                              F32 (&sum)[G][T]) {
    const uint8_t* w = weights(a);
    const int64_t group_bytes = a.p.group_bytes;
    const int64_t x_stride = a.x_stride;
    const Bf16* x = a.x;
    for (int64_t p = 0; p < a.columns / 2; ++p) {
      __m512i weights[G];
#pragma GCC unroll 8
      for (int g = 0; g < G; ++g) {
        weights[g] = V::load_pairs(w + g * group_bytes + p * kPairBytes);
        if constexpr (kAsk) _mm_prefetch(ask.w + g * group_bytes + p * ask.step, _MM_HINT_T1);
      }
#pragma GCC unroll 8
      for (int t = 0; t < T; ++t) {
        const __m512i pair = V::splat_pair(x + t * x_stride + 2 * p);
#pragma GCC unroll 8
        for (int g = 0; g < G; ++g)
          sum[g][t] = V::dot_pairs(weights[g], pair, sum[g][t]);
      }
    }
  }
};

}  // namespace

void bf16_products_avx512(const Products& p, const WorkItem& item, void* scratch) {
  StreamLoops<Bf16Tiles>::run(p, item, scratch);
}

}  // namespace fathom
