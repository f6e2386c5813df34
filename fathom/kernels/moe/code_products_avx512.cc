#include <cstring>

#include "fathom/kernels/cpu/products/row_major_loops.h"
#include "fathom/kernels/cpu/products/tiles_avx512.h"
#include "fathom/kernels/moe/code_products.h"

namespace fathom {
namespace {

/// bf16 of the 128 magnitudes of E4M3, whose subnormals are normal numbers of bf16.
struct E4m3Table {
  uint16_t bits[128];

  constexpr E4m3Table() : bits() {
    for (unsigned code = 0; code < 128; ++code) {
      bits[code] = static_cast<uint16_t>(float_bits(internal::kE4m3Values[code]) >> 16);
    }
  }
};

alignas(64) constexpr E4m3Table kE4m3Table;

/// The bf16 of codes, exactly, as pairs of k in 32-bit lanes. Each turns one vector of load_rows (a
/// lane holds four bytes of its row) into kPairs vectors of one pair each.
struct E4m3Codes {
  static constexpr int kPairs = 2;

  static __m512i decode(__m512i bytes, int pair) {
    const __m512i low = _mm512_broadcast_i32x4(
        _mm_setr_epi8(0, -1, 1, -1, 4, -1, 5, -1, 8, -1, 9, -1, 12, -1, 13, -1));
    const __m512i high = _mm512_broadcast_i32x4(
        _mm_setr_epi8(2, -1, 3, -1, 6, -1, 7, -1, 10, -1, 11, -1, 14, -1, 15, -1));
    const __m512i codes = _mm512_shuffle_epi8(bytes, pair == 0 ? low : high);
    const uint16_t* t = kE4m3Table.bits;
    const __m512i below64 =
        _mm512_permutex2var_epi16(_mm512_load_si512(t), codes, _mm512_load_si512(t + 32));
    const __m512i from64 =
        _mm512_permutex2var_epi16(_mm512_load_si512(t + 64), codes, _mm512_load_si512(t + 96));
    const __mmask32 is_high = _mm512_test_epi16_mask(codes, _mm512_set1_epi16(0x40));
    const __m512i sign = _mm512_slli_epi16(_mm512_and_si512(codes, _mm512_set1_epi16(0x80)), 8);
    return _mm512_or_si512(_mm512_mask_mov_epi16(below64, is_high, from64), sign);
  }
};

struct Int8Codes {
  static constexpr int kPairs = 2;

  static __m512i decode(__m512i bytes, int pair) {
    // The two bytes of the pair in the top bytes of the halves of the lane, then as float32.
    const __m512i both = pair == 0 ? _mm512_slli_epi32(bytes, 16) : bytes;
    const __m512i even = _mm512_srai_epi32(_mm512_slli_epi32(both, 8), 24);
    const __m512i odd = _mm512_srai_epi32(both, 24);
    const __m512i even_bits = _mm512_castps_si512(_mm512_cvtepi32_ps(even));
    const __m512i odd_bits = _mm512_castps_si512(_mm512_cvtepi32_ps(odd));
    // Eight significant bits at most: the low halves are zero.
    return _mm512_or_si512(_mm512_srli_epi32(even_bits, 16), odd_bits);
  }
};

struct Int4Codes {
  static constexpr int kPairs = 4;

  /// bf16 of 0 .. 7, -8 .. -1, twice: a permutation reads five bits of a lane.
  alignas(64) static constexpr uint16_t kBits[32] = {
      0x0000, 0x3F80, 0x4000, 0x4040, 0x4080, 0x40A0, 0x40C0, 0x40E0,  // 0 1 2 3 4 5 6 7
      0xC100, 0xC0E0, 0xC0C0, 0xC0A0, 0xC080, 0xC040, 0xC000, 0xBF80,  // -8 .. -1
      0x0000, 0x3F80, 0x4000, 0x4040, 0x4080, 0x40A0, 0x40C0, 0x40E0,
      0xC100, 0xC0E0, 0xC0C0, 0xC0A0, 0xC080, 0xC040, 0xC000, 0xBF80,
  };

  static __m512i decode(__m512i bytes, int pair) {
    const __m512i byte = _mm512_srli_epi32(bytes, static_cast<unsigned>(8 * pair));
    const __m512i even = _mm512_and_si512(byte, _mm512_set1_epi32(0xF));
    const __m512i odd = _mm512_slli_epi32(_mm512_and_si512(byte, _mm512_set1_epi32(0xF0)), 12);
    return _mm512_permutexvar_epi16(_mm512_or_si512(even, odd), _mm512_load_si512(kBits));
  }
};

/// A piece is one block of 128 k, decoded to pairs of bf16, with the scale of each row.
template <class Codes>
struct CodeTiles : PairTiles {
  static constexpr int kRows = 4;
  static constexpr int64_t kElementBytes = 2;
  static constexpr int64_t kPieceK = kCodeBlock;
  static constexpr int64_t kPieceTileBytes = kPieceK / 2 * kPairBytes;
  static constexpr int64_t kCodesPerByte = Codes::kPairs / 2;

  static void load(const Products& p,
                   int64_t m,
                   int64_t group,
                   int64_t k0,
                   int64_t columns,
                   uint8_t* tiles,
                   float* scales) {
    const auto& w = p.weight.as<CodeWeight>();
    const int64_t n0 = group * 16;
    const int64_t num_rows = w.n - n0;
    // Of packed codes a last odd column shares its byte with nothing: the format pads it with 0.
    const int64_t left = w.row_bytes - k0 / kCodesPerByte;
    const int64_t bytes = (columns + kCodesPerByte - 1) / kCodesPerByte;
    load_rows(w.codes + (m * w.n + n0) * w.row_bytes, w.row_bytes, num_rows, k0 / kCodesPerByte,
              left < bytes ? left : bytes, [&](int64_t i, __m512i v) {
#pragma GCC unroll 4
                for (int pair = 0; pair < Codes::kPairs; ++pair) {
                  _mm512_store_si512(tiles + (i * Codes::kPairs + pair) * kPairBytes,
                                     Codes::decode(v, pair));
                }
              });
    const int64_t b = w.block_k == 0 ? 0 : k0 / w.block_k;
    const int64_t first = m * w.matrix_stride + b / 4 * w.quad_stride + b % 4 * w.block_stride;
    for (int64_t r = 0; r < 16; ++r) {
      const int64_t row = w.block_rows == 0 ? 0 : (n0 + r) / w.block_rows;
      scales[r] = r < num_rows ? load_scale(w, first + row * w.row_stride) : 0.0f;
    }
  }

  template <int G, int T>
  static void pass(const PanelPass& a) {
    const auto* x = reinterpret_cast<const Bf16*>(a.x);
    const int64_t x_stride = a.x_stride / kElementBytes;
    F32 sum[G][T];
    set_zero(sum);
    for (int64_t pair = 0; pair < a.columns / 2; ++pair) {
#pragma GCC unroll 8
      for (int t = 0; t < T; ++t) {
        const __m512i both = V::splat_pair(x + t * x_stride + 2 * pair);
#pragma GCC unroll 8
        for (int g = 0; g < G; ++g) {
          const __m512i weights = V::load_pairs(a.panel.tiles[g] + pair * kPairBytes);
          sum[g][t] = V::dot_pairs(weights, both, sum[g][t]);
        }
      }
    }
    F32 total[G][T];
    load_panel_sums(a, total);
    const int64_t x_scale_stride = a.x_stride / static_cast<int64_t>(sizeof(float));
#pragma GCC unroll 8
    for (int g = 0; g < G; ++g) {
      const F32 weight = V::load(a.panel.scales[g]);
#pragma GCC unroll 8
      for (int t = 0; t < T; ++t) {
        const F32 scale = V::mul(weight, V::splat(a.x_scales[t * x_scale_stride]));
        total[g][t] = V::fma(sum[g][t], scale, total[g][t]);
      }
    }
    store_panel_sums(a, total);
  }

  static void finish(const uint8_t*, const Products&, float*) {}

 private:
  // With intrinsics alone: an inline function of another module must not be compiled here.
  static float load_scale(const CodeWeight& w, int64_t at) {
    __m128i bits;
    if (w.scale_type == CodeScale::kBf16) {
      bits = _mm_cvtsi32_si128(static_cast<const uint16_t*>(w.scales)[at] << 16);
    } else {
      int value;
      std::memcpy(&value, static_cast<const float*>(w.scales) + at, sizeof value);
      bits = _mm_cvtsi32_si128(value);
    }
    if (w.scale_type == CodeScale::kF32AsBf16) {  // to nearest even; a scale is not NaN
      const __m128i odd = _mm_and_si128(_mm_srli_epi32(bits, 16), _mm_set1_epi32(1));
      bits = _mm_add_epi32(bits, _mm_add_epi32(odd, _mm_set1_epi32(0x7FFF)));
      bits = _mm_and_si128(bits, _mm_set1_epi32(-0x10000));
    }
    return _mm_cvtss_f32(_mm_castsi128_ps(bits));
  }
};

}  // namespace

void code_products_avx512(const Products& p, const WorkItem& item, void* scratch) {
  switch (p.weight.as<CodeWeight>().type) {
    case CodeType::kE4m3:
      return RowMajorLoops<CodeTiles<E4m3Codes>>::run(p, item, scratch);
    case CodeType::kInt8:
      return RowMajorLoops<CodeTiles<Int8Codes>>::run(p, item, scratch);
    case CodeType::kInt4:
      return RowMajorLoops<CodeTiles<Int4Codes>>::run(p, item, scratch);
  }
}

}  // namespace fathom
