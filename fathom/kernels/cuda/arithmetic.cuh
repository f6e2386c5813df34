// Arithmetic that the hardware has no short form of, where a shorter way gives the same bits; and
// what several kernels share of activations.
#pragma once

#include <cstdint>

namespace fathom::cuda {

/// `value` with its size no larger than `limit`, which is positive; NaN gives a limit. PTX ISA,
/// min.
__device__ __forceinline__ float limit_size(float value, float limit) {
  float out;
  asm("min.xorsign.abs.f32 %0, %1, %2;" : "=f"(out) : "f"(value), "f"(limit));
  return out;
}

/// The larger of both; NaN if any is. PTX ISA, max.
__device__ __forceinline__ float max_or_nan(float a, float b) {
  float out;
  asm("max.NaN.f32 %0, %1, %2;" : "=f"(out) : "f"(a), "f"(b));
  return out;
}

/// An unsigned integer that orders as IEEE 754 totalOrder does the floats of these bits: -NaN <
/// -inf < .. < -0 < +0 < .. < +NaN.
__device__ __forceinline__ uint32_t key_of_bits(uint32_t bits) {
  return bits ^ (static_cast<uint32_t>(static_cast<int32_t>(bits) >> 31) | 0x80000000u);
}

__device__ __forceinline__ uint32_t bits_of_key(uint32_t key) {
  return (key & 0x80000000u) != 0 ? key ^ 0x80000000u : ~key;
}

/// Zeros above the highest bit of a word that is not zero. PTX ISA, bfind.
__device__ __forceinline__ uint32_t leading_zeros(uint32_t word) {
  uint32_t out;
  asm("bfind.shiftamt.u32 %0, %1;" : "=r"(out) : "r"(word));
  return out;
}

/// PTX ISA, ex2.approx.ftz.
__device__ __forceinline__ float exp2_approx(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

/// PTX ISA, rcp.approx.ftz.
__device__ __forceinline__ float approximate_reciprocal(float x) {
  float y;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

/// x / divisor for 1 <= divisor <= 2^120 and no infinity: the rounded quotient, but where it lies
/// within 2^-20 ulp of a tie.
__device__ __forceinline__ float divide_near(float x, float divisor) {
  const float inverse = approximate_reciprocal(divisor);
  const float quotient = x * inverse;
  const float excess = fmaf(quotient, divisor, -x);  // this way round zeros keep their sign
  return fmaf(-excess, inverse, quotient);
}

/// Four values truncated toward zero to int8, saturating, the first in the low byte; NaN gives 0.
/// PTX ISA, cvt.pack.
__device__ __forceinline__ uint32_t int8_codes(float v0, float v1, float v2, float v3) {
  uint32_t high;
  uint32_t all;
  asm("cvt.pack.sat.s8.s32.b32 %0, %1, %2, 0;"
      : "=r"(high)
      : "r"(__float2int_rz(v3)), "r"(__float2int_rz(v2)));
  asm("cvt.pack.sat.s8.s32.b32 %0, %1, %2, %3;"
      : "=r"(all)
      : "r"(__float2int_rz(v1)), "r"(__float2int_rz(v0)), "r"(high));
  return all;
}

/// x / divisor, correctly rounded, for one divisor of many numbers: one product and two fused steps
/// (Markstein). Where the quotient or the divisor leaves the range in which these are exact, the
/// division of the hardware takes their place.
class Divisor {
 public:
  __device__ explicit Divisor(float divisor) {
    const float size = fabsf(divisor);
    divisor_ = divisor;
    inverse_ = __frcp_rn(divisor);
    plain_ = size < 0x1p40f && size > 0x1p-40f;
  }

  /// Every x / divisor, for results that become codes of eight bits at once. Against every boundary
  /// of E4M3 codes and every whole number up to 127 they lie as the correctly rounded quotients do
  /// (tried for all divisors with all x that come near one).
  template <int kCount>
  __device__ void of_all(float (&x)[kCount]) const {
    if (plain_ && divisor_ > 0.0f) {
#pragma unroll
      for (int i = 0; i < kCount; ++i)
        x[i] = near_enough(x[i]);
    } else {
#pragma unroll
      for (int i = 0; i < kCount; ++i)
        x[i] = __fdiv_rn(x[i], divisor_);
    }
  }

  __device__ float of(float x) const {
    if (!plain_) return __fdiv_rn(x, divisor_);
    const float quotient = x * inverse_;
    const float rest = fmaf(-quotient, divisor_, x);
    const float exact = fmaf(rest, inverse_, quotient);
    const float size = fabsf(quotient);
    // Tiny quotients, which subnormal steps would spoil, infinities and NaN.
    return size < 0x1p100f && size > 0x1p-80f ? exact : __fdiv_rn(x, divisor_);
  }

 private:
  /// Without a branch. Quotients beyond 2^80 and below 2^-80 are not exact but stay beyond and
  /// below, all with their sign, zeros too.
  __device__ float near_enough(float x) const {
    constexpr float kLarge = 0x1p100f;  // for infinite quotients, which leave no rest
    const float quotient = x * inverse_;
    const float excess = limit_size(fmaf(quotient, divisor_, -x), kLarge);
    return fmaf(-excess, inverse_, quotient);
  }

  float divisor_;
  float inverse_;
  bool plain_;
};

inline constexpr float kMostInverted = 0x1p100f;

/// 1 / x, correctly rounded, for x from 1 to kMostInverted: the steps that __frcp_rn takes there,
/// without asking whether it may.
__device__ __forceinline__ float reciprocal_above_one(float x) {
  const float y = approximate_reciprocal(x);
  return fmaf(y, fmaf(-x, y, 1.0f), y);
}

/// Magnitudes below this have a code, the last of which is 6.
inline constexpr float kE2m1Limit = 6.9f;

/// A number whose last bit is worth 1, and its bits.
inline constexpr float kInteger = 12582912.0f;  // 1.5 * 2^23
inline constexpr uint32_t kIntegerBits = 0x4B400000u;

/// The code of a size below kE2m1Limit plus kIntegerBits: the smallest of three lines, each rounded
/// to an integer by the addition of kInteger. Lines and codes: 2v below 2, v + 2 below 4, v/2 + 4
/// above; a line that is not the smallest rounds no lower. Ties go to even, as 2 and 4 are.
__device__ __forceinline__ uint32_t lifted_code(float size) {
  const float low = fmaf(size, 2.0f, kInteger);
  const float middle = size + (kInteger + 2.0f);
  const float high = fmaf(size, 0.5f, kInteger + 4.0f);
  return static_cast<uint32_t>(
      __vimin3_s32(__float_as_int(low), __float_as_int(middle), __float_as_int(high)));
}

/// The E2M1 code of a value, saturating; NaN gives +-6.
__device__ __forceinline__ uint32_t e2m1_code(float value) {
  return (lifted_code(fminf(fabsf(value), 6.0f)) & 7u) | (__float_as_uint(value) >> 28 & 8u);
}

/// The codes of eight values below kE2m1Limit in a word, the first in the low nibble. What lifts
/// them is taken off their sum, so that none is cut out alone.
__device__ __forceinline__ uint32_t e2m1_codes(const float (&values)[8]) {
  constexpr uint32_t kOnes = 0x11111111u;
  uint32_t magnitudes = 0;
  uint32_t signs = 0;
#pragma unroll
  for (int i = 7; i >= 0; --i) {
    magnitudes = magnitudes * 16 + lifted_code(fabsf(values[i]));
    signs = __funnelshift_l(__float_as_uint(values[i]), signs, 4);
  }
  return (magnitudes - kIntegerBits * kOnes) | (signs & 8u * kOnes);
}

/// Row number `row` of rows in groups of `each`: the group, and the row within it. Small numbers
/// are divided in 32 bits, which takes a fifth of the time.
struct RowOfGroup {
  int64_t group;
  int64_t row;

  __device__ RowOfGroup(int64_t number, int64_t each) {
    if (((number | each) >> 32) == 0) {
      const auto quotient = static_cast<uint32_t>(number) / static_cast<uint32_t>(each);
      group = quotient;
      row = static_cast<uint32_t>(number) - quotient * static_cast<uint32_t>(each);
    } else {
      group = number / each;
      row = number - group * each;
    }
  }
};

/// min(z, limit); NaN stays NaN.
__device__ __forceinline__ float at_most(float z, float limit) {
  return z > limit ? limit : z;
}

/// min(z, limit), from below at -limit as well.
__device__ __forceinline__ float within(float z, float limit) {
  return -at_most(-at_most(z, limit), limit);
}

/// SwiGLU as SiluMul has it (kernels/act/gated_act), silu(gate) * up, of sums in float32 for a
/// result of 16 bits: e^x and the quotient by the approximations of the hardware, a few steps of
/// float32 off; of gates below -87 it is 0. The limit is infinite where there is none.
__device__ __forceinline__ float swiglu(float gate, float up, float limit) {
  gate = at_most(gate, limit);
  return __fdividef(gate, 1.0f + __expf(-gate)) * within(up, limit);
}

}  // namespace fathom::cuda
