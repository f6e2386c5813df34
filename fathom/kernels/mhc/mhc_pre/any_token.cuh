// mhc_pre, mhc_head and mhc_chain of any number of streams, format and layout: a block a token.
#pragma once

#include "fathom/kernels/cuda/arithmetic.cuh"
#include "fathom/kernels/cuda/device_code.cuh"
#include "fathom/kernels/cuda/reduce.cuh"
#include "fathom/kernels/cuda/rows.cuh"
#include "fathom/kernels/mhc/mhc_pre/mhc_pre.h"
#include "fathom/kernels/mhc/mhc_pre/token_numbers.cuh"

namespace fathom::cuda {

inline constexpr int kAnyThreads = 256;
inline constexpr int kRowsAtOnce = 8;  ///< of fn
inline constexpr int kMostSums = kMaxStreams * (kMaxStreams + 2) + 1;

struct AnyCall {
  const void* streams;
  int64_t token_stride, stream_stride;
  Format format;
  Rows<const float> fn;
  const float* base;
  const float* scale;
  AnyRows x;
  Rows<float> post;
  float* comb;
  int64_t comb_token, comb_stride;
  int n;
  int num_rows;  ///< of fn: n of mhc_head
  int64_t D;
  float eps, hc_eps;
  int iterations;

  __device__ float stream(int64_t t, int j, int64_t d) const {
    return load_any(streams, format, t * token_stride + j * stream_stride + d);
  }
};

struct AnyMemory {
  float scratch[kRowsAtOnce + 1][32];
  float sums[kMostSums];
  float pre[kMaxStreams];
  float comb[kMaxStreams * kMaxStreams];
};

/// Products with all rows of fn, and behind them the squares, by all threads of the block.
__device__ inline void sum_token(const AnyCall& c, int64_t t, AnyMemory& m) {
#pragma unroll 1
  for (int first = 0; first < c.num_rows; first += kRowsAtOnce) {
    float sums[kRowsAtOnce + 1] = {};
    for (int j = 0; j < c.n; ++j) {
      for (int64_t d = threadIdx.x; d < c.D; d += kAnyThreads) {
        const float x = c.stream(t, j, d);
#pragma unroll
        for (int r = 0; r < kRowsAtOnce; ++r) {
          if (first + r < c.num_rows) sums[r] = fmaf(c.fn[first + r][j * c.D + d], x, sums[r]);
        }
        sums[kRowsAtOnce] = fmaf(x, x, sums[kRowsAtOnce]);
      }
    }
#pragma unroll
    for (int r = 0; r <= kRowsAtOnce; ++r) {
      const float sum = combine_block(sums[r], m.scratch[r], Add());
      const int place = r == kRowsAtOnce ? c.num_rows : first + r;
      if (threadIdx.x == 0 && (r == kRowsAtOnce || place < c.num_rows)) m.sums[place] = sum;
    }
    __syncthreads();  // scratch has been read, and sums are seen
  }
}

/// Divides the rows or the columns of comb by their sums; by one warp, a lane each.
enum class Lines : uint8_t { kRows, kColumns };

__device__ inline void divide_lines(const AnyCall& c, AnyMemory& m, Lines lines) {
  const int line = lane_id();
  if (line < c.n) {
    const int first = lines == Lines::kRows ? line * c.n : line;
    const int step = lines == Lines::kRows ? 1 : c.n;
    float sum = 0.0f;
    for (int i = 0; i < c.n; ++i)
      sum += m.comb[first + i * step];
    for (int i = 0; i < c.n; ++i)
      m.comb[first + i * step] /= sum + c.hc_eps;
  }
  __syncwarp();
}

__device__ inline void softmax_rows(const AnyCall& c, AnyMemory& m) {
  if (lane_id() < c.n) {
    float* row = m.comb + lane_id() * c.n;
    float largest = -INFINITY;
    for (int k = 0; k < c.n; ++k)
      largest = fmaxf(largest, row[k]);
    float sum = 0.0f;
    for (int k = 0; k < c.n; ++k) {
      row[k] = expf(row[k] - largest);
      sum += row[k];
    }
    for (int k = 0; k < c.n; ++k)
      row[k] = row[k] / sum + c.hc_eps;
  }
  __syncwarp();
}

/// pre, post and comb of a token, by one warp.
__device__ inline void find_numbers(const AnyCall& c, int64_t t, AnyMemory& m) {
  const int n = c.n;
  const float width = static_cast<float>(n) * static_cast<float>(c.D);
  const float rho = 1.0f / sqrtf(m.sums[c.num_rows] / width + c.eps);
  for (int q = lane_id(); q < c.num_rows; q += 32) {
    const int part = q < n ? 0 : q < 2 * n ? 1 : 2;
    const float z = rho * m.sums[q] * c.scale[part] + c.base[q];
    if (part == 0) {
      m.pre[q] = sigmoid(z) + c.hc_eps;
    } else if (part == 1) {
      c.post[t][q - n] = 2.0f * sigmoid(z);
    } else {
      m.comb[q - 2 * n] = z;
    }
  }
  __syncwarp();
  if (c.num_rows == n) return;
  softmax_rows(c, m);
  divide_lines(c, m, Lines::kColumns);
  for (int i = 1; i < c.iterations; ++i) {
    divide_lines(c, m, Lines::kRows);
    divide_lines(c, m, Lines::kColumns);
  }
  for (int i = lane_id(); i < n * n; i += 32)
    c.comb[t * c.comb_token + i / n * c.comb_stride + i % n] = m.comb[i];
}

/// Channel d of x: sum over j, in order, of pre[j] streams[j]. Rounded as on the CPU.
__device__ inline float mixed_channel(const AnyCall& c, const AnyMemory& m, int64_t t, int64_t d) {
  float x = __fmul_rn(m.pre[0], c.stream(t, 0, d));
  for (int j = 1; j < c.n; ++j)
    x = __fadd_rn(x, __fmul_rn(m.pre[j], c.stream(t, j, d)));
  return x;
}

template <class Args>
AnyCall any_call_of(const Args& a) {
  AnyCall c{.streams = a.streams.data,
            .token_stride = a.streams.stride(0),
            .stream_stride = a.streams.stride(1),
            .format = a.streams.format,
            .fn = rows_of<const float>(a.fn),
            .base = a.base.template as<const float>(),
            .scale = a.scale.template as<const float>(),
            .x = any_rows(result_of(a)),
            .post = {},
            .comb = nullptr,
            .comb_token = 0,
            .comb_stride = 0,
            .n = static_cast<int>(a.streams.dim(1)),
            .num_rows = static_cast<int>(a.fn.dim(0)),
            .D = a.streams.dim(2),
            .eps = a.eps,
            .hc_eps = a.hc_eps,
            .iterations = 0};
  if constexpr (requires { a.comb; }) {
    c.post = rows_of<float>(a.post);
    c.comb = a.comb.template as<float>();
    c.comb_token = a.comb.stride(0);
    c.comb_stride = a.comb.stride(1);
    c.iterations = a.iterations;
  }
  return c;
}

}  // namespace fathom::cuda
