// The AVX-512 loops of this group: tokens [begin, end) of calls whose operands have been checked.
#pragma once

#include "fathom/kernels/rope/inverse_rope/inverse_rope.h"

namespace fathom {

/// Groups of channels that share a scale.
inline constexpr int64_t kRopeQuantGroup = 128;

/// Floats of a thread's memory: n in whole cache lines.
constexpr int64_t whole_lines(int64_t n) {
  return (n + 15) / 16 * 16;
}

/// Where head h of token t goes in y and s.
struct HeadPlace {
  int64_t code;   ///< element of y
  int64_t scale;  ///< element of s, one for each 128 channels from there on
};

/// Static, so that files compiled for different instruction sets never share one copy of its code.
[[maybe_unused]] static HeadPlace place_of_head(const InverseRopeQuant::Args& a,
                                                int64_t t,
                                                int64_t h) {
  const int64_t D = a.o.dim(2);
  const int64_t heads_per_group = a.y.dim(2) / D;
  const int64_t g = h / heads_per_group;
  const int64_t channel = h % heads_per_group * D;
  return {t * a.y.stride(0) + g * a.y.stride(1) + channel,
          t * a.s.stride(0) + g * a.s.stride(1) + channel / kRopeQuantGroup};
}

namespace avx512 {
/// room: whole_lines(R) floats, 64-byte aligned.
void inverse_rope_rows(const InverseRope::Args& a, float* room, int64_t begin, int64_t end);
/// room: whole_lines(R) + D floats, 64-byte aligned.
void inverse_rope_quant_rows(const InverseRopeQuant::Args& a,
                             float* room,
                             int64_t begin,
                             int64_t end);
}  // namespace avx512

}  // namespace fathom
