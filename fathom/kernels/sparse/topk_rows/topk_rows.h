// The k best tokens of each query, for sparse attention: positions of the largest index scores, as
// they are, as cache slots, or as rows of a gathered tensor.
//
// In all kernels here: row b looks at the `lengths[b]` scores from column row_starts[b] on (column
// 0 without row_starts), and positions count from there. A row with lengths[b] <= K takes all of
// them: 0, 1, .., length - 1, then -1 up to K. Otherwise exactly the K largest scores, none twice,
// in ascending order of position; of scores equal to the smallest that is taken, the first ones.
// (The references leave order and ties open, and may lose entries of rows with many near ties.)
//
// Scores compare by IEEE 754 totalOrder, which is the order of their bits as sign and magnitude:
// -NaN < -inf < .. < -0 < +0 < .. < +inf < +NaN. Any bits give K different valid positions; -inf
// (masked) is taken only where nothing else is left.
//
// No arithmetic, so every variant writes the same bits. Rows are independent. Errors:
// InvalidArgument for a length or a start that leaves the row.
#pragma once

#include <array>

#include "fathom/kernels/core/kernel_set/variants.h"

namespace fathom {

/// Positions of the K largest scores of each row.
///
///   ids[b] = positions of the K largest of scores[b, row_starts[b] .. + lengths[b]), ascending
///
/// scores rows may be strided. Reference name fast_topk_v2, which takes K = 2048 alone.
/// Source: DeepSeek-V3.2, token selection of the indexer.
struct TopkRows {
  static constexpr KernelInfo kInfo{
      .name = "topk_rows",
      .reference_names = {"fast_topk_v2"},
      .signature = "scores[B,L]:f32 lengths[B]:i32 row_starts?[B]:i32 -> ids[B,K]:i32",
      .limits = "K>=1",
      .equation = "ids = positions of the K largest scores",
      .source = "DeepSeek-V3.2, indexer",
      .flops = "0",
  };

  struct Args {
    View scores, lengths, row_starts{}, ids;
  };

  static constexpr auto operands(const Args& a) {
    return std::array{&a.scores, &a.lengths, &a.row_starts, &a.ids};
  }

  static Cost cost(const Args&) { return {}; }

  /// Of the scores, those that are looked at.
  static void bytes(const Args& a, Cost& cost);
  static Status check(const Args& a);
  /// Candidates of a row, for each thread.
  static int64_t workspace(const Args& a, int num_threads);
};

/// Cache slots of the K best tokens of each query: topk_rows, then a look-up.
///
///   slots[b,j] = page_table[r, ids[b,j]], -1 where ids[b,j] = -1
///   r = b                                                   if R = B and row_starts is absent
///   r with cu_seqlens_q[r] <= b < cu_seqlens_q[r+1]         otherwise
///
/// page_table: the slot of each token of a request (pages of one token), rows may be strided.
/// Errors: also InvalidArgument for a length beyond the table, for cu_seqlens_q that descend or do
/// not begin at 0 (they are read in the second case only), and for a row of no request whose length
/// is not 0. Reference name fast_topk_transform_fused.
struct TopkRowsPaged {
  static constexpr KernelInfo kInfo{
      .name = "topk_rows_paged",
      .reference_names = {"fast_topk_transform_fused"},
      .signature =
          "scores[B,L]:f32 lengths[B]:i32 page_table[R,P]:i32 cu_seqlens_q[R1]:i32 "
          "row_starts?[B]:i32 -> slots[B,K]:i32",
      .limits = "K>=1, R1==R+1",
      .equation = "slots = page_table[positions of the K largest scores]",
      .source = "DeepSeek-V3.2, indexer",
      .flops = "0",
      .outside = "the same as slots of a paged cache (DeepSeek-V3.2)",
  };

  struct Args {
    View scores, lengths, page_table, cu_seqlens_q, row_starts{}, slots;
  };

  static constexpr auto operands(const Args& a) {
    return std::array{&a.scores,       &a.lengths,    &a.page_table,
                      &a.cu_seqlens_q, &a.row_starts, &a.slots};
  }

  static Cost cost(const Args&) { return {}; }

  /// Of the scores, those that are looked at; of the table, K entries a row.
  static void bytes(const Args& a, Cost& cost);
  static Status check(const Args& a);
  static int64_t workspace(const Args& a, int num_threads);
};

/// Rows of a gathered key tensor of the K best tokens of each query: topk_rows, then an offset.
///
///   ids[b,j] = position + offsets[b], -1 where there is none
///
/// Reference name fast_topk_transform_ragged_fused (topk_indices_offset = offsets), which refuses
/// absent row_starts where a row is longer than K.
struct TopkRowsRagged {
  static constexpr KernelInfo kInfo{
      .name = "topk_rows_ragged",
      .reference_names = {"fast_topk_transform_ragged_fused"},
      .signature =
          "scores[B,L]:f32 lengths[B]:i32 offsets[B]:i32 row_starts?[B]:i32 -> ids[B,K]:i32",
      .limits = "K>=1",
      .equation = "ids = positions of the K largest scores + offset",
      .source = "DeepSeek-V3.2, indexer",
      .flops = "0",
      .outside = "the same in rows of several requests (DeepSeek-V3.2)",
  };

  struct Args {
    View scores, lengths, offsets, row_starts{}, ids;
  };

  static constexpr auto operands(const Args& a) {
    return std::array{&a.scores, &a.lengths, &a.offsets, &a.row_starts, &a.ids};
  }

  static Cost cost(const Args&) { return {}; }

  static void bytes(const Args& a, Cost& cost);
  static Status check(const Args& a);
  static int64_t workspace(const Args& a, int num_threads);
};

extern const VariantTable<TopkRows> topk_rows_cpu;
extern const VariantTable<TopkRows> topk_rows_cuda;
extern const VariantTable<TopkRowsPaged> topk_rows_paged_cpu;
extern const VariantTable<TopkRowsPaged> topk_rows_paged_cuda;
extern const VariantTable<TopkRowsRagged> topk_rows_ragged_cpu;
extern const VariantTable<TopkRowsRagged> topk_rows_ragged_cuda;

}  // namespace fathom
