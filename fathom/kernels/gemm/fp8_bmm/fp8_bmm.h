// Batched products of FP8 matrices with one scale each: the absorbed projections of MLA where kv_b
// is FP8.
#pragma once

#include <array>

#include "fathom/kernels/core/kernel_set/variants.h"
#include "fathom/kernels/gemm/gemm_shape.h"

namespace fathom {

/// One product a head.
///
///   y[b,t,n] = x_scale * w_scale * sum_k x[b,t,k] * w[b,n,k]
///
/// w is packed [B, N, K] (the reference's [B, K, N] with every matrix column-major). x and y may be
/// strided in heads and rows, so that [T, B, K] tensors can be passed with their first axes
/// swapped; y must not overlap x. At most one of x and w is e5m2.
/// Codes become bf16 exactly. Sums of 128 k are float32, in order, and added up in order (the
/// portable variant has one sum over k); then the product of the scales multiplies, and y is
/// rounded once. A row's bits depend on that row and on its matrix alone. Deterministic. NaN and
/// the infinities of E5M2 follow IEEE rules (infinity times zero is NaN) within their own row or
/// column. f16 results beyond 65504 are infinite.
/// Errors: InvalidArgument if both are e5m2 or w has gaps.
/// Source: DeepSeek-V2 technical report, section 2.1.2; sgl-project/sglang (bmm_fp8).
struct Fp8Bmm {
  static constexpr KernelInfo kInfo{
      .name = "fp8_bmm",
      .reference_names = {"bmm_fp8"},
      .signature =
          "x[B,T,K]:e4m3|e5m2 w[B,N,K]:e4m3|e5m2 x_scale[1]:f32 w_scale[1]:f32 -> "
          "y[B,T,N]:bf16|f16|f32",
      .equation = "y[b] = x_scale w_scale x[b] w[b]^T",
      .source = "DeepSeek-V2 report, 2.1.2",
      .flops = "2*B*T*N*K",
      .outside = "absorbed products in fp8; w_kc and w_vc are kept in bf16",
  };

  struct Args {
    View x;
    View w;
    View x_scale;
    View w_scale;
    View y;
  };

  static constexpr auto operands(const Args& a) {
    return std::array{&a.x, &a.w, &a.x_scale, &a.w_scale, &a.y};
  }

  static Cost cost(const Args& a) {
    return product_cost(a.x.dim(0) * a.x.dim(1), a.w.dim(1), a.w.dim(2));
  }

  static int64_t workspace(const Args& a, int num_threads);
  static Status check(const Args& a);
};

extern const VariantTable<Fp8Bmm> fp8_bmm_cpu;
extern const VariantTable<Fp8Bmm> fp8_bmm_cuda;

}  // namespace fathom
