// Grouped products: each run of rows, in FP8, times the NVFP4 matrix of its expert (W4A8).
#pragma once

#include <array>

#include "fathom/kernels/core/kernel_set/variants.h"
#include "fathom/kernels/gemm/gemm_shape.h"
#include "fathom/kernels/moe/gated_product.h"

namespace fathom {

/// The experts' linear layer over tokens sorted by expert, of NVFP4 weights that become E4M3.
///
///   y[r,n] = 8 global[e] sum_g x_scale[r,g] * ( sum_{k in group g} x[r,k] * w8[e,n,k] )
///   for offsets[e] <= r < offsets[e+1];  group g = 128 k
///
/// with w8, x, x_scales, errors and error budget of Nvfp4Fp8Gemm (gemm/nvfp4_fp8_gemm). With `gate`
/// on, w has gate rows above up rows, and y [R, N/2] is SiluMul of the N outputs
/// (moe/gated_product.h). Without, row r is that kernel's row with matrix e, and by the portable
/// variant it has the same bits. Lossy, and never what a layer takes by itself. Rows outside
/// [offsets[0], offsets[E]) are neither read nor written, and the weights of an expert without rows
/// are not read. x and y may have strided rows; y must not overlap x. In layout kRows16, N must be
/// a multiple of 16. `top_k`, the number of experts that a token chose, only serves the expected
/// traffic in cost(). Deterministic; independent of other rows and of the number of threads.
/// Errors: InvalidArgument for offsets that decrease or leave [0, R], for missing or misshapen
/// scales. Source: NVIDIA/Model-Optimizer; DeepSeek-V3 technical report, sections 2.1.2 and 3.3.2.
struct Nvfp4Fp8GroupGemm {
  static constexpr KernelInfo kInfo{
      .name = "nvfp4_fp8_group_gemm",
      .signature = "x[R,K]:fp8_group w[E,N,K]:nvfp4 offsets[E1]:i32 -> y[R,M]:bf16|f32|f16",
      .limits = "E1==E+1, K%128==0",
      .equation = "y[r] = x[r] w8[e]^T for offsets[e] <= r < offsets[e+1]",
      .source = "NVIDIA/Model-Optimizer; DeepSeek-V3 technical report, section 3.3.2",
      .flops = "2*R*N*K",
  };

  struct Args {
    View x;
    QuantView w;
    View offsets;
    View y;
    int64_t top_k = 1;
    OutputGate gate = {};  ///< M is N, or N/2 with a gate
    View x_scales = {};
  };

  static constexpr auto operands(const Args& a) {
    return std::array{&a.x, &a.w.values, &a.offsets, &a.y};
  }

  static Cost cost(const Args& a) { return product_cost(a.x.dim(0), a.w.rows(), a.w.cols()); }

  static void bytes(const Args& a, Cost& cost) {
    grouped_product_bytes(a.x, a.w.values, a.offsets, a.y, a.top_k, cost);
  }

  static int64_t workspace(const Args& a, int num_threads);

  static Status check(const Args& a);
};

extern const VariantTable<Nvfp4Fp8GroupGemm> nvfp4_fp8_group_gemm_cpu;
extern const VariantTable<Nvfp4Fp8GroupGemm> nvfp4_fp8_group_gemm_cuda;

}  // namespace fathom
