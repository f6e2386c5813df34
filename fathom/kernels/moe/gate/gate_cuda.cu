#include <cmath>

#include "fathom/kernels/core/elements.h"
#include "fathom/kernels/cuda/device_code.cuh"
#include "fathom/kernels/cuda/launch_cuda.h"
#include "fathom/kernels/cuda/reduce.cuh"
#include "fathom/kernels/cuda/rows.cuh"
#include "fathom/kernels/moe/gate/gate.h"

namespace fathom {
namespace {

using namespace cuda;  // NOLINT: device primitives, in this file's own namespace

enum class Scoring : uint8_t { kSoftmax, kSigmoid };
enum class GroupRating : uint8_t { kSumOfTwo, kLargest };

/// All four routers, as one description.
struct Gate {
  const void* logits;
  int64_t logits_stride;
  Format format;
  const void* bias;  // null: none
  Format bias_format;
  Rows<float> weights;
  Rows<int32_t> ids;
  int64_t num_tokens;
  int num_experts;
  int chosen;  // without the shared ones
  int num_groups;
  int keep_groups;
  int num_shared;
  Scoring scoring;
  GroupRating rating;
  bool renormalise;
  bool rounds;  // scores and choices are rounded to the format of the logits
  bool lanes_fit_groups;
  float epsilon, scaling, softcap, shared_weight;
};

constexpr uint32_t kRemoved = 0;  // below the key of every score

/// A key that orders as the score does; NaN counts as -inf, -0 as 0.
__device__ uint32_t key_of(float score) {
  const float orderly = isnan(score) ? -INFINITY : score + 0.0f;
  const uint32_t bits = __float_as_uint(orderly);
  return (bits & 0x80000000u) != 0 ? ~bits : bits | 0x80000000u;
}

__device__ float score_of_key(uint32_t key) {
  return __uint_as_float((key & 0x80000000u) != 0 ? key & 0x7FFFFFFFu : ~key);
}

__device__ float round_to(Format format, float value) {
  if (format == Format::kBf16) return rounded<Bf16>(value);
  return format == Format::kF16 ? rounded<F16>(value) : value;
}

/// The items of this lane, all loads under way at once; `absent` past the end.
template <class T, int kItems>
__device__ void load_typed(const T* from, int count, float absent, float (&out)[kItems]) {
#pragma unroll
  for (int i = 0; i < kItems; ++i) {
    const int e = lane_id() * kItems + i;
    out[i] = e < count ? cuda::load(from + e) : absent;
  }
}

template <int kItems>
__device__ void load_items(const void* data,
                           Format format,
                           int64_t offset,
                           int count,
                           float absent,
                           float (&out)[kItems]) {
  switch (format) {
    case Format::kBf16:
      return load_typed(static_cast<const Bf16*>(data) + offset, count, absent, out);
    case Format::kF16:
      return load_typed(static_cast<const F16*>(data) + offset, count, absent, out);
    default:
      return load_typed(static_cast<const float*>(data) + offset, count, absent, out);
  }
}

/// A warp holds a token: lane l has the experts kItems l .. kItems l + kItems - 1.
template <int kItems>
struct Scores {
  float score[kItems];   // what a weight is made of
  uint32_t key[kItems];  // what the choice goes by

  static __device__ int expert(int i) { return lane_id() * kItems + i; }

  __device__ void load(const Gate& g, int64_t t) {
    load_items(g.logits, g.format, t * g.logits_stride, g.num_experts, -INFINITY, score);
  }

  __device__ void load_bias(const Gate& g, float (&bias)[kItems]) const {
    if (g.bias != nullptr) return load_items(g.bias, g.bias_format, 0, g.num_experts, 0.0f, bias);
#pragma unroll
    for (int i = 0; i < kItems; ++i)
      bias[i] = 0.0f;
  }

  __device__ void score_by_sigmoid(const Gate& g, const float (&bias)[kItems]) {
#pragma unroll
    for (int i = 0; i < kItems; ++i) {
      float s = 1.0f / (1.0f + expf(-score[i]));
      if (g.rounds) s = round_to(g.format, s);
      float choice = s + bias[i];
      if (g.rounds) choice = round_to(g.format, choice);
      score[i] = s;
      key[i] = expert(i) < g.num_experts ? key_of(choice) : kRemoved;
    }
  }

  // The exponential keeps the order, so the choice is made among the logits.
  __device__ void score_by_softmax(const Gate& g, const float (&bias)[kItems]) {
    float most = -INFINITY;
#pragma unroll
    for (int i = 0; i < kItems; ++i) {
      if (g.softcap != 0.0f && expert(i) < g.num_experts) {
        score[i] = g.softcap * tanhf(score[i] / g.softcap);
      }
      score[i] += bias[i];
      key[i] = expert(i) < g.num_experts ? key_of(score[i]) : kRemoved;
      most = fmaxf(most, score[i]);
    }
    most = combine_lanes(most, Max());
    float sum = 0.0f;
#pragma unroll
    for (int i = 0; i < kItems; ++i) {
      score[i] = expert(i) < g.num_experts ? expf(score[i] - most) : 0.0f;
      sum += score[i];
    }
    sum = combine_lanes(sum, Add());
#pragma unroll
    for (int i = 0; i < kItems; ++i)
      score[i] /= sum;
  }

  /// The two largest keys of this lane.
  __device__ void two_largest(uint32_t& first, uint32_t& second) const {
    first = kRemoved;
    second = kRemoved;
#pragma unroll
    for (int i = 0; i < kItems; ++i) {
      second = max(second, min(first, key[i]));
      first = max(first, key[i]);
    }
  }

  __device__ void remove_all() {
#pragma unroll
    for (int i = 0; i < kItems; ++i)
      key[i] = kRemoved;
  }
};

/// How good a group is whose two best keys these are.
__device__ float rate(GroupRating rating, uint32_t first, uint32_t second) {
  const float best = score_of_key(first);
  if (rating == GroupRating::kLargest || second == kRemoved) return best;
  const float sum = best + score_of_key(second);
  return isnan(sum) ? -INFINITY : sum;
}

/// Groups of whole lanes, a power of two of them: rated by exchanges between lanes.
template <int kItems>
__device__ void keep_groups_of_lanes(const Gate& g, Scores<kItems>& scores) {
  const int lanes = 32 / (32 * kItems / (g.num_experts / g.num_groups));
  uint32_t first;
  uint32_t second;
  scores.two_largest(first, second);
  for (int offset = 1; offset < lanes; offset *= 2) {
    const uint32_t other_first = __shfl_xor_sync(0xFFFFFFFFu, first, offset);
    const uint32_t other_second = __shfl_xor_sync(0xFFFFFFFFu, second, offset);
    second = max(min(first, other_first), max(second, other_second));
    first = max(first, other_first);
  }
  const float mine = rate(g.rating, first, second);
  const int group = lane_id() / lanes;
  int better = 0;  // groups that go before this one
  for (int other = 0; other < g.num_groups; ++other) {
    const float rating = __shfl_sync(0xFFFFFFFFu, mine, other * lanes);
    better += rating > mine || (rating == mine && other < group) ? 1 : 0;
  }
  if (better >= g.keep_groups) scores.remove_all();
}

/// Any groups: rated from shared memory, which holds a key for each expert and a rating for each
/// group.
template <int kItems>
__device__ void keep_any_groups(const Gate& g, Scores<kItems>& scores, uint32_t* shared) {
  const int size = g.num_experts / g.num_groups;
  auto* ratings = reinterpret_cast<float*>(shared + g.num_experts);
#pragma unroll
  for (int i = 0; i < kItems; ++i) {
    if (scores.expert(i) < g.num_experts) shared[scores.expert(i)] = scores.key[i];
  }
  __syncwarp();
  for (int group = lane_id(); group < g.num_groups; group += 32) {
    uint32_t first = kRemoved;
    uint32_t second = kRemoved;
    for (int e = group * size; e < (group + 1) * size; ++e) {
      second = max(second, min(first, shared[e]));
      first = max(first, shared[e]);
    }
    ratings[group] = rate(g.rating, first, second);
  }
  __syncwarp();
  for (int i = 0; i < kItems; ++i) {
    if (scores.expert(i) >= g.num_experts) continue;
    const int group = scores.expert(i) / size;
    int better = 0;
    for (int other = 0; other < g.num_groups; ++other) {
      better +=
          ratings[other] > ratings[group] || (ratings[other] == ratings[group] && other < group)
              ? 1
              : 0;
    }
    if (better >= g.keep_groups) scores.key[i] = kRemoved;
  }
}

/// Takes the best expert out of the race; every lane gets its number and its score.
template <int kItems>
__device__ int take_best(Scores<kItems>& scores, float& score) {
  uint32_t best = kRemoved;
  int item = 0;
  float value = 0.0f;
#pragma unroll
  for (int i = 0; i < kItems; ++i) {
    if (scores.key[i] > best) {
      best = scores.key[i];
      item = i;
      value = scores.score[i];
    }
  }
  const uint32_t most = __reduce_max_sync(0xFFFFFFFFu, best);
  // Lanes hold experts in order, so the lowest lane has the lowest number.
  const int owner = __ffs(static_cast<int>(__ballot_sync(0xFFFFFFFFu, best == most))) - 1;
#pragma unroll
  for (int i = 0; i < kItems; ++i) {
    if (lane_id() == owner && i == item) scores.key[i] = kRemoved;
  }
  score = __shfl_sync(0xFFFFFFFFu, value, owner);
  return owner * kItems + __shfl_sync(0xFFFFFFFFu, item, owner);
}

/// Results wait in shared memory until their sum is known.
template <int kItems>
__device__ void choose(const Gate& g, int64_t t, Scores<kItems>& scores, uint32_t* shared) {
  auto* weights = reinterpret_cast<float*>(shared);
  auto* ids = reinterpret_cast<int32_t*>(shared) + g.chosen;
  float sum = 0.0f;
  for (int k = 0; k < g.chosen; ++k) {
    float score;
    const int id = take_best(scores, score);
    sum += score;
    if (lane_id() == 0) {
      weights[k] = score;
      ids[k] = id;
    }
  }
  __syncwarp();
  const float divisor = g.renormalise ? sum + g.epsilon : 1.0f;
  for (int k = lane_id(); k < g.chosen; k += 32) {
    g.weights[t][k] = weights[k] / divisor * g.scaling;
    g.ids[t][k] = ids[k];
  }
  for (int i = lane_id(); i < g.num_shared; i += 32) {
    g.weights[t][g.chosen + i] = g.shared_weight;
    g.ids[t][g.chosen + i] = g.num_experts + i;
  }
}

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
  if (g.scoring == Scoring::kSigmoid) {
    scores.score_by_sigmoid(g, bias);
  } else {
    scores.score_by_softmax(g, bias);
  }
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

template <class Args>
Gate gate_of(const Args& a) {
  Gate g{};
  g.logits = a.logits.data;
  g.logits_stride = a.logits.stride(0);
  g.format = a.logits.format;
  g.weights = rows_of<float>(a.weights);
  g.ids = rows_of<int32_t>(a.ids);
  g.num_tokens = a.logits.dim(0);
  g.num_experts = static_cast<int>(a.logits.dim(1));
  g.chosen = static_cast<int>(a.ids.dim(1));
  g.num_groups = 1;
  g.keep_groups = 1;
  g.renormalise = a.renorm == Renormalize::kYes;
  g.scaling = a.scaling;
  return g;
}

void set_bias(Gate& g, const View& bias) {
  if (!bias.present()) return;
  g.bias = bias.data;
  g.bias_format = bias.format;
}

template <int kItems>
Status launch_gate(Exec& ex, Gate g) {
  const int group = g.num_experts / g.num_groups;
  const int lanes = group / kItems;
  g.lanes_fit_groups = g.num_experts == 32 * kItems && group % kItems == 0 && lanes > 0 &&
                       (lanes & (lanes - 1)) == 0;
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

Status topk_softmax(Exec& ex, const TopkSoftmax::Args& a) {
  Gate g = gate_of(a);
  set_bias(g, a.bias);
  g.scoring = Scoring::kSoftmax;
  g.softcap = a.softcap;
  return run(ex, g);
}

Status topk_sigmoid(Exec& ex, const TopkSigmoid::Args& a) {
  Gate g = gate_of(a);
  set_bias(g, a.bias);
  g.scoring = Scoring::kSigmoid;
  return run(ex, g);
}

Status grouped_topk_gate(Exec& ex, const GroupedTopkGate::Args& a) {
  Gate g = gate_of(a);
  set_bias(g, a.bias);
  g.scoring = Scoring::kSigmoid;
  g.rating = GroupRating::kSumOfTwo;
  g.num_groups = a.n_group;
  g.keep_groups = a.topk_group;
  g.num_shared = a.num_shared;
  g.chosen -= a.num_shared;
  g.epsilon = 1e-20f;
  g.shared_weight = a.shared_weight;
  g.rounds = a.precision == ScorePrecision::kLogits && a.logits.format != Format::kF32;
  return run(ex, g);
}

Status group_limited_softmax_gate(Exec& ex, const GroupLimitedSoftmaxGate::Args& a) {
  Gate g = gate_of(a);
  g.scoring = Scoring::kSoftmax;
  g.rating = GroupRating::kLargest;
  g.num_groups = a.n_group;
  g.keep_groups = a.topk_group;
  g.epsilon = 1e-20f;
  return run(ex, g);
}

constexpr uint32_t kTraits = kDeterministic | kBatchInvariant | kGraphSafe;

}  // namespace

constinit const VariantTable<TopkSoftmax> topk_softmax_cuda{
    {"warp", sm(90), "", kTraits, topk_softmax},
};

constinit const VariantTable<TopkSigmoid> topk_sigmoid_cuda{
    {"warp", sm(90), "", kTraits, topk_sigmoid},
};

constinit const VariantTable<GroupedTopkGate> grouped_topk_gate_cuda{
    {"warp", sm(90), "", kTraits, grouped_topk_gate},
};

constinit const VariantTable<GroupLimitedSoftmaxGate> group_limited_softmax_gate_cuda{
    {"warp", sm(90), "", kTraits, group_limited_softmax_gate},
};

}  // namespace fathom
