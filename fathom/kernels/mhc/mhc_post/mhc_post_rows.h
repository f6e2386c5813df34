// The channels of mhc_post, for each instruction set.
#pragma once

#include <cstdint>

#include "fathom/formats/minifloat.h"

namespace fathom {

/// Channels [0, width) of one token; streams and out may be the same memory.
template <class A>
struct MhcPostRow {
  const A* y = nullptr;
  const A* streams = nullptr;
  int64_t stream_stride = 0;
  A* out = nullptr;
  int64_t out_stride = 0;
  const float* post = nullptr;  ///< [n]
  const float* comb = nullptr;  ///< [n][n]
  int64_t comb_stride = 0;
  int64_t num_streams = 0;
  int64_t width = 0;
};

namespace avx512 {

template <class A>
void mhc_post_row(const MhcPostRow<A>& r);

extern template void mhc_post_row(const MhcPostRow<Bf16>& r);
extern template void mhc_post_row(const MhcPostRow<float>& r);

}  // namespace avx512
}  // namespace fathom
