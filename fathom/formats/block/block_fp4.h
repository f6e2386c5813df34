// FP4 with block scales: NVFP4 (16 values share an E4M3 scale, the tensor a float32 one) and MXFP4
// (32 values share a power of two). These loops are the definition that every faster path is tested
// against.
//
//   NVFP4 row, K = 64:       values: K/2 bytes, two E2M1 per byte, even k in the low nibble
//     byte   0 .......... 7 | 8 ......... 15 | 16 ........ 23 | 24 ........ 31
//     block  [   16 x E2M1 ] [   16 x E2M1  ] [   16 x E2M1  ] [   16 x E2M1  ]
//     scale  s0 (E4M3)        s1               s2               s3         x  global (f32)
//
//   MXFP4 row, K = 64:
//     block  [          32 x E2M1           ] [           32 x E2M1           ]
//     scale  s0 (UE8M0)                       s1
//
// Scales are row-major [N, K/16] or [N, K/32]; scale_layout.h brings them into the order of an MMA.
// NVFP4 has two recipes that decode alike and do not encode alike: the one of weights divides,
// gives a zero block scale 1 and keeps tiny blocks alive; the one of activations multiplies by
// reciprocals and lets a tiny block become zero.
//
// Sources: NVIDIA/Model-Optimizer (nvfp4_tensor.py), flashinfer (quantization_utils.cuh), OCP
// Microscaling Formats 1.0, deepseek-ai/DeepGEMM (utils/math.py).
#pragma once

#include <cstdint>
#include <span>

#include "fathom/base/status.h"
#include "fathom/formats/format.h"
#include "fathom/formats/minifloat.h"

namespace fathom {

/// Codes of four bits, two in a byte, with scales along each row.
FATHOM_HD constexpr bool is_fp4(Format format) {
  return format == Format::kNvfp4 || format == Format::kMxfp4;
}

inline constexpr int64_t kNvfp4Block = 16;
inline constexpr int64_t kMxfp4Block = 32;

/// What NVFP4 weights are divided by as E4M3: the largest, 6 * 448, becomes 336.
inline constexpr float kNvfp4PerE4m3 = 8.0f;

/// The E4M3 weight that products on FP8 tensor cores take for an NVFP4 weight `value` = code *
/// block scale (exact in float, without the global scale):
///
///   e4m3( value / 8 ), rounded to nearest even
///
/// Codes 0.5, 1, 2 and 4 times a normal scale stay exact. 1.5, 3 and 6 need six significant bits
/// where E4M3 has four, so five of eight scales make them 2 to 5 % too large or too small; over all
/// weights 2 %, root mean square. Below 2^-3 the subnormals of E4M3 take more, and what is at most
/// 2^-7 becomes zero.
FATHOM_HD constexpr E4m3 nvfp4_as_e4m3(float value) {
  return e4m3_from_float(value * (1.0f / kNvfp4PerE4m3));
}

/// Two codes in a byte, the one of the even k in the low nibble.
FATHOM_HD constexpr uint8_t pack_e2m1(E2m1 even, E2m1 odd) {
  return static_cast<uint8_t>((even.bits & 15u) | (odd.bits & 15u) << 4);
}

/// Code k of a packed row.
FATHOM_HD constexpr E2m1 unpack_e2m1(const uint8_t* packed, int64_t k) {
  const uint32_t byte = packed[k / 2];
  return E2m1{static_cast<uint8_t>(k % 2 == 0 ? byte & 15u : byte >> 4)};
}

/// The global scale of a weight whose largest magnitude is amax: amax / (6 * 448), not below the
/// smallest normal float. A tensor of zeros gets 1, so that a global scale is never zero.
float nvfp4_global_scale(float amax);

/// Quantises weights [n, k], row-major, as ModelOpt writes them:
///
///   raw  = amax_block / (6 * global), 1 if that is 0
///   SF   = e4m3(clamp(raw, 2^-9, 448))
///   code = e2m1(w / (SF * global)), no sign on zero
///
/// packed: [n, k/2]; scales: [n, k/16]. `global` may come from a calibration or from the maximum
/// over fused matrices; a block above 6*448*global saturates. InvalidArgument if k is no multiple
/// of 16 or global is not a positive finite number; Numerical if a weight is not finite (the
/// message names row and column); the outputs are then unspecified.
Status nvfp4_quantize_weights(
    const float* weights, int64_t n, int64_t k, float global, uint8_t* packed, E4m3* scales);

/// Quantises activations [m, k], row-major, with the static scale of the checkpoint:
///
///   SF   = e4m3(gs * (amax_block * (1/6)))
///   f    = SF == 0 ? 0 : 1 / (SF * (1/gs))
///   code = e2m1(x * f)
///
/// gs = 1 / input_scale, positive; k a multiple of 16. Reciprocals are correctly rounded; a kernel
/// that uses approximate ones may differ by one code at ties. NaN does not enter amax and becomes
/// code 7, infinity becomes SF 448 and code 7. Dequantise with global = input_scale.
void nvfp4_quantize_activations(
    const float* x, int64_t m, int64_t k, float gs, uint8_t* packed, E4m3* scales);

/// out[i, j] = code * (SF * global), the product of the scales formed first. k a multiple of 16.
void nvfp4_dequantize(
    const uint8_t* packed, const E4m3* scales, float global, int64_t n, int64_t k, float* out);

/// How MXFP4 chooses the exponent e of a block: OCP takes floor(log2 amax) - 2 and may clip up to
/// 4/3 of the range; the other rule, of NVIDIA and DeepGEMM, takes ceil(log2(amax / 6)) and never
/// clips. They differ when the mantissa of amax exceeds 1.5.
enum class Mxfp4Rule { kOcpFloor, kCeil };

/// The scale 2^e of a block, within bytes 1 .. 254 (a zero block has byte 1).
Ue8m0 mxfp4_scale(float amax, Mxfp4Rule rule);

/// code = e2m1(x / 2^e). packed: [n, k/2]; scales: [n, k/32]; k a multiple of 32. NaN does not
/// enter amax and becomes code 7.
void mxfp4_quantize(
    const float* x, int64_t n, int64_t k, Mxfp4Rule rule, uint8_t* packed, Ue8m0* scales);

/// out[i, j] = code * 2^e. Exact. k a multiple of 32.
void mxfp4_dequantize(const uint8_t* packed, const Ue8m0* scales, int64_t n, int64_t k, float* out);

}  // namespace fathom
