// Running a product with rows of int8 codes.
#pragma once

#include "fathom/kernels/cpu/products/decoded_rows.h"
#include "fathom/kernels/gemm/int8_gemm/int_products.h"

namespace fathom {

/// Runs `p`, made from x[T, K] of int8 codes, with the weight `w`.
Status run_int_codes(Exec& ex, const Products& p, const IntWeight& w, ProductLoop loop);

/// Workspace of run_int_codes beside the products'.
int64_t int_codes_workspace(int64_t rows, int64_t k);

}  // namespace fathom
