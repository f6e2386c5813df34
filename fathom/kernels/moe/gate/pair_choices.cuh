// What all experts of two tokens get, by a warp: their logits, choice scores that are near the
// exact ones (choice~), and the groups that are kept. gate_pairs.cuh says what for.
#pragma once

#include <type_traits>

#include "fathom/kernels/cuda/arithmetic.cuh"
#include "fathom/kernels/cuda/reduce.cuh"
#include "fathom/kernels/cuda/tensor_core.cuh"
#include "fathom/kernels/moe/gate/gate_warp.cuh"

namespace fathom::cuda {

inline constexpr int kPairGroups = 8;
inline constexpr int kGroupLanes = 32 / kPairGroups;
inline constexpr int kCandidates = 16;  // of a token
inline constexpr int kMostKept =
    kCandidates / kGroupLanes;  // groups: a part for each of their lanes
inline constexpr int kMostChosen = 8;

/// Lane l has the experts kItems l .. kItems l + kItems - 1 of both tokens.
template <int kItems>
using PairChoices = float[2][kItems];

/// Of a token of a pair.
struct alignas(16) TokenMemory {
  union {
    float part[kCandidates];
    float choice[kCandidates];
  };

  int32_t id[kCandidates];  // of candidates, by expert
  float chosen_score[kMostChosen];
  int32_t chosen_id[kMostChosen];
};

/// Of a warp.
union PairMemory {
  TokenMemory of[2];
  uint32_t rounds[2 * kMostChosen];
};

/// Lanes 0-15 serve token 0 of a pair, the others token 1.
__device__ __forceinline__ int pair_token() {
  return lane_id() / kCandidates;
}

__device__ __forceinline__ int pair_place() {
  return lane_id() % kCandidates;
}

/// What choice~ may differ from the choice score. A sigmoid of the approximate instructions is off
/// by less than 2^-22 (2 ulp of the exponential, times s (1 - s), and 1 ulp of the reciprocal); the
/// sum with a bias rounds once more, by a part of itself. These are several times as large.
inline constexpr float kSlack = 0x1p-18f;
inline constexpr float kSlackOfSize = 0x1p-20f;

/// What a router goes by, as far as code depends on it.
enum class Choice : uint8_t {
  kLogit,
  kAdjustedLogit,  ///< by softcap, bias or both
  kSigmoid,
  kRoundedSigmoid,
};

constexpr bool is_softmax(Choice choice) {
  return choice == Choice::kLogit || choice == Choice::kAdjustedLogit;
}

/// The exact choice score of an expert with logit z, and its score (a softmax's is made later).
template <Choice kChoice>
__device__ __forceinline__ float exact_choice(const Gate& g, float z, float bias, float& score) {
  if constexpr (kChoice == Choice::kLogit) {
    return z;
  } else if constexpr (kChoice == Choice::kAdjustedLogit) {
    if (g.softcap != 0.0f) z = g.softcap * tanhf(z / g.softcap);
    return __fadd_rn(z, bias);
  } else {
    const float inverse = 1.0f + expf(-z);
    score = inverse <= kMostInverted ? reciprocal_above_one(inverse) : 1.0f / inverse;
    if constexpr (kChoice == Choice::kSigmoid) return score + bias;
    score = round_to(g.format, score);
    return round_to(g.format, score + bias);
  }
}

/// Logits as they lie in memory: those of a pair are loaded while the one before it is still being
/// worked on.
template <class T, int kItems>
struct PackedPair {
  static constexpr bool kVectors = kItems == kVector;
  using Word = std::conditional_t<kVectors, uint32_t, T>;

  Word words[2][kVectors ? sizeof(Packed<T>) / 4 : kItems];

  /// from: this lane's of both tokens. All loads are under way at once.
  __device__ __forceinline__ void load(const T* const (&from)[2]) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      if constexpr (kVectors) {
        const Packed<T> packed = load_packed(from[i]);
        copy(packed.words, words[i]);
      } else {
#pragma unroll
        for (int e = 0; e < kItems; ++e)
          words[i][e] = from[i][e];
      }
    }
  }

  __device__ __forceinline__ void unpack_all(PairChoices<kItems>& logits) const {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      if constexpr (kVectors) {
        Packed<T> packed;
        copy(words[i], packed.words);
        unpack(packed, logits[i]);
      } else {
#pragma unroll
        for (int e = 0; e < kItems; ++e)
          logits[i][e] = cuda::load(&words[i][e]);
      }
    }
  }

 private:
  template <size_t kCount>
  static __device__ __forceinline__ void copy(const uint32_t (&in)[kCount],
                                              uint32_t (&out)[kCount]) {
#pragma unroll
    for (size_t w = 0; w < kCount; ++w)
      out[w] = in[w];
  }
};

/// The biases of this lane's experts.
template <int kItems>
__device__ __forceinline__ void bias_of_lane(const float (&all)[32 * kItems],
                                             float (&bias)[kItems]) {
  if constexpr (kItems == kVector) {
    load8(all + lane_id() * kItems, bias);
  } else {
#pragma unroll
    for (int i = 0; i < kItems; ++i)
      bias[i] = all[lane_id() * kItems + i];
  }
}

/// A sigmoid by the approximate instructions.
__device__ __forceinline__ float near_sigmoid(float z) {
  constexpr float kMinusLog2e = -1.4426950408889634f;
  return approximate_reciprocal(1.0f + exp2_approx(z * kMinusLog2e));
}

/// From logits to choice~.
template <Choice kChoice, int kItems>
__device__ __forceinline__ void near_choices(const Gate& g,
                                             const float (&all_bias)[32 * kItems],
                                             PairChoices<kItems>& choices) {
  if constexpr (kChoice == Choice::kLogit) return;
  float bias[kItems];
  bias_of_lane<kItems>(all_bias, bias);
#pragma unroll
  for (auto& choice : choices) {
#pragma unroll
    for (int i = 0; i < kItems; ++i) {
      if constexpr (kChoice == Choice::kSigmoid) {
        choice[i] = near_sigmoid(choice[i]) + bias[i];
      } else {
        float score;
        choice[i] = exact_choice<kChoice>(g, choice[i], bias[i], score);
      }
    }
  }
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

/// Of two values a token, that of the token that this lane serves, from both halves of the warp.
template <class Combine>
__device__ __forceinline__ float combine_halves(float of_0, float of_1, Combine combine) {
  const bool first = pair_token() == 0;
  const float theirs = __shfl_xor_sync(0xFFFFFFFFu, first ? of_1 : of_0, kCandidates);
  return combine(first ? of_0 : of_1, theirs);
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

/// The lanes whose groups are kept, of each token: none, if ratings are too near each other or no
/// numbers.
struct KeptLanes {
  unsigned of[2];
  float most[2];  ///< of this lane

  /// Groups rated by the sum of their two best, of choice~.
  template <int kItems>
  __device__ __forceinline__ void by_sums(const Gate& g, const PairChoices<kItems>& choices) {
    const Best best[2] = {best_of(choices[0]), best_of(choices[1])};
    most[0] = best[0].first;
    most[1] = best[1].first;
    // Even lanes rate groups of token 0, odd ones those of token 1.
    const bool odd = lane_id() % 2 != 0;
    Best mine = odd ? best[1] : best[0];
    const Best given = odd ? best[0] : best[1];
    mine.add({__shfl_xor_sync(0xFFFFFFFFu, given.first, 1),
              __shfl_xor_sync(0xFFFFFFFFu, given.second, 1)});
    mine.add({__shfl_xor_sync(0xFFFFFFFFu, mine.first, 2),
              __shfl_xor_sync(0xFFFFFFFFu, mine.second, 2)});
    // Sizes are not negative, so that they are in order as integers; those of NaN come last.
    const float size = fabsf(mine.first) + fabsf(mine.second);
    const float most_size = __uint_as_float(__reduce_max_sync(0xFFFFFFFFu, __float_as_uint(size)));
    keep(g, mine.first + mine.second, 2 * (kSlack + kSlackOfSize * most_size));
  }

  /// Groups rated by their largest logit, which is exact. NaN counts as -inf.
  template <int kItems>
  __device__ __forceinline__ void by_largest(const Gate& g, const PairChoices<kItems>& choices) {
    most[0] = largest(choices[0]);
    most[1] = largest(choices[1]);
    const bool odd = lane_id() % 2 != 0;
    const float given = __shfl_xor_sync(0xFFFFFFFFu, odd ? most[0] : most[1], 1);
    float rating = fmaxf(odd ? most[1] : most[0], given);
    rating = fmaxf(rating, __shfl_xor_sync(0xFFFFFFFFu, rating, 2));
    keep(g, rating, 0.0f);
  }

 private:
  /// rating: of token 0 in even lanes, of token 1 in odd ones; it may be off by half of `slack`,
  /// which is NaN if a rating is.
  __device__ __forceinline__ void keep(const Gate& g, float rating, float slack) {
    constexpr unsigned kFirstLanes = 0x11111111u;  // of groups
    const float sorted = sort_lanes<kPairGroups, kGroupLanes>(rating);
    const int last = kGroupLanes * (g.keep_groups - 1) + lane_id() % 2;
    const float last_kept = __shfl_sync(0xFFFFFFFFu, sorted, last);
    const float next = __shfl_sync(0xFFFFFFFFu, sorted, last + kGroupLanes);
    const bool clear = last_kept - next > slack;
    const unsigned kept = __ballot_sync(0xFFFFFFFFu, clear && rating >= last_kept);
    static_assert(kGroupLanes == 4);
#pragma unroll
    for (int i = 0; i < 2; ++i)
      of[i] = (kept >> i & kFirstLanes) * 15;
  }
};

/// The largest of every lane that is kept, of the token that this lane serves; -inf for the rest.
__device__ __forceinline__ float kept_parts(const KeptLanes& kept,
                                            PairMemory& memory,
                                            TokenMemory& served) {
  served.part[pair_place()] = -INFINITY;
  __syncwarp();
  const unsigned lower = (1u << lane_id()) - 1;
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const int place = __popc(kept.of[i] & lower);
    if ((kept.of[i] >> lane_id() & 1) != 0) memory.of[i].part[place] = kept.most[i];
  }
  __syncwarp();
  return served.part[pair_place()];
}

}  // namespace fathom::cuda
