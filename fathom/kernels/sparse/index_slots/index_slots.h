// Where the rows that attention reads lie: how many rows of the cache a token sees, and the slots
// of those an indexer chose for it, of all it sees, and of its window.
#pragma once

#include <array>

#include "fathom/kernels/core/kernel_set/variants.h"

namespace fathom {

/// Rows of a cache group that a token sees, its own among them once it is complete.
///
///   rows[t] = floor((positions[t] + 1) / tokens_per_row)
///
/// tokens_per_row: 1 for DeepSeek-V3.2, 4 and 128 for the compressed rows of V4.
/// Errors: InvalidArgument for a position below 0 or tokens_per_row below 1.
/// Source: DeepSeek-V4, attention: a query sees the rows whose last token is not behind it.
struct VisibleRows {
  static constexpr KernelInfo kInfo{
      .name = "visible_rows",
      .signature = "positions[T]:i32 -> rows[T]:i32",
      .limits = "",
      .equation = "rows = floor((positions + 1) / tokens_per_row)",
      .source = "DeepSeek-V3.2 and V4, causal mask of the indexer",
      .flops = "0",
  };

  struct Args {
    View positions, rows;
    int64_t tokens_per_row = 1;
  };

  static constexpr auto operands(const Args& a) { return std::array{&a.positions, &a.rows}; }

  static Cost cost(const Args&) { return {}; }

  static Status check(const Args& a);
};

/// Slots of chosen rows in a paged cache.
///
///   slots[t,j] = block_table[b, ids[t,j] / S] * S + ids[t,j] % S,  -1 where ids[t,j] is -1
///
/// Request b owns tokens q_offsets[b] .. q_offsets[b+1]-1; tokens behind the last one belong to no
/// request and get -1. S = page_rows. ids may be strided in tokens; slots may be ids itself.
/// With tree_masks the tokens are of trees (tree_keys.h): id i is key i of the lengths[t] that
/// token t sees, which lies where the mask says. Errors: InvalidArgument for q_offsets that do not
/// begin at 0, descend or exceed T, an id outside
/// [-1, P*S), or in a tree outside [-1, lengths[t]), a mask of more rows than the token sees or of
/// rows behind P*S, masks without lengths or the reverse, and page_rows below 1. Source:
/// DeepSeek-V3.2, page_table of the token selection.
struct IndexSlots {
  static constexpr KernelInfo kInfo{
      .name = "index_slots",
      .signature =
          "ids[T,K]:i32 block_table[B,P]:i32 q_offsets[B1]:i32 lengths?[T]:i32 "
          "tree_masks?[T]:i64 -> slots[T,K]:i32",
      .limits = "B1==B+1",
      .equation = "slots = block_table[b, ids / S] * S + ids % S",
      .source = "DeepSeek-V3.2, token selection",
      .flops = "0",
  };

  struct Args {
    View ids, block_table, q_offsets, lengths{}, tree_masks{}, slots;
    int64_t page_rows = 1;
  };

  static constexpr auto operands(const Args& a) {
    return std::array{&a.ids, &a.block_table, &a.q_offsets, &a.lengths, &a.tree_masks, &a.slots};
  }

  static Cost cost(const Args&) { return {}; }

  /// An entry of the table for each id.
  static void bytes(const Args& a, Cost& cost);
  static Status check(const Args& a);
};

/// Slots of every row of a cache group that a token sees, first to last.
///
///   slots[t,j] = block_table[b, j / S] * S + j % S   for j < (positions[t] + 1) / tokens_per_row,
///                -1 otherwise (integer divisions)
///
/// What a query of V4's layers with ratio 128 attends to, where no indexer chooses. Request b owns
/// tokens q_offsets[b] .. q_offsets[b+1]-1; tokens behind the last one get -1. S = page_rows.
/// slots may be strided in tokens. With tree_masks the tokens are of trees (tree_keys.h), and entry
/// j is row j of those that token t sees, which lies where the mask of rows says.
/// Errors: InvalidArgument for q_offsets that do not begin at 0, descend or exceed T, a position
/// below 0, one whose rows exceed K or P*S, a mask of more rows than the token sees or of rows
/// behind P*S, and page_rows or tokens_per_row below 1.
/// Source: DeepSeek-V4, heavily compressed attention.
struct VisibleSlots {
  static constexpr KernelInfo kInfo{
      .name = "visible_slots",
      .signature =
          "positions[T]:i32 block_table[B,P]:i32 q_offsets[B1]:i32 tree_masks?[T]:i64 -> "
          "slots[T,K]:i32",
      .limits = "B1==B+1",
      .equation = "slots = block_table[b, j / S] * S + j % S, j < (position + 1) / tokens_per_row",
      .source = "DeepSeek-V4, heavily compressed attention",
      .flops = "0",
  };

  struct Args {
    View positions, block_table, q_offsets, tree_masks{}, slots;
    int64_t page_rows = 1;
    int64_t tokens_per_row = 1;
  };

  static constexpr auto operands(const Args& a) {
    return std::array{&a.positions, &a.block_table, &a.q_offsets, &a.tree_masks, &a.slots};
  }

  static Cost cost(const Args&) { return {}; }

  static Status check(const Args& a);
};

/// Slots of the last W tokens in rings that each hold the newest tokens of one request.
///
///   p          = positions[t] - (W - 1) + j
///   slots[t,j] = request_slots[b] * R + p mod R   for p >= 0, -1 otherwise
///
/// The window of V4's attention: the query's own token is the last entry. R = ring_rows >= W; the
/// rows above W keep the tokens of one step apart. Without request_slots they are slots of rows
/// that hold the tokens of this call alone, row t that of token t; ring_rows is not read then:
///
///   slots[t,j] = t - (W - 1) + j   where that is a token of the same request, -1 otherwise
///
/// Request b owns tokens q_offsets[b] .. q_offsets[b+1]-1; tokens behind the last one get -1. slots
/// may be strided in tokens. With tree_masks the tokens are of trees (tree_keys.h): p counts what
/// token t sees along its path, and the row of that token lies where the mask says, modulo R.
/// Errors: InvalidArgument for q_offsets that are not one more than request_slots, do not begin at
/// 0, descend or exceed T, a position or a request's slot below 0, ring_rows below W, masks without
/// request_slots, and a mask of more tokens than token t sees. Source: DeepSeek-V4, sliding-window
/// attention.
struct RingSlots {
  static constexpr KernelInfo kInfo{
      .name = "ring_slots",
      .signature =
          "positions[T]:i32 request_slots?[B]:i32 q_offsets[B1]:i32 tree_masks?[T]:i64 -> "
          "slots[T,W]:i32",
      .limits = "",
      .equation =
          "slots = request_slots[b] * R + p mod R, p = position - (W - 1) + j >= 0; "
          "without request_slots t - (W - 1) + j",
      .source = "DeepSeek-V4, sliding-window attention",
      .flops = "0",
  };

  struct Args {
    View positions, request_slots, q_offsets, tree_masks{}, slots;
    int64_t ring_rows = 1;
  };

  static constexpr auto operands(const Args& a) {
    return std::array{&a.positions, &a.request_slots, &a.q_offsets, &a.tree_masks, &a.slots};
  }

  static Cost cost(const Args&) { return {}; }

  static Status check(const Args& a);
};

extern const VariantTable<VisibleRows> visible_rows_cpu;
extern const VariantTable<VisibleRows> visible_rows_cuda;
extern const VariantTable<IndexSlots> index_slots_cpu;
extern const VariantTable<IndexSlots> index_slots_cuda;
extern const VariantTable<VisibleSlots> visible_slots_cpu;
extern const VariantTable<VisibleSlots> visible_slots_cuda;
extern const VariantTable<RingSlots> ring_slots_cpu;
extern const VariantTable<RingSlots> ring_slots_cuda;

}  // namespace fathom
