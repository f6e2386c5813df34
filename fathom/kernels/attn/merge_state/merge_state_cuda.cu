#include <cmath>

#include "fathom/kernels/attn/merge_state/merge_state.h"
#include "fathom/kernels/core/elements.h"
#include "fathom/kernels/cuda/arithmetic.cuh"
#include "fathom/kernels/cuda/device_code.cuh"
#include "fathom/kernels/cuda/products/tiles.cuh"
#include "fathom/kernels/cuda/rows.cuh"

namespace fathom {
namespace {

using namespace cuda;  // NOLINT: device primitives, in this file's own namespace

struct Shares {
  float a;
  float b;
  float lse;
};

/// The share of each side, and the log-sum-exp of both; an infinite one of either sign has no keys.
__device__ Shares merge_lse(float lse_a, float lse_b, LseBase base) {
  const float empty = -INFINITY;
  if (isinf(lse_a)) lse_a = empty;
  if (isinf(lse_b)) lse_b = empty;
  if (lse_a == empty && lse_b == empty) return {0.0f, 0.0f, empty};
  if (lse_a == empty) return {0.0f, 1.0f, lse_b};
  if (lse_b == empty) return {1.0f, 0.0f, lse_a};
  const float most = fmaxf(lse_a, lse_b);
  const bool natural = base == LseBase::kE;
  const float weight_a = natural ? expf(lse_a - most) : exp2f(lse_a - most);
  const float weight_b = natural ? expf(lse_b - most) : exp2f(lse_b - most);
  const float sum = weight_a + weight_b;
  return {weight_a / sum, weight_b / sum, most + (natural ? logf(sum) : log2f(sum))};
}

/// Rows (t, n) of o[T,N,D] or lse[T,N].
struct HeadRows {
  void* data;
  int64_t token_stride;
  int64_t head_stride;
  Format format;

  __device__ int64_t offset(int64_t t, int64_t n) const {
    return t * token_stride + n * head_stride;
  }
};

struct Merge {
  HeadRows o_a, lse_a, o_b, lse_b, o, lse;
  unsigned num_heads;
  LseBase base;
};

/// Every thread of a row computes its shares. A row lies within one block, so that one barrier
/// keeps results that are written in place from being read.
__device__ Shares shares_of(const Merge& m, int64_t t, int64_t n, bool exists) {
  if (!exists) return {};
  return merge_lse(static_cast<const float*>(m.lse_a.data)[m.lse_a.offset(t, n)],
                   static_cast<const float*>(m.lse_b.data)[m.lse_b.offset(t, n)], m.base);
}

template <class T>
__device__ Packed<T> side_of(const HeadRows& side, int64_t t, int64_t n, const VectorPlace& at) {
  if (!at.exists) return {};
  return load_packed(static_cast<const T*>(side.data) + side.offset(t, n) + kVector * at.vector);
}

/// A side without weight may hold anything, so that it has no part in the sum.
template <class T>
__device__ void add_share(float share, const Packed<T>& side, float (&sum)[kVector]) {
  if (share == 0.0f) return;
  float values[kVector];
  unpack(side, values);
#pragma unroll
  for (int i = 0; i < kVector; ++i)
    sum[i] += share * values[i];
}

// Both sides are on their way while the shares are computed.
template <class A, class B, class O>
__global__ void __launch_bounds__(kTileThreads) merge_vectors(Merge m, RowTiles tiles) {
  let_next_start();
  wait_for_previous();
  const VectorPlace at = tiles.place();
  const RowOfGroup place(at.row, m.num_heads);
  const int64_t t = place.group;
  const int64_t n = place.row;
  const Packed<A> side_a = side_of<A>(m.o_a, t, n, at);
  const Packed<B> side_b = side_of<B>(m.o_b, t, n, at);
  const Shares shares = shares_of(m, t, n, at.exists);
  __syncthreads();
  if (!at.exists) return;
  float sum[kVector] = {};
  add_share(shares.a, side_a, sum);
  add_share(shares.b, side_b, sum);
  store8(static_cast<O*>(m.o.data) + m.o.offset(t, n) + kVector * at.vector, sum);
  if (at.vector == 0) static_cast<float*>(m.lse.data)[m.lse.offset(t, n)] = shares.lse;
}

// Any formats and widths: one block a row.
__global__ void __launch_bounds__(kTileThreads) merge_rows(Merge m, int64_t D) {
  let_next_start();
  wait_for_previous();
  const int64_t t = blockIdx.x / m.num_heads;
  const int64_t n = blockIdx.x - t * m.num_heads;
  const Shares shares = shares_of(m, t, n, true);
  __syncthreads();
  for (int64_t d = threadIdx.x; d < D; d += blockDim.x) {
    float sum = 0.0f;
    if (shares.a != 0.0f)
      sum += shares.a * load_any(m.o_a.data, m.o_a.format, m.o_a.offset(t, n) + d);
    if (shares.b != 0.0f)
      sum += shares.b * load_any(m.o_b.data, m.o_b.format, m.o_b.offset(t, n) + d);
    store_any(m.o.data, m.o.format, m.o.offset(t, n) + d, sum);
  }
  if (threadIdx.x == 0) static_cast<float*>(m.lse.data)[m.lse.offset(t, n)] = shares.lse;
}

HeadRows head_rows(const View& v) {
  return {v.data, v.stride(0), v.stride(1), v.format};
}

Merge merge_of(const MergeState::Args& a) {
  return {.o_a = head_rows(a.o_a),
          .lse_a = head_rows(a.lse_a),
          .o_b = head_rows(a.o_b),
          .lse_b = head_rows(a.lse_b),
          .o = head_rows(a.o),
          .lse = head_rows(a.lse),
          .num_heads = static_cast<unsigned>(a.o.dim(1)),
          .base = a.base};
}

Status run_vectors(Exec& ex, const MergeState::Args& a) {
  const RowTiles tiles = row_tiles(a.o.dim(0) * a.o.dim(1), a.o.dim(2) / kVector);
  const auto run = [&]<class Side, class O>(Side, O) {
    return launch_kernel(ex, merge_vectors<Side, Side, O>, shape_of(tiles), merge_of(a), tiles);
  };
  return with_float_type(a.o_a.format, [&]<class Side>(Side) { return run(Side{}, Side{}); });
}

Status run_rows(Exec& ex, const MergeState::Args& a) {
  const int64_t rows = a.o.dim(0) * a.o.dim(1);
  return launch_kernel(ex, merge_rows, {.blocks = rows, .threads = kTileThreads}, merge_of(a),
                       a.o.dim(2));
}

bool is_aligned(const MergeState::Args& a) {
  return a.o_a.format == a.o_b.format && a.o_a.format == a.o.format && takes_vectors(a.o_a) &&
         takes_vectors(a.o_b) && takes_vectors(a.o);
}

constexpr uint32_t kTraits = kDeterministic | kBatchInvariant | kGraphSafe;

}  // namespace

constinit const VariantTable<MergeState> merge_state_cuda{
    {"vectors", sm(90), "D%8==0, D>=8, D<=2048", kTraits, run_vectors, MathUnit::kF32, is_aligned},
    {"rows", sm(90), "", kTraits, run_rows},
};

}  // namespace fathom
