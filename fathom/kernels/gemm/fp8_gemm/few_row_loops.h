// Tile products of a few rows of x in vectors: decode, where weights are read once and a tile of
// one row would use a sixteenth of the unit. Weights are decoded in registers, and the results have
// the bits of tile_loops.h: the same order of sums, products fused, subnormals read and written as
// zero. So the number of rows still does not show in a row.
//
// What a vector form would have to imitate beyond that is left to the tiles: k that ends within
// the padding of a weight, and values of x above kFewRowsLargest, infinities and NaN among them.
//
// A Weights type has
//   kUnit                  what k must be a multiple of; whole steps of 32
//   kRows, groups(rows)    rows of x at most, and row groups side by side for so many
//   kHasGlobal             results are multiplied by the global scale of their group
//   pass<G, T>             sums of G groups and T rows, see FewRowsPass; runs with subnormals
//                          flushed
//   finish(pass, G, T)     what happens to the sums when they are not flushed any more
#pragma once

#include <cstdint>
#include <cstring>
#include <immintrin.h>
#include <utility>

#include "fathom/kernels/cpu/products/product_rows.h"

namespace fathom {

/// As the bits of a bf16 without its sign: 2^116.
inline constexpr uint32_t kFewRowsLargest = (116 + 127) << 7;

struct FewRowsPass {
  const float* x;  ///< rows of x, widened
  int64_t x_stride;
  int64_t k;
  const uint8_t* w;  ///< tiles of one group after another
  int64_t w_stride;  ///< bytes between groups
  const float* scales;
  int64_t scale_stride;  ///< floats between groups
  float* block_sums;     ///< [ceil(k/128)][G][T][16], of weights with scales of 128 k
  float* sums;           ///< [T][kFewRowsStride]
};

inline constexpr int64_t kFewRowsStride = 64;  // sums of four groups

/// Reads and writes subnormals as zero while it lives. Floating point must lie in functions that
/// are not inlined beside it: the compiler does not know that results depend on this.
class FlushSubnormals {
 public:
  FlushSubnormals() : before_(_mm_getcsr()) {
    constexpr unsigned kDenormalsAreZero = 0x0040, kFlushToZero = 0x8000;
    _mm_setcsr(before_ | kDenormalsAreZero | kFlushToZero);
  }

  ~FlushSubnormals() { _mm_setcsr(before_); }

  FlushSubnormals(const FlushSubnormals&) = delete;
  FlushSubnormals& operator=(const FlushSubnormals&) = delete;

 private:
  unsigned before_;
};

/// even, odd += the first and the second of pairs of bf16 in sixteen rows, times x of that k.
template <int T>
inline __attribute__((always_inline)) void add_pairs(
    __m512i pairs, const float* x, int64_t x_stride, __m512 (&even)[T], __m512 (&odd)[T]) {
  const __m512 w0 = _mm512_castsi512_ps(_mm512_slli_epi32(pairs, 16));
  const __m512 w1 = _mm512_castsi512_ps(_mm512_and_si512(pairs, _mm512_set1_epi32(~0xFFFF)));
#pragma GCC unroll 4
  for (int t = 0; t < T; ++t) {
    even[t] = _mm512_fmadd_ps(_mm512_set1_ps(x[t * x_stride]), w0, even[t]);
    odd[t] = _mm512_fmadd_ps(_mm512_set1_ps(x[t * x_stride + 1]), w1, odd[t]);
  }
}

template <class Weights>
struct FewRowLoops {
  using PassFunction = void (*)(const FewRowsPass&);

  /// False, and nothing done, if the item is one for the tiles.
  static bool run(const Products& p, const WorkItem& item, void* memory) {
    const int64_t rows = item.row_end - item.row_begin;
    if (rows > Weights::kRows || p.k % Weights::kUnit != 0 || p.k == 0) return false;
    // The scratch of the avx512 loops: sums of kRowBlock rows, then kPaddedRows rows of bf16 with k
    // padded to 64. Of the latter, 32 bytes a column, x takes 4 * kRows and sums of blocks at most
    // 8, and 1 KiB more.
    static_assert(Weights::kRows <= 4 && kPaddedRows == 16, "the scratch of a column");
    auto* sums = static_cast<float*>(memory);
    float* x = sums + kRowBlock * kFewRowsStride;
    if (!widen(p, item, x)) return false;

    const int64_t side = Weights::groups(rows);
    for (int64_t g = item.group_begin; g < item.group_end; g += side) {
      const int64_t num = item.group_end - g < side ? item.group_end - g : side;
      const int64_t group = item.matrix * p.groups + g;  // counted through all matrices
      FewRowsPass pass{};
      pass.x = x;
      pass.x_stride = p.k;
      pass.k = p.k;
      pass.w = p.tiles + group * p.group_bytes;
      pass.w_stride = p.group_bytes;
      pass.scales = p.scales + group * p.group_scales;
      pass.scale_stride = p.group_scales;
      pass.block_sums = x + rows * p.k;
      pass.sums = sums;
      {
        const FlushSubnormals flush;
        pass_of(num, rows)(pass);
      }
      Weights::finish(pass, num, rows);
      ResultWriter<simd::Native, Weights::kHasGlobal>::store_block(
          p, item.matrix, g, num, item.row_begin, rows, sums, kFewRowsStride);
    }
    return true;
  }

 private:
  /// x as float32. False if it has values above kFewRowsLargest.
  static bool widen(const Products& p, const WorkItem& item, float* out) {
    __m512i largest = _mm512_setzero_si512();
    for (int64_t t = item.row_begin; t < item.row_end; ++t) {
      const Bf16* row = x_row<Bf16>(p, item.matrix, t, 0);
      for (int64_t k = 0; k < p.k; k += 16, out += 16) {
        const __m512i bits =
            _mm512_cvtepu16_epi32(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(row + k)));
        largest = _mm512_max_epu32(largest, _mm512_and_si512(bits, _mm512_set1_epi32(0x7FFF)));
        _mm512_storeu_si512(out, _mm512_slli_epi32(bits, 16));
      }
    }
    const __m512i limit = _mm512_set1_epi32(kFewRowsLargest);
    return _mm512_cmpgt_epu32_mask(largest, limit) == 0;
  }

  static PassFunction pass_of(int64_t num_groups, int64_t rows) {
    constexpr int kRows = Weights::kRows;
    static constexpr auto kTable = []<size_t... I>(std::index_sequence<I...>) {
      return FunctionTable<PassFunction, 4 * kRows>{
          pass<static_cast<int>(I) / kRows + 1, static_cast<int>(I) % kRows + 1>()...};
    }
    (std::make_index_sequence<4 * kRows>{});
    return kTable.f[(num_groups - 1) * kRows + rows - 1];
  }

  template <int G, int T>
  static constexpr PassFunction pass() {
    if constexpr (G <= Weights::groups(T)) return Weights::template pass<G, T>;
    return nullptr;
  }
};

}  // namespace fathom
