// Symmetric integer formats: INT8 per token and per channel, INT8 in groups, and the int4 weights
// of W4AFP8. Each recipe rounds its own way; the differences are at single codes, and tests of
// kernels are exact. The asymmetric 4-bit formats are in qserve.h.
//
//   format         values       scale              rounding
//   int8_channel   int8 [N,K]   f32 per row        half away from zero
//   int8 groups    int8 [M,K]   f32 per 128 of K   toward zero
//   w4_fp8         int4 [N,K]   f32 per 128 of K   half to even
//
// Sources: sgl-project/sglang (int8_kernel.py, per_token_group_quant_8bit.cu, w4afp8.py).
#pragma once

#include <cstdint>

#include "fathom/base/status.h"
#include "fathom/formats/minifloat.h"

namespace fathom {

// ---- INT8 ----

/// Quantises rows of x [m, k] (tokens of activations, output channels of weights):
/// absmax = max(max |x|, 1e-10), scale = absmax / 127, code = round_half_away(x * (127 / absmax)).
/// codes: [m, k] within -127 .. 127; scales: [m]. NaN does not enter absmax and becomes 0; in a row
/// with an infinity the scale is infinite and all codes are 0.
void int8_quantize_rows(const float* x, int64_t m, int64_t k, int8_t* codes, float* scales);

/// Quantises groups of `group` values along K (the last one of a row may be shorter) as the grouped
/// kernel does: scale = max(amax, 1e-10) / 127, code = truncate(clamp(x / scale, -128, 127)).
/// codes: [m, k]; scales: [m, ceil(k/group)]. NaN becomes 0.
void int8_quantize_groups(
    const float* x, int64_t m, int64_t k, int64_t group, int8_t* codes, float* scales);

/// out[i, j] = code * scale[i, j/group]; group = k for one scale per row.
void int8_dequantize_groups(
    const int8_t* codes, const float* scales, int64_t m, int64_t k, int64_t group, float* out);

// ---- W4AFP8 ----

inline constexpr int64_t kW4Group = 128;

/// Two int4 codes (two's complement, -8 .. 7) in a byte, the one of the even k in the low nibble.
constexpr uint8_t pack_int4(int8_t even, int8_t odd) {
  return static_cast<uint8_t>((even & 15) | (odd & 15) << 4);
}

/// Code k of a packed row.
constexpr int8_t unpack_int4(const uint8_t* packed, int64_t k) {
  const int nibble = k % 2 == 0 ? packed[k / 2] & 15 : packed[k / 2] >> 4;
  return static_cast<int8_t>(nibble >= 8 ? nibble - 16 : nibble);
}

/// Groups of 128 along K: s = bf16(amax / 7), at least the smallest normal float, since kernels
/// read scales as bf16; code = clamp(rne(w / s), -8, 7). packed: [n, k/2]; scales: [n, k/128].
/// InvalidArgument if k is no multiple of 128; Numerical if a weight is not finite.
Status w4_fp8_quantize(const float* weights, int64_t n, int64_t k, uint8_t* packed, float* scales);

/// out[i, j] = code * bf16(scale): scales are stored in float32 and used in bf16.
void w4_fp8_dequantize(
    const uint8_t* packed, const float* scales, int64_t n, int64_t k, float* out);

/// Scales [experts, n, groups] to the layout of the grouped kernel, in bf16: [experts, groups/4,
/// n*4] with the scales of four consecutive groups adjacent, or, if groups % 4 != 0, [experts,
/// groups, n].
void w4_fp8_kernel_scales(
    const float* scales, int64_t experts, int64_t n, int64_t groups, Bf16* kernel);

}  // namespace fathom
