// A router's work on one token by a warp: scores, groups, and rounds that take the best expert.
#pragma once

#include <cmath>

#include "fathom/kernels/cuda/arithmetic.cuh"
#include "fathom/kernels/cuda/device_code.cuh"
#include "fathom/kernels/cuda/elements.cuh"
#include "fathom/kernels/cuda/reduce.cuh"
#include "fathom/kernels/cuda/rows.cuh"
#include "fathom/kernels/cuda/tensor_core.cuh"

namespace fathom::cuda {

enum class Scoring : uint8_t { kSoftmax, kSigmoid, kSqrtSoftplus };
enum class GroupRating : uint8_t { kSumOfTwo, kLargest };

/// All routers but hash_route, as one description.
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
  bool in_vectors;  // rows and bias lie so that eight elements are loaded at once
  float epsilon, scaling, softcap, shared_weight;
};

constexpr uint32_t kRemoved = 0;  // below the key of every score

/// A key that orders as the score does; NaN counts as -inf, -0 as 0.
__device__ inline uint32_t key_of(float score) {
  const float orderly = fmaxf(score, -INFINITY) + 0.0f;
  return key_of_bits(__float_as_uint(orderly));
}

__device__ inline float score_of_key(uint32_t key) {
  return __uint_as_float(bits_of_key(key));
}

__device__ inline float round_to(Format format, float value) {
  if (format == Format::kBf16) return rounded<Bf16>(value);
  return format == Format::kF16 ? rounded<F16>(value) : value;
}

/// The items of this lane, all loads under way at once; `absent` past the end.
template <class T, int kItems>
__device__ void load_typed(
    const T* from, int count, float absent, bool in_vectors, float (&out)[kItems]) {
  if constexpr (kItems == kVector) {
    if (in_vectors) return load8(from + lane_id() * kItems, out);
  }
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
                           bool in_vectors,
                           float (&out)[kItems]) {
  switch (format) {
    case Format::kBf16:
      return load_typed(static_cast<const Bf16*>(data) + offset, count, absent, in_vectors, out);
    case Format::kF16:
      return load_typed(static_cast<const F16*>(data) + offset, count, absent, in_vectors, out);
    default:
      return load_typed(static_cast<const float*>(data) + offset, count, absent, in_vectors, out);
  }
}

/// sqrt(log(1 + e^z)), as the CPU has it.
__device__ __forceinline__ float sqrt_softplus(float z) {
  constexpr float kIsLinear = 18.0f;  // from there on both ends lose no bit
  if (z > kIsLinear) return __fsqrt_rn(z);
  if (z < -kIsLinear) return expf(0.5f * z);
  return __fsqrt_rn(log1pf(expf(z)));
}

/// The exponential of `x` as the sum of a softmax takes it where very many tokens are routed.
__device__ __forceinline__ float near_exp(float x) {
  constexpr float kLog2e = 1.4426950408889634f;
  return exp2_approx(x * kLog2e);
}

/// A warp holds a token: lane l has the experts kItems l .. kItems l + kItems - 1. kWhole: as many
/// as there are. kNear: the sum of a softmax is of near_exp, in the order of kItems and of lanes.
template <int kItems, bool kWhole = false, bool kNear = false>
struct Scores {
  float score[kItems];   // what a weight is made of, times `divisor`
  uint32_t key[kItems];  // what the choice goes by
  float divisor = 1.0f;  // other scores than those chosen are not divided

  static __device__ int expert(int i) { return lane_id() * kItems + i; }

  __device__ void load(const Gate& g, int64_t t) {
    const float absent = g.scoring == Scoring::kSigmoid ? 0.0f : -INFINITY;
    load_items(g.logits, g.format, t * g.logits_stride, g.num_experts, absent, g.in_vectors, score);
  }

  __device__ void load_bias(const Gate& g, float (&bias)[kItems]) const {
    if (g.bias != nullptr)
      return load_items(g.bias, g.bias_format, 0, g.num_experts, 0.0f, g.in_vectors, bias);
#pragma unroll
    for (int i = 0; i < kItems; ++i)
      bias[i] = 0.0f;
  }

  __device__ bool exists(const Gate& g, int i) const {
    return kWhole || expert(i) < g.num_experts;
  }

  __device__ void score_by_sigmoid(const Gate& g, const float (&bias)[kItems]) {
    bool all_normal = true;
#pragma unroll
    for (float& s : score) {
      s = 1.0f + expf(-s);
      all_normal = all_normal && s <= kMostInverted;  // not NaN either
    }
    if (all_normal) {
#pragma unroll
      for (float& s : score)
        s = reciprocal_above_one(s);
    } else {
#pragma unroll
      for (float& s : score)
        s = 1.0f / s;
    }
    float choice[kItems];
#pragma unroll
    for (int i = 0; i < kItems; ++i)
      choice[i] = score[i] + bias[i];
    if (g.rounds) {
#pragma unroll
      for (int i = 0; i < kItems; ++i) {
        score[i] = round_to(g.format, score[i]);
        choice[i] = round_to(g.format, score[i] + bias[i]);
      }
    }
#pragma unroll
    for (int i = 0; i < kItems; ++i)
      key[i] = exists(g, i) ? key_of(choice[i]) : kRemoved;
  }

  // The exponential keeps the order, so the choice is made among the logits.
  __device__ void score_by_softmax(const Gate& g, const float (&bias)[kItems]) {
    if (g.softcap != 0.0f) {
#pragma unroll
      for (int i = 0; i < kItems; ++i) {
        if (exists(g, i)) score[i] = g.softcap * tanhf(score[i] / g.softcap);
      }
    }
    float most = -INFINITY;
#pragma unroll
    for (int i = 0; i < kItems; ++i) {
      score[i] = __fadd_rn(score[i], bias[i]);
      key[i] = exists(g, i) ? key_of(score[i]) : kRemoved;
      most = fmaxf(most, score[i]);
    }
    most = combine_lanes(most, Max());
    float sum = 0.0f;
#pragma unroll
    for (int i = 0; i < kItems; ++i) {
      const float below = score[i] - most;
      score[i] = exists(g, i) ? expf(below) : 0.0f;
      sum += kNear ? near_exp(below) : score[i];
    }
    divisor = combine_lanes(sum, Add());
  }

  __device__ void score_by_sqrt_softplus(const Gate& g, const float (&bias)[kItems]) {
#pragma unroll
    for (int i = 0; i < kItems; ++i) {
      score[i] = sqrt_softplus(score[i]);
      key[i] = exists(g, i) ? key_of(score[i] + bias[i]) : kRemoved;
    }
  }

  __device__ void make(const Gate& g, const float (&bias)[kItems]) {
    if (g.scoring == Scoring::kSigmoid) return score_by_sigmoid(g, bias);
    if (g.scoring == Scoring::kSqrtSoftplus) return score_by_sqrt_softplus(g, bias);
    score_by_softmax(g, bias);
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
__device__ inline float rate(GroupRating rating, uint32_t first, uint32_t second) {
  const float best = score_of_key(first);
  if (rating == GroupRating::kLargest || second == kRemoved) return best;
  const float sum = best + score_of_key(second);
  return isnan(sum) ? -INFINITY : sum;
}

/// Groups of whole lanes, a power of two of them: rated by exchanges between lanes.
template <int kItems, bool kWhole, bool kNear>
__device__ void keep_groups_of_lanes(const Gate& g, Scores<kItems, kWhole, kNear>& scores) {
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
template <int kItems, bool kWhole, bool kNear>
__device__ void keep_any_groups(const Gate& g,
                                Scores<kItems, kWhole, kNear>& scores,
                                uint32_t* shared) {
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
template <int kItems, bool kWhole, bool kNear>
__device__ int take_best(Scores<kItems, kWhole, kNear>& scores, float& score) {
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

/// The weight of a choice of score `score`; `sum` is that of all scores chosen.
__device__ __forceinline__ float weight_of(const Gate& g, float score, float sum) {
  const float divisor = g.renormalise ? sum + g.epsilon : 1.0f;
  return score / divisor * g.scaling;
}

/// Choice k of a token, of score `score`; `sum` is that of all scores chosen.
__device__ __forceinline__ void write_choice(
    const Gate& g, int64_t t, int k, float score, int32_t id, float sum) {
  g.weights[t][k] = weight_of(g, score, sum);
  g.ids[t][k] = id;
}

/// The shared experts of a token, by `lanes` lanes.
__device__ __forceinline__ void write_shared(const Gate& g, int64_t t, int lane, int lanes) {
  for (int i = lane; i < g.num_shared; i += lanes) {
    g.weights[t][g.chosen + i] = g.shared_weight;
    g.ids[t][g.chosen + i] = g.num_experts + i;
  }
}

/// Results wait in shared memory until their sum is known.
template <int kItems, bool kWhole, bool kNear>
__device__ void choose(const Gate& g,
                       int64_t t,
                       Scores<kItems, kWhole, kNear>& scores,
                       uint32_t* shared) {
  auto* weights = reinterpret_cast<float*>(shared);
  auto* ids = reinterpret_cast<int32_t*>(shared) + g.chosen;
  float sum = 0.0f;
  for (int k = 0; k < g.chosen; ++k) {
    float score;
    const int id = take_best(scores, score);
    if (g.scoring == Scoring::kSoftmax) score /= scores.divisor;
    sum += score;
    if (lane_id() == 0) {
      weights[k] = score;
      ids[k] = id;
    }
  }
  __syncwarp();
  for (int k = lane_id(); k < g.chosen; k += 32)
    write_choice(g, t, k, weights[k], ids[k], sum);
  write_shared(g, t, lane_id(), 32);
}

/// All of it. shared: as many words as fit_to_lanes() says.
template <int kItems>
__device__ __forceinline__ void route_token(const Gate& g, int64_t t, uint32_t* shared) {
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

}  // namespace fathom::cuda
