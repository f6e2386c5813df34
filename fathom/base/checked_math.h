// The only size arithmetic: sizes that come from outside go through the checked functions.
#pragma once

#include <concepts>
#include <cstdint>
#include <optional>

namespace fathom {

template <std::integral T>
[[nodiscard]] constexpr std::optional<T> checked_add(T a, T b) {
  T out{};
  if (__builtin_add_overflow(a, b, &out)) return std::nullopt;
  return out;
}

template <std::integral T>
[[nodiscard]] constexpr std::optional<T> checked_mul(T a, T b) {
  T out{};
  if (__builtin_mul_overflow(a, b, &out)) return std::nullopt;
  return out;
}

/// ceil(a / b) for a >= 0, b > 0. Does not overflow.
template <std::integral T>
[[nodiscard]] constexpr T ceil_div(T a, T b) {
  return a / b + (a % b != 0 ? 1 : 0);
}

/// The smallest multiple of `alignment` that is >= value. The caller knows that it fits.
template <std::integral T>
[[nodiscard]] constexpr T align_up(T value, T alignment) {
  return ceil_div(value, alignment) * alignment;
}

}  // namespace fathom
