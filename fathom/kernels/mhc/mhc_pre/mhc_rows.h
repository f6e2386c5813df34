// What mhc_pre and mhc_head do with channels, for each instruction set.
#pragma once

#include <cstdint>

#include "fathom/formats/minifloat.h"

namespace fathom {

/// Channels of one stream that a partial sum takes.
inline constexpr int64_t kMhcPiece = 1024;

/// One piece of some tokens: sums[t][q] = sum over i < width of fn[q][i] x[t][i], and behind the
/// num_rows products the sum of x[t][i]^2.
template <class A>
struct MhcPiece {
  const A* x = nullptr;
  int64_t x_stride = 0;  ///< elements between tokens
  const float* fn = nullptr;
  int64_t fn_stride = 0;
  float* sums = nullptr;
  int64_t sums_stride = 0;
  int64_t num_tokens = 0;
  int64_t num_rows = 0;
  int64_t width = 0;
};

/// y[d] = sum over j, in order, of weights[j] * streams[j * stride + d].
template <class A>
struct MhcMix {
  const A* streams = nullptr;
  int64_t stride = 0;
  const float* weights = nullptr;
  A* y = nullptr;
  int64_t num_streams = 0;
  int64_t width = 0;
};

namespace avx512 {

template <class A>
void mhc_piece(const MhcPiece<A>& p);

template <class A>
void mhc_mix(const MhcMix<A>& m);

extern template void mhc_piece(const MhcPiece<Bf16>& p);
extern template void mhc_piece(const MhcPiece<float>& p);
extern template void mhc_mix(const MhcMix<Bf16>& m);
extern template void mhc_mix(const MhcMix<float>& m);

}  // namespace avx512
}  // namespace fathom
