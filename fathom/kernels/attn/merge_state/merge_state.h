// Merging two partial attention results.
#pragma once

#include <array>

#include "fathom/kernels/attn/lse_base.h"
#include "fathom/kernels/core/kernel_set/variants.h"

namespace fathom {

/// Combines attention over two disjoint sets of keys into attention over their union.
///
///   M = max(la, lb);  wa = b^(la-M);  wb = b^(lb-M);   o = (wa oa + wb ob) / (wa + wb);
///   l = M + log_b(wa + wb)
///
/// An infinite l of either sign means "no keys": weight 0, and its o is not read, so it may hold
/// anything. Both infinite: o = 0 and l = -inf. (merge_state, of base 2, has no rule for +inf and
/// gives NaN where both sides are empty.) A NaN l makes its row NaN. The result may be in place on
/// side a. Token and head strides are free; formats of the three o may differ.
/// float32 inside, one rounding. Deterministic; rows are independent.
/// Source: Milakov and Gimelshein, "Online normalizer calculation for softmax"; SGLang's
/// merge_state_v2 (rule for infinities) and FlashInfer's merge_state (base 2).
struct MergeState {
  static constexpr KernelInfo kInfo{
      .name = "merge_state",
      .reference_names = {"merge_state", "merge_state_v2"},
      .signature =
          "o_a[T,N,D]:bf16|f32|f16 lse_a[T,N]:f32 o_b[T,N,D]:bf16|f32|f16 lse_b[T,N]:f32 -> "
          "o[T,N,D]:bf16|f32|f16 lse[T,N]:f32",
      .equation = "o = (b^la oa + b^lb ob) / (b^la + b^lb); l = log_b(b^la + b^lb)",
      .source = "Milakov and Gimelshein 2018; SGLang, FlashInfer",
      .flops = "5*T*N*D",
  };

  struct Args {
    View o_a, lse_a, o_b, lse_b, o, lse;
    LseBase base = LseBase::kE;
  };

  static constexpr auto operands(const Args& a) {
    return std::array{&a.o_a, &a.lse_a, &a.o_b, &a.lse_b, &a.o, &a.lse};
  }

  static Cost cost(const Args& a) { return {.flops = 5.0 * static_cast<double>(a.o.numel())}; }
};

extern const VariantTable<MergeState> merge_state_cpu;
extern const VariantTable<MergeState> merge_state_cuda;

}  // namespace fathom
