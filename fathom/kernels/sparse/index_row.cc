#include "fathom/kernels/sparse/index_row.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "fathom/formats/block/block_fp4.h"
#include "fathom/formats/block/block_fp8.h"
#include "fathom/kernels/core/elements.h"
#include "fathom/kernels/rope/rope/rope_loops.h"

namespace fathom {
namespace {

void round_values(Format rounding, float* x, int64_t count) {
  if (rounding != Format::kBf16) return;
  for (int64_t i = 0; i < count; ++i)
    x[i] = to_float(bf16_from_float(x[i]));
}

}  // namespace

void rotate_index_row(const IndexSteps& steps, const float* table_row, float* x) {
  const int64_t R = steps.rope_dim;
  float* rotated = steps.channels == RopeChannels::kFirst ? x : x + steps.width - R;
  rotate_head(rotated, rotated, table_row, R, steps.style);
  round_values(steps.rounding, rotated, R);
}

void transform_index_row(const IndexSteps& steps, float* x) {
  if (steps.transform == IndexTransform::kNone) return;
  const int64_t D = steps.width;
  for (int64_t stride = 1; stride < D; stride *= 2) {
    for (int64_t begin = 0; begin < D; begin += 2 * stride) {
      for (int64_t i = begin; i < begin + stride; ++i) {
        const float a = x[i];
        const float b = x[i + stride];
        x[i] = a + b;
        x[i + stride] = a - b;
      }
    }
  }
  const auto scale = static_cast<float>(1.0 / std::sqrt(static_cast<double>(D)));
  for (int64_t i = 0; i < D; ++i)
    x[i] *= scale;
  round_values(steps.rounding, x, D);
}

float store_index_row(const IndexSteps& steps, const float* x, const IndexRowOut& out) {
  const int64_t D = steps.width;
  float scale = 1.0f;
  switch (out.format) {
    case Format::kE4m3:
      fp8_quantize_groups(x, 1, D, D, kFp8V32DemoUe8m0, static_cast<E4m3*>(out.values), &scale);
      break;
    case Format::kU8:
      mxfp4_quantize(x, 1, D, Mxfp4Rule::kCeil, static_cast<uint8_t*>(out.values),
                     out.group_scales);
      break;
    case Format::kBf16:
      for (int64_t i = 0; i < D; ++i)
        static_cast<Bf16*>(out.values)[i] = bf16_from_float(x[i]);
      break;
    default:
      std::memcpy(out.values, x, static_cast<size_t>(D) * sizeof(float));
  }
  return scale;
}

}  // namespace fathom
