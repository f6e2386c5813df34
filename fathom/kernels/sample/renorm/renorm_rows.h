// Softmax and filters of a row, for each instruction set.
#pragma once

#include <cstdint>

namespace fathom {

/// out[i] = exp((z[i] - max) / temperature), 0 where z[i] is NaN; returns their sum. max is finite,
/// temperature positive; out may be z.
using ExpRow = double (*)(const float* z, float max, float temperature, float* out, int64_t count);

/// row[i] *= factor.
using ScaleRow = void (*)(float* row, float factor, int64_t count);

/// y[i] = p[i] / mass where p[i] >= threshold, 0 elsewhere, NaN and negative values as 0. The
/// quotient has float64 precision and is rounded once, so that a kept set of one gives exactly 1. y
/// may be p.
using KeepAndScale =
    void (*)(const float* p, float* y, int64_t count, float threshold, double mass);

namespace avx512 {
double softmax_exp(const float* z, float max, float temperature, float* out, int64_t count);
void scale_row(float* row, float factor, int64_t count);
void keep_and_scale(const float* p, float* y, int64_t count, float threshold, double mass);
}  // namespace avx512

}  // namespace fathom
