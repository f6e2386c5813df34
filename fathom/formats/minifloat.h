// The element formats, bit for bit, on host and device: bf16, f16, E4M3, E5M2, E2M1 and UE8M0.
//
//   type   bits  layout (sign.exponent.mantissa)  bias  largest  smallest  infinity  NaN
//   Bf16   16    1.8.7                             127   3.4e38   2^-133    yes       yes
//   F16    16    1.5.10                            15    65504    2^-24     yes       yes
//   E4m3   8     1.4.3                             7     448      2^-9      no        7F, FF
//   E5m2   8     1.5.2                             15    57344    2^-16     7C, FC    7D..7F,
//   FD..FF E2m1   4     1.2.1                             1     6        0.5       no        no
//   Ue8m0  8     0.8.0                             127   2^127    2^-127    no        FF
//
// Every type is a struct around its bits; comparing two of them compares bits. Decoding is exact.
// Encoding rounds to nearest, ties to even, in integer arithmetic that does not depend on the
// rounding or flushing mode of the processor, but for one float addition whose inputs are normal.
// E4m3 is the "fn" variant of OCP FP8 (not the "fnuz" one of some AMD parts, whose equal bits mean
// half the value).
//
// Sources: OCP 8-bit Floating Point 1.0, OCP Microscaling Formats 1.0, PTX ISA (cvt).
#pragma once

#include <array>
#include <cstdint>

#include "fathom/base/host_device.h"

namespace fathom {

struct Bf16 {
  uint16_t bits;

  friend constexpr bool operator==(Bf16, Bf16) = default;
};

struct F16 {
  uint16_t bits;

  friend constexpr bool operator==(F16, F16) = default;
};

struct E4m3 {
  uint8_t bits;

  friend constexpr bool operator==(E4m3, E4m3) = default;
};

struct E5m2 {
  uint8_t bits;

  friend constexpr bool operator==(E5m2, E5m2) = default;
};

/// A code in the low nibble; the high nibble is zero. Stored two per byte, see block_fp4.h.
struct E2m1 {
  uint8_t bits;

  friend constexpr bool operator==(E2m1, E2m1) = default;
};

/// A power of two as a scale: byte b means 2^(b-127), 255 is NaN. Zero cannot be written.
struct Ue8m0 {
  uint8_t bits;

  friend constexpr bool operator==(Ue8m0, Ue8m0) = default;
};

static_assert(sizeof(Bf16) == 2 && sizeof(F16) == 2 && sizeof(E4m3) == 1 && sizeof(E5m2) == 1 &&
                  sizeof(E2m1) == 1 && sizeof(Ue8m0) == 1,
              "arrays of these types are read from files and shared with the device");

inline constexpr float kE4m3Max = 448.0f;
inline constexpr float kE5m2Max = 57344.0f;
inline constexpr float kE2m1Max = 6.0f;

FATHOM_HD constexpr uint32_t float_bits(float value) {
  return __builtin_bit_cast(uint32_t, value);
}

FATHOM_HD constexpr float float_from_bits(uint32_t bits) {
  return __builtin_bit_cast(float, bits);
}

namespace internal {

inline constexpr uint32_t kFloatInfinity = 0x7F800000u;
inline constexpr uint32_t kFloatQuietNan = 0x7FC00000u;

/// |value| with kExponentBits and kMantissaBits, rounded to nearest even: exponent and mantissa
/// fields in the low bits. Magnitudes beyond the largest continue the sequence of codes as if the
/// format had more exponents, so the caller saturates with a comparison. NaN gives a huge code.
template <int kExponentBits, int kMantissaBits>
FATHOM_HD constexpr uint32_t round_magnitude(uint32_t magnitude) {
  constexpr int kShift = 23 - kMantissaBits;
  constexpr uint32_t kRebias = 127u - ((1u << (kExponentBits - 1)) - 1u);
  constexpr uint32_t kMinNormal = (kRebias + 1u) << 23;
  // Subnormal results are multiples of 2^q. Adding 2^(q+23), whose last bit is worth 2^q, makes the
  // adder round to such a multiple; the mantissa of the sum then counts them.
  constexpr uint32_t kMagic = (kRebias + 1u + kShift) << 23;
  const uint32_t small = magnitude < kMinNormal ? magnitude : 0u;
  const uint32_t subnormal = float_bits(float_from_bits(small) + float_from_bits(kMagic)) - kMagic;
  // Normal results: add just under half of the last place kept, and its own bit for ties to even.
  const uint32_t is_odd = (magnitude >> kShift) & 1u;
  const uint32_t half = (1u << (kShift - 1)) - 1u + is_odd;
  const uint32_t normal = (magnitude - (kRebias << 23) + half) >> kShift;
  return magnitude < kMinNormal ? subnormal : normal;
}

/// The float of exponent and mantissa fields in the low bits. Infinity and NaN are the caller's.
template <int kExponentBits, int kMantissaBits>
FATHOM_HD constexpr uint32_t expand_magnitude(uint32_t code) {
  constexpr uint32_t kRebias = 127u - ((1u << (kExponentBits - 1)) - 1u);
  constexpr uint32_t kMinNormal = (kRebias + 1u) << 23;
  const uint32_t fields = code << (23 - kMantissaBits);
  const uint32_t normal = fields + (kRebias << 23);
  // With exponent field 0 the value is 0.m * 2^min; give it the form 1.m * 2^min and subtract 1.
  const uint32_t subnormal =
      float_bits(float_from_bits(fields + kMinNormal) - float_from_bits(kMinNormal));
  return fields < (1u << 23) ? subnormal : normal;
}

}  // namespace internal

// ---- bf16: the top half of a float ----

FATHOM_HD constexpr float to_float(Bf16 x) {
  return float_from_bits(uint32_t{x.bits} << 16);
}

/// Rounds to nearest even; overflow gives infinity. NaN keeps its sign and becomes quiet.
FATHOM_HD constexpr Bf16 bf16_from_float(float value) {
  const uint32_t bits = float_bits(value);
  const uint32_t rounded = (bits + 0x7FFFu + ((bits >> 16) & 1u)) >> 16;
  const uint32_t nan = (bits >> 16) | 0x0040u;
  const bool is_nan = (bits & 0x7FFFFFFFu) > internal::kFloatInfinity;
  return Bf16{static_cast<uint16_t>(is_nan ? nan : rounded)};
}

// ---- f16: IEEE binary16 ----

FATHOM_HD constexpr float to_float(F16 x) {
  const uint32_t magnitude = x.bits & 0x7FFFu;
  uint32_t bits = internal::expand_magnitude<5, 10>(magnitude);
  bits += magnitude >= 0x7C00u ? 112u << 23 : 0u;  // infinity and NaN: all exponent bits set
  return float_from_bits(bits | (x.bits & 0x8000u) << 16);
}

/// Rounds to nearest even; overflow (from 65520 on) gives infinity. NaN keeps its sign and becomes
/// quiet.
FATHOM_HD constexpr F16 f16_from_float(float value) {
  const uint32_t bits = float_bits(value);
  const uint32_t magnitude = bits & 0x7FFFFFFFu;
  uint32_t code = internal::round_magnitude<5, 10>(magnitude);
  code = code > 0x7C00u ? 0x7C00u : code;
  const uint32_t nan = 0x7E00u | ((magnitude >> 13) & 0x3FFu);
  code = magnitude > internal::kFloatInfinity ? nan : code;
  return F16{static_cast<uint16_t>(code | (bits >> 16 & 0x8000u))};
}

// ---- FP8 E4M3 (fn) ----

namespace internal {

FATHOM_HD constexpr float decode_e4m3(uint8_t code) {
  const uint32_t magnitude = code & 0x7Fu;
  const uint32_t bits = magnitude == 0x7Fu ? kFloatQuietNan : expand_magnitude<4, 3>(magnitude);
  return float_from_bits(bits | (uint32_t{code} & 0x80u) << 24);
}

inline constexpr std::array<float, 256> kE4m3Values = [] {
  std::array<float, 256> values{};
  for (unsigned code = 0; code < 256; ++code) {
    values[code] = decode_e4m3(static_cast<uint8_t>(code));
  }
  return values;
}();

}  // namespace internal

/// A table load on the host, arithmetic on the device.
FATHOM_HD constexpr float to_float(E4m3 x) {
#if defined(__CUDA_ARCH__)
  return internal::decode_e4m3(x.bits);
#else
  return internal::kE4m3Values[x.bits];
#endif
}

/// Rounds to nearest even; what exceeds 448, infinity included, becomes 448. NaN gives 7F. The same
/// as cvt.rn.satfinite and __NV_SATFINITE.
FATHOM_HD constexpr E4m3 e4m3_from_float(float value) {
  const uint32_t bits = float_bits(value);
  const uint32_t magnitude = bits & 0x7FFFFFFFu;
  uint32_t code = internal::round_magnitude<4, 3>(magnitude);
  code = (code > 0x7Eu ? 0x7Eu : code) | (bits >> 24 & 0x80u);
  return E4m3{static_cast<uint8_t>(magnitude > internal::kFloatInfinity ? 0x7Fu : code)};
}

/// Rounds to nearest even without saturation, as a plain cast of frameworks does: |value| > 464
/// and infinity become NaN with the sign of the value (7F or FF).
FATHOM_HD constexpr E4m3 e4m3_from_float_unsaturated(float value) {
  const uint32_t bits = float_bits(value);
  uint32_t code = internal::round_magnitude<4, 3>(bits & 0x7FFFFFFFu);
  code = code > 0x7Eu ? 0x7Fu : code;
  return E4m3{static_cast<uint8_t>(code | (bits >> 24 & 0x80u))};
}

// ---- FP8 E5M2: the top byte of a binary16 ----

FATHOM_HD constexpr float to_float(E5m2 x) {
  return to_float(F16{static_cast<uint16_t>(x.bits << 8)});
}

/// Rounds to nearest even; what exceeds 57344, infinity included, becomes 57344. NaN gives 7F.
FATHOM_HD constexpr E5m2 e5m2_from_float(float value) {
  const uint32_t bits = float_bits(value);
  const uint32_t magnitude = bits & 0x7FFFFFFFu;
  uint32_t code = internal::round_magnitude<5, 2>(magnitude);
  code = (code > 0x7Bu ? 0x7Bu : code) | (bits >> 24 & 0x80u);
  return E5m2{static_cast<uint8_t>(magnitude > internal::kFloatInfinity ? 0x7Fu : code)};
}

/// Rounds to nearest even with IEEE overflow: from 61440 on infinity (7C or FC). NaN gives 7F or FF
/// by its sign.
FATHOM_HD constexpr E5m2 e5m2_from_float_unsaturated(float value) {
  const uint32_t bits = float_bits(value);
  const uint32_t magnitude = bits & 0x7FFFFFFFu;
  uint32_t code = internal::round_magnitude<5, 2>(magnitude);
  code = code > 0x7Cu ? 0x7Cu : code;
  code = magnitude > internal::kFloatInfinity ? 0x7Fu : code;
  return E5m2{static_cast<uint8_t>(code | (bits >> 24 & 0x80u))};
}

// ---- FP4 E2M1 ----

namespace internal {

FATHOM_HD constexpr float decode_e2m1(uint8_t code) {
  const uint32_t bits = expand_magnitude<2, 1>(code & 7u);
  return float_from_bits(bits | (uint32_t{code} & 8u) << 28);
}

inline constexpr std::array<float, 16> kE2m1Values = [] {
  std::array<float, 16> values{};
  for (unsigned code = 0; code < 16; ++code) {
    values[code] = decode_e2m1(static_cast<uint8_t>(code));
  }
  return values;
}();

}  // namespace internal

/// 0, .5, 1, 1.5, 2, 3, 4, 6 for codes 0..7; codes 8..15 are their negatives (8 is -0). A table
/// load on the host, arithmetic on the device. The high nibble is not read.
FATHOM_HD constexpr float to_float(E2m1 x) {
#if defined(__CUDA_ARCH__)
  return internal::decode_e2m1(x.bits);
#else
  return internal::kE2m1Values[x.bits & 15u];
#endif
}

/// Rounds to nearest even; what exceeds 6, infinity included, becomes 6. Keeps the sign of zero and
/// of what rounds to zero. NaN, which the format cannot hold, gives 7 (+6). The same as
/// cvt.rn.satfinite.e2m1x2.
FATHOM_HD constexpr E2m1 e2m1_from_float(float value) {
  const uint32_t bits = float_bits(value);
  const uint32_t magnitude = bits & 0x7FFFFFFFu;
  uint32_t code = internal::round_magnitude<2, 1>(magnitude);
  code = (code > 7u ? 7u : code) | (bits >> 28 & 8u);
  return E2m1{static_cast<uint8_t>(magnitude > internal::kFloatInfinity ? 7u : code)};
}

// ---- UE8M0: powers of two, for scales ----

/// 2^(bits-127), a subnormal float for 0; NaN for 255.
FATHOM_HD constexpr float to_float(Ue8m0 x) {
  const uint32_t normal = uint32_t{x.bits} << 23;
  const uint32_t bits = x.bits == 255 ? internal::kFloatQuietNan : normal;
  return float_from_bits(x.bits == 0 ? 0x00400000u : bits);
}

/// The smallest power of two that is not below the scale, within 2^-126 .. 2^127 (bytes 1 .. 254).
/// The rule for scales: round the scale first, then quantise with the rounded one. scale >= 0, the
/// sign is not read. NaN gives 255.
FATHOM_HD constexpr Ue8m0 ue8m0_round_up(float scale) {
  const uint32_t magnitude = float_bits(scale) & 0x7FFFFFFFu;
  uint32_t byte = (magnitude >> 23) + ((magnitude & 0x7FFFFFu) != 0 ? 1u : 0u);
  byte = byte < 1u ? 1u : byte;
  byte = byte > 254u ? 254u : byte;
  return Ue8m0{static_cast<uint8_t>(magnitude > internal::kFloatInfinity ? 255u : byte)};
}

/// True if UE8M0 holds the scale exactly in bytes 1 .. 254: a positive normal power of two.
FATHOM_HD constexpr bool is_ue8m0(float scale) {
  const uint32_t bits = float_bits(scale);
  return (bits & 0x807FFFFFu) == 0 && bits != 0 && bits < internal::kFloatInfinity;
}

}  // namespace fathom
