#include "fathom/kernels/core/elements.h"
#include "fathom/kernels/cuda/launch_cuda.h"
#include "fathom/kernels/moe/gate/gate.h"
#include "fathom/kernels/moe/gate/gate_quads.cuh"
#include "fathom/kernels/moe/gate/gate_warp.cuh"

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
  uint32_t* shared = gate_shared + warp_id() * shared_words;
  Scores<kItems> scores;
  float bias[kItems];
  scores.load(g, t);
  scores.load_bias(g, bias);
  scores.make(g, bias);
  if (g.keep_groups < g.num_groups) {
    if (g.lanes_fit_groups) {
      keep_groups_of_lanes(g, scores);
    } else {
      keep_any_groups(g, scores, shared);
      __syncwarp();
    }
  }
  choose(g, t, scores, shared);
}

/// Whether groups are whole lanes, a power of two of them.
bool groups_are_lanes(int num_experts, int num_groups, int items) {
  const int group = num_experts / num_groups;
  const int lanes = group / items;
  return num_experts == 32 * items && group % items == 0 && lanes > 0 && (lanes & (lanes - 1)) == 0;
}

template <int kItems>
Status launch_gate(Exec& ex, Gate g) {
  g.lanes_fit_groups = groups_are_lanes(g.num_experts, g.num_groups, kItems);
  const int for_groups =
      g.keep_groups == g.num_groups || g.lanes_fit_groups ? 0 : g.num_experts + g.num_groups;
  const int words = std::max(2 * g.chosen, for_groups);
  const int warps = words > 512 ? 1 : 4;
  return launch_kernel(ex, route_tokens<kItems>,
                       {.blocks = (g.num_tokens + warps - 1) / warps,
                        .threads = 32 * warps,
                        .shared_bytes = int64_t{4} * words * warps},
                       g, words);
}

/// The least power of two, or the number of a model, that holds all experts in 32 lanes.
Status run(Exec& ex, const Gate& g) {
  if (g.num_experts <= 64) return launch_gate<2>(ex, g);
  if (g.num_experts <= 160) return launch_gate<5>(ex, g);
  if (g.num_experts <= 256) return launch_gate<8>(ex, g);
  if (g.num_experts <= 384) return launch_gate<12>(ex, g);
  if (g.num_experts <= 512) return launch_gate<16>(ex, g);
  return launch_gate<64>(ex, g);
}

// ---- hash_route ----

struct Hash {
  const void* logits;
  int64_t logits_stride;
  Format format;
  const int32_t* token_ids;
  const void* table;
  int64_t table_stride;
  bool wide;  // entries of the table are i64
  Rows<float> weights;
  Rows<int32_t> ids;
  int64_t num_tokens;
  int chosen;
  float scaling;
};

// A warp a token, a lane a choice. Ids of tokens and of the table were checked where they came
// from: when a request was taken in and when the table was loaded.
__global__ void __launch_bounds__(128) hash_route_tokens(Hash h) {
  let_next_start();
  wait_for_previous();
  const int64_t t = int64_t{blockIdx.x} * (blockDim.x / 32) + warp_id();
  if (t >= h.num_tokens) return;
  const int64_t row = h.token_ids[t] * h.table_stride;
  float sum = 0.0f;
  for (int k = lane_id(); k < h.chosen; k += 32) {
    const int32_t id = h.wide ? static_cast<int32_t>(static_cast<const int64_t*>(h.table)[row + k])
                              : static_cast<const int32_t*>(h.table)[row + k];
    const float s = sqrt_softplus(load_any(h.logits, h.format, t * h.logits_stride + id));
    h.ids[t][k] = id;
    h.weights[t][k] = s;
    sum += s;
  }
  sum = combine_lanes(sum, Add());
  for (int k = lane_id(); k < h.chosen; k += 32)
    h.weights[t][k] = h.weights[t][k] / sum * h.scaling;
}

Status run_hash_route(Exec& ex, const HashRoute::Args& a) {
  constexpr int kWarps = 4;
  const Hash h{.logits = a.logits.data,
               .logits_stride = a.logits.stride(0),
               .format = a.logits.format,
               .token_ids = a.token_ids.as<const int32_t>(),
               .table = a.tid2eid.data,
               .table_stride = a.tid2eid.stride(0),
               .wide = a.tid2eid.format == Format::kI64,
               .weights = rows_of<float>(a.weights),
               .ids = rows_of<int32_t>(a.ids),
               .num_tokens = a.logits.dim(0),
               .chosen = static_cast<int>(a.ids.dim(1)),
               .scaling = a.scaling};
  return launch_kernel(
      ex, hash_route_tokens,
      {.blocks = (h.num_tokens + kWarps - 1) / kWarps, .threads = 32 * kWarps, .shared_bytes = 0},
      h);
}

// ---- the others ----

template <class Args>
Gate any_gate_of(const Args& a, const View& bias) {
  Gate g{};
  g.logits = a.logits.data;
  g.logits_stride = a.logits.stride(0);
  g.format = a.logits.format;
  if (bias.present()) {
    g.bias = bias.data;
    g.bias_format = bias.format;
  }
  g.weights = rows_of<float>(a.weights);
  g.ids = rows_of<int32_t>(a.ids);
  g.num_tokens = a.logits.dim(0);
  g.num_experts = static_cast<int>(a.logits.dim(1));
  g.chosen = static_cast<int>(a.ids.dim(1));
  g.num_groups = 1;
  g.keep_groups = 1;
  g.renormalise = true;
  if constexpr (requires { a.renorm; }) g.renormalise = a.renorm == Renormalize::kYes;
  g.scaling = a.scaling;
  g.in_vectors = (g.num_experts == 32 * kVector || g.num_experts == 160) &&
                 takes_vectors(a.logits) && takes_vectors(bias);
  return g;
}

Gate gate_of(const TopkSoftmax::Args& a) {
  Gate g = any_gate_of(a, a.bias);
  g.scoring = Scoring::kSoftmax;
  g.softcap = a.softcap;
  return g;
}

Gate gate_of(const TopkSigmoid::Args& a) {
  Gate g = any_gate_of(a, a.bias);
  g.scoring = Scoring::kSigmoid;
  return g;
}

Gate gate_of(const TopkSqrtsoftplus::Args& a) {
  Gate g = any_gate_of(a, a.bias);
  g.scoring = Scoring::kSqrtSoftplus;
  return g;
}

Gate gate_of(const GroupedTopkGate::Args& a) {
  Gate g = any_gate_of(a, a.bias);
  g.scoring = Scoring::kSigmoid;
  g.rating = GroupRating::kSumOfTwo;
  g.num_groups = a.n_group;
  g.keep_groups = a.topk_group;
  g.num_shared = a.num_shared;
  g.chosen -= a.num_shared;
  g.epsilon = 1e-20f;
  g.shared_weight = a.shared_weight;
  g.rounds = a.precision == ScorePrecision::kLogits && a.logits.format != Format::kF32;
  return g;
}

Gate gate_of(const GroupLimitedSoftmaxGate::Args& a) {
  Gate g = any_gate_of(a, View{});
  g.scoring = Scoring::kSoftmax;
  g.rating = GroupRating::kLargest;
  g.num_groups = a.n_group;
  g.keep_groups = a.topk_group;
  g.epsilon = 1e-20f;
  return g;
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
