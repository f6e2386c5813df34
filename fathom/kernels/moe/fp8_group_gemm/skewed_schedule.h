// The schedule of fp8_group_gemm_skewed: experts with many rows over all threads, the others whole.
#pragma once

#include "fathom/kernels/core/exec.h"
#include "fathom/kernels/cpu/products/products.h"

namespace fathom {

/// Rows from which an expert is cut over all threads: its products then take longer than its
/// weights take to arrive, so that sharing the weights costs nothing.
inline constexpr int64_t kHeavyRows = 64;

/// Bytes of workspace of the schedule; a multiple of 64.
int64_t skewed_workspace(int64_t num_experts);

/// run_products (cpu/products/run_products.h) by expert load. Takes the schedule's memory from the
/// front of ex.workspace.
Status run_skewed_products(Exec& ex, const Products& p, ProductLoop loop);

/// Thread that takes expert e whole, or -1 where all threads share it; `owner` has an element for
/// each expert, `order` is memory for as many.
void deal_experts(const Products& p, int num_threads, int32_t* order, int32_t* owner);

}  // namespace fathom
