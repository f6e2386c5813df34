// Multi-head attention over a batch of requests of different lengths: the prefill form of MLA.
#pragma once

#include <array>

#include "fathom/kernels/attn/lse_base.h"
#include "fathom/kernels/core/kernel_set/variants.h"

namespace fathom {

/// Which keys of its request a query sees.
enum class CausalMask : uint8_t {
  kCausal,  ///< query i sees keys 0 .. i + (keys - queries): the last query sees them all
  kFull,    ///< every query sees every key (a prefix chunk)
};

/// Attention of each request's queries over its own keys, with unequal widths of key and value.
///
///   s_ij = scale * q_i . k_j  for visible j;   lse_i = ln ( sum_j e^{s_ij} + e^{sinks[n]} );
///   o_i  = o_scale * sum_j e^{s_ij - lse_i} v_j
///
/// Request b owns query rows q_offsets[b] .. q_offsets[b+1]-1 and key rows kv_offsets[b] ..
/// kv_offsets[b+1]-1. Head n of q meets head n / (N / Nk) of k and v. A window_left of w >= 0 hides
/// keys that lie more than w before the last one that a causal mask would show. All operands but
/// offsets may be strided in tokens and heads. q, k and v have one format. o has that of q or
/// another; for e4m3 (codes, whose scales are in `scale` and o_scale) it is bf16 or f32. sinks give
/// each head a logit that has no value. lse is natural or of base 2 and includes the scale and the
/// sink. Both may be left out. A query that sees no key gets o = 0 and lse = -inf, or the sink.
///
/// Scores, softmax and sums are float32. Where products run in bf16, a weight of the softmax enters
/// as the sum of two bf16 numbers, which keeps 16 bits of it (on a GPU only for queries that see at
/// most 512 keys; other weights enter as one number). Keys are taken in blocks of 64 or 128 from
/// the request's first key, and blocks are merged in order (online softmax). So a row depends on
/// its own query and keys alone: not on other rows, on how the queries of a request are cut into
/// calls, nor on the number of threads. (One exception: keys of its own request that the mask hides
/// must be finite.) Deterministic. The reference's bmm1_scale is scale, its bmm2_scale o_scale; its
/// lse is of base 2; lengths and maxima are in the offsets, and o_sf_scale is for an FP4 output
/// that no caller makes. Errors: InvalidArgument if offsets do not rise from 0 to T (to S), or
/// formats differ. Source: Dao, "FlashAttention-2", algorithm 1; DeepSeek-V2 technical report, eq.
/// 17 and 18.
struct RaggedAttention {
  static constexpr KernelInfo kInfo{
      .name = "ragged_attention",
      .reference_names = {"trtllm_ragged_attention_deepseek"},
      .signature =
          "q[T,N,Dq]:bf16|f32|f16|e4m3 k[S,Nk,Dq]:bf16|f32|f16|e4m3 v[S,Nk,Dv]:bf16|f32|f16|e4m3 "
          "q_offsets[B1]:i32 kv_offsets[B1]:i32 sinks?[N]:f32 -> o[T,N,Dv]:bf16|f32|f16 "
          "lse?[T,N]:f32",
      .limits = "B1>=1, N%Nk==0",
      .equation = "o = softmax(scale q k^T + mask) v",
      .source = "FlashAttention-2, alg. 1; DeepSeek-V2 report, eq. 17-18",
      .flops = "~2 N (Dq + Dv) for each pair of a query and a key that it sees",
  };

  /// Keys that are merged at a time, counted from the request's first key.
  static constexpr int64_t kKeyBlock = 64;

  struct Args {
    View q, k, v, q_offsets, kv_offsets, o, lse;
    float scale = 1.0f;
    CausalMask mask = CausalMask::kCausal;
    View sinks = {};
    float o_scale = 1.0f;
    int64_t window_left = -1;  ///< -1: none
    LseBase lse_base = LseBase::kE;
  };

  static constexpr auto operands(const Args& a) {
    return std::array{&a.q, &a.k, &a.v, &a.q_offsets, &a.kv_offsets, &a.sinks, &a.o, &a.lse};
  }

  /// Visible pairs only. A dry run, whose offsets hold no data, assumes requests of equal length.
  static Cost cost(const Args& a);

  static int64_t workspace(const Args& a, int num_threads);

  static Status check(const Args& a);
};

extern const VariantTable<RaggedAttention> ragged_attention_cpu;
extern const VariantTable<RaggedAttention> ragged_attention_cuda;

}  // namespace fathom
