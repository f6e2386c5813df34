// FP8 (E4M3) with scales: 128x128 blocks of weights, groups of 128 along K of activations, rows,
// whole tensors, blocks of 32 (MXFP8), and the latent cache row of sparse attention. A stored scale
// multiplies, also where a checkpoint calls it weight_scale_inv: value = code * scale.
//
//   fp8_block, [N, K] = [576, 7168]:           fp8_group, [M, K]:
//
//        k 0..127  128..255  ...                    k 0..127  128..255  ...
//     n  +--------+--------+                    m   +--------+--------+
//     0  | s[0,0] | s[0,1] |  ...               0   | s[0,0] | s[0,1] |  ...
//    127 |        |        |                        +--------+--------+
//        +--------+--------+                    1   | s[1,0] | s[1,1] |  ...
//    128 | s[1,0] | s[1,1] |  ...                   +--------+--------+
//        +--------+--------+
//    512 | s[4,0] |   ...      the last block row holds 64 rows: partial blocks count whole
//    575 +--------+
//
// Scales are float32, or UE8M0 bytes; the functions on float32 scales yield powers of two when
// asked to, and fp8_scales_to_ue8m0 then stores them in a byte each. No scale is ever below the
// smallest normal float, so a block of zeros has a scale and codes 0, never 0/0.
//
// MXFP8 is a group of 32 along K of a row with a scale in UE8M0; a weight is code * 2^e.
//
// Sources: deepseek-ai/DeepSeek-V3 and DeepSeek-V3.2-Exp (inference/kernel.py), sgl-project/sglang
// (fp8_kernel.py, per_token_group_quant_8bit.cu), deepseek-ai/DeepGEMM, deepseek-ai/FlashMLA, OCP
// Microscaling Formats 1.0, NVIDIA/Model-Optimizer (mxfp8_tensor.py).
#pragma once

#include <cstdint>
#include <span>

#include "fathom/base/status.h"
#include "fathom/formats/format.h"  // in front of kFp8Block, which would shadow the enumerator
#include "fathom/formats/minifloat.h"

namespace fathom {

inline constexpr int64_t kFp8Block = 128;
inline constexpr int64_t kMxfp8Block = 32;

/// Weights with a scale for 128 x 128, in either format of scales.
FATHOM_HD constexpr bool is_fp8_block(Format format) {
  return format == Format::kFp8Block || format == Format::kFp8BlockUe8m0;
}

/// How a dynamic quantiser turns the largest magnitude of a group into scale and codes:
///
///   amax  = max(max |x|, amax_floor)
///   scale = amax / 448 or amax * (1/448), then perhaps rounded up to a power of two
///   code  = e4m3(clamp(x over scale, -448, 448))
///
/// Implementations agree on the values and differ in the last bit; the constants below name them.
struct Fp8QuantOptions {
  enum class Scale { kDivide, kMultiply };  ///< amax / 448, amax * (1/448)
  enum class Rounding { kNone, kPowerOfTwoUp };
  enum class Quotient {
    kDivide,               ///< x / scale
    kMultiplyInverse,      ///< x * (1 / scale)
    kMultiplyMaxOverAmax,  ///< x * (448 / amax); x * (1 / scale) if the scale is rounded
  };

  float amax_floor = 0.0f;
  Scale scale = Scale::kDivide;
  Rounding rounding = Rounding::kNone;
  Quotient quotient = Quotient::kDivide;
};

/// The demonstration code of DeepSeek-V3 in its later revisions.
inline constexpr Fp8QuantOptions kFp8V3Demo{.amax_floor = 1e-4f};
/// The demonstration code of DeepSeek-V3.2, float32 scales.
inline constexpr Fp8QuantOptions kFp8V32Demo{.amax_floor = 1e-4f,
                                             .scale = Fp8QuantOptions::Scale::kMultiply};
/// The same with power-of-two scales ("ue8m0"), as DeepSeek-V3.1 and later were trained.
inline constexpr Fp8QuantOptions kFp8V32DemoUe8m0{
    .amax_floor = 1e-4f,
    .scale = Fp8QuantOptions::Scale::kMultiply,
    .rounding = Fp8QuantOptions::Rounding::kPowerOfTwoUp};
/// sgl_per_token_group_quant_fp8, first version.
inline constexpr Fp8QuantOptions kFp8SglangGroup{.amax_floor = 1e-10f};
/// sgl_per_token_group_quant_fp8, second version.
inline constexpr Fp8QuantOptions kFp8SglangGroupV2{
    .amax_floor = 1e-10f,
    .scale = Fp8QuantOptions::Scale::kMultiply,
    .quotient = Fp8QuantOptions::Quotient::kMultiplyMaxOverAmax};
/// The utility functions of DeepGEMM.
inline constexpr Fp8QuantOptions kFp8DeepGemm{
    .amax_floor = 1e-4f, .quotient = Fp8QuantOptions::Quotient::kMultiplyInverse};
/// sgl_per_token_quant_fp8: one group per row, no floor (a zero row has codes 0).
inline constexpr Fp8QuantOptions kFp8PerToken{.quotient =
                                                  Fp8QuantOptions::Quotient::kMultiplyInverse};

/// The scale that `options` give a group whose largest magnitude is amax.
float fp8_scale(float amax, const Fp8QuantOptions& options);

/// One code: e4m3(clamp(x over scale, -448, 448)). NaN stays NaN (code 7F). `amax` is the largest
/// magnitude of the group, read by kMultiplyMaxOverAmax alone.
E4m3 fp8_code(float x, float scale, float amax, const Fp8QuantOptions& options);

/// Quantises x [m, k], row-major, in groups of `group` along K (the last one may be shorter).
/// codes: [m, k]; scales: [m, ceil(k/group)], row-major. With group = k: one scale per row (per
/// token of activations, per output channel of weights). NaN does not enter amax; its code is NaN.
void fp8_quantize_groups(const float* x,
                         int64_t m,
                         int64_t k,
                         int64_t group,
                         const Fp8QuantOptions& options,
                         E4m3* codes,
                         float* scales);

/// out[i, j] = code * scale[i, j/group], one float32 product.
void fp8_dequantize_groups(
    const E4m3* codes, const float* scales, int64_t m, int64_t k, int64_t group, float* out);
void fp8_dequantize_groups(
    const E4m3* codes, const Ue8m0* scales, int64_t m, int64_t k, int64_t group, float* out);

/// MXFP8 as ModelOpt writes it: 2^e is the power of two not below amax / 448, so that nothing
/// saturates, and code = e4m3(x / 2^e). codes: [n, k]; scales: [n, ceil(k/32)], bytes 1 to 254 (a
/// block of zeros has byte 1). NaN does not enter amax; its code is NaN. fp8_dequantize_groups with
/// groups of kMxfp8Block decodes it: a weight has E4M3's significant bits, so it is exact in bf16
/// as well while it lies within its normal range, 2^-126 to 2^128.
void mxfp8_quantize(const float* x, int64_t n, int64_t k, E4m3* codes, Ue8m0* scales);

/// Quantises weights [n, k], row-major, in blocks of 128x128; scale = amax_block / 448, rounded up
/// to a power of two if asked; code = e4m3(w / scale). codes: [n, k]; scales: [ceil(n/128),
/// ceil(k/128)]. Numerical if a weight is not finite; the outputs are then unspecified.
Status fp8_quantize_blocks(const float* weights,
                           int64_t n,
                           int64_t k,
                           Fp8QuantOptions::Rounding rounding,
                           E4m3* codes,
                           float* scales);

/// out[i, j] = code * scale[i/128, j/128], one float32 product.
void fp8_dequantize_blocks(
    const E4m3* codes, const float* scales, int64_t n, int64_t k, float* out);
void fp8_dequantize_blocks(
    const E4m3* codes, const Ue8m0* scales, int64_t n, int64_t k, float* out);

/// Stores power-of-two scales as bytes. InvalidArgument names the first scale that UE8M0 cannot
/// hold exactly: such a tensor must be quantised anew, since cutting a scale off corrupts its
/// values.
Status fp8_scales_to_ue8m0(std::span<const float> scales, std::span<Ue8m0> out);

/// Quantises with a given scale: code = e4m3(clamp(x / scale, -448, 448)). Per-tensor activations
/// (input_scale of the checkpoint) and per-tensor FP8 cache (k_scale). scale > 0.
void fp8_quantize_static(std::span<const float> x, float scale, std::span<E4m3> codes);

/// out[i] = code * scale.
void fp8_dequantize_static(std::span<const E4m3> codes, float scale, std::span<float> out);

/// Gives codes of scale `from` the scale `to`: code' = e4m3(clamp((code * from) / to)). Fused
/// linears with one scale per part are brought to the largest of them, so nothing saturates. In
/// place.
void fp8_requantize_static(std::span<E4m3> codes, float from, float to);

// ---- the 656-byte latent row of sparse attention ("DS-MLA") ----
//
//   byte   0 ................ 511 | 512 ...... 527 | 528 ............. 655
//          512 x E4M3: latent c   | 4 x f32 scale  | 64 x bf16: rotary key
//          tile t = c[128t .. 128t+127] has scale t

inline constexpr int64_t kDsMlaLatent = 512;
inline constexpr int64_t kDsMlaRope = 64;
inline constexpr int64_t kDsMlaTile = 128;
inline constexpr int64_t kDsMlaTiles = kDsMlaLatent / kDsMlaTile;
inline constexpr int64_t kDsMlaScaleOffset = kDsMlaLatent;
inline constexpr int64_t kDsMlaRopeOffset = kDsMlaScaleOffset + 4 * kDsMlaTiles;
inline constexpr int64_t kDsMlaRowBytes = kDsMlaRopeOffset + 2 * kDsMlaRope;
static_assert(kDsMlaRowBytes == 656, "the name of the format");

/// How a tile gets its scale: max(amax / 448, smallest normal float) as vLLM, or the power of two
/// not below max(amax / 448, 1e-4) as FlashMLA. The second floors the scale, not amax, so tiny
/// tiles lose precision. Rows of both dequantise alike.
enum class DsMlaScale { kAmax, kPowerOfTwo };

/// The scale of a tile.
float ds_mla_scale(float amax, DsMlaScale rule);

/// Writes one row. latent: 512 values; rope: 64 values, rotated; row: 656 bytes, no alignment
/// needed.
void ds_mla_pack_row(const float* latent, const Bf16* rope, DsMlaScale rule, uint8_t* row);

/// Reads one row: latent[i] = code * scale[i/128] in float32, rope unchanged.
void ds_mla_unpack_row(const uint8_t* row, float* latent, Bf16* rope);

}  // namespace fathom
