// What the loops of all instruction sets share: where rows of x begin, and how results reach y.
#pragma once

#include <cstdint>

#include "fathom/formats/minifloat.h"
#include "fathom/kernels/cpu/products/products.h"
#include "fathom/kernels/simd/vec.h"

namespace fathom {

/// Row t of matrix m of x, from column k on.
template <class T>
inline __attribute__((always_inline)) const T* x_row(const Products& p,
                                                     int64_t m,
                                                     int64_t t,
                                                     int64_t k) {
  return static_cast<const T*>(p.x) + p.x_begin(m) + t * p.x_row_stride + k;
}

/// Writes accumulators to y. A template on the vectors, so that nothing leaks between instruction
/// sets.
template <class V, bool kHasGlobal>
struct ResultWriter {
  /// acc [rows][acc_stride] to rows t0 .. of y, columns 16 g .. 16 (g + num_groups) - 1, times the
  /// global scale of their group. Columns past n are not written.
  static void store_block(const Products& p,
                          int64_t m,
                          int64_t g,
                          int64_t num_groups,
                          int64_t t0,
                          int64_t rows,
                          const float* acc,
                          int64_t acc_stride) {
    for (int64_t t = 0; t < rows; ++t) {
      const int64_t at = p.y_begin(m) + (t0 + t) * p.y_row_stride;
      for (int64_t i = 0; i < num_groups; ++i) {
        const int64_t n0 = (g + i) * 16;
        float factor = 1.0f;
        if constexpr (kHasGlobal) factor = p.global[m * p.groups + g + i];
        const int64_t count = p.n - n0 < 16 ? p.n - n0 : 16;
        store_group(p, t0 + t, n0, at + n0, count, factor, acc + t * acc_stride + i * 16);
      }
    }
  }

 private:
  using F32 = typename V::F32;

  /// Row t, columns n .. n + count - 1, which lie at element `at` of y.
  static void store_group(const Products& p,
                          int64_t t,
                          int64_t n,
                          int64_t at,
                          int64_t count,
                          float factor,
                          const float* acc) {
    for (int64_t r = 0; r < count; r += V::kWidth) {
      F32 value = V::load(acc + r);
      if constexpr (kHasGlobal) value = V::mul(value, V::splat(factor));
      if (p.scaling != nullptr) value = scaled(*p.scaling, t, n + r, value);
      const int64_t left = count - r < V::kWidth ? count - r : V::kWidth;
      switch (p.y_type) {
        case ElementType::kBf16:
          V::store_first(static_cast<Bf16*>(p.y) + at + r, value, left);
          break;
        case ElementType::kF32:
          V::store_first(static_cast<float*>(p.y) + at + r, value, left);
          break;
        case ElementType::kF16:
          V::store_first(static_cast<F16*>(p.y) + at + r, value, left);
          break;
      }
    }
  }

  static F32 scaled(const ResultScaling& s, int64_t t, int64_t n, F32 value) {
    const float row = s.row_scale != nullptr ? s.factor * s.row_scale[t] : s.factor;
    value = V::mul(value, V::splat(row));
    if (s.col_scale != nullptr) value = V::mul(value, V::load(s.col_scale + n));
    if (s.row_shift != nullptr) {
      value = V::fma(V::splat(-s.row_shift[t]), V::load(s.col_shift + n), value);
    }
    if (s.bias != nullptr) value = V::fma(value, V::splat(1.0f), V::load(s.bias + n));
    return value;
  }
};

/// An array of functions, by value (no standard container: see simd/vec.h).
template <class Function, int kSize>
struct FunctionTable {
  Function f[kSize];
};

}  // namespace fathom
