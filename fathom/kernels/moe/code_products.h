// Products with weights of plain codes that lie row-major, as reference calls pass them: E4M3, int8
// or packed int4, with one float scale for each block of any shape. What w4a8_group_gemm and the
// quantised modes of sorted_moe_gemm share.
//
//   y[t,n] = sum_b x_scale[t,b] * scale[n,b] * ( sum_{k in block b} x[t,k] * code[n,k] )
#pragma once

#include <cstdint>

#include "fathom/kernels/cpu/products/products.h"

namespace fathom {

enum class CodeType : uint8_t {
  kE4m3,
  kInt8,
  kInt4,  ///< two's complement, two in a byte, even k in the low nibble
};

enum class CodeScale : uint8_t {
  kF32,
  kBf16,
  kF32AsBf16,  ///< stored in float32, used rounded to bf16
};

/// A stack of matrices [n, k] of codes. Plain data, see products.h; Products::weight of
/// the loops below.
///
/// The scale of row n and block b of matrix m is element
///   m * matrix_stride + n/block_rows * row_stride + b/4 * quad_stride + b%4 * block_stride
/// where b = k/block_k. A block_rows or block_k of 0 means all rows or columns.
struct CodeWeight {
  CodeType type = CodeType::kE4m3;
  const uint8_t* codes = nullptr;
  int64_t n = 0;
  int64_t k = 0;
  int64_t row_bytes = 0;
  const void* scales = nullptr;
  CodeScale scale_type = CodeScale::kF32;
  int64_t matrix_stride = 0, row_stride = 0, quad_stride = 0, block_stride = 0;
  int64_t block_rows = 0;
  int64_t block_k = 0;
};

/// Columns of one chain of sums in the AVX-512 loop, and of one scale of decoded x.
inline constexpr int64_t kCodeBlock = 128;

/// x is bf16 with a float32 scale for each 128 k behind every row (decoded_rows.h), k even. Needs
/// block_k % 128 == 0. Codes become bf16 exactly; float32 sums of 128 k in order, then one fused
/// multiply-add with the product of the scales into the accumulator.
void code_products_avx512(const Products& p, const WorkItem& item, void* scratch);

/// For the portable loop: row n of matrix m, each code times its scale
/// (Products::decode_weight_row).
void decode_code_row(const Products& p, int64_t m, int64_t n, float* out);

}  // namespace fathom
