// Cost: what a call must compute and move, by the equation of its contract.
#pragma once

#include <cstdint>

namespace fathom {

/// The arithmetic a variant runs on; picks the ceiling of a roofline.
enum class MathUnit : uint8_t { kF32, kBf16, kFp8, kFp4, kInt8 };

/// FLOPs of the equation (1 multiply-add = 2), not of the implementation. Bytes are compulsory
/// traffic: each operand once, in its stored format, unless the contract says otherwise.
struct Cost {
  double flops = 0;
  int64_t bytes_read = 0;
  int64_t bytes_written = 0;
  MathUnit unit = MathUnit::kF32;

  int64_t bytes() const { return bytes_read + bytes_written; }
};

}  // namespace fathom
