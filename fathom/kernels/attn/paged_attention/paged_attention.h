// Multi-head attention over a paged cache of keys and values, with heads of queries that may share
// a head of keys: every phase of models that cache what they project.
#pragma once

#include <array>

#include "fathom/kernels/core/kernel_set/variants.h"

namespace fathom {

/// Attention of each request's newest tokens over all of its tokens in the cache.
///
///   s_ij = scale * kv_scale * q_i . k_j,   j = 0 .. kv_lens[b] - Q_b + i
///   o_i  = kv_scale * sum_j e^{s_ij} v_j / sum_j e^{s_ij}
///
/// Request b owns query rows q_offsets[b] .. q_offsets[b+1]-1, Q_b of them; the last is its newest
/// token. kv_lens[b] counts its tokens, those of the call included, whose keys are in the cache
/// already. Key and value j of head m lie in k[ block_table[b, j/S] ][ j%S ][ m ] and the same
/// place of v, as codes that kv_scale turns into values; it must be 1 unless the cache is e4m3.
/// Head n of q meets head n / (N / Nk) of k and v. Entries of block_table past the last page in
/// use, and rows of the last page past kv_lens, do not count. A query that sees no key gets o = 0.
/// q and o have one format, k and v another. All may be strided, but not within a head; the pages
/// of k and v may be two parts of the same rows.
///
/// Scores, softmax and sums are float32. Where products run in bf16, a weight of the softmax enters
/// as the sum of two bf16 numbers, which keeps 16 bits of it. Keys are taken in blocks of 64 from
/// the request's first, merged in order (online softmax). So a row depends on its own query and
/// keys alone: a token has the same bits whether it is prefilled, in whatever pieces, decoded or
/// verified, whoever its neighbours are and however many threads run. (One exception: keys of its
/// own request that it does not see must be finite.) Deterministic.
/// Errors: InvalidArgument for offsets that do not rise from 0 to T, kv_lens outside [0, M*S],
/// pages outside [0, P), a kv_scale that is not finite and positive or goes with a format that has
/// none, formats that differ between q and o, or k and v. Source: Vaswani et al., "Attention Is All
/// You Need", 3.2; Ainslie et al., "GQA"; Dao, "FlashAttention-2", alg. 1; vLLM (paged keys).
struct PagedAttention {
  static constexpr KernelInfo kInfo{
      .name = "paged_attention",
      .signature =
          "q[T,N,D]:bf16|f32 k[P,S,Nk,D]:bf16|f32|e4m3 v[P,S,Nk,Dv]:bf16|f32|e4m3 "
          "q_offsets[B1]:i32 block_table[B,M]:i32 kv_lens[B]:i32 -> o[T,N,Dv]:bf16|f32",
      .limits = "B1==B+1, N%Nk==0, S>=1",
      .equation = "o = softmax(scale q k^T + mask) v",
      .source = "FlashAttention-2, alg. 1; GQA; vLLM",
      .flops = "~2 N (D + Dv) for each pair of a query and a key that it sees",
  };

  /// Keys that are merged at a time, counted from the request's first key.
  static constexpr int64_t kKeyBlock = 64;

  struct Args {
    View q, k, v, q_offsets, block_table, kv_lens, o;
    float scale = 1.0f;
    float kv_scale = 1.0f;
  };

  static constexpr auto operands(const Args& a) {
    return std::array{&a.q, &a.k, &a.v, &a.q_offsets, &a.block_table, &a.kv_lens, &a.o};
  }

  /// Visible pairs only. A dry run, whose lengths hold no data, assumes equally many queries a
  /// request, and that every page of the block table is full.
  static Cost cost(const Args& a);

  /// Of the cache, only the tokens of these requests count, once each.
  static void bytes(const Args& a, Cost& cost);

  static int64_t workspace(const Args& a, int num_threads);

  static Status check(const Args& a);
};

extern const VariantTable<PagedAttention> paged_attention_cpu;
extern const VariantTable<PagedAttention> paged_attention_cuda;

}  // namespace fathom
