#include "fathom/kernels/core/elements.h"
#include "fathom/kernels/cuda/device_code.cuh"
#include "fathom/kernels/cuda/flat.cuh"
#include "fathom/kernels/cuda/rows.cuh"
#include "fathom/kernels/mhc/mhc_post/mhc_post.h"

namespace fathom {
namespace {

using namespace cuda;  // NOLINT: device primitives, in this file's own namespace

/// Streams [T,n,D]; strides in elements.
struct Streams {
  void* data;
  int64_t token_stride;
  int64_t stride;

  template <class A>
  __device__ A* at(int64_t t, int j) const {
    return static_cast<A*>(data) + t * token_stride + j * stride;
  }
};

Streams streams_of(const View& v) {
  return {v.data, v.stride(0), v.stride(1)};
}

// ---- mhc_expand ----

template <class A>
__global__ void __launch_bounds__(kFlatThreads)
    expand_vectors(Rows<const A> x, Streams streams, int n, FlatItems items) {
  let_next_start();
  wait_for_previous();
  const ItemPlace at = items.mine<1>(0);
  if (!at.exists) return;
  const int64_t d = int64_t{kVector} * at.item;
  const Packed<A> held = load_packed(x[at.row] + d);
  for (int j = 0; j < n; ++j)
    store_packed(streams.at<A>(at.row, j) + d, held);
}

template <class A>
__global__ void __launch_bounds__(kFlatThreads)
    expand_elements(Rows<const A> x, Streams streams, int n, FlatItems items) {
  let_next_start();
  wait_for_previous();
  const ItemPlace at = items.mine<1>(0);
  if (!at.exists) return;
  const A held = x[at.row][at.item];
  for (int j = 0; j < n; ++j)
    streams.at<A>(at.row, j)[at.item] = held;
}

template <int kUnit>
Status run_expand(Exec& ex, const MhcExpand::Args& a) {
  const FlatItems items = flat_items(a.x.dim(0), a.x.dim(1) / kUnit);
  return with_activation_type(a.x.format, [&]<class A>(A) {
    return launch_kernel(ex, kUnit == 1 ? expand_elements<A> : expand_vectors<A>,
                         one_item_each(items), rows_of<const A>(a.x), streams_of(a.streams),
                         static_cast<int>(a.streams.dim(1)), items);
  });
}

bool expand_is_aligned(const MhcExpand::Args& a) {
  return takes_vectors(a.x) && takes_vectors(a.streams);
}

// ---- mhc_post ----

struct Post {
  const void* y;
  int64_t y_stride;
  Streams streams, out;
  Rows<const float> post;
  const float* comb;
  int64_t comb_token, comb_stride;
  int n;
};

Post post_of(const MhcPost::Args& a) {
  return {.y = a.y.data,
          .y_stride = a.y.stride(0),
          .streams = streams_of(a.streams),
          .out = streams_of(a.out),
          .post = rows_of<const float>(a.post),
          .comb = a.comb.as<const float>(),
          .comb_token = a.comb.stride(0),
          .comb_stride = a.comb.stride(1),
          .n = static_cast<int>(a.streams.dim(1))};
}

constexpr int kFour = 4;

// Four streams, a thread eight channels of them; all loads come before the first store, as out may
// be streams. Products and sums are rounded apart, as the contract says.
template <class A>
__global__ void __launch_bounds__(kFlatThreads)
    mix_vectors(const __grid_constant__ Post p, FlatItems items) {
  let_next_start();
  wait_for_previous();
  const ItemPlace at = items.mine<1>(0);
  if (!at.exists) return;
  const int64_t d = int64_t{kVector} * at.item;
  const Packed<A> held_y = load_packed(static_cast<const A*>(p.y) + at.row * p.y_stride + d);
  Packed<A> held[kFour];
#pragma unroll
  for (int j = 0; j < kFour; ++j)
    held[j] = load_packed(p.streams.at<const A>(at.row, j) + d);
  float post[kFour];
  load4(p.post[at.row], post);
  float comb[kFour][kFour];
#pragma unroll
  for (int j = 0; j < kFour; ++j)
    load4(p.comb + at.row * p.comb_token + j * p.comb_stride, comb[j]);
  float y[kVector];
  float x[kFour][kVector];
  unpack(held_y, y);
#pragma unroll
  for (int j = 0; j < kFour; ++j)
    unpack(held[j], x[j]);
#pragma unroll
  for (int k = 0; k < kFour; ++k) {
    float sum[kVector];
#pragma unroll
    for (int i = 0; i < kVector; ++i) {
      sum[i] = __fmul_rn(post[k], y[i]);
#pragma unroll
      for (int j = 0; j < kFour; ++j)
        sum[i] = __fadd_rn(sum[i], __fmul_rn(comb[j][k], x[j][i]));
    }
    store8(p.out.at<A>(at.row, k) + d, sum);
  }
}

// Any number of streams and any layout, a thread a channel.
template <class A>
__global__ void __launch_bounds__(kFlatThreads)
    mix_elements(const __grid_constant__ Post p, FlatItems items) {
  let_next_start();
  wait_for_previous();
  const ItemPlace at = items.mine<1>(0);
  if (!at.exists) return;
  const float y = load(static_cast<const A*>(p.y) + at.row * p.y_stride + at.item);
  float x[kMaxStreams];
#pragma unroll
  for (int j = 0; j < kMaxStreams; ++j)
    x[j] = j < p.n ? load(p.streams.at<const A>(at.row, j) + at.item) : 0.0f;
  const float* post = p.post[at.row];
  const float* comb = p.comb + at.row * p.comb_token;
  for (int k = 0; k < p.n; ++k) {
    float sum = __fmul_rn(post[k], y);
#pragma unroll
    for (int j = 0; j < kMaxStreams; ++j) {
      if (j < p.n) sum = __fadd_rn(sum, __fmul_rn(comb[j * p.comb_stride + k], x[j]));
    }
    store(p.out.at<A>(at.row, k) + at.item, sum);
  }
}

template <int kUnit>
Status run_post(Exec& ex, const MhcPost::Args& a) {
  const FlatItems items = flat_items(a.y.dim(0), a.y.dim(1) / kUnit);
  return with_activation_type(a.y.format, [&]<class A>(A) {
    return launch_kernel(ex, kUnit == 1 ? mix_elements<A> : mix_vectors<A>, one_item_each(items),
                         post_of(a), items);
  });
}

bool post_is_aligned(const MhcPost::Args& a) {
  return takes_vectors(a.y) && takes_vectors(a.streams) && takes_vectors(a.out) &&
         takes_vectors(a.post) && takes_vectors(a.comb);
}

constexpr uint32_t kTraits = kDeterministic | kBatchInvariant | kGraphSafe;

}  // namespace

constinit const VariantTable<MhcExpand> mhc_expand_cuda{
    {"vectors", sm(90), "D%8==0", kTraits, run_expand<kVector>, MathUnit::kF32, expand_is_aligned},
    {"elements", sm(90), "", kTraits, run_expand<1>},
};

constinit const VariantTable<MhcPost> mhc_post_cuda{
    {"vectors", sm(90), "n==4, D%8==0", kTraits, run_post<kVector>, MathUnit::kF32,
     post_is_aligned},
    {"elements", sm(90), "", kTraits, run_post<1>},
};

}  // namespace fathom
