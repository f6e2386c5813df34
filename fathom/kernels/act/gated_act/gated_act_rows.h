// The AVX-512 loops of this group: rows [begin, end) of a call whose operands have been checked.
#pragma once

#include "fathom/kernels/act/gated_act/gated_act.h"

namespace fathom::avx512 {

void silu_mul_rows(const SiluMul::Args& a, int64_t begin, int64_t end);
void gelu_mul_rows(const GeluMul::Args& a, int64_t begin, int64_t end);
void gelu_tanh_mul_rows(const GeluTanhMul::Args& a, int64_t begin, int64_t end);

}  // namespace fathom::avx512
