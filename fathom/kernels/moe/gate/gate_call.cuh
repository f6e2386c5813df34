// How calls of routers become what a warp works on (gate_warp.cuh), and what it needs for that.
#pragma once

#include <algorithm>

#include "fathom/kernels/moe/gate/gate.h"
#include "fathom/kernels/moe/gate/gate_warp.cuh"

namespace fathom::cuda {

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

inline Gate gate_of(const TopkSoftmax::Args& a) {
  Gate g = any_gate_of(a, a.bias);
  g.scoring = Scoring::kSoftmax;
  g.softcap = a.softcap;
  return g;
}

inline Gate gate_of(const TopkSigmoid::Args& a) {
  Gate g = any_gate_of(a, a.bias);
  g.scoring = Scoring::kSigmoid;
  return g;
}

inline Gate gate_of(const TopkSqrtsoftplus::Args& a) {
  Gate g = any_gate_of(a, a.bias);
  g.scoring = Scoring::kSqrtSoftplus;
  return g;
}

inline Gate gate_of(const GroupedTopkGate::Args& a) {
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

inline Gate gate_of(const GroupLimitedSoftmaxGate::Args& a) {
  Gate g = any_gate_of(a, View{});
  g.scoring = Scoring::kSoftmax;
  g.rating = GroupRating::kLargest;
  g.num_groups = a.n_group;
  g.keep_groups = a.topk_group;
  g.epsilon = 1e-20f;
  return g;
}

/// Whether groups are whole lanes, a power of two of them.
inline bool groups_are_lanes(int num_experts, int num_groups, int items) {
  const int group = num_experts / num_groups;
  const int lanes = group / items;
  return num_experts == 32 * items && group % items == 0 && lanes > 0 && (lanes & (lanes - 1)) == 0;
}

/// Sets what of a gate depends on kItems; returns the words of shared memory that a warp needs.
template <int kItems>
int fit_to_lanes(Gate& g) {
  g.lanes_fit_groups = groups_are_lanes(g.num_experts, g.num_groups, kItems);
  const int for_groups =
      g.keep_groups == g.num_groups || g.lanes_fit_groups ? 0 : g.num_experts + g.num_groups;
  return std::max(2 * g.chosen, for_groups);
}

/// Calls f.template operator()<kItems>() with the least power of two, or the number of a model,
/// that holds all experts in 32 lanes.
template <class F>
auto with_items(int num_experts, F f) {
  if (num_experts <= 64) return f.template operator()<2>();
  if (num_experts <= 160) return f.template operator()<5>();
  if (num_experts <= 256) return f.template operator()<8>();
  if (num_experts <= 384) return f.template operator()<12>();
  if (num_experts <= 512) return f.template operator()<16>();
  return f.template operator()<64>();
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

inline Hash hash_of(const HashRoute::Args& a) {
  return {.logits = a.logits.data,
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
}

/// The work on one token by a warp, a lane a choice. Ids of tokens and of the table were checked
/// where they came from: when a request was taken in and when the table was loaded.
__device__ __forceinline__ void hash_token(const Hash& h, int64_t t) {
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

}  // namespace fathom::cuda
