// What the variants of this group share: the weights of a row, and the AVX-512 loop.
#pragma once

#include "fathom/kernels/attn/merge_state/merge_state.h"

namespace fathom {

/// Shares of the two sides in the result, which add up to 1, and the merged log-sum-exp.
struct MergedRow {
  float share_a;
  float share_b;
  float lse;
};

MergedRow merge_lse(float lse_a, float lse_b, LseBase base);

namespace avx512 {

/// Tokens [begin, end) of a call whose operands have been checked.
void merge_state_rows(const MergeState::Args& a, int64_t begin, int64_t end);

}  // namespace avx512
}  // namespace fathom
