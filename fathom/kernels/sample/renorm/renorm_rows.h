// Softmax of a row, for each instruction set.
#pragma once

#include <cstdint>

namespace fathom {

/// out[i] = exp((z[i] - max) / temperature), 0 where z[i] is NaN; returns their sum. max is finite,
/// temperature positive; out may be z.
using ExpRow = double (*)(const float* z, float max, float temperature, float* out, int64_t count);

/// row[i] *= factor.
using ScaleRow = void (*)(float* row, float factor, int64_t count);

namespace avx512 {
double softmax_exp(const float* z, float max, float temperature, float* out, int64_t count);
void scale_row(float* row, float factor, int64_t count);
}  // namespace avx512

}  // namespace fathom
