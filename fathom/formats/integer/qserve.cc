#include "fathom/formats/integer/qserve.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "fathom/formats/integer/group_int.h"
#include "fathom/formats/quant_input.h"

namespace fathom {
namespace {

constexpr float kSmallestF16 = 0x1p-24f;

/// Half to even, in the default rounding mode.
float rne(float value) {
  return std::nearbyint(value);
}

uint8_t code_within_4_bits(float value) {
  return static_cast<uint8_t>(std::clamp(value, 0.0f, 15.0f));
}

Status check_f16(F16 value, std::string_view what, int64_t row) {
  if (std::isfinite(to_float(value))) return {};
  return numerical_error(
      str_cat("qserve ", what, " of row ", row, " exceeds 65504, the largest f16"));
}

Status check_tiles(int64_t n, int64_t k) {
  if (n % 32 == 0 && k % 32 == 0) return {};
  return invalid_argument(
      str_cat("qserve packs tiles of 32 x 32 codes, got a matrix of ", n, " x ", k));
}

Status check_channels(int64_t n) {
  if (n % 32 == 0) return {};
  return invalid_argument(str_cat("qserve interleaves 32 channels of scales, got ", n));
}

}  // namespace

void qserve_quantize_activations(
    const float* x, int64_t m, int64_t k, int8_t* codes, F16* scales, F16* sums) {
  for (int64_t i = 0; i < m; ++i) {
    float scale = 0.0f;
    int8_quantize_rows(x + i * k, 1, k, codes + i * k, &scale);
    double sum = 0.0;
    for (int64_t j = 0; j < k; ++j)
      sum += static_cast<double>(x[i * k + j]);
    scales[i] = f16_from_float(scale);
    sums[i] = f16_from_float(static_cast<float>(sum));
  }
}

Status qserve_quantize_channels(
    const float* weights, int64_t n, int64_t k, uint8_t* codes, F16* scales, F16* szeros) {
  FATHOM_TRY(check_weights_finite(weights, n, k));
  for (int64_t i = 0; i < n; ++i) {
    const float* w = weights + i * k;
    const auto [lowest, highest] = std::minmax_element(w, w + k);
    const float min = k == 0 ? 0.0f : *lowest;
    const float max = k == 0 ? 0.0f : *highest;
    const float scale = std::max((max - min) / 15.0f, kSmallestF16);
    const float zero = -rne(min / scale);
    scales[i] = f16_from_float(scale);
    szeros[i] = f16_from_float(zero * to_float(scales[i]));
    FATHOM_TRY(check_f16(scales[i], "scale", i));
    FATHOM_TRY(check_f16(szeros[i], "zero point", i));
    for (int64_t j = 0; j < k; ++j) {
      codes[i * k + j] = code_within_4_bits(rne(w[j] / scale) + zero);
    }
  }
  return {};
}

void qserve_dequantize_channels(
    const uint8_t* codes, const F16* scales, const F16* szeros, int64_t n, int64_t k, float* out) {
  for (int64_t i = 0; i < n; ++i) {
    for (int64_t j = 0; j < k; ++j) {
      const float code = codes[i * k + j];
      out[i * k + j] = code * to_float(scales[i]) - to_float(szeros[i]);
    }
  }
}

QserveGroup qserve_quantize_group(const int8_t* values, int64_t count, uint8_t* codes) {
  const auto [lowest, highest] = std::minmax_element(values, values + count);
  const float min = *lowest;
  const float scale = std::max(rne((*highest - *lowest) / 15.0f), 1.0f);
  const float zero = -rne(min / scale);
  for (int64_t i = 0; i < count; ++i) {
    codes[i] = code_within_4_bits(rne(values[i] / scale) + zero);
  }
  return QserveGroup{.scale = static_cast<int8_t>(scale),
                     .stored_zero = static_cast<int8_t>(-zero * scale)};
}

Status qserve_quantize_groups(const float* weights,
                              int64_t n,
                              int64_t k,
                              uint8_t* codes,
                              F16* row_scales,
                              int8_t* group_scales,
                              int8_t* group_zeros) {
  FATHOM_TRY(check_block_multiple(k, kQserveGroup, "w4a8_group"));
  FATHOM_TRY(check_weights_finite(weights, n, k));
  std::vector<int8_t> values(static_cast<size_t>(k));
  for (int64_t i = 0; i < n; ++i) {
    const float scale = std::max(amax_of(weights + i * k, k) / 119.0f, kSmallestF16);
    row_scales[i] = f16_from_float(scale);
    FATHOM_TRY(check_f16(row_scales[i], "scale", i));
    for (int64_t j = 0; j < k; ++j) {
      const float value = std::clamp(rne(weights[i * k + j] / scale), -119.0f, 119.0f);
      values[static_cast<size_t>(j)] = static_cast<int8_t>(value);
    }
    for (int64_t j = 0; j < k; j += kQserveGroup) {
      const QserveGroup group =
          qserve_quantize_group(values.data() + j, kQserveGroup, codes + i * k + j);
      *group_scales++ = group.scale;
      *group_zeros++ = group.stored_zero;
    }
  }
  return {};
}

void qserve_dequantize_groups(const uint8_t* codes,
                              const F16* row_scales,
                              const int8_t* group_scales,
                              const int8_t* group_zeros,
                              int64_t n,
                              int64_t k,
                              float* out) {
  for (int64_t i = 0; i < n; ++i) {
    for (int64_t j = 0; j < k; ++j) {
      const int64_t at = i * (k / kQserveGroup) + j / kQserveGroup;
      const QserveGroup group{.scale = group_scales[at], .stored_zero = group_zeros[at]};
      const float value = qserve_group_value(codes[i * k + j], group);
      out[i * k + j] = value * to_float(row_scales[i]);
    }
  }
}

Status qserve_pack(const uint8_t* codes, int64_t n, int64_t k, uint8_t* packed) {
  FATHOM_TRY(check_tiles(n, k));
  for (int64_t i = 0; i < n; ++i) {
    if (i % 32 >= 16) continue;  // Rows i and i + 16 share bytes.
    for (int64_t j = 0; j < k; ++j) {
      const int low = codes[i * k + j] & 15;
      const int high = codes[(i + 16) * k + j] & 15;
      packed[qserve_packed_offset(i, j, k)] = static_cast<uint8_t>(low | high << 4);
    }
  }
  return {};
}

Status qserve_unpack(const uint8_t* packed, int64_t n, int64_t k, uint8_t* codes) {
  FATHOM_TRY(check_tiles(n, k));
  for (int64_t i = 0; i < n; ++i) {
    for (int64_t j = 0; j < k; ++j) {
      const int byte = packed[qserve_packed_offset(i, j, k)];
      codes[i * k + j] = static_cast<uint8_t>(i % 32 < 16 ? byte & 15 : byte >> 4);
    }
  }
  return {};
}

Status qserve_interleave(const int8_t* rows, int64_t n, int64_t groups, int8_t* kernel) {
  FATHOM_TRY(check_channels(n));
  for (int64_t i = 0; i < n; ++i) {
    for (int64_t g = 0; g < groups; ++g) {
      kernel[g * n + qserve_scale_position(i)] = rows[i * groups + g];
    }
  }
  return {};
}

Status qserve_deinterleave(const int8_t* kernel, int64_t n, int64_t groups, int8_t* rows) {
  FATHOM_TRY(check_channels(n));
  for (int64_t i = 0; i < n; ++i) {
    for (int64_t g = 0; g < groups; ++g) {
      rows[i * groups + g] = kernel[g * n + qserve_scale_position(i)];
    }
  }
  return {};
}

}  // namespace fathom
