// Grouped products: each run of rows times the MXFP8 matrix of its expert.
#pragma once

#include <array>

#include "fathom/kernels/core/kernel_set/variants.h"
#include "fathom/kernels/gemm/gemm_shape.h"

namespace fathom {

/// The experts' linear layer over tokens sorted by expert.
///
///   y[r,n] = sum_b 2^e[e,n,b] * ( sum_{k in block b} x[r,k] * code[e,n,k] )
///   for offsets[e] <= r < offsets[e+1];  block b = 32 k
///
/// Row-major scales are [E, N, ceil(K/32)]; in layout kRows16, N must be a multiple of 16. x and y
/// may have strided rows; y must not overlap x. `top_k`, the number of experts that a token chose,
/// only serves the expected traffic in cost().
/// Row r has the bits of Mxfp8Gemm on that row with matrix e; precision and what NaN does are as
/// there. Rows outside [offsets[0], offsets[E]) are neither read nor written, and the weights of an
/// expert without rows are not read. Deterministic; independent of other rows and of the number of
/// threads.
/// Errors: InvalidArgument for offsets that decrease or leave [0, R], for missing or misshapen
/// scales. No variant for a GPU.
/// Source: OCP Microscaling Formats 1.0; DeepSeek-V3 technical report, section 2.1.2.
struct Mxfp8GroupGemm {
  static constexpr KernelInfo kInfo{
      .name = "mxfp8_group_gemm",
      .signature = "x[R,K]:bf16|f32 w[E,N,K]:mxfp8 offsets[E1]:i32 -> y[R,N]:bf16|f32|f16",
      .limits = "E1==E+1",
      .equation = "y[r] = x[r] w[e]^T for offsets[e] <= r < offsets[e+1]",
      .source = "OCP Microscaling Formats 1.0; DeepSeek-V3 technical report, section 2.1.2",
      .flops = "2*R*N*K",
      .outside = "experts in MXFP8 (ModelOpt)",
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

extern const VariantTable<Mxfp8GroupGemm> mxfp8_group_gemm_cpu;

}  // namespace fathom
