// Drafting of token trees: the best tokens of a draft step, the nodes behind which a tree goes on,
// and the arrays that describe a chosen tree to attention and to verification.
#pragma once

#include <array>

#include "fathom/kernels/core/kernel_set/variants.h"

namespace fathom {

/// The K largest values along one axis, with their places, largest first.
///
///   ids[a,0..K-1,c] = places of the K largest of x[a,:,c];   values[a,k,c] = x[a,ids[a,k,c],c]
///
/// A is everything before the axis, C everything behind it; [T,V] with V last is the view [T,V,1].
/// Of equal values the lower place comes first; -0 equals 0; NaN, of either sign, counts as largest
/// (the lowest place first). K = 1 is the maximum with its axis kept. values are the bits of x, in
/// its format. No arithmetic, so every variant writes the same bits. Rows are independent; a row's
/// result does not depend on how threads share it.
/// Errors: InvalidArgument if the formats of x and values differ.
/// Source: the definition of topk; reference name fast_topk.
struct DraftTopk {
  static constexpr KernelInfo kInfo{
      .name = "draft_topk",
      .reference_names = {"fast_topk"},
      .signature = "x[A,V,C]:f32|bf16|f16 -> values[A,K,C]:f32|bf16|f16 ids[A,K,C]:i64",
      .limits = "K>=1, K<=V, V<=2147483647",
      .equation = "values, ids = the K largest along V, descending",
      .source = "deepseek-v3 drafting: k best tokens of a step",
      .flops = "0",
      .outside = "for callers of the kernel library: levels of trees take top_logprobs",
  };

  struct Args {
    View x, values, ids;
  };

  static constexpr auto operands(const Args& a) { return std::array{&a.x, &a.values, &a.ids}; }

  static Cost cost(const Args&) { return {}; }

  static Status check(const Args& a);

  /// The best of each piece of a row.
  static int64_t workspace(const Args& a, int num_threads);
};

/// What a row of the tree mask covers.
enum class TreeMask : uint8_t {
  kFull,  ///< bool: request b has D rows of seq_lens[b] + D, requests back to back; of each row
          ///< the last D are written, the prefix is left as it is (the caller's true)
  kQueryOnly,  ///< bool: D rows of D a request
  kBits,  ///< u8: D rows of 1, 2 or 4 bytes a request (D <= 8, 16, 32); bit j % 8 of byte j / 8
};

/// Arrays of the token trees of a batch: who sees whom, at which position, who follows whom.
///
/// A tree has D = S + 1 nodes. Node 0 is the last verified token; node i >= 1 is the draft
/// candidate with flat index f = selected[b,i-1], where candidates are numbered by step: topk of
/// the first, then topk^2 a step, [parent slot, child].
///
///   q = f / topk;   parent(i) = 0 if q = 0, else the node j with selected[b,j-1] =
///   parent_list[b,q] depth(0) = 0;   depth(i) = depth(parent(i)) + 1 positions[b*D+i]     =
///   seq_lens[b] + depth(i) retrieve_index[b,i]  = b*D + i next_token[b,i]      = lowest child of
///   i, -1 without children next_sibling[b,i]    = next higher child of the same parent, -1 for the
///   last mask row i, column j = (j = 0 or j = i or j is an ancestor of i)
///
/// A node whose parent is not among the selected (log-probabilities of NaN lead there) gets no
/// link, so that verification never reaches it; its mask row and position are those of a child of
/// node 0. A chain of parents longer than D (malformed input) is cut there. Every output but the
/// prefix of kFull is written whole; the reference expects -1 in next_* and zeros in the bits
/// beforehand.
///
/// Shapes: parent_list [B, topk*(depth-1)+1], or [B, 0] for depth 1; selected ascending; seq_lens
/// [B] tokens before node 0. mask is flat and may be longer than needed.
/// Errors: InvalidArgument for a parent_list of another width, a candidate that parent_list does
/// not reach, a length that is negative or above 2^31-1, a mask of the wrong format or too short,
/// or kBits with D > 32. Source: Li et al., EAGLE-2, arXiv 2406.16858, section 4; reference name
/// build_tree_kernel_efficient (draft_token_num = D, tree_mask_mode 0, 1, 2 in the order of
/// TreeMask; verified_seq_len = seq_lens; retrive_* = retrieve_index, next_token, next_sibling).
struct DraftTreeBuild {
  static constexpr KernelInfo kInfo{
      .name = "draft_tree_build",
      .reference_names = {"build_tree_kernel_efficient"},
      .signature =
          "parent_list[B,P]:i64 selected[B,S]:i64 seq_lens[B]:i64 mask[M]:bool|u8 -> "
          "mask[M]:bool|u8 positions[N]:i64 retrieve_index[B,D]:i64 next_token[B,D]:i64 "
          "next_sibling[B,D]:i64",
      .limits = "D==S+1, N==B*D, D<=1024",
      .equation = "mask, positions and child lists of the tree of the selected candidates",
      .source = "arXiv 2406.16858, section 4",
      .flops = "0",
      .outside = "for callers of the kernel library: the engine builds its trees on the host",
  };

  struct Args {
    View parent_list, selected, seq_lens, mask, positions, retrieve_index, next_token, next_sibling;
    int64_t topk = 1;
    int64_t depth = 1;
    TreeMask mask_mode = TreeMask::kFull;
  };

  static constexpr auto operands(const Args& a) {
    return std::array{&a.parent_list, &a.selected,       &a.seq_lens,   &a.mask,
                      &a.positions,   &a.retrieve_index, &a.next_token, &a.next_sibling};
  }

  static Cost cost(const Args&) { return {}; }

  /// Of the mask, what is written.
  static void bytes(const Args& a, Cost& cost);
  static Status check(const Args& a);
  /// The parents of one tree, for each thread.
  static int64_t workspace(const Args& a, int num_threads);
};

/// The next level of token trees: of the guesses behind K nodes a tree the K most probable ones,
/// by the product of probabilities along their paths.
///
///   path(t,c) = paths[t] + logprobs[t,c], rounded to f32: guess c behind node t = b*K .. b*K + K-1
///   the K guesses of tree b with the largest path(t,c), of equal ones those with the smallest t,
///   c, in the order of t, c, become nodes b*K .. b*K + K-1 of the next level:
///   tokens = ids[t,c];   rows = t;   next_paths = path(t,c)
///   next_masks = masks[t] and the bit of the node's own row (attn/tree_keys.h)
///
/// Rows of a tree lie one behind the other, those of the new nodes behind the last row that masks
/// of the tree name. A guess without an id (-1), or whose path is NaN, is none. If there are fewer
/// than K, nodes that are worth nothing come behind them: token 0, behind the first node, with a
/// path of NaN, so that all behind them is worth nothing either. Every variant writes the same
/// bits. Errors: InvalidArgument for trees of more than 64 rows.
/// Source: EAGLE-2, arXiv 2406.16858, section 4.
struct DraftLevel {
  static constexpr KernelInfo kInfo{
      .name = "draft_level",
      .signature =
          "ids[T,K]:i32 logprobs[T,K]:f32 paths[T]:f32 masks[T]:i64 -> tokens[T]:i32 "
          "rows[T]:i32 next_paths[T]:f32 next_masks[T]:i64",
      .limits = "K>=1, K<=8, T%K==0",
      .equation = "of K*K guesses a tree the K with the largest paths + logprobs, in order",
      .source = "arXiv 2406.16858, section 4",
      .flops = "T*K",
  };

  struct Args {
    View ids, logprobs, paths, masks, tokens, rows, next_paths, next_masks;
  };

  static constexpr auto operands(const Args& a) {
    return std::array{&a.ids,    &a.logprobs, &a.paths,      &a.masks,
                      &a.tokens, &a.rows,     &a.next_paths, &a.next_masks};
  }

  static Cost cost(const Args& a) { return {.flops = static_cast<double>(a.ids.numel())}; }

  static Status check(const Args& a);
};

extern const VariantTable<DraftTopk> draft_topk_cpu;
extern const VariantTable<DraftLevel> draft_level_cpu;
extern const VariantTable<DraftLevel> draft_level_cuda;
extern const VariantTable<DraftTreeBuild> draft_tree_build_cpu;

}  // namespace fathom
