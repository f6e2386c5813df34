// Rows of x in bf16 as E4M3 (two_e4m3.h), for each 128 k the high parts and the low ones behind
// them: [2 K] codes a row.
#pragma once

#include "fathom/formats/layout/scale_layout.h"
#include "fathom/kernels/cuda/products/native/two_e4m3.h"
#include "fathom/kernels/cuda/products/product.cuh"
#include "fathom/kernels/cuda/reduce.cuh"

namespace fathom::sm100 {

using cuda::ProductCall;

inline constexpr int kTileK = 128;
inline constexpr int kSplitWarps = 8;

/// The first row of matrix e, of the rows of all matrices.
__device__ __forceinline__ int first_row(const ProductCall& c, int e) {
  return c.offsets != nullptr ? c.offsets[e] : e * c.T;
}

/// The matrix of a row; -1: none.
__device__ inline int matrix_of(const ProductCall& c, int row) {
  if (row < first_row(c, 0) || row >= first_row(c, c.matrices)) return -1;
  int low = 0;
  int high = c.matrices;  // low begins at the row or before, high behind it
  while (high - low > 1) {
    const int middle = (low + high) / 2;
    (first_row(c, middle) <= row ? low : high) = middle;
  }
  return low;
}

/// UE8M0 for 32 k, swizzled 128x4 in each matrix.
struct MxScales {
  static constexpr int kLanes = 8;  ///< with four k each, that share a scale
  uint8_t* data;
  int columns;

  FATHOM_HD static int64_t first_of(int64_t first, int e) { return spread_row(first, e, 128); }

  __device__ void put(int64_t first, int e, int row, int tile, uint32_t scale) const {
    const int column = tile * 4 + cuda::lane_id() / kLanes;
    data[first_of(first, e) * columns + swizzled_128x4_offset(row, column, columns)] =
        static_cast<uint8_t>(scale);
  }
};

/// float32 for 128 k, row-major.
struct BlockScales {
  static constexpr int kLanes = 32;
  float* data;
  int columns;

  FATHOM_HD static int64_t first_of(int64_t first, int /*e*/) { return first; }

  __device__ void put(int64_t first, int /*e*/, int row, int tile, uint32_t scale) const {
    data[(first + row) * columns + tile] = float_from_bits(scale << 23);
  }
};

/// A warp has 128 k of a row.
template <class Scales>
__global__ void __launch_bounds__(kSplitWarps * 32)
    split_rows(ProductCall c, int64_t num_rows, uint8_t* codes, Scales scales) {
  cuda::wait_for_previous();
  const int tiles = c.K / kTileK;
  const int64_t item = int64_t{blockIdx.x} * kSplitWarps + cuda::warp_id();
  const int tile = static_cast<int>(item % tiles);
  if (item / tiles >= num_rows) return;
  const int row = static_cast<int>(item / tiles);
  const int e = matrix_of(c, row);
  if (e < 0) return;
  const int first = first_row(c, e);
  const int64_t x_row = c.offsets != nullptr ? row : row - first;
  const int lane_k = cuda::lane_id() * 4;
  const auto* x_at = static_cast<const Bf16*>(c.x) + e * c.x_matrix + x_row * c.x_row;
  const auto words = *reinterpret_cast<const uint2*>(x_at + tile * kTileK + lane_k);
  const float x[4] = {float_from_bits(words.x << 16), float_from_bits(words.x & 0xFFFF0000u),
                      float_from_bits(words.y << 16), float_from_bits(words.y & 0xFFFF0000u)};
  float largest = 0.0f;
  for (float v : x)
    largest = fmaxf(largest, isfinite(v) ? fabsf(v) : 0.0f);
  const uint32_t scale = scale_of_high(cuda::combine_lanes<Scales::kLanes>(largest, cuda::Max()));

  union {
    E4m3 codes[2][4];
    uint32_t words[2];
  } out;

#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const TwoParts parts = parts_of(x[i], scale, cuda::rounded<E4m3>);
    cuda::store(&out.codes[0][i], parts.high);
    cuda::store(&out.codes[1][i], parts.low);
  }
#pragma unroll
  for (int part = 0; part < 2; ++part) {
    const int to = 2 * tile + part;
    *reinterpret_cast<uint32_t*>(codes + (int64_t{row} * 2 * tiles + to) * kTileK + lane_k) =
        out.words[part];
    if (cuda::lane_id() % Scales::kLanes == 0)
      scales.put(first, e, row - first, to, scale - part * kLowShift);
  }
}

}  // namespace fathom::sm100
