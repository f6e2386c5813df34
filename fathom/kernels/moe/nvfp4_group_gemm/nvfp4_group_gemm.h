// Grouped products: each run of rows times the NVFP4 or MXFP4 matrix of its expert.
#pragma once

#include <array>

#include "fathom/kernels/core/kernel_set/variants.h"
#include "fathom/kernels/gemm/gemm_shape.h"
#include "fathom/kernels/gemm/nvfp4_gemm/nvfp4_gemm.h"
#include "fathom/kernels/moe/gated_product.h"

namespace fathom {

/// The experts' linear layer over tokens sorted by expert.
///
///   y[r,n] = global[e] alphas[e] sum_b scale[e,n,b] ( sum_{k in block b} x[r,k] code[e,n,k] )
///   for offsets[e] <= r < offsets[e+1];  block b = 16 k
///
/// x is one of
///   bf16 or float32 (W4A16), without x_scales and alphas;
///   E2M1 codes (W4A4; format nvfp4, low nibble first, K a multiple of 16) with x_scales: then
///   x[r,k] = code * x_scale[r, k/16].
/// x_scales are E4M3: linear [R, K/16] with any row stride, or swizzled 128x4, packed. Swizzled,
/// those of expert e begin at row scale_offsets[e] of the padded matrix, a multiple of 128
/// (formats/layout/scale_layout.h, blockscale_offsets). alphas: float32 [E], the product of the
/// global scales of x and w. They may be left out (1). Where they are given, row-major weights may
/// have no global. Row-major weights may have swizzled scales too, each expert's on their own:
/// [E, ceil(N/128)*128, ceil(K/64)*4]. In layout kRows16, N must be a multiple of 16. x and y may
/// have strided rows; y must not overlap x. `top_k`, the number of experts that a token chose, only
/// serves the expected traffic in cost(). The reference's problem_sizes say nothing that shapes and
/// offsets do not.
/// w may be in MXFP4, as there; x is then not quantised. native_mxfp4_sm100 takes x in bf16 as
/// Fp8BlockGemm says, by 32 k.
/// With `gate` on, w has gate rows above up rows, and y [R, N/2] is SiluMul of the N outputs
/// (moe/gated_product.h). Without, row r has the bits of Nvfp4Gemm on that row with matrix e;
/// precision and what NaN does are as there. Rows outside [offsets[0], offsets[E]) are neither read
/// nor written, and the weights of an expert without rows are not read. Deterministic; independent
/// of other rows and of the number of threads. Errors: InvalidArgument for offsets that decrease or
/// leave [0, R], scale_offsets that are too small or no multiples of 128, missing, superfluous or
/// misshapen scales, or x in NVFP4 with w in MXFP4. Source: NVIDIA/Model-Optimizer;
/// sgl-project/sglang; DeepSeek-V3 technical report, section 2.1.2.
struct Nvfp4GroupGemm {
  static constexpr KernelInfo kInfo{
      .name = "nvfp4_group_gemm",
      .reference_names = {"cutlass_fp4_group_mm"},
      .signature =
          "x[R,K]:bf16|f32|nvfp4 w[E,N,K]:nvfp4|mxfp4 offsets[E1]:i32 -> y[R,M]:bf16|f32|f16",
      .limits = "E1==E+1",
      .equation = "y[r] = x[r] w[e]^T for offsets[e] <= r < offsets[e+1]",
      .source = "NVIDIA/Model-Optimizer; DeepSeek-V3 technical report, section 2.1.2",
      .flops = "2*R*N*K",
  };

  struct Args {
    View x;
    QuantView w;
    View offsets;
    View y;
    int64_t top_k = 1;
    OutputGate gate = {};     ///< M is N, or N/2 with a gate
    View x_scales = {};       ///< of nvfp4 x
    View scale_offsets = {};  ///< [E] or [E+1] i32; of swizzled x_scales
    View alphas = {};         ///< [E]; only with nvfp4 x
    BlockScaleLayout x_scale_layout = BlockScaleLayout::kLinear;
    BlockScaleLayout w_scale_layout = BlockScaleLayout::kLinear;
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

extern const VariantTable<Nvfp4GroupGemm> nvfp4_group_gemm_cpu;
extern const VariantTable<Nvfp4GroupGemm> nvfp4_group_gemm_cuda;

}  // namespace fathom
