// Products of bf16 activations with E4M3 weights that have one scale per 128x128 block.
#pragma once

#include <array>

#include "fathom/kernels/core/variants.h"
#include "fathom/kernels/gemm/gemm_shape.h"

namespace fathom {

/// A linear layer with block-scaled FP8 weights; activations stay as they are.
///
///   y[t,n] = sum_b scale[n/128, b] * ( sum_{k in block b} x[t,k] * code[n,k] ),  block b = 128 k
///
/// x and y may have strided rows; y must not overlap x. Partial blocks at the ends of N and K have
/// scales of their own.
/// Codes become bf16 exactly. float32 inside a block over k in order, then one fused multiply-add
/// with the scale into the accumulator; y is rounded once. (The portable variant multiplies each
/// code by its scale first.) A row's bits depend on that row and on w alone. Deterministic.
/// Errors: InvalidArgument for missing or misshapen scales.
/// Source: DeepSeek-V3 technical report, section 3.3.2; deepseek-ai/DeepGEMM.
struct Fp8BlockGemm {
  static constexpr KernelInfo kInfo{
      .name = "fp8_block_gemm",
      .reference_names = {"fp8_blockwise_scaled_mm"},
      .signature = "x[T,K]:bf16|f32 w[N,K]:fp8_block|fp8_block_ue8m0 -> y[T,N]:bf16|f32",
      .equation = "y[t,n] = sum_b scale[n/128,b] sum_{k in b} x[t,k] code[n,k]",
      .source = "DeepSeek-V3 report, 3.3.2; DeepGEMM",
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

extern const VariantTable<Fp8BlockGemm> fp8_block_gemm_cpu;

}  // namespace fathom
