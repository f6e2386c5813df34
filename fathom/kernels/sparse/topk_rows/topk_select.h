// Selection within one row, for each instruction set.
#pragma once

#include <cstdint>

namespace fathom {

/// Writes the positions of the k largest scores, ascending; 1 <= k < length. room: memory of this
/// thread, select_room(length) integers, 64-byte aligned.
using SelectRow =
    void (*)(const float* scores, int64_t length, int64_t k, int32_t* room, int32_t* out);

/// Keys and positions of candidates, each with a vector to spare.
constexpr int64_t select_room(int64_t length) {
  return 2 * ((length + 15) / 16 * 16 + 16);
}

namespace avx512 {
void select_largest(const float* scores, int64_t length, int64_t k, int32_t* room, int32_t* out);
}  // namespace avx512

}  // namespace fathom
