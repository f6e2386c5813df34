// A ragged attention call as the kernels of the GPU see it.
#pragma once

#include "fathom/kernels/attn/ragged_attention/ragged_attention.h"
#include "fathom/kernels/attn/ragged_attention/ragged_attention_blocks.h"
#include "fathom/kernels/cuda/elements.cuh"

namespace fathom::ragged {

/// Rows (t, n) of q, k, v, o or lse.
struct HeadRows {
  void* data = nullptr;
  Format format = Format::kF32;
  int64_t token_stride = 0;
  int64_t head_stride = 0;

  __device__ int64_t offset(int64_t t, int64_t n) const {
    return t * token_stride + n * head_stride;
  }
};

inline HeadRows head_rows(const View& v) {
  if (!v.present()) return {};
  return {v.data, v.format, v.stride(0), v.stride(1)};
}

struct Call {
  HeadRows q, k, v, o, lse;
  const int32_t* q_offsets;
  const int32_t* kv_offsets;
  const float* sinks;
  int64_t T, S, N;
  int64_t group;  ///< heads of q that share a head of k
  int64_t window_left;
  int B, Dq, Dv;
  float scale, out_scale;
  CausalMask mask;
  LseBase lse_base;
};

inline Call call_of(const RaggedAttention::Args& a) {
  return {.q = head_rows(a.q),
          .k = head_rows(a.k),
          .v = head_rows(a.v),
          .o = head_rows(a.o),
          .lse = head_rows(a.lse),
          .q_offsets = a.q_offsets.as<const int32_t>(),
          .kv_offsets = a.kv_offsets.as<const int32_t>(),
          .sinks = a.sinks.present() ? a.sinks.as<const float>() : nullptr,
          .T = a.q.dim(0),
          .S = a.k.dim(0),
          .N = a.q.dim(1),
          .group = a.k.dim(1) > 0 ? a.q.dim(1) / a.k.dim(1) : 1,
          .window_left = a.window_left,
          .B = static_cast<int>(a.q_offsets.dim(0) - 1),
          .Dq = static_cast<int>(a.q.dim(2)),
          .Dv = static_cast<int>(a.v.dim(2)),
          .scale = a.scale,
          .out_scale = a.o_scale,
          .mask = a.mask,
          .lse_base = a.lse_base};
}

/// The rows of a request. Offsets that do not rise, or point past the operands, give an empty one.
struct Request {
  int64_t first_query = 0;
  int64_t queries = 0;
  int64_t first_key = 0;
  int64_t keys = 0;

  /// The keys that query i sees.
  __device__ VisibleKeys seen(const Call& c, int64_t i) const {
    const int64_t last = i + (keys - queries);
    const int64_t end = c.mask == CausalMask::kFull ? keys : (last < 0 ? 0 : last + 1);
    const int64_t begin = c.window_left < 0 || last < c.window_left ? 0 : last - c.window_left;
    return {begin, end};
  }
};

__device__ inline Request request_of(const Call& c, int b) {
  Request r;
  const int64_t q = c.q_offsets[b];
  const int64_t q_end = c.q_offsets[b + 1];
  const int64_t k = c.kv_offsets[b];
  const int64_t k_end = c.kv_offsets[b + 1];
  if (q < 0 || q_end <= q || q_end > c.T) return r;
  r.first_query = q;
  r.queries = q_end - q;
  if (k < 0 || k_end <= k || k_end > c.S) return r;
  r.first_key = k;
  r.keys = k_end - k;
  return r;
}

/// The request of query row t.
__device__ inline Request request_of_query(const Call& c, int64_t t) {
  Request r;
  for (int b = 0; b < c.B; ++b) {
    r = request_of(c, b);
    if (t >= r.first_query && t < r.first_query + r.queries) break;
  }
  return r;
}

}  // namespace fathom::ragged
