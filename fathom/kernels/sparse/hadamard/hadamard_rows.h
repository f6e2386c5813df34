// The transform of rows, for each instruction set.
#pragma once

#include <bit>
#include <cstdint>

namespace fathom {

/// Values that a row is padded to: a power of two, at least 16. Zeros beyond the next power of two
/// add a zero to each sum and change nothing but the sign of zero, and every variant pads alike.
constexpr int64_t hadamard_width(int64_t width) {
  const auto padded = static_cast<int64_t>(std::bit_ceil(static_cast<uint64_t>(width)));
  return padded < 16 ? 16 : padded;
}

/// Rows of `width` values; strides in elements. room: hadamard_width(width) floats, 64-byte
/// aligned.
template <class T>
struct HadamardRows {
  const T* x;
  int64_t x_stride;
  T* y;
  int64_t y_stride;
  int64_t count;
  int64_t width;
  float scale;
  float* room;
};

namespace avx512 {
/// T is Bf16, F16 or float.
template <class T>
void hadamard_rows(const HadamardRows<T>& rows);
}  // namespace avx512

}  // namespace fathom
