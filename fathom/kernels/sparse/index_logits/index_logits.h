// Scores of the lightning indexer: how much each query token wants each key of its context, for the
// top-k of sparse attention (topk_rows.h) to choose from. One key a token serves all H heads.
//
//   logits[t,j] = s_j * sum over h of w[t,h] * max(0, q[t,h] . k_j)     for keys j that t sees
//   logits[t,j] = -inf                                                  for all other columns
//
// Queries come from index_query, keys from index_key_write or a compressor. Formats of rows of D
// values, each operand its own: f32, bf16, e4m3 with D elements; u8 with D/2 bytes of two e2m1
// codes (even channel in the low nibble) and a ue8m0 scale for each 32 channels, which is part of
// the value. s_j is the scale of an e4m3 key, and 1 otherwise; that of an e4m3 query is in w. w may
// be negative, so a logit may be.
//
// A dot product is one float32 sum in ascending order of channels, a logit one of heads in
// ascending order, times s_j at the end. With float32 on both sides nothing is rounded but these
// sums. Where products run in bf16 (avx512, no f32 operand), two channels are added at a time, and
// numbers below 2^-126 count as zero. Where they run on FP8 tensor cores (wgmma: e4m3 or e2m1 on
// both sides), a dot product keeps 14 bits, and heads are added in eight partial sums; that is
// 1.3e-4 of a logit of normal values in e4m3, and nothing in e2m1 unless the scales of a row lie
// far apart: a group less than 2^-14 of the largest of its row counts as zero. On Blackwell
// (tcgen05) it keeps 25 bits in e4m3 and 35 in e2m1, with scales as they are, by MMA-Sim
// (arXiv 2511.10909; not measured here), and heads are added in four. NaN is not cut off by the
// maximum. A logit depends on its own query and key alone: not on other tokens, pages, the
// width of the logits or threads.
//
// Memory: the logits are 4 T L bytes, so 2,048 tokens of 128 Ki keys would take 1 GB. Who prefills
// long prompts bounds that in tiles of rows: cut q, w, lengths (or starts and ends) into rows of
// some hundred tokens, give each call the q_offsets of its tile and an L that is the largest of its
// lengths, and let topk_rows work on a tile before the next one overwrites it. The chosen ids are
// the same, since no logit depends on the tile.
#pragma once

#include <array>

#include "fathom/kernels/core/kernel_set/variants.h"

namespace fathom {

/// Scores over the pages of requests.
///
/// Request b owns tokens q_offsets[b] .. q_offsets[b+1]-1; tokens behind the last one belong to no
/// request (padding). Token t sees keys 0 .. lengths[t]-1 of its request, key j of which is
/// keys[ block_table[b, j/S] ][ j%S ]: lengths are position + 1 for a key a token (V3.2), and
/// floor((position + 1) / 4) for a key of four tokens (V4). keys and key_scales are fields of a
/// cache, strided in pages and rows; key_scales is [M,S,1] f32 for e4m3, [M,S,D/32] ue8m0 for u8.
/// Entries of block_table past the last page in use are not read; rows past the last key may be,
/// but decide nothing. q, w and logits may be strided in tokens, q also in heads. H, T and L may be
/// 0.
///
/// With tree_masks the tokens are of trees (tree_keys.h): token t sees lengths[t] keys, the last of
/// which are the rows of the tree that its mask names, and column i is of key i of those in their
/// order. So a row of logits is that of the token decoded alone, behind its own path.
///
/// Deterministic. Errors: InvalidArgument for q_offsets that do not begin at 0, descend or exceed
/// T, lengths outside [0, min(L, P*S)], a length of a token of no request that is not 0, a mask of
/// more rows than the token sees or of rows behind its pages, pages outside [0, M), widths of q and
/// keys that differ, and scales that are not those of a format.
/// Source: DeepSeek-V3.2 report, eq. 1; the contract of DeepGEMM, fp8_paged_mqa_logits.
struct IndexLogitsPaged {
  static constexpr KernelInfo kInfo{
      .name = "index_logits_paged",
      .signature =
          "q[T,H,C]:f32|bf16|e4m3|u8 q_scales?[T,H,G]:ue8m0 w[T,H]:f32 "
          "keys[M,S,E]:f32|bf16|e4m3|u8 key_scales?[M,S,F]:f32|ue8m0 block_table[B,P]:i32 "
          "q_offsets[B1]:i32 lengths[T]:i32 tree_masks?[T]:i64 -> logits[T,L]:f32",
      .limits = "B1==B+1, S>=1, C>=1, C<=1024",
      .equation = "logits = s_j sum_h w_h relu(q_h . k_j)",
      .source = "DeepSeek-V3.2 report, eq. 1; DeepGEMM",
      .flops = "~2 H D for each key that a token sees",
  };

  struct Args {
    View q, q_scales{}, w, keys, key_scales{}, block_table, q_offsets, lengths, tree_masks{},
        logits;
  };

  static constexpr auto operands(const Args& a) {
    return std::array{&a.q,           &a.q_scales,  &a.w,       &a.keys,       &a.key_scales,
                      &a.block_table, &a.q_offsets, &a.lengths, &a.tree_masks, &a.logits};
  }

  /// A dry run assumes that every token sees as many keys as a row of logits or of pages holds.
  static Cost cost(const Args& a);

  /// Of the keys, those that a request's tokens see, once.
  static void bytes(const Args& a, Cost& cost);
  static int64_t workspace(const Args& a, int num_threads);
  static Status check(const Args& a);
};

/// Scores over contiguous keys.
///
/// Token t sees keys starts[t] .. ends[t]-1 of keys[L,E]; a column of the logits is a row of keys,
/// so topk_rows takes starts as row_starts and ends - starts as lengths. An end not above its start
/// is an empty range. key_scales is [L,1] f32 for e4m3, [L,D/32] ue8m0 for u8.
/// Errors: InvalidArgument for a range that is not empty and leaves [0, L], and for widths and
/// scales as IndexLogitsPaged. Source: DeepGEMM, fp8_mqa_logits.
struct IndexLogitsRagged {
  static constexpr KernelInfo kInfo{
      .name = "index_logits_ragged",
      .signature =
          "q[T,H,C]:f32|bf16|e4m3|u8 q_scales?[T,H,G]:ue8m0 w[T,H]:f32 "
          "keys[L,E]:f32|bf16|e4m3|u8 key_scales?[L,F]:f32|ue8m0 starts[T]:i32 ends[T]:i32 -> "
          "logits[T,L]:f32",
      .limits = "C>=1, C<=1024",
      .equation = "logits = s_j sum_h w_h relu(q_h . k_j), starts <= j < ends",
      .source = "DeepSeek-V3.2 report, eq. 1; DeepGEMM",
      .flops = "~2 H D for each key that a token sees",
      .outside = "scores over keys of one tensor; the indexer's are in its cache",
  };

  struct Args {
    View q, q_scales{}, w, keys, key_scales{}, starts, ends, logits;
  };

  static constexpr auto operands(const Args& a) {
    return std::array{&a.q,          &a.q_scales, &a.w,    &a.keys,
                      &a.key_scales, &a.starts,   &a.ends, &a.logits};
  }

  static Cost cost(const Args& a);

  /// Of the keys, those from the first to the last that is seen.
  static void bytes(const Args& a, Cost& cost);
  static int64_t workspace(const Args& a, int num_threads);
  static Status check(const Args& a);
};

extern const VariantTable<IndexLogitsPaged> index_logits_paged_cpu;
extern const VariantTable<IndexLogitsPaged> index_logits_paged_cuda;
extern const VariantTable<IndexLogitsRagged> index_logits_ragged_cpu;
extern const VariantTable<IndexLogitsRagged> index_logits_ragged_cuda;

}  // namespace fathom
