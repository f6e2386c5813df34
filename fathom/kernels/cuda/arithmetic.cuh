// Arithmetic that the hardware has no short form of, where a shorter way gives the same bits.
#pragma once

#include <cstdint>

namespace fathom::cuda {

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
  float divisor_;
  float inverse_;
  bool plain_;
};

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

}  // namespace fathom::cuda
