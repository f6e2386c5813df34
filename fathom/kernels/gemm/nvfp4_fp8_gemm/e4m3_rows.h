// The operands of W4A8 products as rows of numbers, of one matrix or of a stack: what the CPU
// variants and the checks of nvfp4_fp8_gemm and nvfp4_fp8_group_gemm share.
#pragma once

#include "fathom/kernels/cpu/products/decoded_rows.h"
#include "fathom/tensor/quant_view.h"

namespace fathom {

/// A row of x as the portable loop reads it.
inline DecodedRow e4m3_x_row(int64_t k) {
  return DecodedRow::of(4, k, 0);
}

/// Row t of x, each code times its scale.
void decode_scaled_e4m3(const View& x, const View& x_scales, int64_t t, float* out);

/// Row n of matrix m, 8 global w8, of the QuantView that is Products::weight
/// (Products::decode_weight_row).
void decode_nvfp4_as_e4m3(const Products& p, int64_t m, int64_t n, float* out);

/// Errors: InvalidArgument for a weight or scales of x that are missing or misshapen.
Status check_e4m3_operands(const View& x, const View& x_scales, const QuantView& w);

}  // namespace fathom
