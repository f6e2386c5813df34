#include "fathom/kernels/gemm/product_loops.h"
#include "fathom/kernels/gemm/tiles_avx512.h"

namespace fathom {
namespace {

/// bf16 of the sixteen E2M1 codes, twice: `vpermw` reads five bits of a lane, of which the lowest
/// four are the code and the fifth belongs to the next one.
alignas(64) constexpr uint16_t kE2m1Bits[32] = {
    0x0000, 0x3F00, 0x3F80, 0x3FC0, 0x4000, 0x4040, 0x4080, 0x40C0,  // 0 .5 1 1.5 2 3 4 6
    0x8000, 0xBF00, 0xBF80, 0xBFC0, 0xC000, 0xC040, 0xC080, 0xC0C0,  // and their negatives
    0x0000, 0x3F00, 0x3F80, 0x3FC0, 0x4000, 0x4040, 0x4080, 0x40C0,
    0x8000, 0xBF00, 0xBF80, 0xBFC0, 0xC000, 0xC040, 0xC080, 0xC0C0,
};

struct Nvfp4Tiles : PairTiles {
  static constexpr bool kHasGlobal = true;
  static constexpr int64_t kStreamRows = 8;
  static constexpr int64_t kStreamUnit = 64;
  static constexpr int64_t kSuperTileBytes = 576;  // formats/tile_layout.h has the diagram
  static constexpr int64_t kTileBytes = 128;
  static constexpr int64_t kTileScales = 512;
  static constexpr int64_t kBlockPairs = 8;
  static constexpr int64_t kStreamAhead = 16 * kSuperTileBytes;  // measured, see GEMM_NOTES.md
  static constexpr int64_t kChunkBlocks = kChunkK / 16;

  struct alignas(64) PanelMemory {
    uint8_t w[kGroups][kChunkPairs * kPairBytes];
    float scales[kChunkBlocks][kGroups][16];
  };

  struct Panel {
    const PanelMemory* memory;
    int64_t blocks;
  };

  static int64_t padded(int64_t columns) { return (columns + 15) / 16 * 16; }

  static __m512i table() { return _mm512_load_si512(kE2m1Bits); }

  /// Nibble N of every 16-bit lane, as bf16.
  template <int N>
  static inline __attribute__((always_inline)) __m512i decode(__m512i codes, __m512i values) {
    if constexpr (N == 0) return _mm512_permutexvar_epi16(codes, values);
    return _mm512_permutexvar_epi16(_mm512_srli_epi16(codes, 4 * N), values);
  }

  /// E4M3 scales of sixteen rows. Scales carry no sign, so exponent and mantissa moved to their
  /// places in a float32 want a factor of 2^(127-7), which makes subnormals right as well.
  static inline __attribute__((always_inline)) F32 load_scales(const uint8_t* bytes) {
    const __m512i wide =
        _mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(bytes)));
    return V::mul(_mm512_castsi512_ps(_mm512_slli_epi32(wide, 20)), V::splat(0x1p120f));
  }

  static Panel load_panel(const Products& p,
                          int64_t group,
                          int num_groups,
                          int64_t k0,
                          int64_t k1,
                          PanelMemory* memory) {
    const __m512i values = table();
    const int64_t blocks = padded(k1 - k0) / 16;
    for (int g = 0; g < num_groups; ++g) {
      const uint8_t* super_tile = p.tiles + (group + g) * p.group_bytes + k0 / 64 * kSuperTileBytes;
      for (int64_t b = 0; b < blocks; ++b) {
        const uint8_t* tile = super_tile + b / 4 * kSuperTileBytes;
        decode_tile(tile + b % 4 * kTileBytes, values, memory->w[g] + b * kBlockPairs * kPairBytes);
        V::store(memory->scales[b][g], load_scales(tile + kTileScales + b % 4 * 16));
        // A quarter of the super-tile that has this place in the next chunk.
        prefetch<kSuperTileBytes / 4>(tile + b % 4 * (kSuperTileBytes / 4) +
                                      kChunkK / 64 * kSuperTileBytes);
      }
    }
    return {memory, blocks};
  }

  static inline __attribute__((always_inline)) void decode_tile(const uint8_t* tile,
                                                                __m512i values,
                                                                uint8_t* out) {
#pragma GCC unroll 2
    for (int z = 0; z < 2; ++z) {
      const __m512i codes = V::load_pairs(tile + z * kPairBytes);
      uint8_t* o = out + z * 4 * kPairBytes;
      _mm512_store_si512(o, decode<0>(codes, values));
      _mm512_store_si512(o + kPairBytes, decode<1>(codes, values));
      _mm512_store_si512(o + 2 * kPairBytes, decode<2>(codes, values));
      _mm512_store_si512(o + 3 * kPairBytes, decode<3>(codes, values));
    }
  }

  /// Two groups at a time: their sums and their accumulators fill the registers.
  template <int G, int T>
  static void dot(const Panel& panel, const Bf16* x, int64_t x_stride, float* acc) {
    dot_groups<(G < 2 ? G : 2), T>(panel, 0, x, x_stride, acc);
    if constexpr (G > 2) dot_groups<G - 2, T>(panel, 2, x, x_stride, acc + 2 * 16);
  }

  template <int G, int T>
  static void dot_groups(
      const Panel& panel, int first, const Bf16* x, int64_t x_stride, float* acc) {
    const uint8_t* w = panel.memory->w[first];
    F32 total[G][T];
    load_sums(acc, kPanelRows, total);
    for (int64_t b = 0; b < panel.blocks; ++b) {
      F32 sum[G][T], scale[G];
      set_zero(sum);
      add_pairs(w, sizeof panel.memory->w[0], x, x_stride, kBlockPairs, sum);
#pragma GCC unroll 8
      for (int g = 0; g < G; ++g)
        scale[g] = V::load(panel.memory->scales[b][first + g]);
      add_scaled(sum, scale, total);
      w += kBlockPairs * kPairBytes;
      x += 16;
    }
    store_sums(total, acc, kPanelRows);
  }

  /// The four pairs of k of one vector of codes.
  template <int N, int T>
  static inline __attribute__((always_inline)) void add_codes(
      __m512i codes, __m512i values, const Bf16* x, int64_t x_stride, F32 (&sum)[1][T]) {
    const __m512i weights = decode<N>(codes, values);
#pragma GCC unroll 8
    for (int t = 0; t < T; ++t) {
      sum[0][t] = V::dot_pairs(weights, V::splat_pair(x + t * x_stride + 2 * N), sum[0][t]);
    }
    if constexpr (N < 3) add_codes<N + 1>(codes, values, x, x_stride, sum);
  }

  /// One group at a time, so that memory is read as one long stream.
  template <int T>
  static int stream(const Products& p, int64_t group, int64_t /*left*/, const Bf16* x, float* acc) {
    const __m512i values = table();
    const uint8_t* w = p.tiles + group * p.group_bytes;
    F32 total[1][T];
    set_zero(total);
    for (int64_t s = 0; s < p.k / 64; ++s) {
#pragma GCC unroll 1
      for (int i = 0; i < 4; ++i) {
        const uint8_t* tile = w + i * kTileBytes;
        F32 sum[1][T];
        set_zero(sum);
        add_codes<0>(V::load_pairs(tile), values, x, p.x_row_stride, sum);
        add_codes<0>(V::load_pairs(tile + kPairBytes), values, x + 8, p.x_row_stride, sum);
        const F32 scale[1] = {load_scales(w + kTileScales + i * 16)};
        add_scaled(sum, scale, total);
        x += 16;
      }
      prefetch<kSuperTileBytes>(w + kStreamAhead);
      w += kSuperTileBytes;
    }
    store_sums(total, acc, kStreamPanelRows);
    return 1;
  }
};

}  // namespace

void nvfp4_products_avx512(const Products& p, const WorkItem& item, void* scratch) {
  ProductLoops<Nvfp4Tiles>::run(p, item, scratch);
}

}  // namespace fathom
