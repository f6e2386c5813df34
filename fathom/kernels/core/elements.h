// Element types of dense operands: kernels are written once over the C++ type of an element, and
// these functions turn the Format of a View into that type.
#pragma once

#include <cmath>
#include <string_view>

#include "fathom/base/status.h"
#include "fathom/formats/minifloat.h"
#include "fathom/tensor/view.h"

namespace fathom {

constexpr float to_float(float x) {
  return x;
}

/// `value` as an element: float unchanged, Bf16 and F16 rounded to nearest even, E4m3 and E5m2 also
/// saturated.
template <class T>
constexpr T from_float(float value);

template <>
constexpr float from_float<float>(float value) {
  return value;
}

template <>
constexpr Bf16 from_float<Bf16>(float value) {
  return bf16_from_float(value);
}

template <>
constexpr F16 from_float<F16>(float value) {
  return f16_from_float(value);
}

template <>
constexpr E4m3 from_float<E4m3>(float value) {
  return e4m3_from_float(value);
}

template <>
constexpr E5m2 from_float<E5m2>(float value) {
  return e5m2_from_float(value);
}

/// Calls f(T{}) with the element type of an activation: bf16 or f32. Signatures admit no other.
template <class F>
auto with_activation_type(Format format, F&& f) {
  FATHOM_DCHECK(format == Format::kBf16 || format == Format::kF32);
  return format == Format::kBf16 ? f(Bf16{}) : f(float{});
}

/// Calls f(T{}) with the element type of a row operation that takes float16 too: bf16, f16 or f32.
template <class F>
auto with_float_type(Format format, F&& f) {
  return format == Format::kF16 ? f(F16{}) : with_activation_type(format, f);
}

/// Calls f(T{}) with the element type of a KV cache: bf16, f32 or e4m3.
template <class F>
auto with_cache_type(Format format, F&& f) {
  return format == Format::kE4m3 ? f(E4m3{}) : with_activation_type(format, f);
}

/// InvalidArgument unless every element of the i32 view v[A] or v[A,B] is in [-1, count); memory
/// that the host cannot read is not looked at.
inline Status check_indices(std::string_view name, const View& v, int64_t count) {
  if (!v.readable()) return {};
  const int64_t cols = v.rank == 2 ? v.dim(1) : 1;
  for (int64_t i = 0; i < v.dim(0); ++i) {
    for (int64_t j = 0; j < cols; ++j) {
      const int32_t index = v.row<const int32_t>(i)[j];
      if (index < -1 || index >= count) [[unlikely]] {
        return invalid_argument(str_cat(name, "[", i, v.rank == 2 ? str_cat(",", j) : "", "] is ",
                                        index, ", expected -1 to ", count - 1));
      }
    }
  }
  return {};
}

/// InvalidArgument, naming both operands, unless their formats agree.
inline Status check_same_format(std::string_view name_a,
                                const View& a,
                                std::string_view name_b,
                                const View& b) {
  if (a.format == b.format) [[likely]]
    return {};
  return invalid_argument(str_cat(name_a, " is ", format_name(a.format), " but ", name_b, " is ",
                                  format_name(b.format), "; they must have one format"));
}

/// InvalidArgument unless `scale` is finite and positive, and 1 for a format that stores values
/// themselves (everything but e4m3).
inline Status check_scale(std::string_view name, float scale, Format format) {
  if (!(scale > 0.0f) || std::isinf(scale)) {
    return invalid_argument(str_cat(name, " is ", scale, " but must be finite and positive"));
  }
  if (format != Format::kE4m3 && scale != 1.0f) {
    return invalid_argument(str_cat(name, " is ", scale, " but must be 1 for ", format_name(format),
                                    ", which has no scale"));
  }
  return {};
}

}  // namespace fathom
