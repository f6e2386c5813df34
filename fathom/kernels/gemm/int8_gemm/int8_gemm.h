// Products of int8 activations with a scale per token and int8 weights with a scale per output
// channel.
#pragma once

#include <array>

#include "fathom/kernels/core/kernel_set/variants.h"
#include "fathom/kernels/gemm/gemm_shape.h"

namespace fathom {

/// A linear layer of int8 operands.
///
///   y[t,n] = float( sum_k x[t,k] * w[n,k] ) * x_scales[t] * w.scales[n] + bias[n]
///
/// x may have strided rows; w is packed row-major (the reference's column-major [K, N]), its scales
/// are float32 [N] or [N, 1]. Scales may be negative or zero. y may have strided rows and must not
/// overlap x.
/// The sum is exact in int32, which is why K has a limit. It is rounded to float32 once, and after
/// each scale and the bias, in this order; then to y. Every variant gives the same bits.
/// Deterministic; a row's bits depend on that row and on w alone. A scale or bias that is NaN or
/// infinite reaches its own row or column. f16 results beyond 65504 are infinite.
/// Errors: InvalidArgument for missing or misshapen scales of w.
/// Source: Xiao et al., "SmoothQuant"; sgl-project/sglang (int8_scaled_mm).
struct Int8Gemm {
  static constexpr KernelInfo kInfo{
      .name = "int8_gemm",
      .reference_names = {"int8_scaled_mm"},
      .signature =
          "x[T,K]:i8 x_scales[T]:f32 w[N,K]:int8_channel bias?[N]:bf16|f16|f32 -> "
          "y[T,N]:bf16|f16|f32",
      .limits = "K>=1, K<=131071",
      .equation = "y[t,n] = x_scales[t] scale[n] sum_k x[t,k] w[n,k] + bias[n]",
      .source = "SmoothQuant; sgl-project/sglang, int8_scaled_mm",
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

  static Status check(const Args& a) { return check_weight(a.w); }
};

extern const VariantTable<Int8Gemm> int8_gemm_cpu;

}  // namespace fathom
