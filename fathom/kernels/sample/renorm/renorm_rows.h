// Softmax and filters of a row, for each instruction set; shared with sample/from_logits, whose
// rows have the bits of these kernels one after the other.
#pragma once

#include <cstdint>

#include "fathom/kernels/sample/argmax/argmax_rows.h"
#include "fathom/kernels/sample/thresholds.h"

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

double softmax_exp(const float* z, float max, float temperature, float* out, int64_t count);
void scale_row(float* row, float factor, int64_t count);
void keep_and_scale(const float* p, float* y, int64_t count, float threshold, double mass);

namespace avx512 {
double softmax_exp(const float* z, float max, float temperature, float* out, int64_t count);
void scale_row(float* row, float factor, int64_t count);
void keep_and_scale(const float* p, float* y, int64_t count, float threshold, double mass);
}  // namespace avx512

/// What the kernels of one instruction set do to a row.
struct RowKernels {
  RowPeak (*find_peak)(const float* row, int64_t count);
  ExpRow exp_row;
  ScaleRow scale_row;
  KeepAndScale keep_and_scale;
  ProbabilityScans scans;
};

inline constexpr RowKernels kPortableRows{find_peak, softmax_exp, scale_row, keep_and_scale,
                                          kPortableScans};
inline constexpr RowKernels kAvx512Rows{avx512::find_peak, avx512::softmax_exp, avx512::scale_row,
                                        avx512::keep_and_scale, kAvx512Scans};

/// True if a row with this peak is one-hot there: its limit at temperature 0, and what is drawn
/// from a row without a finite or with an infinite logit.
bool is_one_hot(const RowPeak& peak, float temperature);

/// A row of softmax_temperature. probs may be z.
void softmax_row(const RowKernels& kernels,
                 const float* z,
                 const RowPeak& peak,
                 float temperature,
                 float* probs,
                 int64_t count);

/// A row of renorm_top_k and of renorm_top_p. y may be p; room: threshold_room(count) floats.
void renorm_top_k_row(
    const RowKernels& kernels, const float* p, int64_t k, float* y, int64_t count, float* room);
void renorm_top_p_row(
    const RowKernels& kernels, const float* p, double top_p, float* y, int64_t count, float* room);

/// A token of sample_min_p.
int32_t draw_min_p_row(
    const ProbabilityScans& scans, const float* p, float min_p, double uniform, int64_t count);

}  // namespace fathom
