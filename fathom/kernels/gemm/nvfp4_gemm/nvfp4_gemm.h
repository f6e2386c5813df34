// Products of bf16 activations with NVFP4 weights.
#pragma once

#include <array>

#include "fathom/kernels/core/variants.h"
#include "fathom/kernels/gemm/gemm_shape.h"

namespace fathom {

/// A linear layer with NVFP4 weights; activations stay as they are.
///
///   y[t,n] = global * sum_b scale[n,b] * ( sum_{k in block b} x[t,k] * code[n,k] ),  block b = 16
///   k
///
/// x and y may have strided rows; y must not overlap x. `global` belongs to the matrix, or in
/// layout kRows16 to 16 rows. Codes become bf16 exactly. float32 inside a block over k in order,
/// then one fused multiply-add with the block scale into the accumulator; the global scale
/// multiplies at the end and y is rounded once. (The portable variant multiplies each code by its
/// two scales first.) A row's bits depend on that row and on w alone. Deterministic. Errors:
/// InvalidArgument for missing or misshapen scales. Source: NVIDIA/Model-Optimizer
/// (nvfp4_tensor.py); formats/block_fp4.h.
struct Nvfp4Gemm {
  static constexpr KernelInfo kInfo{
      .name = "nvfp4_gemm",
      .reference_names = {"cutlass_scaled_fp4_mm"},
      .signature = "x[T,K]:bf16|f32 w[N,K]:nvfp4 -> y[T,N]:bf16|f32",
      .equation = "y[t,n] = global sum_b scale[n,b] sum_{k in b} x[t,k] code[n,k]",
      .source = "NVIDIA/Model-Optimizer",
  };

  struct Args {
    View x;
    QuantView w;
    View y;
  };

  static constexpr auto operands(const Args& a) { return std::array{&a.x, &a.w.values, &a.y}; }

  static Cost cost(const Args& a) { return product_cost(a.x.dim(0), a.w.rows(), a.w.cols()); }

  static int64_t workspace(const Args& a, int num_threads) {
    return product_workspace(a.x.dim(0), a.w.cols(), num_threads);
  }

  static Status check(const Args& a) { return check_weight(a.w); }
};

extern const VariantTable<Nvfp4Gemm> nvfp4_gemm_cpu;

}  // namespace fathom
