// The AVX-512 loops of this group: tokens [begin, end) of a call whose operands have been checked.
#pragma once

#include "fathom/kernels/rope/rope/rope.h"

namespace fathom::avx512 {

void rope_inplace_rows(const RopeInplace::Args& a, int64_t begin, int64_t end);
void rope_rows(const Rope::Args& a, int64_t begin, int64_t end);

}  // namespace fathom::avx512
