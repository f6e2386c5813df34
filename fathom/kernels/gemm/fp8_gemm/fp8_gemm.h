// Products with E4M3 weights: one scale per 128x128 block, with activations in bf16 or quantised
// in groups of 128; or one scale per output channel, with activations quantised per token.
#pragma once

#include <array>

#include "fathom/kernels/core/kernel_set/variants.h"
#include "fathom/kernels/cpu/products/products.h"
#include "fathom/kernels/gemm/gemm_shape.h"

namespace fathom {

/// A linear layer with block-scaled FP8 weights.
///
///   y[t,n] = sum_b x_scale[t,b] * scale[n/128,b] * ( sum_{k in block b} x[t,k] * code[n,k] )
///
/// block b = 128 k. x is bf16 or float32, without x_scale, or E4M3 codes (format fp8_group).
/// x_scales: float32 [T, ceil(K/128)] in any strides: row-major, column-major (strides 1, T), or
/// column-major with columns of ceil(T/4)*4 for TMA. w in either layout; its block scales are
/// row-major [ceil(N/128), ceil(K/128)], which is what a column-major [K/128, N/128] is.
/// x and y may have strided rows; y must not overlap x. Partial blocks at the ends of N and K have
/// scales of their own.
/// Codes become bf16 exactly. The sum of a block is float32, over k in order; one fused
/// multiply-add with the product of the scales brings it into the accumulator; y is rounded once.
/// (The portable variant multiplies each code by its scale first; amx sums even and odd k of 32
/// apart; warp_split_k and prefetched take x as f16 times a power of two for each block, exactly
/// down to 2^-31 of the block's largest and to 2^-40 of it below, and add up parts of K one by
/// one; native_sm100 takes x in bf16 as two E4M3 numbers, exactly down to 2^-14 of the block's
/// largest and to 2^-22 of it below, and infinity as NaN.) A row's bits depend on that row and on w
/// alone. Deterministic. A NaN code, scale or activation makes its outputs NaN, row by row; E4M3
/// has no infinity. Errors: InvalidArgument for missing or misshapen scales. Source: DeepSeek-V3
/// technical report, section 3.3.2; deepseek-ai/DeepGEMM.
struct Fp8BlockGemm {
  static constexpr KernelInfo kInfo{
      .name = "fp8_block_gemm",
      .reference_names = {"fp8_blockwise_scaled_mm"},
      .signature =
          "x[T,K]:bf16|f32|fp8_group w[N,K]:fp8_block|fp8_block_ue8m0 -> y[T,N]:bf16|f16|f32",
      .equation = "y[t,n] = sum_b x_scale[t,b] scale[n/128,b] sum_{k in b} x[t,k] code[n,k]",
      .source = "DeepSeek-V3 report, 3.3.2; DeepGEMM",
      .flops = "2*T*N*K",
  };

  struct Args {
    View x;
    QuantView w;
    View y;
    View x_scales = {};  ///< of fp8_group x
  };

  static constexpr auto operands(const Args& a) { return std::array{&a.x, &a.w.values, &a.y}; }

  static Cost cost(const Args& a) { return product_cost(a.x.dim(0), a.w.rows(), a.w.cols()); }

  static int64_t workspace(const Args& a, int num_threads);
  static Status check(const Args& a);
};

/// One block-scaled product a head or a group of heads: the first half of the output projection of
/// DeepSeek-V4.
///
///   y[t,h,n] = sum_b scale[h,n/128,b] * ( sum_{k in block b} x[t,h,k] * code[h,n,k] )
///
/// x and y may be strided in tokens and heads (slices of wider tensors; y[T,H,N] packed is
/// [T, H*N]); y must not overlap x. Block scales are those of each matrix, [H, ceil(N/128),
/// ceil(K/128)]: where N is a multiple of 128, a weight [H*N, K] is this stack as it lies. In
/// layout kRows16, N must be a multiple of 16. Precision, guarantees and errors as Fp8BlockGemm on
/// plain x, and the same bits as H calls of it by the same variant.
/// Source: DeepSeek-V4, inference/model.py (Attention, wo_a); DeepGEMM (fp8_einsum).
struct Fp8BlockBmm {
  static constexpr KernelInfo kInfo{
      .name = "fp8_block_bmm",
      .signature = "x[T,H,K]:bf16|f32 w[H,N,K]:fp8_block|fp8_block_ue8m0 -> y[T,H,N]:bf16|f32",
      .equation = "y[:,h] = x[:,h] w[h]^T",
      .source = "DeepSeek-V4, Attention; DeepGEMM",
      .flops = "2*T*H*N*K",
  };

  struct Args {
    View x;
    QuantView w;
    View y;
  };

  static constexpr auto operands(const Args& a) { return std::array{&a.x, &a.w.values, &a.y}; }

  static Cost cost(const Args& a) {
    return product_cost(a.x.dim(0) * a.x.dim(1), a.w.rows(), a.w.cols());
  }

  static int64_t workspace(const Args& a, int num_threads);

  static Status check(const Args& a) { return check_weight(a.w); }
};

/// A linear layer of FP8 activations with a scale per token and FP8 weights with a scale per output
/// channel.
///
///   y[t,n] = x_scales[t] * w.scales[n] * ( sum_k x[t,k] * w[n,k] ) + bias[n]
///
/// x may have strided rows; w is packed row-major (the reference's column-major [K, N]), its scales
/// are float32 [N] or [N, 1]. Scales may be negative or zero. y may have strided rows and must not
/// overlap x.
/// Codes become bf16 exactly. Sums of 128 k are float32, in order, and added up in order (the
/// portable variant has one sum over k). Then x_scales[t] and w.scales[n] multiply and bias is
/// added, each rounded to float32; y is rounded once. A row's bits depend on that row and on w
/// alone. Deterministic. The code NaN makes its row (of x) or column (of w) NaN; E4M3 has no
/// infinity. f16 results beyond 65504 are infinite. Errors: InvalidArgument for missing or
/// misshapen scales of w. Source: vLLM and sgl-project/sglang (fp8_scaled_mm); Micikevicius et al.,
/// "FP8 Formats for Deep Learning".
struct Fp8Gemm {
  static constexpr KernelInfo kInfo{
      .name = "fp8_gemm",
      .reference_names = {"fp8_scaled_mm"},
      .signature =
          "x[T,K]:e4m3 x_scales[T]:f32 w[N,K]:fp8_channel bias?[N]:bf16|f16|f32 -> "
          "y[T,N]:bf16|f16|f32",
      .limits = "K>=1",
      .equation = "y[t,n] = x_scales[t] scale[n] sum_k x[t,k] w[n,k] + bias[n]",
      .source = "sgl-project/sglang, fp8_scaled_mm",
      .flops = "2*T*N*K",
  };

  struct Args {
    View x;
    View x_scales;
    QuantView w;
    View bias = {};
    View y;
  };

  static constexpr auto operands(const Args& a) {
    return std::array{&a.x, &a.x_scales, &a.w.values, &a.bias, &a.y};
  }

  static Cost cost(const Args& a) { return product_cost(a.x.dim(0), a.w.rows(), a.w.cols()); }

  static int64_t workspace(const Args& a, int num_threads);
  static Status check(const Args& a);
};

/// Runs a loop on x of format fp8_group, which is decoded first: to codes in bf16 with the scales
/// of a row behind them, or to float32 values.
Status run_quantised_x(Exec& ex, const Fp8BlockGemm::Args& a, ProductLoop loop, ElementType type);

extern const VariantTable<Fp8BlockGemm> fp8_block_gemm_cpu;
extern const VariantTable<Fp8BlockGemm> fp8_block_gemm_cuda;
extern const VariantTable<Fp8BlockBmm> fp8_block_bmm_cpu;
extern const VariantTable<Fp8BlockBmm> fp8_block_bmm_cuda;
extern const VariantTable<Fp8Gemm> fp8_gemm_cpu;
extern const VariantTable<Fp8Gemm> fp8_gemm_cuda;

}  // namespace fathom
