// Grouped products: each run of rows times the bf16 matrix of its expert.
#pragma once

#include <array>

#include "fathom/kernels/core/kernel_set/variants.h"
#include "fathom/kernels/gemm/gemm_shape.h"

namespace fathom {

/// The experts' linear layer over tokens sorted by expert.
///
///   y[r,n] = sum_k x[r,k] * w[e,n,k]   for offsets[e] <= r < offsets[e+1]
///
/// Row r has the bits of Bf16Gemm on that row with matrix e; precision and formats are as there.
/// Rows outside [offsets[0], offsets[E]) are neither read nor written, and the weights of an expert
/// without rows are not read. x and y may have strided rows; y must not overlap x. In layout
/// kRows16, N must be a multiple of 16. `top_k`, the number of experts that a token chose, only
/// serves the expected traffic in cost(). Deterministic; independent of other rows and of the
/// number of threads.
/// Errors: InvalidArgument for offsets that decrease or leave [0, R], and for a weight whose layout
/// does not fit its format.
/// Source: DeepSeek-V3 technical report, section 2.1.2.
struct Bf16GroupGemm {
  static constexpr KernelInfo kInfo{
      .name = "bf16_group_gemm",
      .signature = "x[R,K]:bf16|f32 w[E,N,K]:bf16|f32 offsets[E1]:i32 -> y[R,N]:bf16|f32",
      .limits = "E1==E+1",
      .equation = "y[r] = x[r] w[e]^T for offsets[e] <= r < offsets[e+1]",
      .source = "DeepSeek-V3 technical report, section 2.1.2",
      .flops = "2*R*N*K",
  };

  struct Args {
    View x;
    QuantView w;
    View offsets;
    View y;
    int64_t top_k = 1;
  };

  static constexpr auto operands(const Args& a) {
    return std::array{&a.x, &a.w.values, &a.offsets, &a.y};
  }

  static Cost cost(const Args& a) { return product_cost(a.x.dim(0), a.w.rows(), a.w.cols()); }

  static void bytes(const Args& a, Cost& cost) {
    grouped_product_bytes(a.x, a.w.values, a.offsets, a.y, a.top_k, cost);
  }

  static int64_t workspace(const Args& a, int num_threads) {
    return product_workspace(a.x.dim(0), a.w.cols(), num_threads);
  }

  static Status check(const Args& a) { return check_weight(a.w); }
};

extern const VariantTable<Bf16GroupGemm> bf16_group_gemm_cpu;
extern const VariantTable<Bf16GroupGemm> bf16_group_gemm_cuda;

}  // namespace fathom
