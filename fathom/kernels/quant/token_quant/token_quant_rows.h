// The AVX-512 loop of this group: rows [begin, end) of a call whose operands have been checked.
#pragma once

#include "fathom/kernels/quant/token_quant/token_quant.h"

namespace fathom {

/// The scale of a row with this largest magnitude. Out of line: every variant calls the same code.
float token_scale(float amax);

namespace avx512 {

void token_quant_rows(const TokenQuantFp8::Args& a, int64_t begin, int64_t end);

}  // namespace avx512
}  // namespace fathom
