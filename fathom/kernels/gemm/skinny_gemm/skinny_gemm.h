// Products of few tokens, at most 16: Bf16Gemm under the names and limits of the fused latent
// projection and of the router. They give the bits of Bf16Gemm.
#pragma once

#include "fathom/kernels/gemm/bf16_gemm/bf16_gemm.h"

namespace fathom {

/// The fused projection to the query latent, the key-value latent and k_pe, for at most 16 tokens.
///
///   y[t,n] = sum_k x[t,k] * w[n,k]
///
/// w is [N, K] row-major, the reference's column-major [K, N], or in layout kRows16. Everything
/// else as Bf16Gemm. Source: DeepSeek-V2 technical report, section 2.1.2, eq. 9 and 12, as one
/// matrix.
struct LatentDownGemm {
  static constexpr KernelInfo kInfo{
      .name = "latent_down_gemm",
      .reference_names = {"dsv3_fused_a_gemm"},
      .signature = "x[T,K]:bf16|f32 w[N,K]:bf16|f32 -> y[T,N]:bf16|f32",
      .limits = "T<=16",
      .equation = "y = x w^T",
      .source = "DeepSeek-V2 report, 2.1.2",
      .flops = "2*T*N*K",
  };

  using Args = Bf16Gemm::Args;

  static constexpr auto operands(const Args& a) { return Bf16Gemm::operands(a); }

  static Cost cost(const Args& a) { return Bf16Gemm::cost(a); }

  static int64_t workspace(const Args& a, int num_threads) {
    return Bf16Gemm::workspace(a, num_threads);
  }

  static Status check(const Args& a) { return Bf16Gemm::check(a); }
};

/// Router logits of at most 16 tokens: one float32 score an expert, rounded to bf16 only where y
/// asks for it (the reference's default; a model routes by float32).
///
///   y[t,e] = sum_k x[t,k] * w[e,k]
///
/// Everything else as Bf16Gemm.
/// Source: DeepSeek-V3 technical report, section 2.1.2, eq. 15, before the sigmoid.
struct RouterGemm {
  static constexpr KernelInfo kInfo{
      .name = "router_gemm",
      .reference_names = {"dsv3_router_gemm"},
      .signature = "x[T,K]:bf16|f32 w[N,K]:bf16|f32 -> y[T,N]:bf16|f32",
      .limits = "T<=16",
      .equation = "y = x w^T",
      .source = "DeepSeek-V3 report, 2.1.2",
      .flops = "2*T*N*K",
  };

  using Args = Bf16Gemm::Args;

  static constexpr auto operands(const Args& a) { return Bf16Gemm::operands(a); }

  static Cost cost(const Args& a) { return Bf16Gemm::cost(a); }

  static int64_t workspace(const Args& a, int num_threads) {
    return Bf16Gemm::workspace(a, num_threads);
  }

  static Status check(const Args& a) { return Bf16Gemm::check(a); }
};

extern const VariantTable<LatentDownGemm> latent_down_gemm_cpu;
extern const VariantTable<LatentDownGemm> latent_down_gemm_cuda;
extern const VariantTable<RouterGemm> router_gemm_cpu;
extern const VariantTable<RouterGemm> router_gemm_cuda;

}  // namespace fathom
