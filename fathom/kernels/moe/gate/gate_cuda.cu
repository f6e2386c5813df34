#include "fathom/kernels/core/elements.h"
#include "fathom/kernels/cuda/launch_cuda.h"
#include "fathom/kernels/moe/gate/gate_call.cuh"
#include "fathom/kernels/moe/gate/gate_quads.cuh"

namespace fathom {
namespace {

using namespace cuda;  // NOLINT: device primitives, in this file's own namespace

extern __shared__ uint32_t gate_shared[];

// A warp a token.
template <int kItems>
__global__ void __launch_bounds__(128) route_tokens(Gate g, int shared_words) {
  let_next_start();
  wait_for_previous();
  const int64_t t = int64_t{blockIdx.x} * (blockDim.x / 32) + warp_id();
  if (t >= g.num_tokens) return;
  route_token<kItems>(g, t, gate_shared + warp_id() * shared_words);
}

template <int kItems>
Status launch_gate(Exec& ex, Gate g) {
  const int words = fit_to_lanes<kItems>(g);
  const int warps = words > 512 ? 1 : 4;
  return launch_kernel(ex, route_tokens<kItems>,
                       {.blocks = (g.num_tokens + warps - 1) / warps,
                        .threads = 32 * warps,
                        .shared_bytes = int64_t{4} * words * warps},
                       g, words);
}

Status run(Exec& ex, const Gate& g) {
  return with_items(g.num_experts, [&]<int kItems>() { return launch_gate<kItems>(ex, g); });
}

// ---- hash_route ----

__global__ void __launch_bounds__(128) hash_route_tokens(Hash h) {
  let_next_start();
  wait_for_previous();
  const int64_t t = int64_t{blockIdx.x} * (blockDim.x / 32) + warp_id();
  if (t < h.num_tokens) hash_token(h, t);
}

Status run_hash_route(Exec& ex, const HashRoute::Args& a) {
  constexpr int kWarps = 4;
  const Hash h = hash_of(a);
  return launch_kernel(
      ex, hash_route_tokens,
      {.blocks = (h.num_tokens + kWarps - 1) / kWarps, .threads = 32 * kWarps, .shared_bytes = 0},
      h);
}

template <class K>
Status run_warps(Exec& ex, const typename K::Args& a) {
  return run(ex, gate_of(a));
}

template <class K>
Status run_quads(Exec& ex, const typename K::Args& a) {
  return launch_quads(ex, gate_of(a));
}

template <class K>
bool takes_quads(const typename K::Args& a) {
  return quads_take(gate_of(a));
}

/// Few tokens, or what quads do not take. So the row of quads needs no limit on tokens, and where
/// it is pinned it runs cases of any number.
template <class K>
bool suits_warps(const typename K::Args& a, const DeviceInfo& gpu) {
  return !quads_pay(a.logits.dim(0), gpu.num_sms) || !takes_quads<K>(a);
}

constexpr uint32_t kTraits = kDeterministic | kBatchInvariant | kGraphSafe;

template <class K>
constexpr VariantTable<K> gate_table() {
  return {
      {"warp_per_token", sm(90), "", kTraits, run_warps<K>, MathUnit::kF32, nullptr, nullptr,
       suits_warps<K>},
      {"warp_per_four_tokens", sm(90), "", kTraits, run_quads<K>, MathUnit::kF32, takes_quads<K>},
  };
}

}  // namespace

constinit const VariantTable<TopkSoftmax> topk_softmax_cuda = gate_table<TopkSoftmax>();
constinit const VariantTable<TopkSigmoid> topk_sigmoid_cuda = gate_table<TopkSigmoid>();
constinit const VariantTable<TopkSqrtsoftplus> topk_sqrtsoftplus_cuda{
    {"warp_per_token", sm(90), "", kTraits, run_warps<TopkSqrtsoftplus>},
};
constinit const VariantTable<HashRoute> hash_route_cuda{
    {"warp_per_token", sm(90), "", kTraits, run_hash_route},
};
constinit const VariantTable<GroupedTopkGate> grouped_topk_gate_cuda =
    gate_table<GroupedTopkGate>();
constinit const VariantTable<GroupLimitedSoftmaxGate> group_limited_softmax_gate_cuda =
    gate_table<GroupLimitedSoftmaxGate>();

}  // namespace fathom
