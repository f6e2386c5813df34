#include "fathom/formats/layout/super_tile.h"
#include "fathom/kernels/cpu/products/stream_loops.h"
#include "fathom/kernels/cpu/products/tiles_avx512.h"
#include "fathom/kernels/gemm/fp8_gemm/fp8_pairs_avx512.h"

namespace fathom {
namespace {

/// Few rows of x take groups side by side, so that a row of x is read for all of them; more rows
/// have sums for one group in registers.
struct Mxfp8Tiles : PairTiles {
  static constexpr bool kHasGlobal = false;
  static constexpr int kGroups = 4;
  static constexpr int kRows = 8;
  static constexpr int kFewRows = 4;
  static constexpr int64_t kBlockRows = 32;
  static constexpr int64_t kPassK = 4096;  // weights of four groups: 264 KiB
  static constexpr int64_t kUnit = 32;
  static constexpr int64_t kAhead = 2048;

  template <int G, int T>
  static void pass(const Pass& a) {
    constexpr int kSide = T <= kFewRows ? G : 1;
    for (int g = 0; g < G; g += kSide) {
      Pass part = a;
      part.group += g;
      part.acc += g * 16;
      add_groups<kSide, T>(part);
    }
  }

 private:
  template <int G, int T>
  static inline __attribute__((always_inline)) void add_groups(const Pass& a) {
    const E4m3Decoder decoder;
    const uint8_t* w = a.p.tiles + a.group * a.p.group_bytes;
    const int64_t ahead = a.index == 0 ? kAhead : 0;
    const Bf16* x = a.x;
    F32 total[G][T];
    load_sums(a, total);
    for (int64_t b = a.k0 / kUnit; b < (a.k0 + a.columns) / kUnit; ++b, x += kUnit) {
      const uint8_t* tile = w + b / 4 * kMxfp8TileBytes;
      F32 sum[G][T], scale[G];
      set_zero(sum);
      add_block(decoder, tile + b % 4 * kMxfp8BlockBytes, a.p.group_bytes, ahead, x, a.x_stride,
                sum);
#pragma GCC unroll 8
      for (int g = 0; g < G; ++g)
        scale[g] = load_scales(tile + g * a.p.group_bytes + kMxfp8Scales + b % 4 * 16);
      add_scaled(sum, scale, total);
    }
    store_sums(a, total);
  }

  /// 2^e of sixteen rows. The byte is the exponent of a float32, but for 0, which is 2^-127.
  static inline __attribute__((always_inline)) F32 load_scales(const uint8_t* bytes) {
    const __m512i wide =
        _mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(bytes)));
    const __m512i least = _mm512_set1_epi32(0x00400000);
    return _mm512_castsi512_ps(_mm512_max_epu32(_mm512_slli_epi32(wide, 23), least));
  }

  /// sum += the codes of 32 k times x.
  template <int G, int T>
  static inline __attribute__((always_inline)) void add_block(const E4m3Decoder& decoder,
                                                              const uint8_t* w,
                                                              int64_t group_bytes,
                                                              int64_t ahead,
                                                              const Bf16* x,
                                                              int64_t x_stride,
                                                              F32 (&sum)[G][T]) {
#pragma GCC unroll 8
    for (int64_t q = 0; q < kUnit / 4; ++q) {
#pragma GCC unroll 8
      for (int g = 0; g < G; ++g) {
        const uint8_t* codes = w + g * group_bytes + q * 64;
        __m512i first, second;
        decoder.decode(codes, first, second);
        prefetch<64>(codes, ahead);
#pragma GCC unroll 8
        for (int t = 0; t < T; ++t) {
          const Bf16* pair = x + t * x_stride + 4 * q;
          sum[g][t] = V::dot_pairs(first, V::splat_pair(pair), sum[g][t]);
          sum[g][t] = V::dot_pairs(second, V::splat_pair(pair + 2), sum[g][t]);
        }
      }
    }
  }
};

}  // namespace

void mxfp8_products_avx512(const Products& p, const WorkItem& item, void* scratch) {
  StreamLoops<Mxfp8Tiles>::run(p, item, scratch);
}

}  // namespace fathom
