// Causal self-attention with queries and keys in NVFP4: an eighth of the bytes of float32, and the
// form that FP4 units multiply natively.
#pragma once

#include <array>

#include "fathom/kernels/core/kernel_set/variants.h"

namespace fathom {

/// Self-attention of each request over its own tokens, Q and K in NVFP4, V in bf16.
///
///   q_ic  = code * q_scales[i,n,c/16] * q_global[n],   k_jc likewise with k_global
///   l_ij  = scale * q_i . k_j  for j <= i
///   lse_i = ln sum_j e^{l_ij};   o_i = sum_j e^{l_ij - lse_i} v_j
///
/// Request b owns rows cu_seqlens[b] .. cu_seqlens[b+1]-1 of q, k and v. Codes are e2m1, two a
/// byte, that of the even channel in the low nibble: D = 2P channels. Sixteen channels share an
/// e4m3 scale, a head has a float32 scale, amax / (6 * 448) of its values: what nvfp4_quant writes
/// (kRowMajor) for the rows of a head with gs = 1 / global. Head n of q meets head n / (N / Nk) of
/// k and v. All operands but cu_seqlens and the globals may be strided in tokens and heads. `scale`
/// is that of the model. lse includes it and the globals; it may be left out.
///
/// code * scale is exact in bf16, so variants in bf16 multiply the same numbers; Blackwell's FP4
/// units multiply codes and scales themselves, and want no scale with a sign. The globals are
/// multiplied into `scale` in float32. Scores, softmax and sums are float32, a weight of the
/// softmax enters a product in bf16 as the sum of two bf16 numbers (on a GPU only for queries that
/// see at most 512 keys; other weights enter as one). Keys are taken in blocks of 64, on a GPU also
/// of 128, from the first of the request, merged in order. So a row depends on its own query and
/// keys alone, not on other requests nor on the number of threads; keys of its own request that it
/// does not see must be finite. Deterministic. Errors: InvalidArgument if cu_seqlens do not rise
/// from 0 to T, or Nk is 0. Source: FlashAttention-2, algorithm 1; NVFP4 as in formats/block_fp4.h.
struct Nvfp4QkAttention {
  static constexpr KernelInfo kInfo{
      .name = "nvfp4_qk_attention",
      .signature =
          "q[T,N,P]:u8 q_scales[T,N,G]:e4m3 q_global[N]:f32 k[T,Nk,P]:u8 k_scales[T,Nk,G]:e4m3 "
          "k_global[Nk]:f32 v[T,Nk,Dv]:bf16 cu_seqlens[B1]:i32 -> o[T,N,Dv]:bf16|f32 lse?[T,N]:f32",
      .limits = "P==8*G, B1>=1, N%Nk==0",
      .equation = "o = softmax(scale q k^T + mask) v, q and k = code * block scale * head scale",
      .source = "FlashAttention-2, alg. 1; NVFP4",
      .flops = "~2 N (2 P + Dv) for each pair of a query and a key that it sees",
      .outside = "attention of an NVFP4 stack, on machines whose units multiply FP4",
  };

  static constexpr int64_t kKeyBlock = 64;

  struct Args {
    View q, q_scales, q_global, k, k_scales, k_global, v, cu_seqlens, o;
    View lse{};
    float scale = 1.0f;
  };

  static constexpr auto operands(const Args& a) {
    return std::array{&a.q,        &a.q_scales, &a.q_global,   &a.k, &a.k_scales,
                      &a.k_global, &a.v,        &a.cu_seqlens, &a.o, &a.lse};
  }

  /// Visible pairs only. A dry run assumes requests of equal length.
  static Cost cost(const Args& a);

  static int64_t workspace(const Args& a, int num_threads);

  static Status check(const Args& a);
};

extern const VariantTable<Nvfp4QkAttention> nvfp4_qk_attention_cpu;
extern const VariantTable<Nvfp4QkAttention> nvfp4_qk_attention_cuda;

}  // namespace fathom
