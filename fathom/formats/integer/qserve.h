// QServe W4A8: int8 activations per token and uint4 weights with zero points, per output channel or
// progressively per group of 128 inside an int8 row.
//
//   format         values        scale                zero point
//   w4a8_channel   uint4 [N,K]   f16 per row          f16 per row, times the scale
//   w4a8_group     uint4 [N,K]   int8 per 128 of K    int8 per 128 of K, times the scale, negated
//                                and f16 per row
//
// All rounding is half to even, but for the activations (half away from zero, see group_int.h).
// Codes are handled one per byte; qserve_pack brings them into the order of files and kernels.
//
// Sources: arXiv 2405.04532 (QServe), sgl-project/sglang (qoq.py, the tests of the qserve kernels).
#pragma once

#include <cstdint>

#include "fathom/base/status.h"
#include "fathom/formats/minifloat.h"

namespace fathom {

inline constexpr int64_t kQserveGroup = 128;

/// Activations of both QServe kernels: codes as int8_quantize_rows, scales rounded to f16, and, for
/// the zero points of the per-channel kernel, the sum of each row *before* quantisation. The sum is
/// formed in double, exact for up to 8192 f16 values, and rounded to f16. codes: [m, k];
/// scales, sums: [m].
void qserve_quantize_activations(
    const float* x, int64_t m, int64_t k, int8_t* codes, F16* scales, F16* sums);

/// Per channel: s = (max - min) / 15, z = -rne(min / s), code = clamp(rne(w / s) + z, 0, 15), per
/// row. Stored: scales[n] = f16(s), szeros[n] = f16(z * f16(s)); s is at least 2^-24, the smallest
/// f16, which also makes constant rows exact. codes: [n, k], one per byte. Numerical if a weight is
/// not finite, or if scale or zero exceed f16 (the message names the row).
Status qserve_quantize_channels(
    const float* weights, int64_t n, int64_t k, uint8_t* codes, F16* scales, F16* szeros);

/// out[i, j] = code * scales[i] - szeros[i].
void qserve_dequantize_channels(
    const uint8_t* codes, const F16* scales, const F16* szeros, int64_t n, int64_t k, float* out);

/// Scale and zero point of a group of int8 values: s2 = rne((max - min) / 15), 1 if that is 0;
/// z = -rne(min / s2). Stored is stored_zero = -z * s2.
struct QserveGroup {
  int8_t scale;
  int8_t stored_zero;
};

/// Quantises `count` int8 values within -119 .. 119: code = clamp(rne(v / s2) + z, 0, 15).
QserveGroup qserve_quantize_group(const int8_t* values, int64_t count, uint8_t* codes);

/// code * scale + stored_zero in 8 bits; the kernel's byte arithmetic wraps modulo 256.
constexpr int8_t qserve_group_value(uint8_t code, QserveGroup group) {
  return static_cast<int8_t>(static_cast<uint8_t>(code * group.scale + group.stored_zero));
}

/// Per group of 128, progressive: row scale s = absmax / 119 (119 keeps the second level within
/// int8), v = clamp(rne(w / s), -119, 119), then qserve_quantize_group on every 128 values.
/// codes: [n, k], one per byte; row_scales: [n] = f16(s); group_scales, group_zeros: [n, k/128].
/// InvalidArgument if k is no multiple of 128; Numerical if a weight is not finite or s exceeds
/// f16.
Status qserve_quantize_groups(const float* weights,
                              int64_t n,
                              int64_t k,
                              uint8_t* codes,
                              F16* row_scales,
                              int8_t* group_scales,
                              int8_t* group_zeros);

/// out[i, j] = qserve_group_value * row_scales[i].
void qserve_dequantize_groups(const uint8_t* codes,
                              const F16* row_scales,
                              const int8_t* group_scales,
                              const int8_t* group_zeros,
                              int64_t n,
                              int64_t k,
                              float* out);

// Packed QServe weights: tiles of 32x32 codes in 512 bytes, tile (n/32, k/32) at
// ((n/32) * (K/32) + k/32) * 512. With n = 16a + 8b + r and k = 16c + 4t + j inside a tile:
//
//   byte  = (((r*4 + t)*2 + c)*2 + b)*4 + j         r: 64 bytes, t: 16, c: 8, b: 4, j: 1
//   nibble: low for a = 0, high for a = 1           rows n and n + 16 share a byte

/// Byte of code (n, k) in the packed weights of row length `num_k`; the high nibble if n % 32
/// >= 16.
constexpr int64_t qserve_packed_offset(int64_t n, int64_t k, int64_t num_k) {
  const int64_t b = n / 8 % 2, r = n % 8;
  const int64_t c = k / 16 % 2, t = k / 4 % 4, j = k % 4;
  const int64_t tile = n / 32 * (num_k / 32) + k / 32;
  return tile * 512 + (((r * 4 + t) * 2 + c) * 2 + b) * 4 + j;
}

/// codes [n, k], one per byte, to packed [n, k/2] and back. InvalidArgument unless n and k are
/// multiples of 32.
Status qserve_pack(const uint8_t* codes, int64_t n, int64_t k, uint8_t* packed);
Status qserve_unpack(const uint8_t* packed, int64_t n, int64_t k, uint8_t* codes);

/// Position of channel n in a row of the kernel's group scales [K/128, N]: each 32 channels are
/// stored in the order 0, 8, 16, 24, 1, 9, 17, 25, ...
constexpr int64_t qserve_scale_position(int64_t n) {
  return n / 32 * 32 + n % 8 * 4 + n % 32 / 8;
}

/// Group scales (or zeros) [n, groups] to the kernel's [groups, n] and back. InvalidArgument unless
/// n is a multiple of 32.
Status qserve_interleave(const int8_t* rows, int64_t n, int64_t groups, int8_t* kernel);
Status qserve_deinterleave(const int8_t* kernel, int64_t n, int64_t groups, int8_t* rows);

}  // namespace fathom
