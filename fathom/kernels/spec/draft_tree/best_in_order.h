// The rule by which nodes of a tree of drafts are chosen, on the host.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>

namespace fathom {

/// Guesses behind a node at most, and nodes behind which a tree goes on.
inline constexpr int64_t kMostBranches = 8;

/// Brings the `most` of `places` with the largest values to the front, of equal ones the lowest
/// places, in ascending order. How many these are. No value is NaN.
template <class Value>
size_t best_in_order(std::span<int32_t> places, size_t most, Value value) {
  const auto better = [&](int32_t a, int32_t b) {
    return value(a) != value(b) ? value(a) > value(b) : a < b;
  };
  const size_t count = std::min(most, places.size());
  const auto end = places.begin() + static_cast<int64_t>(count);
  if (end != places.end()) std::ranges::nth_element(places, end, better);
  std::sort(places.begin(), end);
  return count;
}

}  // namespace fathom
