// The AVX-512 loop of this group: rows [begin, end) of a call whose operands have been checked.
#pragma once

#include "fathom/kernels/quant/token_quant/token_quant.h"

namespace fathom {

/// The scale of a row with this largest magnitude. Out of line: every variant calls the same code.
float token_scale(float amax);

/// What makes int8 codes of a row: s = scale, code = round(x * factor).
struct Int8Row {
  float scale;
  float factor;
};

Int8Row int8_row(float amax);

/// Puts the scale of row t and, where the call wants it, the sum of its values in place.
void store_int8_row(const TokenQuantInt8::Args& a, int64_t t, float scale);

namespace avx512 {

void token_quant_rows(const TokenQuantFp8::Args& a, int64_t begin, int64_t end);
void token_quant_int8_rows(const TokenQuantInt8::Args& a, int64_t begin, int64_t end);
void tensor_quant_rows(const TensorQuantFp8::Args& a, int64_t begin, int64_t end);

}  // namespace avx512
}  // namespace fathom
