#include "fathom/formats/block/block_fp4.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "fathom/formats/quant_input.h"

namespace fathom {
namespace {

constexpr float kSmallestE4m3 = 0x1p-9f;

E4m3 weight_block_scale(float amax, float global) {
  float raw = amax / (kE2m1Max * global);
  if (raw == 0.0f) raw = 1.0f;
  return e4m3_from_float(std::clamp(raw, kSmallestE4m3, kE4m3Max));
}

/// ModelOpt sets the sign bit for x < 0 only, so -0 becomes +0.
E2m1 weight_code(float quotient) {
  return quotient == 0.0f ? E2m1{0} : e2m1_from_float(quotient);
}

}  // namespace

float nvfp4_global_scale(float amax) {
  if (amax == 0.0f) return 1.0f;
  return std::max(amax / (kE2m1Max * kE4m3Max), std::numeric_limits<float>::min());
}

Status nvfp4_quantize_weights(
    const float* weights, int64_t n, int64_t k, float global, uint8_t* packed, E4m3* scales) {
  FATHOM_TRY(check_block_multiple(k, kNvfp4Block, "nvfp4"));
  if (!(global > 0.0f && std::isfinite(global))) {
    return invalid_argument(
        str_cat("nvfp4 global scale is ", global, ", expected a positive finite number"));
  }
  FATHOM_TRY(check_weights_finite(weights, n, k));
  for (int64_t block = 0; block < n * k / kNvfp4Block; ++block) {
    const float* w = weights + block * kNvfp4Block;
    uint8_t* out = packed + block * kNvfp4Block / 2;
    scales[block] = weight_block_scale(amax_of(w, kNvfp4Block), global);
    const float scale = to_float(scales[block]) * global;
    for (int64_t i = 0; i < kNvfp4Block; i += 2) {
      out[i / 2] = pack_e2m1(weight_code(w[i] / scale), weight_code(w[i + 1] / scale));
    }
  }
  return {};
}

void nvfp4_quantize_activations(
    const float* x, int64_t m, int64_t k, float gs, uint8_t* packed, E4m3* scales) {
  FATHOM_CHECK(k % kNvfp4Block == 0, str_cat("k = ", k));
  for (int64_t block = 0; block < m * k / kNvfp4Block; ++block) {
    const float* values = x + block * kNvfp4Block;
    uint8_t* out = packed + block * kNvfp4Block / 2;
    scales[block] = e4m3_from_float(gs * (amax_of(values, kNvfp4Block) * (1.0f / kE2m1Max)));
    const float scale = to_float(scales[block]);
    const float factor = scale == 0.0f ? 0.0f : 1.0f / (scale * (1.0f / gs));
    for (int64_t i = 0; i < kNvfp4Block; i += 2) {
      out[i / 2] =
          pack_e2m1(e2m1_from_float(values[i] * factor), e2m1_from_float(values[i + 1] * factor));
    }
  }
}

void nvfp4_dequantize(
    const uint8_t* packed, const E4m3* scales, float global, int64_t n, int64_t k, float* out) {
  FATHOM_CHECK(k % kNvfp4Block == 0, str_cat("k = ", k));
  for (int64_t i = 0; i < n * k; ++i) {
    const float scale = to_float(scales[i / kNvfp4Block]) * global;
    out[i] = to_float(unpack_e2m1(packed, i)) * scale;
  }
}

Ue8m0 mxfp4_scale(float amax, Mxfp4Rule rule) {
  if (rule == Mxfp4Rule::kCeil) return ue8m0_round_up(amax / kE2m1Max);
  // The exponent field is floor(log2 amax) + 127; that of a subnormal is 0 and ends at byte 1.
  const int exponent_field = static_cast<int>(float_bits(amax) >> 23 & 255u);
  return Ue8m0{static_cast<uint8_t>(std::clamp(exponent_field - 2, 1, 254))};
}

void mxfp4_quantize(
    const float* x, int64_t n, int64_t k, Mxfp4Rule rule, uint8_t* packed, Ue8m0* scales) {
  FATHOM_CHECK(k % kMxfp4Block == 0, str_cat("k = ", k));
  for (int64_t block = 0; block < n * k / kMxfp4Block; ++block) {
    const float* values = x + block * kMxfp4Block;
    uint8_t* out = packed + block * kMxfp4Block / 2;
    scales[block] = mxfp4_scale(amax_of(values, kMxfp4Block), rule);
    const float scale = to_float(scales[block]);
    for (int64_t i = 0; i < kMxfp4Block; i += 2) {
      out[i / 2] =
          pack_e2m1(e2m1_from_float(values[i] / scale), e2m1_from_float(values[i + 1] / scale));
    }
  }
}

void mxfp4_dequantize(
    const uint8_t* packed, const Ue8m0* scales, int64_t n, int64_t k, float* out) {
  FATHOM_CHECK(k % kMxfp4Block == 0, str_cat("k = ", k));
  for (int64_t i = 0; i < n * k; ++i) {
    out[i] = to_float(unpack_e2m1(packed, i)) * to_float(scales[i / kMxfp4Block]);
  }
}

}  // namespace fathom
