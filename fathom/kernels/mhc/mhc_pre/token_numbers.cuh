// What mhc_pre and mhc_head make of the sums of a token: its weights. Shared by the kernels for
// four streams in bf16, whose blocks form clusters and have a share of the channels of all streams
// each.
//
//   sums of a token:  [0, 3] products with the rows of pre
//                     [4, 7] of post, [8, 23] of comb    (mhc_pre)
//                     [kRows] squares
#pragma once

#include "fathom/kernels/cuda/arithmetic.cuh"
#include "fathom/kernels/cuda/device_code.cuh"
#include "fathom/kernels/cuda/elements.cuh"
#include "fathom/kernels/cuda/reduce.cuh"
#include "fathom/kernels/mhc/mhc_pre/mhc_pre.h"

namespace fathom::cuda {

inline constexpr int kStreams = 4;
inline constexpr int kPreRows = kStreams * (2 + kStreams);  ///< rows of fn of mhc_pre
inline constexpr int kHeadRows = kStreams;                  ///< of mhc_head

/// A call of either kernel; strides in elements. mhc_head has neither post nor comb.
struct StreamCall {
  const Bf16* streams;
  int64_t token_stride, stream_stride;
  const float* fn;
  int64_t fn_stride;
  const float* base;
  const float* scale;
  Bf16* x;
  int64_t x_stride;
  float* post = nullptr;
  int64_t post_stride = 0;
  float* comb = nullptr;
  int64_t comb_token = 0;
  int64_t comb_stride = 0;
  int T, D;
  float eps, hc_eps;
  int iterations = 0;

  __device__ const Bf16* stream(int64_t t, int j) const {
    return streams + t * token_stride + j * stream_stride;
  }
};

/// x of mhc_pre; of mhc_head its one result, h.
template <class Args>
const View& result_of(const Args& a) {
  if constexpr (requires { a.h; }) {
    return a.h;
  } else {
    return a.x;
  }
}

template <class Args>
StreamCall stream_call_of(const Args& a) {
  StreamCall c{.streams = a.streams.template as<const Bf16>(),
               .token_stride = a.streams.stride(0),
               .stream_stride = a.streams.stride(1),
               .fn = a.fn.template as<const float>(),
               .fn_stride = a.fn.stride(0),
               .base = a.base.template as<const float>(),
               .scale = a.scale.template as<const float>(),
               .x = result_of(a).template as<Bf16>(),
               .x_stride = result_of(a).stride(0),
               .T = static_cast<int>(a.streams.dim(0)),
               .D = static_cast<int>(a.streams.dim(2)),
               .eps = a.eps,
               .hc_eps = a.hc_eps};
  if constexpr (requires { a.comb; }) {
    c.post = a.post.template as<float>();
    c.post_stride = a.post.stride(0);
    c.comb = a.comb.template as<float>();
    c.comb_token = a.comb.stride(0);
    c.comb_stride = a.comb.stride(1);
    c.iterations = a.iterations;
  }
  return c;
}

/// Floats of a token's sums in memory.
template <int kRows>
inline constexpr int kSums = (kRows + 1 + 3) / 4 * 4;

/// base and scale in shared memory, brought before the previous kernel is done.
template <int kRows>
struct Affine {
  float base[kRows];
  float scale[3];

  __device__ void bring(const StreamCall& c, int thread = static_cast<int>(threadIdx.x)) {
    if (thread < kRows) base[thread] = c.base[thread];
    if (thread < (kRows == kPreRows ? 3 : 1)) scale[thread] = c.scale[thread];
  }
};

/// Lane q of a warp has sum q of a token. The logit of row q in lane q.
template <int kRows>
__device__ __forceinline__ float logit_of_lane(const StreamCall& c,
                                               const Affine<kRows>& affine,
                                               float sum) {
  const int q = lane_id();
  const float squares = __shfl_sync(0xFFFFFFFFu, sum, kRows);
  const float width = static_cast<float>(kStreams) * static_cast<float>(c.D);
  const float rho = 1.0f / sqrtf(squares / width + c.eps);
  if (q >= kRows) return 0.0f;
  const int part = q < kStreams ? 0 : q < 2 * kStreams ? 1 : 2;
  return rho * sum * affine.scale[part] + affine.base[q];
}

__device__ __forceinline__ float sigmoid(float z) {
  return 1.0f / (1.0f + expf(-z));
}

/// What Sinkhorn's iteration starts from: the softmax of each row of logits, in place.
__device__ __forceinline__ void soften_rows(float (&c)[kStreams][kStreams], float hc_eps) {
#pragma unroll
  for (int j = 0; j < kStreams; ++j) {
    const float largest = fmaxf(fmaxf(c[j][0], c[j][1]), fmaxf(c[j][2], c[j][3]));
    float sum = 0.0f;
#pragma unroll
    for (int k = 0; k < kStreams; ++k) {
      c[j][k] = expf(c[j][k] - largest);
      sum += c[j][k];
    }
#pragma unroll
    for (int k = 0; k < kStreams; ++k)
      c[j][k] = c[j][k] / sum + hc_eps;
  }
}

/// The same where each of four neighbouring lanes has a logit of the row. By whole warps.
__device__ __forceinline__ float soften_row_of_lanes(float logit, float hc_eps) {
  const float weight = expf(logit - combine_lanes<kStreams>(logit, Max()));
  return weight / combine_lanes<kStreams>(weight, Add()) + hc_eps;
}

/// Every x divided by its divisor, by one reciprocal: that of the product of all, which must be in
/// range.
__device__ __forceinline__ void divide_all(float (&x)[kStreams], const float (&by)[kStreams]) {
  const float low = by[0] * by[1];
  const float high = by[2] * by[3];
  const float inverse = approximate_reciprocal(low * high);
  x[0] = x[0] * by[1] * high * inverse;
  x[1] = x[1] * by[0] * high * inverse;
  x[2] = x[2] * by[3] * low * inverse;
  x[3] = x[3] * by[2] * low * inverse;
}

/// comb from its softened rows, in place.
///
/// The steps divide rows and columns by their sums. C is kept as a_j K[j][k] b_k, where K is what
/// the softmax left, so that a step is four sums and a reciprocal:
///
///   columns   b_k /= b_k sum_j a_j K[j][k] + hc_eps
///   rows      a_j /= a_j sum_k K[j][k] b_k + hc_eps
///
/// Sums of the first columns may be tiny, so they have a reciprocal each. Behind them no sum is
/// below 1/4 or above 4, since what is divided adds up to at most 4, so a product of four sums is
/// in range. (Against float64, over logits of deviation 0.5 to 80: 4.6e-7.)
__device__ __forceinline__ void sinkhorn(float (&c)[kStreams][kStreams],
                                         int iterations,
                                         float hc_eps) {
  float a[kStreams] = {1.0f, 1.0f, 1.0f, 1.0f};
  float b[kStreams] = {1.0f, 1.0f, 1.0f, 1.0f};
  float sums[kStreams];
  const auto sum_columns = [&] {
#pragma unroll
    for (int k = 0; k < kStreams; ++k) {
      const float sum = fmaf(a[1], c[1][k], a[0] * c[0][k]) + fmaf(a[3], c[3][k], a[2] * c[2][k]);
      sums[k] = fmaf(b[k], sum, hc_eps);
    }
  };
  sum_columns();
#pragma unroll
  for (int k = 0; k < kStreams; ++k)
    b[k] = approximate_reciprocal(sums[k]);
#pragma unroll 1
  for (int i = 1; i < iterations; ++i) {
#pragma unroll
    for (int j = 0; j < kStreams; ++j) {
      const float sum = fmaf(b[1], c[j][1], b[0] * c[j][0]) + fmaf(b[3], c[j][3], b[2] * c[j][2]);
      sums[j] = fmaf(a[j], sum, hc_eps);
    }
    divide_all(a, sums);
    sum_columns();
    divide_all(b, sums);
  }
#pragma unroll
  for (int j = 0; j < kStreams; ++j) {
#pragma unroll
    for (int k = 0; k < kStreams; ++k)
      c[j][k] *= a[j] * b[k];
  }
}

/// comb of token t to memory, from its softened rows.
__device__ __forceinline__ void write_comb(const StreamCall& c,
                                           int64_t t,
                                           float (&comb)[kStreams][kStreams]) {
  sinkhorn(comb, c.iterations, c.hc_eps);
  float* to = c.comb + t * c.comb_token;
#pragma unroll
  for (int i = 0; i < kStreams * kStreams; ++i)
    to[i / kStreams * c.comb_stride + i % kStreams] = comb[i / kStreams][i % kStreams];
}

/// The numbers of a matrix that this thread reads, row by row.
__device__ __forceinline__ void load_matrix(const float* numbers,
                                            float (&matrix)[kStreams][kStreams]) {
#pragma unroll
  for (int i = 0; i < kStreams * kStreams; ++i)
    matrix[i / kStreams][i % kStreams] = numbers[i];
}

/// The same from where its softened rows lie.
__device__ __forceinline__ void write_comb(const StreamCall& c, int64_t t, const float* softened) {
  float comb[kStreams][kStreams];
  load_matrix(softened, comb);
  write_comb(c, t, comb);
}

/// The same from where its logits lie.
__device__ __forceinline__ void write_comb_of_logits(const StreamCall& c,
                                                     int64_t t,
                                                     const float* logits) {
  float comb[kStreams][kStreams];
  load_matrix(logits, comb);
  soften_rows(comb, c.hc_eps);
  write_comb(c, t, comb);
}

/// kCount channels of x: sum over j, in order, of pre[j] streams[j]. Rounded as on the CPU.
template <int kCount>
__device__ __forceinline__ void mix(const float (&streams)[kStreams][kCount],
                                    const float4& pre,
                                    float (&x)[kCount]) {
#pragma unroll
  for (int i = 0; i < kCount; ++i) {
    x[i] = __fmul_rn(pre.x, streams[0][i]);
    x[i] = __fadd_rn(x[i], __fmul_rn(pre.y, streams[1][i]));
    x[i] = __fadd_rn(x[i], __fmul_rn(pre.z, streams[2][i]));
    x[i] = __fadd_rn(x[i], __fmul_rn(pre.w, streams[3][i]));
  }
}

}  // namespace fathom::cuda
