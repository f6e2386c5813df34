#include "fathom/kernels/cuda/launch_cuda.h"
#include "fathom/kernels/cuda/products/mma.cuh"
#include "fathom/kernels/moe/gate/gate_call.cuh"
#include "fathom/kernels/moe/route/few_offsets.cuh"
#include "fathom/kernels/moe/router/router.h"

namespace fathom {
namespace {

using namespace cuda;  // NOLINT: device primitives, in this file's own namespace

using Args = Router::Args;

// A block has eight experts and a quarter of H, a warp an eighth of that, in steps of 32; its
// weights are in registers before the previous kernel is done. The sums of warps and of quarters
// are added in order, so that a token has the same bits whatever tokens are beside it. The block
// that arrives last has all logits in shared memory, chooses, a warp a token, and sorts.
constexpr int kTokens = static_cast<int>(Router::kMostTokens);
constexpr int kExperts = 8;  // of a block
constexpr int kParts = 4;    // of H
constexpr int kWarps = 8;
constexpr int kThreads = kWarps * kWarp;
constexpr int kStep = 32;
constexpr int kMostSteps = 7;
constexpr int kStepOfAll = kParts * kWarps * kStep;

struct Call {
  const Bf16* x;
  int64_t x_stride;
  const Bf16* gate;
  int64_t gate_stride;
  float* sums;         // [kParts][T][E]
  unsigned* arrivals;  // blocks that have written theirs
  Offsets offsets;     // of null: not asked for
  int T, E, steps;
  int words;  // of shared memory, of a warp that chooses
};

/// A gate's choice among the logits of shared memory.
template <int kItems>
struct ByScore {
  static constexpr int kBlocksOfSm = kItems <= 16 ? 2 : 1;  // as far as registers go

  Gate g;

  __device__ const float* bias() const { return static_cast<const float*>(g.bias); }

  __device__ __forceinline__ void choose(const float* logits,
                                         const float* bias,
                                         int64_t t,
                                         uint32_t* shared) const {
    Gate mine = g;
    mine.logits = logits;
    if (g.bias != nullptr) mine.bias = bias;
    route_token<kItems>(mine, t, shared);
  }
};

struct ByTokenId {
  static constexpr int kBlocksOfSm = 2;

  Hash h;

  __device__ const float* bias() const { return nullptr; }

  __device__ __forceinline__ void choose(const float* logits,
                                         const float* /*bias*/,
                                         int64_t t,
                                         uint32_t* /*shared*/) const {
    Hash mine = h;
    mine.logits = logits;
    hash_token(mine, t);
  }
};

/// Adds the products of 32 k, sixteen tokens by eight experts, in two chains. low, high: tokens
/// lane / 4 and the eighth behind it.
__device__ __forceinline__ void add_step(
    float (&even)[4], float (&odd)[4], const uint4& low, const uint4& high, const uint4& w) {
  mma_16x8x16(even, low.x, high.x, low.y, high.y, w.x, w.y);
  mma_16x8x16(odd, low.z, high.z, low.w, high.w, w.z, w.w);
}

/// Writes the sums of this block.
__device__ __forceinline__ void write_sums(const Call& c, int tile, int part, const float* sums) {
  const int token = static_cast<int>(threadIdx.x) / kExperts;
  const int expert = static_cast<int>(threadIdx.x) % kExperts;
  if (token >= c.T) return;
  float total = sums[token * kExperts + expert];
#pragma unroll
  for (int w = 1; w < kWarps; ++w)
    total += sums[(w * kTokens + token) * kExperts + expert];
  c.sums[(int64_t{part} * c.T + token) * c.E + tile * kExperts + expert] = total;
}

/// True in all threads of the block that arrives last; it sees what the others wrote before.
/// arrivals is 0 again then.
__device__ __forceinline__ bool arrives_last(unsigned* arrivals) {
  __shared__ bool is_last;
  __syncthreads();
  if (threadIdx.x == 0) {
    __threadfence();
    is_last = atomicInc(arrivals, gridDim.x - 1) == gridDim.x - 1;
    __threadfence();
  }
  __syncthreads();
  return is_last;
}

/// Past the first cache, where other blocks' sums are not.
__device__ __forceinline__ void add_parts(const Call& c, float* logits) {
  const int fours = c.T * c.E / 4;
  const auto* from = reinterpret_cast<const float4*>(c.sums);
  for (int i = static_cast<int>(threadIdx.x); i < fours; i += kThreads) {
    float4 part[kParts];
#pragma unroll
    for (int p = 0; p < kParts; ++p)
      part[p] = __ldcg(from + p * fours + i);
    float4 total = part[0];
#pragma unroll
    for (int p = 1; p < kParts; ++p) {
      total.x += part[p].x;
      total.y += part[p].y;
      total.z += part[p].z;
      total.w += part[p].w;
    }
    reinterpret_cast<float4*>(logits)[i] = total;
  }
}

extern __shared__ float4 router_shared[];  // logits [T][E], bias [E], words of warps

template <class Choice>
__global__ void __launch_bounds__(kThreads, Choice::kBlocksOfSm)
    route_few_tokens(const __grid_constant__ Call c, const __grid_constant__ Choice choice) {
  __shared__ float sums[kWarps * kTokens * kExperts];
  __shared__ int buckets[kTokens * kWarp];
  let_next_start();
  const int tile = static_cast<int>(blockIdx.x) / kParts;
  const int part = static_cast<int>(blockIdx.x) % kParts;
  const int row = lane_id() / 4;
  const int k = (part * kWarps + warp_id()) * c.steps * kStep + lane_id() % 4 * kVector;
  auto* logits = reinterpret_cast<float*>(router_shared);
  float* bias = logits + c.T * c.E;

  const Bf16* weights = c.gate + (int64_t{tile} * kExperts + row) * c.gate_stride + k;
  const uint64_t policy = weights_policy(true);
  uint4 w[kMostSteps];
#pragma unroll
  for (int i = 0; i < kMostSteps; ++i) {
    w[i] = make_uint4(0, 0, 0, 0);
    if (i < c.steps) w[i] = load_16(weights + i * kStep, policy);
  }
  if (choice.bias() != nullptr) {
    for (int e = static_cast<int>(threadIdx.x); e < c.E; e += kThreads)
      bias[e] = choice.bias()[e];
  }
  wait_for_previous();

  const Bf16* x = c.x + row * c.x_stride + k;
  uint4 low[kMostSteps];
  uint4 high[kMostSteps];
#pragma unroll
  for (int i = 0; i < kMostSteps; ++i) {
    low[i] = load_16_if(x + i * kStep, i < c.steps && row < c.T);
    high[i] = load_16_if(x + 8 * c.x_stride + i * kStep, i < c.steps && row + 8 < c.T);
  }
  float even[4] = {};
  float odd[4] = {};
#pragma unroll
  for (int i = 0; i < kMostSteps; ++i)
    add_step(even, odd, low[i], high[i], w[i]);
#pragma unroll
  for (int j = 0; j < 4; ++j) {
    const int token = row + j / 2 * 8;
    sums[(warp_id() * kTokens + token) * kExperts + lane_id() % 4 * 2 + j % 2] = even[j] + odd[j];
  }
  __syncthreads();
  write_sums(c, tile, part, sums);
  if (!arrives_last(c.arrivals)) return;

  add_parts(c, logits);
  __syncthreads();
  auto* shared = reinterpret_cast<uint32_t*>(bias + c.E) + warp_id() * c.words;
  for (int t = warp_id(); t < c.T; t += kWarps) {
    choice.choose(logits, bias, t, shared);
    __syncwarp();
  }
  if (c.offsets.offsets == nullptr) return;
  __syncthreads();
  write_few_offsets(c.offsets, c.T * static_cast<int>(c.offsets.slots.top_k.divisor), buckets);
}

// ---- on the host ----

bool has_gate_rows(const Args& a) {
  return a.gate.layout == WeightLayout::kRowMajor;
}

constexpr int64_t kMostExperts = 1024;  // the last block has a float for each and each token

bool takes_few_tokens(const Args& a) {
  const int64_t H = a.x.dim(1);
  return a.x.format == Format::kBf16 && a.gate.format() == Format::kBf16 && has_gate_rows(a) &&
         takes_vectors(a.x) && takes_vectors(a.gate.values) && H > 0 && H % kStepOfAll == 0 &&
         H / kStepOfAll <= kMostSteps && a.gate.rows() % kExperts == 0 &&
         a.gate.rows() <= kMostExperts && a.ids.dim(1) <= kWarp;
}

int64_t sums_bytes(const Args& a, const Exec& /*ex*/) {
  return kParts * router_logits_bytes(a);
}

template <class Choice>
Status launch_router(const Exec& ex, Call c, const Choice& choice, int words) {
  c.words = words;
  const int64_t floats = int64_t{c.T + 1} * c.E + int64_t{kWarps} * words;
  return launch_kernel(
      ex, route_few_tokens<Choice>,
      {.blocks = int64_t{c.E} / kExperts * kParts, .threads = kThreads, .shared_bytes = 4 * floats},
      c, choice);
}

Status run_few_tokens(Exec& ex, const Args& a) {
  if (a.x.dim(0) == 0) return run_router_parts(ex, a);
  Call c{.x = a.x.as<const Bf16>(),
         .x_stride = a.x.stride(0),
         .gate = a.gate.values.as<const Bf16>(),
         .gate_stride = a.gate.values.stride(0),
         .sums = static_cast<float*>(ex.workspace),
         .arrivals = a.arrivals.as<unsigned>(),
         .offsets = {},
         .T = static_cast<int>(a.x.dim(0)),
         .E = static_cast<int>(a.gate.rows()),
         .steps = static_cast<int>(a.x.dim(1) / kStepOfAll),
         .words = 0};
  if (a.offsets.present()) {
    c.offsets =
        offsets_of({.ids = a.ids, .offsets = a.offsets, .src_row = a.src_row, .dest = a.dest});
  }
  const View logits = make_view(nullptr, {c.T, c.E}, Format::kF32);  // in shared memory
  return with_gate(a, logits, [&]<class K>(const typename K::Args& args) {
    if constexpr (std::is_same_v<K, HashRoute>) {
      return launch_router(ex, c, ByTokenId{hash_of(args)}, 0);
    } else {
      const Gate g = gate_of(args);
      return with_items(g.num_experts, [&]<int kItems>() {
        ByScore<kItems> by_score{g};
        const int words = fit_to_lanes<kItems>(by_score.g);
        return launch_router(ex, c, by_score, words);
      });
    }
  });
}

int64_t logits_bytes(const Args& a, const Exec& /*ex*/) {
  return router_logits_bytes(a);
}

/// The contract ends at 16 tokens; more are calls of the parts.
constexpr uint32_t kTraits = kDeterministic | kBatchInvariant | kGraphSafe | kSomeRowCounts;

}  // namespace

constinit const VariantTable<Router> router_cuda{
    {"few_tokens", sm(90), "", kTraits, run_few_tokens, MathUnit::kBf16, takes_few_tokens,
     sums_bytes},
    {"composed", sm(90), "", kTraits, run_router_parts, MathUnit::kBf16, has_gate_rows,
     logits_bytes},
};

}  // namespace fathom
