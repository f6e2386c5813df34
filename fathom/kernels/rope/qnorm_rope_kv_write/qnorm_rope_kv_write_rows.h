// The AVX-512 loop of this group: tokens [begin, end) of a call whose operands have been checked.
#pragma once

#include "fathom/kernels/rope/qnorm_rope_kv_write/qnorm_rope_kv_write.h"

namespace fathom {

/// Floats of a row of D channels in a thread's memory: whole cache lines.
constexpr int64_t row_room(int64_t D) {
  return (D + 15) / 16 * 16;
}

namespace avx512 {
/// room: row_room(D) floats, 64-byte aligned.
void qnorm_rope_kv_write_rows(const QnormRopeKvWrite::Args& a,
                              float* room,
                              int64_t begin,
                              int64_t end);
}  // namespace avx512

}  // namespace fathom
