// What the variants of this group share: the scale of a group, how it is stored, and the loop over
// rows with AVX-512. All out of line, so that files compiled for different instruction sets call
// the same code.
#pragma once

#include "fathom/kernels/quant/group_quant/group_quant.h"

namespace fathom {

/// Limits of the codes: those given, or those of the format of q.
struct GroupLimits {
  float min;
  float max;
};

GroupLimits group_limits(const GroupQuantArgs& a);

/// Computes the scales of groups g .. g+count-1 of token t of expert e from their largest
/// magnitudes, stores them in the layout of the call, and replaces the magnitudes by the numbers
/// that values are divided by (kDivide) or multiplied with (kMultiply).
void scale_groups(const GroupQuantArgs& a,
                  const GroupLimits& limits,
                  int64_t e,
                  int64_t t,
                  int64_t g,
                  int64_t count,
                  float* amax);

/// Rows of expert e that count.
int64_t rows_of_expert(const GroupQuantArgs& a, int64_t e);

namespace avx512 {

/// Rows [begin, end), counted through all experts, of a call whose operands have been checked.
void group_quant_rows(const GroupQuantArgs& a, int64_t begin, int64_t end);

}  // namespace avx512
}  // namespace fathom
