// Attention of one query row by one block, element by element: what every format, width and layout
// can take. In float32 throughout, keys in blocks of 64 that are merged in order.
#pragma once

#include <cmath>

#include "fathom/kernels/cuda/elements.cuh"
#include "fathom/kernels/cuda/reduce.cuh"

namespace fathom::cuda {

inline constexpr int kRowThreads = 128;
inline constexpr int kRowKeys = 64;  ///< keys that are merged at a time

/// Numbers behind an address, of a format known at run time.
struct Elements {
  const void* data;
  Format format;

  /// Element d of the row whose first element is number `at`.
  __device__ float operator()(int64_t at, int d) const { return load_any(data, format, at + d); }
};

/// Running maximum and sum of a row's weights, the same in all threads.
struct RowState {
  float max = -INFINITY;
  float sum = 0.0f;

  /// Adds a sink; returns what the sums of values so far are multiplied by.
  __device__ float add_sink(float sink) {
    if (sink == -INFINITY) return 1.0f;
    const float most = fmaxf(sink, max);
    const float shrink = max == -INFINITY ? 0.0f : expf(max - most);
    sum = sum * shrink + expf(sink - most);
    max = most;
    return shrink;
  }

  __device__ float inverse_sum() const { return sum == 0.0f ? 0.0f : 1.0f / sum; }

  /// Natural.
  __device__ float lse() const { return sum == 0.0f ? -INFINITY : max + logf(sum); }
};

/// Floats of shared memory that attend_row takes for queries of D and values of L numbers.
inline int64_t attend_row_floats(int64_t D, int64_t L) {
  return D + L + 2 * kRowKeys;
}

/// Keys [begin, end) for the query in shared[0 .. D-1], which a barrier has made visible. The sums
/// of weighted values are in shared[D .. D+L-1] after the call, element d written by thread
/// d % kRowThreads. key_at(i) and value_at(i) give a row's place, or -1: no such key. keys(place,
/// d) and values(place, d) are numbers of it, as Elements gives them.
template <class Keys, class Values, class KeyAt, class ValueAt>
__device__ RowState attend_row(float* shared,
                               int D,
                               int L,
                               int64_t begin,
                               int64_t end,
                               float scale,
                               const Keys& keys,
                               const Values& values,
                               KeyAt key_at,
                               ValueAt value_at) {
  const float* query = shared;
  float* sums = shared + D;
  float* scores = sums + L;
  float* weights = scores + kRowKeys;
  const int tid = static_cast<int>(threadIdx.x);
  for (int d = tid; d < L; d += kRowThreads)
    sums[d] = 0.0f;
  RowState state;
  for (int64_t first = begin; first < end; first += kRowKeys) {
    const int count = end - first < kRowKeys ? static_cast<int>(end - first) : kRowKeys;
    for (int i = warp_id(); i < count; i += kRowThreads / 32) {
      const int64_t at = key_at(first + i);
      float dot = 0.0f;
      for (int d = lane_id(); at >= 0 && d < D; d += 32)
        dot += query[d] * keys(at, d);
      dot = combine_lanes(dot, Add{});
      if (lane_id() == 0) scores[i] = at >= 0 ? dot * scale : -INFINITY;
    }
    __syncthreads();
    float most = state.max;
    for (int i = 0; i < count; ++i)
      most = fmaxf(most, scores[i]);
    const float base = most == -INFINITY ? 0.0f : most;
    if (tid < count) weights[tid] = expf(scores[tid] - base);
    const float shrink = state.max == -INFINITY ? 0.0f : expf(state.max - base);
    __syncthreads();
    float sum = state.sum * shrink;
    for (int i = 0; i < count; ++i)
      sum += weights[i];
    for (int d = tid; d < L; d += kRowThreads) {
      float total = sums[d] * shrink;
      for (int i = 0; i < count; ++i) {
        const int64_t at = value_at(first + i);
        if (at >= 0) total += weights[i] * values(at, d);
      }
      sums[d] = total;
    }
    state = {most, sum};
  }
  return state;
}

}  // namespace fathom::cuda
