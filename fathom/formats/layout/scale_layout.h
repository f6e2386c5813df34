// How block scales lie in memory. Files hold them row-major ("linear"); each MMA wants its own
// order. All functions here move bytes and never convert a scale.
//
// Linear [M, Ks]: offset(m, k) = m * Ks + k.
//
// Swizzled 128x4, the operand of block-scaled tcgen05 MMA (NVFP4, MXFP4, MXFP8): tiles of 128 rows
// x 4 scale columns, 512 bytes each, rows padded to 128 and columns to 4. A 16-byte line of a tile
// holds the rows r, r+32, r+64, r+96:
//
//   tile (m/128, k/4) at (m/128 * ceil(Ks/4) + k/4) * 512
//     byte    0..3        4..7        8..11       12..15
//     line 0  m=0  k0..3  m=32 k0..3  m=64 k0..3  m=96  k0..3
//     line 1  m=1         m=33        m=65        m=97
//      ...
//     line 31 m=31        m=63        m=95        m=127
//
// Swizzled 8x4, for few rows: tiles of 8 rows x 4 columns, 32 bytes, rows padded to 8:
//
//   tile (m/8, k/4) at (m/8 * ceil(Ks/4) + k/4) * 32
//     byte   0..3        4..7        ...  28..31
//            m=0 k0..3   m=1 k0..3        m=7 k0..3
//
// Column-major float32 for FP8 GEMMs on sm_90: offset(m, k) = k * stride + m. TMA needs a stride of
// 16 bytes, so stride = M rounded up to 4; a plain column-major tensor has stride M.
//
// Packed UE8M0 for FP8 GEMMs on sm_100: four scales along K in an int32, the first in the low byte,
// words column-major with the stride above: word(m, k) = (k/4) * stride + m. Missing bytes are 0.
//
// Sources: CUTLASS (blackwell_functionality.md), deepseek-ai/DeepGEMM (README, utils/math.py),
// flashinfer (layout 8x4).
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <span>

#include "fathom/base/checked_math.h"
#include "fathom/base/host_device.h"
#include "fathom/formats/minifloat.h"

namespace fathom {

// ---- swizzled ----

inline constexpr int64_t kSwizzleRows = 128;
inline constexpr int64_t kSwizzleSmallRows = 8;
inline constexpr int64_t kSwizzleColumns = 4;

/// Byte of scale (m, k) in the 128x4 layout of a matrix with `num_scales` scale columns.
FATHOM_HD constexpr int64_t swizzled_128x4_offset(int64_t m, int64_t k, int64_t num_scales) {
  const int64_t tiles_per_row = (num_scales + 3) / 4;
  return (m / 128 * tiles_per_row + k / 4) * 512 + m % 32 * 16 + m % 128 / 32 * 4 + k % 4;
}

/// Byte of scale (m, k) in the 8x4 layout.
FATHOM_HD constexpr int64_t swizzled_8x4_offset(int64_t m, int64_t k, int64_t num_scales) {
  const int64_t tiles_per_row = (num_scales + 3) / 4;
  return (m / 8 * tiles_per_row + k / 4) * 32 + m % 8 * 4 + k % 4;
}

/// Bytes of m x num_scales scales in these layouts, padding included.
constexpr int64_t swizzled_128x4_bytes(int64_t m, int64_t num_scales) {
  return align_up(m, kSwizzleRows) * align_up(num_scales, kSwizzleColumns);
}

/// Rows that suffice for those of `num_matrices` that share `rows`, each beginning with a tile.
constexpr int64_t swizzled_rows(int64_t rows, int64_t num_matrices) {
  const int64_t padded = rows + std::min(rows, num_matrices) * (kSwizzleRows - 1);
  return padded / kSwizzleRows * kSwizzleRows;
}

constexpr int64_t swizzled_8x4_bytes(int64_t m, int64_t num_scales) {
  return align_up(m, kSwizzleSmallRows) * align_up(num_scales, kSwizzleColumns);
}

/// Linear one-byte scales [m, num_scales] to a swizzled layout. Padding bytes become 0: a NaN there
/// would survive the product with a zero.
void swizzle_128x4(const uint8_t* linear, int64_t m, int64_t num_scales, uint8_t* swizzled);
void swizzle_8x4(const uint8_t* linear, int64_t m, int64_t num_scales, uint8_t* swizzled);

/// The way back. Padding is not read.
void unswizzle_128x4(const uint8_t* swizzled, int64_t m, int64_t num_scales, uint8_t* linear);
void unswizzle_8x4(const uint8_t* swizzled, int64_t m, int64_t num_scales, uint8_t* linear);

/// First scale row of each expert of a grouped GEMM, where experts start at tiles of 128 rows:
/// offsets[e] = sum over j < e of rows[j] rounded up to 128. offsets has one more element than
/// rows; the last one is the number of scale rows to allocate. rows >= 0.
void blockscale_offsets(std::span<const int32_t> rows, std::span<int32_t> offsets);

// ---- column-major and packed ----

/// Distance in elements between columns of a TMA-aligned column-major layout of 4-byte elements.
constexpr int64_t tma_aligned_stride(int64_t m) {
  return align_up<int64_t>(m, 4);
}

/// Linear float32 scales [m, num_scales] to column-major with that stride >= m (m itself, or
/// tma_aligned_stride(m)). Padding becomes 0. column_major: [num_scales, stride].
void scales_to_column_major(
    const float* linear, int64_t m, int64_t num_scales, int64_t stride, float* column_major);

/// The way back. Padding is not read.
void scales_from_column_major(
    const float* column_major, int64_t m, int64_t num_scales, int64_t stride, float* linear);

/// Four UE8M0 scales in a word, the first in the low byte.
FATHOM_HD constexpr uint32_t pack_ue8m0(Ue8m0 s0, Ue8m0 s1, Ue8m0 s2, Ue8m0 s3) {
  return uint32_t{s0.bits} | uint32_t{s1.bits} << 8 | uint32_t{s2.bits} << 16 |
         uint32_t{s3.bits} << 24;
}

/// Words of a packed layout: ceil(num_scales/4) columns of tma_aligned_stride(m).
constexpr int64_t packed_ue8m0_words(int64_t m, int64_t num_scales) {
  return ceil_div<int64_t>(num_scales, 4) * tma_aligned_stride(m);
}

/// Linear UE8M0 scales [m, num_scales] to packed words. Missing bytes and padding rows become 0.
void scales_to_packed_ue8m0(const Ue8m0* linear, int64_t m, int64_t num_scales, uint32_t* packed);

/// The way back. Padding is not read.
void scales_from_packed_ue8m0(const uint32_t* packed, int64_t m, int64_t num_scales, Ue8m0* linear);

// ---- validity ----

/// Whether a scale may be zero: a block scale may (a block of zeros), a global one may not.
enum class ZeroScale { kAllowed, kRefused };

/// The index of the first scale that is NaN, infinite or negative, or zero where that is refused.
/// -0 counts as zero. UE8M0 has no zero; its code 255 is NaN.
std::optional<int64_t> first_bad_scale(std::span<const float> scales, ZeroScale zero);
std::optional<int64_t> first_bad_scale(std::span<const F16> scales, ZeroScale zero);
std::optional<int64_t> first_bad_scale(std::span<const Bf16> scales, ZeroScale zero);
std::optional<int64_t> first_bad_scale(std::span<const E4m3> scales, ZeroScale zero);
std::optional<int64_t> first_bad_scale(std::span<const Ue8m0> scales);

}  // namespace fathom
