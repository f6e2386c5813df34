// What all experts of four tokens get, by a warp: their logits from shared memory, choice scores
// that are near the exact ones (choice~), and the groups that are kept. gate_quads.cuh says what
// for.
#pragma once

#include "fathom/kernels/cuda/arithmetic.cuh"
#include "fathom/kernels/cuda/reduce.cuh"
#include "fathom/kernels/cuda/tensor_core.cuh"
#include "fathom/kernels/moe/gate/gate_warp.cuh"

namespace fathom::cuda {

inline constexpr int kQuadTokens = 4;
inline constexpr int kTokenLanes = 8;  // of a token: lane 8 i + j serves token i, in place j
inline constexpr int kLaneParts = 4;
inline constexpr int kQuadGroups = kTokenLanes;  // a lane has the experts of a group
inline constexpr int kCandidates = 16;           // of a token
inline constexpr int kMostChosen = 8;

/// What choice~ may differ from the choice score. A sigmoid of the approximate instructions is off
/// by less than 2^-22 (2 ulp of the exponential, times s (1 - s), and 1 ulp of the reciprocal); the
/// sum with a bias rounds once more, by a part of itself. These are several times as large.
inline constexpr float kSlack = 0x1p-18f;
inline constexpr float kSlackOfSize = 0x1p-20f;

/// What a router goes by, as far as code depends on it.
enum class Choice : uint8_t { kLogit, kSigmoid };

constexpr bool is_softmax(Choice choice) {
  return choice == Choice::kLogit;
}

/// Experts kItems j .. kItems j + kItems - 1, which are a group of eight, lie in lane j of a token;
/// in the order of expert_of, a quarter of them a part.
template <int kItems>
using QuadChoices = float[kLaneParts][kItems / kLaneParts];

__device__ __forceinline__ int quad_token() {
  return lane_id() / kTokenLanes;
}

__device__ __forceinline__ int token_place() {
  return lane_id() % kTokenLanes;
}

/// Lanes read fours of experts at once. Groups of 32 begin in the same banks of shared memory, so
/// lane j reads its four c ^ turn at step c; those of 20 do not. The same turn in all tokens: a sum
/// over experts has one order.
template <class T, int kItems>
__device__ __forceinline__ int turn_of_lane() {
  static_assert(kItems == 32 || kItems == 20);
  if constexpr (kItems == 20) return 0;
  return sizeof(T) == 4 ? token_place() : token_place() / 2;
}

/// Item i of a lane is this expert.
template <class T, int kItems>
__device__ __forceinline__ int expert_of(int item) {
  return token_place() * kItems + (item ^ (4 * turn_of_lane<T, kItems>()));
}

/// Where this lane's fours of elements lie, which begin at a multiple of 128 bytes.
template <class T, class Element, int kItems>
struct FoursOfLane {
  uint32_t first;

  __device__ __forceinline__ explicit FoursOfLane(const Element* begin) {
    constexpr int kBytes = kItems * static_cast<int>(sizeof(Element));
    first = shared_address(begin) + static_cast<uint32_t>(token_place() * kBytes);
    first ^= static_cast<uint32_t>(turn_of_lane<T, kItems>()) * 4 * sizeof(Element);
  }

  /// Fours lie within a group of 2^n bytes, so that bits of the address can be turned over.
  __device__ __forceinline__ void load(int four, float (&out)[4]) const {
    const uint32_t bytes = static_cast<uint32_t>(four) * 4 * sizeof(Element);
    const void* p = __cvta_shared_to_generic(kItems == 20 ? first + bytes : first ^ bytes);
    if constexpr (sizeof(Element) == 4) {
      const auto v = *static_cast<const float4*>(p);
      out[0] = v.x, out[1] = v.y, out[2] = v.z, out[3] = v.w;
    } else {
      const auto words = *static_cast<const uint2*>(p);
      unpack_two(Element{}, words.x, out[0], out[1]);
      unpack_two(Element{}, words.y, out[2], out[3]);
    }
  }

 private:
  static __device__ __forceinline__ void unpack_two(Bf16, uint32_t word, float& a, float& b) {
    a = low_bf16(word);
    b = high_bf16(word);
  }

  static __device__ __forceinline__ void unpack_two(F16, uint32_t word, float& a, float& b) {
    a = __half2float(__ushort_as_half(static_cast<unsigned short>(word)));
    b = __half2float(__ushort_as_half(static_cast<unsigned short>(word >> 16)));
  }
};

/// The exact choice score of an expert with logit z by its sigmoid, and its score.
__device__ __forceinline__ float exact_choice(float z, float bias, float& score) {
  const float inverse = 1.0f + expf(-z);
  score = inverse <= kMostInverted ? reciprocal_above_one(inverse) : 1.0f / inverse;
  return score + bias;
}

/// A sigmoid by the approximate instructions.
__device__ __forceinline__ float near_sigmoid(float z) {
  constexpr float kMinusLog2e = -1.4426950408889634f;
  return approximate_reciprocal(1.0f + exp2_approx(z * kMinusLog2e));
}

/// NaN left out; -inf if there is nothing else.
template <int kItems>
__device__ __forceinline__ float largest(const float (&choice)[kItems]) {
  float most = -INFINITY;
#pragma unroll
  for (float c : choice)
    most = fmaxf(most, c);
  return most;
}

/// Values, no NaN, in falling order of the places of kPlaces lanes, kStride apart. The first step
/// of every size compares places from both ends, so that the lower place keeps the larger value in
/// all steps.
template <int kPlaces, int kStride>
__device__ __forceinline__ float sort_lanes(float value) {
  const int place = lane_id() / kStride % kPlaces;
  const auto exchange = [&](int with, int upper) {
    const float other = __shfl_xor_sync(0xFFFFFFFFu, value, with * kStride);
    value = (other > value) == ((place & upper) == 0) ? other : value;
  };
#pragma unroll
  for (int size = 2; size <= kPlaces; size *= 2) {
    exchange(size - 1, size / 2);
#pragma unroll
    for (int step = size / 4; step > 0; step /= 2)
      exchange(step, step);
  }
  return value;
}

/// choice~ of this lane's experts: exact logits, or sigmoids by the approximate instructions.
template <Choice kChoice, class T, int kItems>
__device__ __forceinline__ void near_quad_choices(const T* logits,
                                                  const float* all_bias,
                                                  QuadChoices<kItems>& choices) {
  constexpr int kPart = kItems / kLaneParts;
  const FoursOfLane<T, T, kItems> z(logits);
  const FoursOfLane<T, float, kItems> b(all_bias);
#pragma unroll
  for (int four = 0; four < kItems / 4; ++four) {
    float v[4];
    z.load(four, v);
    if constexpr (kChoice == Choice::kSigmoid) {
      float bias[4];
      b.load(four, bias);
#pragma unroll
      for (int i = 0; i < 4; ++i)
        v[i] = near_sigmoid(v[i]) + bias[i];
    }
#pragma unroll
    for (int i = 0; i < 4; ++i)
      choices[(4 * four + i) / kPart][(4 * four + i) % kPart] = v[i];
  }
}

/// Of two values in each of a token's eight lanes, no NaN, the eight largest in falling order.
__device__ __forceinline__ float largest_eight(float a, float b) {
  a = sort_lanes<kTokenLanes, 1>(a);
  b = -sort_lanes<kTokenLanes, 1>(-b);  // rising
  float value = fmaxf(a, b);            // falls and rises, or the other way
#pragma unroll
  for (int step = kTokenLanes / 2; step > 0; step /= 2) {
    const float other = __shfl_xor_sync(0xFFFFFFFFu, value, step);
    value = (other > value) == ((lane_id() & step) == 0) ? other : value;
  }
  return value;
}

/// That of place `place` of this lane's token.
template <class V>
__device__ __forceinline__ V of_place(V value, int place) {
  return __shfl_sync(0xFFFFFFFFu, value, place, kTokenLanes);
}

/// The bits of this lane's token in a vote of all lanes, in place 0 the lowest.
__device__ __forceinline__ unsigned votes_of_token(bool vote) {
  return __ballot_sync(0xFFFFFFFFu, vote) >> (lane_id() & -kTokenLanes) & 0xFFu;
}

// ---- groups ----

/// The two largest of a group or of a part of it; `first` is NaN if any is.
struct Best {
  float first;
  float second;

  __device__ __forceinline__ void add(const Best& b) {
    second = fmaxf(fminf(first, b.first), fmaxf(second, b.second));
    first = max_or_nan(first, b.first);
  }
};

template <int kItems>
__device__ __forceinline__ Best best_of(const float (&choice)[kItems]) {
  const auto two = [&](int i) {
    return Best{max_or_nan(choice[i], choice[i + 1]), fminf(choice[i], choice[i + 1])};
  };
  Best best = two(0);
#pragma unroll
  for (int i = 2; i + 1 < kItems; i += 2)
    best.add(two(i));
  if constexpr (kItems % 2 != 0) best.add({choice[kItems - 1], -INFINITY});
  return best;
}

/// The largest choice~ of the parts of a lane, and how good its group is.
struct RatedLane {
  float part[kLaneParts];
  float rating;

  /// By the sum of the two best of choice~; NaN if any is.
  template <int kPart>
  __device__ __forceinline__ void by_sum(const float (&choices)[kLaneParts][kPart]) {
    Best best = best_of(choices[0]);
    part[0] = best.first;
#pragma unroll
    for (int i = 1; i < kLaneParts; ++i) {
      const Best of_part = best_of(choices[i]);
      part[i] = of_part.first;
      best.add(of_part);
    }
    rating = best.first + best.second;
  }

  /// By the largest logit, which is exact. NaN counts as -inf.
  template <int kPart>
  __device__ __forceinline__ void by_largest(const float (&choices)[kLaneParts][kPart]) {
#pragma unroll
    for (int i = 0; i < kLaneParts; ++i)
      part[i] = largest(choices[i]);
    rating = fmaxf(fmaxf(part[0], part[1]), fmaxf(part[2], part[3]));
  }

  /// The places whose groups are kept, as bits: none, if ratings, each of which may be off by half
  /// of `slack`, are too near each other or no numbers.
  template <bool kMayBeNan>
  __device__ __forceinline__ unsigned kept(const Gate& g, float slack) const {
    const float sorted = sort_lanes<kTokenLanes, 1>(rating);
    const float last_kept = of_place(sorted, g.keep_groups - 1);
    const float next = of_place(sorted, g.keep_groups);
    const bool clear = last_kept - next > slack;
    const unsigned bits = votes_of_token(clear && rating >= last_kept);
    if constexpr (!kMayBeNan) return bits;
    return votes_of_token(isnan(rating)) == 0 ? bits : 0;
  }
};

/// By how much ratings that are sums of two must differ: NaN or infinite if a bias is.
template <int kExperts>
__device__ __forceinline__ float slack_of_sums(const float (&all_bias)[kExperts]) {
  float most = 0.0f;
  for (int e = lane_id(); e < kExperts; e += 32)
    most = max_or_nan(most, fabsf(all_bias[e]));
  // Sizes are in order as integers; those of NaN come last.
  most = __uint_as_float(__reduce_max_sync(0xFFFFFFFFu, __float_as_uint(most)));
  return 2 * (kSlack + kSlackOfSize * 2 * (1.0f + most));
}

}  // namespace fathom::cuda
