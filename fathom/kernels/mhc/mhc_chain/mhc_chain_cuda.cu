#include "fathom/kernels/core/elements.h"
#include "fathom/kernels/cuda/clusters_at_once.h"
#include "fathom/kernels/mhc/mhc_chain/chain_few_tokens.cuh"
#include "fathom/kernels/mhc/mhc_chain/mhc_chain.h"
#include "fathom/kernels/mhc/mhc_pre/any_token.cuh"

namespace fathom {
namespace {

using namespace cuda;  // NOLINT: device primitives, in this file's own namespace

using Args = MhcChain::Args;

// ---- few tokens ----

ChainCall call_of(const Args& a) {
  return {.next = stream_call_of(MhcChain::pre_of(a)),
          .out = a.out.as<Bf16>(),
          .y = a.y.as<const Bf16>(),
          .y_stride = a.y.stride(0),
          .streams = a.streams.as<const Bf16>(),
          .token_stride = a.streams.stride(0),
          .stream_stride = a.streams.stride(1),
          .post = a.post.as<const float>(),
          .post_stride = a.post.stride(0),
          .comb = a.comb.as<const float>(),
          .comb_token = a.comb.stride(0),
          .comb_stride = a.comb.stride(1),
          .norm = a.norm.as<const Bf16>(),
          .norm_eps = a.norm_eps};
}

bool takes_few_tokens(const Args& a) {
  return a.y.format == Format::kBf16 && a.norm.format == Format::kBf16 &&
         is_few_width(a.y.dim(1)) && takes_vectors(a.y) && takes_vectors(a.streams) &&
         takes_vectors(a.out) && takes_vectors(a.fn) && takes_vectors(a.norm) && takes_vectors(a.h);
}

template <int kQuads, bool kPair>
ClusterNeeds few_tokens_needs() {
  return {.kernel = reinterpret_cast<const void*>(chain_few_tokens<kQuads, kPair>),
          .threads = kFewThreads,
          .shared_bytes = static_cast<int64_t>(sizeof(typename ChainBlock<kQuads, kPair>::Memory)),
          .cluster = kFewBlocks};
}

/// Where the GPU has such clusters. One that is described is taken to: all that plans name do.
bool suits_few_tokens(const Args& a, const DeviceInfo& gpu) {
  if (gpu.ordinal < 0) return true;
  return with_few_width(a.y.dim(1), [&]<int kQuads, bool kPair>() {
    return clusters_at_once(gpu.ordinal, few_tokens_needs<kQuads, kPair>()) > 0;
  });
}

Status run_few_tokens(Exec& ex, const Args& a) {
  const int64_t T = a.y.dim(0);
  if (T == 0) return {};
  return with_few_width(a.y.dim(1), [&]<int kQuads, bool kPair>() -> Status {
    const ClusterNeeds needs = few_tokens_needs<kQuads, kPair>();
    FATHOM_TRY(allow_large_cluster(needs.kernel));
    return launch_kernel(ex, chain_few_tokens<kQuads, kPair>,
                         {.blocks = few_clusters(ex, T, needs) * kFewBlocks,
                          .threads = needs.threads,
                          .shared_bytes = needs.shared_bytes,
                          .cluster = kFewBlocks},
                         call_of(a));
  });
}

// ---- any number of streams, format and layout: a block a token ----

/// What mhc_chain has besides the operands of mhc_pre.
struct AnyChain {
  AnyRows y;
  const void* streams;
  int64_t token_stride, stream_stride;
  void* out;
  Rows<const float> post;
  const float* comb;
  int64_t comb_token, comb_stride;
  AnyRows norm;
  float norm_eps;
};

/// New streams of a token; out may be the old ones, so that a thread reads all of a channel first.
__device__ void write_streams(const AnyCall& c, const AnyChain& p, int64_t t) {
  for (int64_t d = threadIdx.x; d < c.D; d += kAnyThreads) {
    const float y = p.y.load(t, d);
    float x[kMaxStreams];
    for (int j = 0; j < c.n; ++j)
      x[j] = load_any(p.streams, c.format, t * p.token_stride + j * p.stream_stride + d);
    for (int k = 0; k < c.n; ++k) {
      float sum = __fmul_rn(p.post[t][k], y);
      for (int j = 0; j < c.n; ++j) {
        sum = __fadd_rn(sum, __fmul_rn(p.comb[t * p.comb_token + j * p.comb_stride + k], x[j]));
      }
      store_any(p.out, c.format, t * c.token_stride + k * c.stream_stride + d, sum);
    }
  }
}

__global__ void __launch_bounds__(kAnyThreads)
    chain_any_layout(const __grid_constant__ AnyCall c, const __grid_constant__ AnyChain p) {
  __shared__ AnyMemory m;
  __shared__ float scratch[32];
  let_next_start();
  wait_for_previous();
  const int64_t t = blockIdx.x;
  write_streams(c, p, t);
  __syncthreads();
  sum_token(c, t, m);
  if (warp_id() == 0) find_numbers(c, t, m);
  __syncthreads();
  float squares = 0.0f;
  for (int64_t d = threadIdx.x; d < c.D; d += kAnyThreads) {
    c.x.store(t, d, mixed_channel(c, m, t, d));
    const float x = c.x.load(t, d);
    squares = fmaf(x, x, squares);
  }
  const float mean = combine_block(squares, scratch, Add()) / static_cast<float>(c.D);
  const float r = 1.0f / sqrtf(mean + p.norm_eps);
  for (int64_t d = threadIdx.x; d < c.D; d += kAnyThreads)
    c.x.store(t, d, c.x.load(t, d) * r * p.norm.load(0, d));
}

AnyChain any_chain_of(const Args& a) {
  return {.y = any_rows(a.y),
          .streams = a.streams.data,
          .token_stride = a.streams.stride(0),
          .stream_stride = a.streams.stride(1),
          .out = a.out.data,
          .post = rows_of<const float>(a.post),
          .comb = a.comb.as<const float>(),
          .comb_token = a.comb.stride(0),
          .comb_stride = a.comb.stride(1),
          .norm = any_rows(a.norm),
          .norm_eps = a.norm_eps};
}

Status run_any_layout(Exec& ex, const Args& a) {
  return launch_kernel(ex, chain_any_layout, {.blocks = a.y.dim(0), .threads = kAnyThreads},
                       any_call_of(MhcChain::pre_of(a)), any_chain_of(a));
}

constexpr uint32_t kTraits = kDeterministic | kBatchInvariant | kGraphSafe;

}  // namespace

constinit const VariantTable<MhcChain> mhc_chain_cuda{
    {"few_tokens", sm(90), "n==4, T<=32", kTraits | kSomeRowCounts, run_few_tokens, MathUnit::kF32,
     takes_few_tokens, nullptr, suits_few_tokens},
    {"any_layout", sm(90), "", kTraits, run_any_layout},
};

}  // namespace fathom
