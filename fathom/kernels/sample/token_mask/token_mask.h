// Which tokens may come next, as bits: what a grammar says of a row of logits.
#pragma once

#include <array>

#include "fathom/kernels/core/kernel_set/variants.h"

namespace fathom {

/// Logits of tokens that may not come become -inf, in place; the others are not touched.
///
///   m = mask_of_row[t]
///   logits[t,v] = -inf   if m >= 0 and bit v % 32 of mask[m, v / 32] is 0
///
/// mask: M masks of W words, W >= ceil(V / 32); bits from V on are not looked at. mask_of_row: -1
/// for a row that has none; rows may share a mask. A mask without a bit leaves nothing but -inf,
/// which argmax and sample_from_logits report. Deterministic, rows are independent. Errors:
/// InvalidArgument if the masks have too few words, or a row names a mask that is not there.
/// Source: the bit masks of XGrammar, arXiv 2411.15100, section 3.
struct ApplyTokenMask {
  static constexpr KernelInfo kInfo{
      .name = "apply_token_mask",
      .signature = "logits[T,V]:f32 mask[M,W]:i32 mask_of_row[T]:i32 -> logits",
      .equation = "z = bit v of mask[mask_of_row[t]] ? z : -inf",
      .source = "arXiv 2411.15100, section 3",
      .flops = "0",
  };

  struct Args {
    View logits, mask, mask_of_row;
  };

  static constexpr auto operands(const Args& a) {
    return std::array{&a.logits, &a.mask, &a.mask_of_row};
  }

  static Cost cost(const Args&) { return {}; }

  /// The masks, and as if every row that has one were written whole.
  static void bytes(const Args& a, Cost& cost);

  static Status check(const Args& a);
};

extern const VariantTable<ApplyTokenMask> apply_token_mask_cpu;
extern const VariantTable<ApplyTokenMask> apply_token_mask_cuda;

}  // namespace fathom
