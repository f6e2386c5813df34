// Packed uint4 weights (formats/integer/qserve.h has the diagram): a tile of 32 rows and 32 k lies
// in eight vectors, vector r = 0..7 with the rows r, r+8 (low nibbles) and r+16, r+24 (high
// nibbles). Its 64-bit lane 2t+c holds k = 16c + 4t .. +3 of both rows of a nibble.
#include "fathom/kernels/gemm/int8_gemm/int_tiles_avx512.h"

namespace fathom {
namespace {

constexpr int64_t kTileBytes = 512;
constexpr int64_t kTileK = 32;
constexpr int64_t kGroupK = 128;
constexpr int64_t kAhead = 8 * kTileBytes;

/// The 4 x 4 transposition of 128-bit lanes: lane i of v[0] .. v[3] side by side in out[2 i].
inline __attribute__((always_inline)) void transpose_quarters(const __m512i (&v)[4], __m512i* out) {
  const __m512i even01 = _mm512_shuffle_i32x4(v[0], v[1], 0x88);
  const __m512i odd01 = _mm512_shuffle_i32x4(v[0], v[1], 0xDD);
  const __m512i even23 = _mm512_shuffle_i32x4(v[2], v[3], 0x88);
  const __m512i odd23 = _mm512_shuffle_i32x4(v[2], v[3], 0xDD);
  out[0] = _mm512_shuffle_i32x4(even01, even23, 0x88);
  out[2] = _mm512_shuffle_i32x4(odd01, odd23, 0x88);
  out[4] = _mm512_shuffle_i32x4(even01, even23, 0xDD);
  out[6] = _mm512_shuffle_i32x4(odd01, odd23, 0xDD);
}

/// The eight quads of k of one tile: vector q = 2t + c, k = 16c + 4t, 32-bit lane n % 16 with both
/// nibbles of its byte.
inline __attribute__((always_inline)) void load_tile(const uint8_t* tile, __m512i (&quads)[8]) {
  __m512i even[4], odd[4];
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) {
    const __m512i a = _mm512_loadu_si512(tile + 128 * i);
    const __m512i b = _mm512_loadu_si512(tile + 128 * i + 64);
    even[i] = _mm512_unpacklo_epi64(a, b);
    odd[i] = _mm512_unpackhi_epi64(a, b);
  }
  transpose_quarters(even, quads);
  transpose_quarters(odd, quads + 1);
  // So far lane 2r + b holds row 8b + r.
  const __m512i rows = _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 1, 3, 5, 7, 9, 11, 13, 15);
#pragma GCC unroll 8
  for (__m512i& quad : quads)
    quad = _mm512_permutexvar_epi32(rows, quad);
}

const IntWeight& weight_of(const Products& p) {
  return p.weight.as<IntWeight>();
}

/// Columns [k0, k0 + columns) of the row groups g .. g + num_groups - 1. The two groups of 32 rows
/// share their bytes, so they are read together where both are wanted.
///
/// make_finish(n32, k) makes, for kStepK columns from k on and the 32 rows from 32 * n32 on, what
/// turns codes of half 0 or 1 of the rows into the bytes of the product: f(half, codes).
template <int64_t kStepK, class MakeFinish>
inline __attribute__((always_inline)) void load_code_groups(const IntWeight& w,
                                                            int64_t g,
                                                            int64_t num_groups,
                                                            int64_t k0,
                                                            int64_t columns,
                                                            WeightPanel& panel,
                                                            MakeFinish&& make_finish) {
  const __m512i nibble = _mm512_set1_epi8(15);
  for (int64_t i = 0; i < num_groups;) {
    const int64_t n32 = (g + i) / 2;
    const bool has_low = (g + i) % 2 == 0;
    const bool has_high = !has_low || i + 1 < num_groups;
    uint8_t* low = panel.tiles[i];
    uint8_t* high = panel.tiles[has_low && has_high ? i + 1 : i];
    const uint8_t* packed = w.values + (n32 * (w.k / kTileK) + k0 / kTileK) * kTileBytes;
    for (int64_t k = 0; k < columns; k += kStepK) {
      const auto finish = make_finish(n32, k0 + k);
      const int64_t end = columns < k + kStepK ? columns : k + kStepK;
      for (int64_t step = k; step < end; step += kTileK) {
        __m512i quads[8];
        load_tile(packed, quads);
        const int64_t ahead = ask_ahead((k0 + step) * 16, kAhead, w.k * 16, kPanelGroups / 2);
#pragma GCC unroll 8
        for (int64_t line = 0; line < kTileBytes; line += 64)
          _mm_prefetch(packed + ahead + line, _MM_HINT_T0);
#pragma GCC unroll 8
        for (int q = 0; q < 8; ++q) {
          const int64_t at = (step / 4 + q % 2 * 4 + q / 2) * IntProduct::kQuadBytes;
          if (has_low) _mm512_store_si512(low + at, finish(0, _mm512_and_si512(quads[q], nibble)));
          if (has_high) {
            const __m512i codes = _mm512_and_si512(_mm512_srli_epi32(quads[q], 4), nibble);
            _mm512_store_si512(high + at, finish(1, codes));
          }
        }
        packed += kTileBytes;
      }
    }
    i += has_low && has_high ? 2 : 1;
  }
}

struct ChannelTiles : IntProduct {
  static void load_groups(const Products& p,
                          int64_t g,
                          int64_t num_groups,
                          int64_t k0,
                          int64_t columns,
                          WeightPanel& panel) {
    load_code_groups<kPieceK>(
        weight_of(p), g, num_groups, k0, columns, panel,
        [](int64_t, int64_t) { return [](int, __m512i codes) { return codes; }; });
  }
};

/// Bytes of a row of 32 channels (position of 16a + 8b + r: 4r + 2a + b) to the four bytes of
/// each 32-bit lane of its row, for the first and the second sixteen.
struct alignas(64) SpreadOrder {
  uint8_t of[2][64];

  constexpr SpreadOrder() : of{} {
    for (int a = 0; a < 2; ++a) {
      for (int i = 0; i < 64; ++i) {
        const int row = i / 4;
        of[a][i] = static_cast<uint8_t>(row % 8 * 4 + 2 * a + row / 8);
      }
    }
  }
};

constexpr SpreadOrder kSpread{};

struct GroupTiles : IntProduct {
  static __m512i spread(const int8_t* bytes, int a) {
    const __m256i row = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(bytes));
    return _mm512_permutexvar_epi8(_mm512_load_si512(kSpread.of[a]), _mm512_castsi256_si512(row));
  }

  /// Scales and zeros of one group of 128 k and 32 rows.
  struct Scaling {
    __m512i scale[2], zero[2];

    Scaling(const IntWeight& w, int64_t n32, int64_t k) {
      const int64_t at = k / kGroupK * w.n + n32 * 32;
      const __m512i sign = _mm512_set1_epi8(static_cast<char>(0x80));  // adds 128
      for (int a = 0; a < 2; ++a) {
        // Both bytes of a 16-bit lane are the scale; the shift gives it its sign.
        scale[a] = _mm512_srai_epi16(spread(w.group_scales + at, a), 8);
        zero[a] = _mm512_xor_si512(spread(w.group_zeros + at, a), sign);
      }
    }

    /// code * scale + zero in 8 bits, and 128 more: the low bytes of the products of 16-bit lanes
    /// are those of their low bytes; without these, the high bytes are those of the high ones.
    inline __attribute__((always_inline)) __m512i operator()(int a, __m512i codes) const {
      const __m512i low = _mm512_set1_epi16(0xFF);
      const __m512i even = _mm512_mullo_epi16(codes, scale[a]);
      const __m512i odd = _mm512_mullo_epi16(_mm512_andnot_si512(low, codes), scale[a]);
      // (even & low) | odd
      const __m512i product = _mm512_ternarylogic_epi32(even, low, odd, 0xEA);
      return _mm512_add_epi8(product, zero[a]);
    }
  };

  /// Asks for the scales and zeros that the piece from column k on of the panel from row n on will
  /// want; past the last column, for those of the next panel.
  static void ask_for_scales(const IntWeight& w, int64_t n, int64_t k) {
    if (k >= w.k) {
      k = 0;
      n += kPanelGroups * 16;
    }
    for (int64_t end = k + kPieceK < w.k ? k + kPieceK : w.k; k < end; k += kGroupK) {
      _mm_prefetch(w.group_scales + k / kGroupK * w.n + n, _MM_HINT_T0);
      _mm_prefetch(w.group_zeros + k / kGroupK * w.n + n, _MM_HINT_T0);
    }
  }

  static void load_groups(const Products& p,
                          int64_t g,
                          int64_t num_groups,
                          int64_t k0,
                          int64_t columns,
                          WeightPanel& panel) {
    const IntWeight& w = weight_of(p);
    ask_for_scales(w, g / 2 * 32, k0 + kPieceK);
    load_code_groups<kGroupK>(w, g, num_groups, k0, columns, panel,
                              [&](int64_t n32, int64_t k) { return Scaling(w, n32, k); });
  }
};

}  // namespace

void w4a8_channel_products_avx512(const Products& p, const WorkItem& item, void* scratch) {
  RowMajorLoops<ChannelTiles>::run(p, item, scratch);
}

void w4a8_group_products_avx512(const Products& p, const WorkItem& item, void* scratch) {
  RowMajorLoops<GroupTiles>::run(p, item, scratch);
}

}  // namespace fathom
