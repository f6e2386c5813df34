#include "fathom/kernels/cpu/products/row_major_loops.h"
#include "fathom/kernels/gemm/nvfp4_gemm/nvfp4_rows.h"
#include "fathom/kernels/gemm/nvfp4_gemm/nvfp4_tiles_avx512.h"

namespace fathom {
namespace {

/// Byte 4r + i of sixteen 32-bit lanes to 16i + r.
struct alignas(64) PlaneOrder {
  uint8_t of[64];

  constexpr PlaneOrder() : of{} {
    for (int i = 0; i < 64; ++i)
      of[i] = static_cast<uint8_t>(i % 16 * 4 + i / 16);
  }
};

constexpr PlaneOrder kPlanes{};

struct RowMajorNvfp4Tiles : Nvfp4Product {
  static constexpr int kRows = 8;
  static constexpr int64_t kElementBytes = 2;
  static constexpr int64_t kPieceK = 256;
  static constexpr int64_t kPieceTileBytes = kPieceK / 64 * kSuperTileBytes;

  /// Eight codes n0 .. n7 of a row in each 32-bit lane, to the order of a tile: even k in the low
  /// half, odd k in the high half, n0 n2 | n4 n6 | n1 n3 | n5 n7. Every byte takes its low nibble
  /// from eight bits that begin with it and its high nibble from eight bits that end with it.
  static __m512i split_codes(__m512i codes) {
    const __m512i begin = _mm512_set1_epi64(0x3424'3020'1404'1000);
    const __m512i end = _mm512_set1_epi64(0x3828'3424'1808'1404);
    const __m512i low = _mm512_multishift_epi64_epi8(begin, codes);
    const __m512i high = _mm512_multishift_epi64_epi8(end, codes);
    return _mm512_ternarylogic_epi32(_mm512_set1_epi8(0x0F), low, high, 0xCA);  // mask ? low : high
  }

  /// Scales of rows n0 .. n0 + num_rows - 1 for the four blocks from `block` on, [4][16].
  static void load_scales(
      const Nvfp4Scales& s, int64_t n0, int64_t num_rows, int64_t block, uint8_t* out) {
    // The four blocks of a row lie side by side in either layout; the sixteen rows lie a row of
    // scales or, in the lines of a swizzled tile, 16 bytes apart.
    const int64_t tile = n0 / 128 * ((s.num_scales + 3) / 4) + block / 4;
    const uint8_t* first = s.scales + (s.swizzled ? tile * 512 + n0 % 32 * 16 + n0 % 128 / 32 * 4
                                                  : n0 * s.num_scales + block);
    const int64_t step = s.swizzled ? 16 : s.num_scales;
    const int64_t left = s.num_scales - block;
    alignas(64) uint32_t lanes[16] = {};
    if (num_rows >= 16 && left >= 4) [[likely]] {
#pragma GCC unroll 16
      for (int64_t r = 0; r < 16; ++r)
        std::memcpy(&lanes[r], first + r * step, 4);
    } else {
      for (int64_t r = 0; r < num_rows && r < 16; ++r)
        std::memcpy(&lanes[r], first + r * step, static_cast<size_t>(left < 4 ? left : 4));
    }
    _mm512_storeu_si512(
        out, _mm512_permutexvar_epi8(_mm512_load_si512(kPlanes.of), _mm512_load_si512(lanes)));
  }

  static void load(const Products& p,
                   int64_t,
                   int64_t group,
                   int64_t k0,
                   int64_t columns,
                   uint8_t* tiles,
                   float*) {
    const int64_t n0 = group * 16;
    const int64_t num_rows = p.n - n0;
    const int64_t left = p.row_bytes - k0 / 2;
    // Super-tiles of eight vectors, with their scales behind them.
    const auto store = [&](int64_t i, __m512i codes) {
      _mm512_storeu_si512(tiles + i / 8 * kSuperTileBytes + i % 8 * kPairBytes, split_codes(codes));
    };
    load_rows(p.codes + n0 * p.row_bytes, p.row_bytes, num_rows, k0 / 2,
              left < columns / 2 ? left : columns / 2, store);
    const auto& scales = p.weight.as<Nvfp4Scales>();
    for (int64_t s = 0; s < columns / 64; ++s) {
      load_scales(scales, n0, num_rows, k0 / 16 + 4 * s,
                  tiles + s * kSuperTileBytes + kSuperTileScales);
    }
  }

  template <int G, int T>
  static void pass(const PanelPass& a) {
    F32 total[G][T];
    load_panel_sums(a, total);
#pragma GCC unroll 4
    for (int g = 0; g < G; ++g) {
      F32 one[1][T];
#pragma GCC unroll 8
      for (int t = 0; t < T; ++t)
        one[0][t] = total[g][t];
      add_super_tiles(a.panel.tiles[g], a.columns / 64, 0, reinterpret_cast<const Bf16*>(a.x),
                      a.x_stride / kElementBytes, one);
#pragma GCC unroll 8
      for (int t = 0; t < T; ++t)
        total[g][t] = one[0][t];
    }
    store_panel_sums(a, total);
  }

  static void finish(const uint8_t*, const Products&, float*) {}
};

}  // namespace

void nvfp4_row_major_products_avx512(const Products& p, const WorkItem& item, void* scratch) {
  RowMajorLoops<RowMajorNvfp4Tiles>::run(p, item, scratch);
}

}  // namespace fathom
