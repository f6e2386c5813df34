#include "fathom/formats/block/block_fp8.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "fathom/base/checked_math.h"
#include "fathom/formats/quant_input.h"

namespace fathom {
namespace {

using Options = Fp8QuantOptions;

float scale_value(float scale) {
  return scale;
}

float scale_value(Ue8m0 scale) {
  return to_float(scale);
}

template <class Scale>
void dequantize(const E4m3* codes,
                const Scale* scales,
                int64_t n,
                int64_t k,
                int64_t block_n,
                int64_t block_k,
                float* out) {
  const int64_t scales_per_row = ceil_div(k, block_k);
  for (int64_t i = 0; i < n; ++i) {
    for (int64_t j = 0; j < k; ++j) {
      const Scale scale = scales[i / block_n * scales_per_row + j / block_k];
      out[i * k + j] = to_float(codes[i * k + j]) * scale_value(scale);
    }
  }
}

/// The largest magnitude of rows [row, row_end) and columns [column, column_end).
float amax_of_block(
    const float* x, int64_t k, int64_t row, int64_t row_end, int64_t column, int64_t column_end) {
  float amax = 0.0f;
  for (int64_t i = row; i < row_end; ++i) {
    amax = std::max(amax, amax_of(x + i * k + column, column_end - column));
  }
  return amax;
}

}  // namespace

float fp8_scale(float amax, const Fp8QuantOptions& options) {
  amax = std::max(amax, options.amax_floor);
  float scale = 0.0f;
  switch (options.scale) {
    case Options::Scale::kDivide:
      scale = amax / kE4m3Max;
      break;
    case Options::Scale::kMultiply:
      scale = amax * (1.0f / kE4m3Max);
      break;
  }
  scale = std::max(scale, std::numeric_limits<float>::min());
  return options.rounding == Options::Rounding::kPowerOfTwoUp ? to_float(ue8m0_round_up(scale))
                                                              : scale;
}

E4m3 fp8_code(float x, float scale, float amax, const Fp8QuantOptions& options) {
  switch (options.quotient) {
    case Options::Quotient::kDivide:
      return e4m3_from_float(x / scale);  // saturates
    case Options::Quotient::kMultiplyInverse:
      return e4m3_from_float(x * (1.0f / scale));
    case Options::Quotient::kMultiplyMaxOverAmax:
      break;
  }
  if (options.rounding == Options::Rounding::kPowerOfTwoUp) {
    return e4m3_from_float(x * (1.0f / scale));
  }
  // The floor of the scale, seen from amax.
  constexpr float kSmallestAmax = kE4m3Max * std::numeric_limits<float>::min();
  amax = std::max({amax, options.amax_floor, kSmallestAmax});
  return e4m3_from_float(x * (kE4m3Max / amax));
}

void fp8_quantize_groups(const float* x,
                         int64_t m,
                         int64_t k,
                         int64_t group,
                         const Fp8QuantOptions& options,
                         E4m3* codes,
                         float* scales) {
  for (int64_t row = 0; row < m; ++row) {
    for (int64_t begin = 0; begin < k; begin += group) {
      const int64_t count = std::min(group, k - begin);
      const float* values = x + row * k + begin;
      E4m3* out = codes + row * k + begin;
      const float amax = amax_of(values, count);
      const float scale = fp8_scale(amax, options);
      for (int64_t i = 0; i < count; ++i)
        out[i] = fp8_code(values[i], scale, amax, options);
      *scales++ = scale;
    }
  }
}

void fp8_dequantize_groups(
    const E4m3* codes, const float* scales, int64_t m, int64_t k, int64_t group, float* out) {
  dequantize(codes, scales, m, k, 1, group, out);
}

void fp8_dequantize_groups(
    const E4m3* codes, const Ue8m0* scales, int64_t m, int64_t k, int64_t group, float* out) {
  dequantize(codes, scales, m, k, 1, group, out);
}

void mxfp8_quantize(const float* x, int64_t n, int64_t k, E4m3* codes, Ue8m0* scales) {
  constexpr Options kRule{.rounding = Options::Rounding::kPowerOfTwoUp};
  std::vector<float> powers(static_cast<size_t>(n * ceil_div(k, kMxfp8Block)));
  fp8_quantize_groups(x, n, k, kMxfp8Block, kRule, codes, powers.data());
  const Status exact = fp8_scales_to_ue8m0(powers, {scales, powers.size()});
  FATHOM_CHECK(exact.ok(), exact.message());
}

Status fp8_quantize_blocks(const float* weights,
                           int64_t n,
                           int64_t k,
                           Fp8QuantOptions::Rounding rounding,
                           E4m3* codes,
                           float* scales) {
  FATHOM_TRY(check_weights_finite(weights, n, k));
  const Options options{.rounding = rounding};
  for (int64_t row = 0; row < n; row += kFp8Block) {
    const int64_t row_end = std::min(row + kFp8Block, n);
    for (int64_t column = 0; column < k; column += kFp8Block) {
      const int64_t column_end = std::min(column + kFp8Block, k);
      const float scale =
          fp8_scale(amax_of_block(weights, k, row, row_end, column, column_end), options);
      for (int64_t i = row; i < row_end; ++i) {
        for (int64_t j = column; j < column_end; ++j) {
          codes[i * k + j] = e4m3_from_float(weights[i * k + j] / scale);
        }
      }
      *scales++ = scale;
    }
  }
  return {};
}

void fp8_dequantize_blocks(
    const E4m3* codes, const float* scales, int64_t n, int64_t k, float* out) {
  dequantize(codes, scales, n, k, kFp8Block, kFp8Block, out);
}

void fp8_dequantize_blocks(
    const E4m3* codes, const Ue8m0* scales, int64_t n, int64_t k, float* out) {
  dequantize(codes, scales, n, k, kFp8Block, kFp8Block, out);
}

Status fp8_scales_to_ue8m0(std::span<const float> scales, std::span<Ue8m0> out) {
  FATHOM_CHECK(scales.size() == out.size(), str_cat(scales.size(), " scales, ", out.size()));
  for (size_t i = 0; i < scales.size(); ++i) {
    if (!is_ue8m0(scales[i])) {
      return invalid_argument(
          str_cat("scale ", i, " is ", scales[i],
                  ", expected a power of two from 2^-126 to 2^127; quantise the "
                  "tensor anew with power-of-two scales"));
    }
    out[i] = ue8m0_round_up(scales[i]);
  }
  return {};
}

void fp8_quantize_static(std::span<const float> x, float scale, std::span<E4m3> codes) {
  FATHOM_CHECK(x.size() == codes.size(), str_cat(x.size(), " values, ", codes.size(), " codes"));
  for (size_t i = 0; i < x.size(); ++i)
    codes[i] = e4m3_from_float(x[i] / scale);
}

void fp8_dequantize_static(std::span<const E4m3> codes, float scale, std::span<float> out) {
  FATHOM_CHECK(codes.size() == out.size(), str_cat(codes.size(), " codes, ", out.size()));
  for (size_t i = 0; i < codes.size(); ++i)
    out[i] = to_float(codes[i]) * scale;
}

void fp8_requantize_static(std::span<E4m3> codes, float from, float to) {
  for (E4m3& code : codes)
    code = e4m3_from_float(to_float(code) * from / to);
}

float ds_mla_scale(float amax, DsMlaScale rule) {
  switch (rule) {
    case DsMlaScale::kAmax:
      return std::max(amax / kE4m3Max, std::numeric_limits<float>::min());
    case DsMlaScale::kPowerOfTwo:
      break;
  }
  return to_float(ue8m0_round_up(std::max(amax / kE4m3Max, 1e-4f)));
}

void ds_mla_pack_row(const float* latent, const Bf16* rope, DsMlaScale rule, uint8_t* row) {
  for (int64_t tile = 0; tile < kDsMlaTiles; ++tile) {
    const float* values = latent + tile * kDsMlaTile;
    const float scale = ds_mla_scale(amax_of(values, kDsMlaTile), rule);
    for (int64_t i = 0; i < kDsMlaTile; ++i) {
      row[tile * kDsMlaTile + i] = e4m3_from_float(values[i] / scale).bits;
    }
    std::memcpy(row + kDsMlaScaleOffset + 4 * tile, &scale, sizeof scale);
  }
  std::memcpy(row + kDsMlaRopeOffset, rope, 2 * kDsMlaRope);
}

void ds_mla_unpack_row(const uint8_t* row, float* latent, Bf16* rope) {
  for (int64_t tile = 0; tile < kDsMlaTiles; ++tile) {
    float scale = 0.0f;
    std::memcpy(&scale, row + kDsMlaScaleOffset + 4 * tile, sizeof scale);
    for (int64_t i = tile * kDsMlaTile; i < (tile + 1) * kDsMlaTile; ++i) {
      latent[i] = to_float(E4m3{row[i]}) * scale;
    }
  }
  std::memcpy(rope, row + kDsMlaRopeOffset, 2 * kDsMlaRope);
}

}  // namespace fathom
