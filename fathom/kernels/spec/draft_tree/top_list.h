// The best entries of a piece of a row, for each instruction set.
#pragma once

#include <cstdint>

#include "fathom/formats/minifloat.h"

namespace fathom {

struct TopEntry {
  int32_t key;  ///< orders as the value does
  int32_t id;
};

/// Integers that order as values do: NaN above all, -0 equal to 0.
constexpr int32_t top_key(float value) {
  if (value != value) return INT32_MAX;
  const auto bits = static_cast<int32_t>(float_bits(value + 0.0f));
  return bits ^ (bits >> 31 & 0x7FFFFFFF);
}

/// The largest key first, the lower id first among equals.
constexpr bool comes_before(const TopEntry& a, const TopEntry& b) {
  return a.key > b.key || (a.key == b.key && a.id < b.id);
}

/// The best `capacity` of the entries offered so far, the worst of them at entries[0].
struct TopList {
  TopEntry* entries;
  int64_t capacity;
  int64_t size = 0;

  bool full() const { return size == capacity; }

  void offer(const TopEntry& entry);
};

namespace avx512 {
/// Offers elements [first, first + count) of a contiguous row. T is float, Bf16 or F16.
template <class T>
void offer_piece(const T* row, int64_t first, int64_t count, TopList& list);
}  // namespace avx512

}  // namespace fathom
