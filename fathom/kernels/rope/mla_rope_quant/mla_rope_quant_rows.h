// The AVX-512 loops of this group: tokens [begin, end) of a call whose operands have been checked.
#pragma once

#include "fathom/kernels/rope/mla_rope_quant/mla_rope_quant.h"

namespace fathom::avx512 {

void mla_rope_quant_rows(const MlaRopeQuantFp8::Args& a, int64_t begin, int64_t end);
void mla_rope_write_rows(const MlaRopeWrite::Args& a, int64_t begin, int64_t end);

}  // namespace fathom::avx512
