// QServe products: int8 activations with a scale per token, uint4 weights with zero points, per
// output channel or progressively per group of 128 inside an int8 row (formats/integer/qserve.h).
//
// Weights are packed as QServe packs them, in tiles of 32 x 32 codes: w has logical dims [N, K] and
// N * K/2 bytes, the reference's [N, K/2]. There is no bias. The reference's results are float16.
#pragma once

#include <array>

#include "fathom/kernels/core/kernel_set/variants.h"
#include "fathom/kernels/gemm/gemm_shape.h"

namespace fathom {

/// Weights with a zero point per output channel.
///
///   y[t,n] = float( sum_k x[t,k] * code[n,k] ) * x_scales[t] * w_scales[n]
///          - x_sums[t] * w_zeros[n]
///
/// w_zeros[n] is zero point times scale, x_sums[t] the sum over k of the row before it was
/// quantised: the second term takes the zero point off.
/// x and y may have strided rows; y must not overlap x. Scales that the reference has as [T, 1] are
/// [T] here.
/// The sum is exact in int32. It is rounded to float32 once, and after each scale; the second term
/// is one fused multiply-add; y is rounded once (f16 beyond 65504 is infinite). Every variant gives
/// the same bits.
/// Deterministic; a row's bits depend on that row and on w alone. A scale, sum or zero that is NaN
/// or infinite reaches its own row or column.
/// Errors: InvalidArgument unless w is packed.
/// Source: Lin et al., "QServe", arXiv 2405.04532, section 4.2; sgl-project/sglang.
struct W4a8GemmChannel {
  static constexpr KernelInfo kInfo{
      .name = "w4a8_gemm_channel",
      .reference_names = {"qserve_w4a8_per_chn_gemm"},
      .signature =
          "x[T,K]:i8 x_scales[T]:f16 x_sums[T]:f16 w[N,K]:w4a8_channel w_scales[N]:f16 "
          "w_zeros[N]:f16 -> y[T,N]:f16|bf16|f32",
      .limits = "N%32==0, K%32==0, K<=131071",
      .equation = "y[t,n] = x_scales[t] w_scales[n] sum_k x[t,k] code[n,k] - x_sums[t] w_zeros[n]",
      .source = "QServe, arXiv 2405.04532",
      .flops = "2*T*N*K",
  };

  struct Args {
    View x;
    View x_scales;
    View x_sums;
    View w;
    View w_scales;
    View w_zeros;
    View y;
  };

  static constexpr auto operands(const Args& a) {
    return std::array{&a.x, &a.x_scales, &a.x_sums, &a.w, &a.w_scales, &a.w_zeros, &a.y};
  }

  static Cost cost(const Args& a) { return product_cost(a.x.dim(0), a.w.dim(0), a.w.dim(1)); }

  static void bytes(const Args& a, Cost& cost);
  static int64_t workspace(const Args& a, int num_threads);
  static Status check(const Args& a);
};

/// Weights that are int8 by a scale and a zero point for each 128 k, and float by a scale per row.
///
///   w8[n,k] = int8( code[n,k] * group_scales[g,n] + group_zeros[g,n] ),  g = k/128
///   y[t,n] = float( sum_k x[t,k] * w8[n,k] ) * x_scales[t] * w_scales[n]
///
/// w8 wraps modulo 256, as the byte arithmetic of the original does; the quantiser keeps it within
/// int8. group_zeros are minus zero point times scale. Both are [K/128, N] with each 32 columns in
/// the order of qserve_scale_position.
/// Everything else as W4a8GemmChannel.
struct W4a8GemmGroup {
  static constexpr KernelInfo kInfo{
      .name = "w4a8_gemm_group",
      .reference_names = {"qserve_w4a8_per_group_gemm"},
      .signature =
          "x[T,K]:i8 x_scales[T]:f16 w[N,K]:w4a8_group group_scales[G,N]:i8 "
          "group_zeros[G,N]:i8 w_scales[N]:f16 -> y[T,N]:f16|bf16|f32",
      .limits = "N%32==0, K==128*G, K<=131071",
      .equation =
          "y[t,n] = x_scales[t] w_scales[n] sum_k x[t,k] int8(code[n,k] s[k/128,n] + z[k/128,n])",
      .source = "QServe, arXiv 2405.04532",
      .flops = "2*T*N*K",
  };

  struct Args {
    View x;
    View x_scales;
    View w;
    View group_scales;
    View group_zeros;
    View w_scales;
    View y;
  };

  static constexpr auto operands(const Args& a) {
    return std::array{&a.x, &a.x_scales, &a.w, &a.group_scales, &a.group_zeros, &a.w_scales, &a.y};
  }

  static Cost cost(const Args& a) { return product_cost(a.x.dim(0), a.w.dim(0), a.w.dim(1)); }

  static void bytes(const Args& a, Cost& cost);
  static int64_t workspace(const Args& a, int num_threads);
  static Status check(const Args& a);
};

extern const VariantTable<W4a8GemmChannel> w4a8_gemm_channel_cpu;
extern const VariantTable<W4a8GemmGroup> w4a8_gemm_group_cpu;

}  // namespace fathom
