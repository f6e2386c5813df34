// The AVX-512 loops of this group: rows [begin, end) of a call whose operands have been checked.
#pragma once

#include "fathom/kernels/norm/rmsnorm/rmsnorm.h"

namespace fathom::avx512 {

void rmsnorm_rows(const RmsNorm::Args& a, int64_t begin, int64_t end);
void add_rmsnorm_rows(const AddRmsNorm::Args& a, int64_t begin, int64_t end);

}  // namespace fathom::avx512
