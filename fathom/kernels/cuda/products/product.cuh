// What a product is, for every kernel of products: one matrix, one a head, or one an expert.
#pragma once

#include <cstdint>
#include <limits>

#include "fathom/formats/block/block_fp4.h"
#include "fathom/kernels/core/kernel_set/variants.h"
#include "fathom/kernels/cuda/arithmetic.cuh"
#include "fathom/kernels/cuda/elements.cuh"
#include "fathom/kernels/cuda/tensor_core.cuh"
#include "fathom/tensor/quant_view.h"

namespace fathom::cuda {

inline constexpr int kBlockK = 128;  ///< k of a block; of FP8 weights, those that share a scale

/// The factors of a matrix, which may be on their way until product() is called.
struct LoadedFactors {
  float of[4];

  /// Multiplied here, not where they are loaded: there the product would wait for all earlier
  /// loads.
  __device__ __forceinline__ float product() const {
    const auto there = [](float f) { return __uint_as_float(kept(__float_as_uint(f))); };
    return there(of[0]) * there(of[1]) * there(of[2]) * there(of[3]);
  }
};

/// y[e,r,n] = factor[e] * sum_k x[e,r,k] * w[e,n,k]
///
/// Without offsets every matrix e has rows 0 .. T-1 of its own. With offsets, which lie in memory
/// of the GPU, x and y are one matrix and e has its rows offsets[e] .. offsets[e+1]-1. Strides of x
/// and y are elements, those of w bytes.
struct ProductCall {
  const void* x = nullptr;
  int64_t x_row = 0;
  int64_t x_matrix = 0;
  Format x_format = Format::kNone;

  const uint8_t* w = nullptr;
  int64_t w_row = 0;
  int64_t w_matrix = 0;
  bool in_pairs = false;            ///< nvfp4 in layout kPairs
  bool w_is_made = false;           ///< by an earlier kernel, not by the loader: wait for it
  const uint8_t* scales = nullptr;  ///< of blocks; null: none
  Format scale_format = Format::kNone;
  int64_t scale_row = 0;  ///< scales of a row, or of 128 rows
  int64_t scale_matrix = 0;

  void* y = nullptr;
  int64_t y_row = 0;
  int64_t y_matrix = 0;
  Format y_format = Format::kNone;

  const float* global = nullptr;          ///< one a matrix; null: 1
  const float* matrix_factors = nullptr;  ///< one a matrix; null: 1
  const float* factors[2] = {};           ///< one number each; null: 1
  const int32_t* offsets = nullptr;       ///< [matrices + 1]
  const float* x_scales = nullptr;        ///< of x, one for 128 k; null: 1
  int64_t x_scale_row = 0;
  int64_t x_scale_block = 0;
  const float* row_scales = nullptr;     ///< one a row of x; null: 1
  const float* column_scales = nullptr;  ///< one a row of w; null: 1
  const void* bias = nullptr;            ///< one a row of w; null: 0
  Format bias_format = Format::kNone;
  int64_t bias_matrix = 0;             ///< with offsets: elements from matrix to matrix
  const int32_t* y_rows = nullptr;     ///< with offsets: row of y of each row of x; null: the same
  const float* row_weights = nullptr;  ///< with offsets: one a row of x, multiplied last; null: 1
  bool gated = false;  ///< y has N/2 columns, SwiGLU of the sums of gate and up rows; with offsets
  float gate_limit = 0.0f;  ///< infinite: none
  int32_t matrices = 1;
  int32_t T = 0;  ///< rows of a matrix; with offsets, of x
  int32_t N = 0;
  int32_t K = 0;

  /// Whether a product takes so long (some 15 us) that what the start of its kernel costs is
  /// little.
  bool is_long() const {
    constexpr int64_t kBytes = int64_t{72} << 20;
    constexpr int64_t kProducts = int64_t{6} << 30;
    const int64_t active = offsets != nullptr && T < matrices ? T : matrices;
    return active * w_row * N >= kBytes || int64_t{T} * N * K >= kProducts;
  }

  /// Scales of x, float32 [T, ceil(K/128)] with any strides.
  void scale_x_by(const View& v) {
    x_scales = v.as<const float>();
    x_scale_row = v.stride(0);
    x_scale_block = v.stride(1);
  }

  __device__ float factor(int e) const {
    float f = global != nullptr ? global[e] : 1.0f;
    if (matrix_factors != nullptr) f *= matrix_factors[e];
    if (factors[0] != nullptr) f *= *factors[0];
    if (factors[1] != nullptr) f *= *factors[1];
    return f;
  }

  /// What factor() multiplies, in its order: for kernels that have other work until it is there.
  __device__ __forceinline__ LoadedFactors loaded_factors(int e) const {
    const auto of = [](const float* p, int i) { return p != nullptr ? p[i] : 1.0f; };
    return {{of(global, e), of(matrix_factors, e), of(factors[0], 0), of(factors[1], 0)}};
  }

  /// An output from its sum over k: times the scale of its row, times that of its column, plus the
  /// bias, each rounded.
  __device__ float finished(float sum, int64_t row, int n, int64_t bias_first = 0) const {
    if (row_scales != nullptr) sum = __fmul_rn(sum, row_scales[row]);
    if (column_scales != nullptr) sum = __fmul_rn(sum, column_scales[n]);
    if (bias != nullptr) sum = __fadd_rn(sum, load_any(bias, bias_format, bias_first + n));
    return sum;
  }

  /// That of a call with or without offsets: with the bias of its matrix, times the weight of its
  /// row.
  __device__ float finished_of(int e, float sum, int64_t row, int n) const {
    sum = finished(sum, row, n, e * bias_matrix);
    return row_weights != nullptr ? __fmul_rn(sum, row_weights[row]) : sum;
  }

  /// Whether an output is its sum over k, but for the weight of its row.
  FATHOM_HD constexpr bool is_plain() const {
    return row_scales == nullptr && column_scales == nullptr && bias == nullptr;
  }

  /// Whether outputs are their sums over k times the factor of the matrix, in the rows of x.
  FATHOM_HD constexpr bool is_bare() const {
    return is_plain() && row_weights == nullptr && y_rows == nullptr;
  }

  /// Columns of y.
  FATHOM_HD constexpr int width() const { return gated ? N / 2 : N; }

  __device__ int64_t row_of_y(int64_t row) const { return y_rows != nullptr ? y_rows[row] : row; }
};

/// Rows of w whose gate and up rows make eight outputs. Kernels whose outputs are gated take the
/// rows of w in this order: eight gate rows, the eight up rows of the same outputs, and so on, so
/// that a lane of the tensor cores has the sums of both (rows lane / 4 and the eighth behind it).
inline constexpr int kGatedRows = 16;

/// Whether the rows of w are whole groups of them.
inline bool gates_by_groups(const ProductCall& c) {
  return c.offsets != nullptr && c.N % kGatedRows == 0 && c.y_format == Format::kBf16 &&
         c.is_bare();
}

/// The row of w that is number `at` in that order, or without a gate in its own; behind the last
/// one, one of the last.
template <bool kGated>
__device__ __forceinline__ int row_of_w(const ProductCall& c, int at) {
  if constexpr (!kGated) return min(at, c.N - 1);
  const int half = c.N / 2;
  return min(at / kGatedRows * 8 + (at & 7), half - 1) + ((at & 8) != 0 ? half : 0);
}

/// The scale of 128 x 128 weights; block_row counts those of the matrix.
__device__ __forceinline__ float block_scale(const ProductCall& c,
                                             int e,
                                             int64_t block_row,
                                             int k) {
  if (block_row * kBlockK >= c.N) return 0.0f;
  const int64_t at = e * c.scale_matrix + block_row * c.scale_row + k;
  return c.scale_format == Format::kF32 ? reinterpret_cast<const float*>(c.scales)[at]
                                        : to_float(Ue8m0{c.scales[at]});
}

/// The rows of x and y that belong to a matrix.
struct RowRange {
  int32_t first;
  int32_t count;
};

__device__ __forceinline__ RowRange rows_of_matrix(const ProductCall& c, int e) {
  if (c.offsets == nullptr) return {0, c.T};
  const int32_t first = c.offsets[e];
  return {first, c.offsets[e + 1] - first};
}

/// Brings x of a matrix (bf16) and its global factor into the last cache while the kernel before,
/// which may make x, still runs. `threads` threads share the lines; this is one of them. No value
/// is used before that kernel is done.
__device__ __forceinline__ void bring_x_nearer(const ProductCall& c,
                                               int e,
                                               int thread,
                                               int threads) {
  constexpr int kLine = 64;  // elements
  if (thread == threads - 1 && c.global != nullptr) prefetch_line(c.global + e);
  const Bf16* x = static_cast<const Bf16*>(c.x) + e * c.x_matrix;
  const int lines = (c.K + kLine - 1) / kLine;  // of a row
#pragma unroll 1
  for (int i = thread; i < c.T * lines; i += threads) {
    const int token = i / lines;
    prefetch_line(x + token * c.x_row + (i - token * lines) * kLine);
  }
}

/// Whether rows of weights follow each other, as every product here reads them.
inline bool has_rows(const QuantView& w) {
  return w.layout == WeightLayout::kRowMajor || w.layout == WeightLayout::kPairs;
}

template <class Args>
bool has_rows(const Args& a) {
  return has_rows(a.w);
}

/// Where the offsets of a dry run lie.
inline constexpr int32_t kOffsetsOfAPlan = 0;

/// The call of a contract with x, w and y, and offsets if it has experts. x is [T, K] or [T, H, K].
template <class Args>
ProductCall product_of(const Args& a) {
  const bool heads = a.x.rank == 3;
  const QuantView& w = a.w;
  ProductCall c;
  c.x = a.x.data;
  c.x_row = a.x.stride(0);
  c.x_matrix = heads ? a.x.stride(1) : 0;
  c.x_format = a.x.format == Format::kFp8Group ? Format::kE4m3 : a.x.format;
  c.y = a.y.data;
  c.y_row = a.y.stride(0);
  c.y_matrix = heads ? a.y.stride(1) : 0;
  c.y_format = a.y.format;
  c.T = static_cast<int32_t>(a.x.dim(0));
  c.N = static_cast<int32_t>(w.rows());
  c.K = static_cast<int32_t>(w.cols());
  c.matrices = w.values.rank == 3 ? static_cast<int32_t>(w.values.dim(0)) : 1;
  c.w = w.values.as<const uint8_t>();
  c.in_pairs = w.layout == WeightLayout::kPairs;
  const bool fp4 = is_fp4(w.format());
  const int64_t per_byte_2 = fp4                           ? 1
                             : w.format() == Format::kBf16 ? 4
                             : w.format() == Format::kF32  ? 8
                                                           : 2;  // twice the bytes of an element
  c.w_row = w.cols() * per_byte_2 / 2;
  c.w_matrix = c.w_row * w.rows();
  if (w.scales.present()) {
    const int64_t block = fp4 ? format_info(w.format()).block_k : kBlockK;
    c.scales = w.scales.as<const uint8_t>();
    c.scale_format = w.scales.format;
    c.scale_row = (w.cols() + block - 1) / block;
    c.scale_matrix = c.scale_row * (fp4 ? w.rows() : (w.rows() + block - 1) / block);
  }
  if (w.global.present()) c.global = w.global.as<const float>();
  if constexpr (requires { a.gate.on; }) {
    c.gated = a.gate.on;
    c.gate_limit = a.gate.limit > 0.0f ? a.gate.limit : std::numeric_limits<float>::infinity();
  }
  if constexpr (requires { a.offsets; }) {
    c.offsets = a.offsets.template as<const int32_t>();
    // A plan has no data and chooses as the call will, which has: any address that nobody reads.
    if (c.offsets == nullptr && a.offsets.present()) c.offsets = &kOffsetsOfAPlan;
  }
  return c;
}

}  // namespace fathom::cuda
