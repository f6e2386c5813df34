// Products with NVFP4 weights of activations in FP8 (W4A8), for tensor cores that multiply E4M3.
//
// Why this is a kernel of its own, and FP8 no further format of x in nvfp4_gemm: there weights are
// exact whatever x is; here their rounding is part of the equation. One contract would have two
// equations, and pinning a variant could change the result.
#pragma once

#include <array>

#include "fathom/kernels/core/kernel_set/variants.h"
#include "fathom/kernels/cpu/products/products.h"
#include "fathom/kernels/gemm/gemm_shape.h"

namespace fathom {

/// A linear layer with NVFP4 weights that become E4M3, and activations in E4M3 with a scale for
/// each 128 k of a token.
///
///   w8[n,k] = e4m3( code[n,k] * scale[n,k/16] / 8 )           to nearest even, never saturates
///   y[t,n]  = 8 global sum_g x_scale[t,g] * ( sum_{k in group g} x[t,k] * w8[n,k] )
///
/// x: E4M3 codes (format fp8_group), as group_quant_fp8 writes them; x_scales: float32 [T, K/128]
/// in any strides, as fp8_block_gemm has them. w in any layout; scales of w are linear, not
/// negative and not NaN. `global` belongs to the matrix, or in layout kRows16 to 16 rows. x and y
/// may have strided rows; y must not overlap x.
/// Lossy: a layer never takes it unasked. Against unquantised operands diff <= 7e-3, the bound of
/// exact products with NVFP4 weights. diff is a sum, to which an independent error adds half of its
/// squared relative size:
///   NVFP4 itself                                                       4.2e-3 to 5.1e-3
///   x in E4M3: 2.6 % root mean square (steps of 1/8 to 1/16 of a value)          3.3e-4
///   w8: 2.1 % (codes 1.5, 3 and 6 are off by 2 to 5 % under five of
///       eight scales, formats/block/block_fp4.h)                                 2.3e-4
///   together                                                           4.8e-3 to 5.7e-3
/// Sums are float32 over k in order. Variants whose unit is fp8 sum each group on the tensor cores,
/// with about 14 bits, and scale and add up these sums in float32; they leave y in float32 to
/// others. y is rounded once. A row's bits depend on that row and on w; of variants that are not
/// batch invariant, also on the number of rows. Deterministic. The code NaN or a NaN scale of x
/// makes its own row NaN.
/// Errors: InvalidArgument for missing or misshapen scales.
/// Source: NVIDIA/Model-Optimizer (nvfp4_tensor.py); DeepSeek-V3 technical report, section 3.3.2
/// (sums of 128 k).
struct Nvfp4Fp8Gemm {
  static constexpr KernelInfo kInfo{
      .name = "nvfp4_fp8_gemm",
      .signature = "x[T,K]:fp8_group w[N,K]:nvfp4 -> y[T,N]:bf16|f16|f32",
      .limits = "K%128==0",
      .equation = "y[t,n] = 8 global sum_g x_scale[t,g] sum_{k in g} x[t,k] e4m3(w[n,k] / 8)",
      .source = "NVIDIA/Model-Optimizer; DeepSeek-V3 technical report, section 3.3.2",
      .flops = "2*T*N*K",
      .outside = "a lossy mode for callers of the kernel library: NVFP4 weights as E4M3",
  };

  struct Args {
    View x;
    QuantView w;
    View y;
    View x_scales = {};
  };

  static constexpr auto operands(const Args& a) { return std::array{&a.x, &a.w.values, &a.y}; }

  static Cost cost(const Args& a) { return product_cost(a.x.dim(0), a.w.rows(), a.w.cols()); }

  static int64_t workspace(const Args& a, int num_threads);
  static Status check(const Args& a);
};

extern const VariantTable<Nvfp4Fp8Gemm> nvfp4_fp8_gemm_cpu;
extern const VariantTable<Nvfp4Fp8Gemm> nvfp4_fp8_gemm_cuda;

}  // namespace fathom
