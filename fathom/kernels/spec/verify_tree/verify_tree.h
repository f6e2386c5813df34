// Verification of drafted token trees: which drafted tokens the target model takes, and the one
// that follows them.
//
// Both kernels walk each tree from node 0, the last verified token. The children of a node are
// next_token[node], then next_sibling of each, until -1 (spec/draft_tree makes these lists). The
// first child that is accepted becomes the current node; at most S - 1 are accepted, S the width of
// accept_index.
//
//   last              = retrieve_index[b, current node], a flat index into predicts
//   accept_index[b,n] = retrieve_index of the n-th accepted node, n = 0 the root
//   accept_token_num  = number of accepted nodes, the root not counted
//   predicts[last]    = the token accepted behind it, and for the final `last` the bonus token
//
// predicts and accept_index keep their other entries. next_token, next_sibling: -1 or a node;
// retrieve_index: 0 .. B*D - 1, all distinct. A sibling list that does not end is left after D
// nodes.
#pragma once

#include <array>

#include "fathom/kernels/core/kernel_set/variants.h"

namespace fathom {

/// Accepts what greedy decoding would have produced, so the output equals plain greedy decoding.
///
///   child accepted = (candidates[b,child] == target_predict[last]);  bonus = target_predict[last]
///
/// candidates [B,D]: the token of each node; target_predict: the argmax of the target at each node,
/// contiguous, read at flat indices. Integers alone. Errors: InvalidArgument for an index out of
/// range, naming it, or a target_predict that is not contiguous.
/// Source: Miao et al., SpecInfer, arXiv 2305.09781; reference name verify_tree_greedy
/// (retrive_index = retrieve_index, retrive_next_* = next_*).
struct TreeVerifyGreedy {
  static constexpr KernelInfo kInfo{
      .name = "tree_verify_greedy",
      .reference_names = {"verify_tree_greedy"},
      .signature =
          "candidates[B,D]:i64 retrieve_index[B,D]:i64 next_token[B,D]:i64 "
          "next_sibling[B,D]:i64 target_predict[B,D]:i64 predicts[N]:i32 accept_index[B,S]:i32 -> "
          "predicts[N]:i32 accept_index[B,S]:i32 accept_token_num[B]:i32",
      .limits = "N==B*D, D>=1, S>=1",
      .equation = "the longest path of nodes that equal the argmax at their parent",
      .source = "arXiv 2305.09781",
      .flops = "0",
      .outside = "for callers of the kernel library: the engine follows what its sampler drew",
  };

  struct Args {
    View candidates, retrieve_index, next_token, next_sibling, target_predict, predicts,
        accept_index, accept_token_num;
  };

  static constexpr auto operands(const Args& a) {
    return std::array{&a.candidates,     &a.retrieve_index, &a.next_token,   &a.next_sibling,
                      &a.target_predict, &a.predicts,       &a.accept_index, &a.accept_token_num};
  }

  static Cost cost(const Args&) { return {}; }

  static Status check(const Args& a);
};

/// Accepts by chance, so that with both thresholds at 1 every emitted token has exactly the
/// probability that the target gives it. Draft probabilities are not needed for that: siblings
/// partition [0, 1) by their target probabilities.
///
///   pi = target_probs[b, current node];  coin = uniform[b, current node];  acc = 0
///   for each child with token x:
///     acc += pi[x]
///     accepted = pi[x] > 0 and (coin < acc / max(threshold_acc, 1e-9) or pi[x] >=
///     threshold_single) if not: delta[x] = pi[x]
///   at the last accepted node:
///     r[v] = max(pi[v] - delta[v], 0), or pi[v] if S - 1 nodes were accepted
///     bonus = first v with r[v] > 0 whose running sum exceeds uniform_final[b] * sum r; V - 1 if
///             none does
///
/// delta is draft_probs[b, current node], updated in place; without the operand it starts as zeros
/// (what callers of the reference pass) and is not kept. Siblings of one node have distinct tokens.
/// Lower thresholds accept more and bend the distribution. Random numbers are in [0, 1) and all
/// distinct draws; `uniform_final` is not one of `uniform`.
///
/// Sums in float64, in an order that depends on the row alone (what the reference calls
/// deterministic). NaN and negative probabilities count as 0. The reference accepts at coin <= acc
/// and so, for a coin of 0, tokens of probability 0; here neither happens, which changes no other
/// draw. Errors: InvalidArgument for an index or a token out of range, a random number outside
/// [0, 1) or a threshold outside [0, 1].
/// Source: Miao et al., SpecInfer, arXiv 2305.09781; reference name
/// tree_speculative_sampling_target_only (uniform = uniform_samples, uniform_final =
/// uniform_samples_for_final_sampling).
struct TreeVerifySample {
  static constexpr KernelInfo kInfo{
      .name = "tree_verify_sample",
      .reference_names = {"tree_speculative_sampling_target_only"},
      .signature =
          "candidates[B,D]:i64 retrieve_index[B,D]:i64 next_token[B,D]:i64 "
          "next_sibling[B,D]:i64 uniform[B,D]:f32 uniform_final[B]:f32 target_probs[B,D,V]:f32 "
          "draft_probs?[B,D,V]:f32 predicts[N]:i32 accept_index[B,S]:i32 -> "
          "draft_probs[B,D,V]:f32 predicts[N]:i32 accept_index[B,S]:i32 accept_token_num[B]:i32",
      .limits = "N==B*D, D>=1, S>=1, V>=1",
      .equation = "accept child x with probability pi[x] / (mass not yet rejected)",
      .source = "arXiv 2305.09781",
      .flops = "4*B*V",
      .outside = "for callers of the kernel library: the engine follows what its sampler drew",
  };

  struct Args {
    View candidates, retrieve_index, next_token, next_sibling, uniform, uniform_final, target_probs,
        draft_probs{}, predicts, accept_index, accept_token_num;
    float threshold_single = 1.0f;
    float threshold_acc = 1.0f;
  };

  static constexpr auto operands(const Args& a) {
    return std::array{&a.candidates, &a.retrieve_index, &a.next_token,      &a.next_sibling,
                      &a.uniform,    &a.uniform_final,  &a.target_probs,    &a.draft_probs,
                      &a.predicts,   &a.accept_index,   &a.accept_token_num};
  }

  static Cost cost(const Args& a) {
    return {.flops = 4.0 * static_cast<double>(a.target_probs.dim(0) * a.target_probs.dim(2))};
  }

  /// One row of target_probs and draft_probs a tree.
  static void bytes(const Args& a, Cost& cost);
  static Status check(const Args& a);
  /// The residual of a row, for each thread, and the bonus token of each tree.
  static int64_t workspace(const Args& a, int num_threads);
};

extern const VariantTable<TreeVerifyGreedy> tree_verify_greedy_cpu;
extern const VariantTable<TreeVerifySample> tree_verify_sample_cpu;

}  // namespace fathom
