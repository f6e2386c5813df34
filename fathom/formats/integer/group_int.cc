#include "fathom/formats/integer/group_int.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "fathom/base/checked_math.h"
#include "fathom/formats/quant_input.h"

namespace fathom {
namespace {

constexpr float kInt8AmaxFloor = 1e-10f;

int8_t round_half_away(float value) {
  return std::isnan(value) ? int8_t{0}
                           : static_cast<int8_t>(std::clamp(std::round(value), -127.0f, 127.0f));
}

int8_t truncate(float value) {
  return std::isnan(value) ? int8_t{0} : static_cast<int8_t>(std::clamp(value, -128.0f, 127.0f));
}

/// Half to even, in the default rounding mode.
float rne(float value) {
  return std::nearbyint(value);
}

/// int8 codes of one row, and its scale.
float quantize_row(const float* x, int64_t k, int8_t* codes) {
  const float absmax = std::max(amax_of(x, k), kInt8AmaxFloor);
  const float factor = 127.0f / absmax;
  for (int64_t j = 0; j < k; ++j)
    codes[j] = round_half_away(x[j] * factor);
  return absmax / 127.0f;
}

}  // namespace

void int8_quantize_rows(const float* x, int64_t m, int64_t k, int8_t* codes, float* scales) {
  for (int64_t i = 0; i < m; ++i)
    scales[i] = quantize_row(x + i * k, k, codes + i * k);
}

void int8_quantize_groups(
    const float* x, int64_t m, int64_t k, int64_t group, int8_t* codes, float* scales) {
  for (int64_t row = 0; row < m; ++row) {
    for (int64_t begin = 0; begin < k; begin += group) {
      const int64_t offset = row * k + begin;
      const int64_t count = std::min(group, k - begin);
      const float scale = std::max(amax_of(x + offset, count), kInt8AmaxFloor) / 127.0f;
      for (int64_t i = offset; i < offset + count; ++i)
        codes[i] = truncate(x[i] / scale);
      *scales++ = scale;
    }
  }
}

void int8_dequantize_groups(
    const int8_t* codes, const float* scales, int64_t m, int64_t k, int64_t group, float* out) {
  const int64_t groups = ceil_div(k, group);
  for (int64_t i = 0; i < m; ++i) {
    for (int64_t j = 0; j < k; ++j) {
      out[i * k + j] = static_cast<float>(codes[i * k + j]) * scales[i * groups + j / group];
    }
  }
}

void w4_fp8_kernel_scales(
    const float* scales, int64_t experts, int64_t n, int64_t groups, Bf16* kernel) {
  const int64_t pack = groups % 4 == 0 ? 4 : 1;  // groups that lie side by side
  for (int64_t e = 0; e < experts; ++e) {
    for (int64_t i = 0; i < n; ++i) {
      for (int64_t g = 0; g < groups; ++g) {
        const int64_t to = (e * groups + g / pack * pack) * n + i * pack + g % pack;
        kernel[to] = bf16_from_float(scales[(e * n + i) * groups + g]);
      }
    }
  }
}

Status w4_fp8_quantize(const float* weights, int64_t n, int64_t k, uint8_t* packed, float* scales) {
  FATHOM_TRY(check_block_multiple(k, kW4Group, "w4_fp8"));
  FATHOM_TRY(check_weights_finite(weights, n, k));
  for (int64_t group = 0; group < n * k / kW4Group; ++group) {
    const float* w = weights + group * kW4Group;
    uint8_t* out = packed + group * kW4Group / 2;
    const float unrounded =
        std::max(amax_of(w, kW4Group) / 7.0f, std::numeric_limits<float>::min());
    const float scale = to_float(bf16_from_float(unrounded));
    const auto code = [scale](float value) {
      return static_cast<int8_t>(std::clamp(rne(value / scale), -8.0f, 7.0f));
    };
    for (int64_t i = 0; i < kW4Group; i += 2)
      out[i / 2] = pack_int4(code(w[i]), code(w[i + 1]));
    scales[group] = scale;
  }
  return {};
}

void w4_fp8_dequantize(
    const uint8_t* packed, const float* scales, int64_t n, int64_t k, float* out) {
  FATHOM_CHECK(k % kW4Group == 0, str_cat("k = ", k));
  for (int64_t i = 0; i < n * k; ++i) {
    const float scale = to_float(bf16_from_float(scales[i / kW4Group]));
    out[i] = static_cast<float>(unpack_int4(packed, i)) * scale;
  }
}

}  // namespace fathom
