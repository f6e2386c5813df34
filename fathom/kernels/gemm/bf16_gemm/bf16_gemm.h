// Products of activations with unquantised weights: one matrix, or one matrix a head.
#pragma once

#include <array>

#include "fathom/kernels/core/kernel_set/variants.h"
#include "fathom/kernels/gemm/gemm_shape.h"

namespace fathom {

/// A linear layer without bias.
///
///   y[t,n] = sum_k x[t,k] * w[n,k]
///
/// x and y may have strided rows; y must not overlap x. w is packed; bf16 weights in either layout,
/// float32 weights row-major. y in float32 serves logits and routers.
/// Every output is one float32 sum over k in increasing order, rounded once to y. (`vdpbf16ps` adds
/// pairs of k, `tdpbf16ps` the even and the odd k of 32 apart; both read subnormals as zero.) A
/// row's bits depend on that row and on w alone: not on T, neighbours or threads. Deterministic.
/// Errors: InvalidArgument for a weight whose layout does not fit its format.
struct Bf16Gemm {
  static constexpr KernelInfo kInfo{
      .name = "bf16_gemm",
      .signature = "x[T,K]:bf16|f32 w[N,K]:bf16|f32 -> y[T,N]:bf16|f32",
      .equation = "y = x w^T",
      .source = "linear layer",
      .flops = "2*T*N*K",
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

/// One product a head: the absorbed projections of MLA. Also one a group of heads, as the output
/// projection of DeepSeek-V4 has it: x[T,g,K], y[T,g,R] packed is [T, g*R].
///
///   y[t,h,n] = sum_k x[t,h,k] * w[h,n,k]
///
/// x and y may be strided in tokens and heads (slices of wider tensors); y must not overlap x.
/// Precision, guarantees and errors as Bf16Gemm, and the same bits as H calls of it. In layout
/// kRows16, N must be a multiple of 16.
/// Source: DeepSeek-V2 technical report, section 2.1.2 (absorption of W_UK and W_UV).
struct Bf16Bmm {
  static constexpr KernelInfo kInfo{
      .name = "bf16_bmm",
      .signature = "x[T,H,K]:bf16|f32 w[H,N,K]:bf16|f32 -> y[T,H,N]:bf16|f32",
      .equation = "y[:,h] = x[:,h] w[h]^T",
      .source = "DeepSeek-V2 report, 2.1.2",
      .flops = "2*T*H*N*K",
  };

  using Args = Bf16Gemm::Args;

  static constexpr auto operands(const Args& a) { return Bf16Gemm::operands(a); }

  static Cost cost(const Args& a) {
    return product_cost(a.x.dim(0) * a.x.dim(1), a.w.rows(), a.w.cols());
  }

  static int64_t workspace(const Args& a, int num_threads) {
    return product_workspace(a.x.dim(0), a.w.cols(), num_threads);
  }

  static Status check(const Args& a) { return check_weight(a.w); }
};

extern const VariantTable<Bf16Gemm> bf16_gemm_cpu;
extern const VariantTable<Bf16Gemm> bf16_gemm_cuda;
extern const VariantTable<Bf16Bmm> bf16_bmm_cpu;
extern const VariantTable<Bf16Bmm> bf16_bmm_cuda;

}  // namespace fathom
