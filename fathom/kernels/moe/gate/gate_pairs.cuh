// Two tokens a warp, for very many tokens, where the number of instructions counts.
//
// A few experts of a token matter, so all experts get no more than a choice score that is near its
// exact one, and those that may be among the best (the candidates, ten or so) get the exact score,
// all candidates of both tokens at once:
//
//   choice~  = choice of all experts: exact logits, or sigmoids by the approximate instructions
//   parts    = the largest choice~ of sixteen parts of a token, sorted, both tokens at once: two
//              lanes each; of a token in groups, each lane of the groups kept
//   least    = the part that comes last of as many as are to be chosen, less what choice~ may be
//              off: every expert that can be chosen has a larger choice~
//   rank     = candidates whose exact choice score is larger, counted
//
// What the approximation leaves open (groups of nearly the same rating), what does not fit (more
// candidates than places, as ties make) and what has no place in an order (NaN, infinities) is
// done again for the pair, exactly and in rounds.
#pragma once

#include <algorithm>

#include "fathom/kernels/cuda/arithmetic.cuh"
#include "fathom/kernels/cuda/launch_cuda.h"
#include "fathom/kernels/cuda/reduce.cuh"
#include "fathom/kernels/cuda/tensor_core.cuh"
#include "fathom/kernels/moe/gate/gate_warp.cuh"

namespace fathom::cuda {

inline constexpr int kPairItems = kVector;
inline constexpr int kPairExperts = 32 * kPairItems;
inline constexpr int kPairGroups = 8;
inline constexpr int kGroupLanes = 32 / kPairGroups;
inline constexpr int kCandidates = 16;  // of a token
inline constexpr int kMostKept =
    kCandidates / kGroupLanes;  // groups: a part for each of their lanes
inline constexpr int kMostChosen = 8;
inline constexpr int kPairWarps = 4;

using PairChoices = float[2][kPairItems];

/// Of a warp. Token i of the pair has row i.
struct alignas(16) PairMemory {
  union {
    float part[2][kCandidates];
    float choice[2][kCandidates];
    uint32_t rounds[2 * kMostChosen];
  };

  int32_t id[2][kCandidates];  // of candidates, by expert
  float chosen_score[2][kMostChosen];
  int32_t chosen_id[2][kMostChosen];
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
enum class Choice : uint8_t { kLogit, kSigmoid, kRoundedSigmoid };

/// The exact choice score of an expert with logit z, and its score (a softmax's is made later).
template <Choice kChoice>
__device__ __forceinline__ float exact_choice(const Gate& g, float z, float bias, float& score) {
  if constexpr (kChoice == Choice::kLogit) {
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

/// Where the logits of a pair lie; of a last token alone, twice.
struct PairRows {
  const uint8_t* of[2];

  __device__ __forceinline__ PairRows(const uint8_t* first, int64_t row_bytes, bool has_second)
      : of{first, has_second ? first + row_bytes : first} {}

  /// Both tokens' loads are under way at once.
  template <class T>
  __device__ __forceinline__ void load_as(PairChoices& logits) const {
    Packed<T> packed[2];
#pragma unroll
    for (int i = 0; i < 2; ++i)
      packed[i] = load_packed(reinterpret_cast<const T*>(of[i]) + lane_id() * kPairItems);
#pragma unroll
    for (int i = 0; i < 2; ++i)
      unpack(packed[i], logits[i]);
  }

  __device__ __forceinline__ void load(Format format, PairChoices& logits) const {
    if (format == Format::kF32) return load_as<float>(logits);
    if (format == Format::kBf16) return load_as<Bf16>(logits);
    load_as<F16>(logits);
  }

  /// That of an expert, of the token that this lane serves.
  __device__ __forceinline__ float logit(Format format, int id) const {
    const uint8_t* const row = pair_token() == 0 ? of[0] : of[1];
    if (format == Format::kF32) return cuda::load(reinterpret_cast<const float*>(row) + id);
    if (format == Format::kBf16) return cuda::load(reinterpret_cast<const Bf16*>(row) + id);
    return cuda::load(reinterpret_cast<const F16*>(row) + id);
  }
};

/// From logits to choice~.
template <Choice kChoice>
__device__ __forceinline__ void near_choices(const Gate& g,
                                             const float (&bias)[kPairItems],
                                             float (&choice)[kPairItems]) {
  if constexpr (kChoice == Choice::kSigmoid) {
    constexpr float kMinusLog2e = -1.4426950408889634f;
#pragma unroll
    for (int i = 0; i < kPairItems; ++i) {
      const float inverse = 1.0f + exp2_approx(choice[i] * kMinusLog2e);
      choice[i] = approximate_reciprocal(inverse) + bias[i];
    }
  } else {
#pragma unroll
    for (int i = 0; i < kPairItems; ++i) {
      float score;
      choice[i] = exact_choice<kChoice>(g, choice[i], bias[i], score);
    }
  }
}

/// NaN left out; -inf if there is nothing else.
__device__ __forceinline__ float largest(const float (&choice)[kPairItems]) {
  float most = -INFINITY;
#pragma unroll
  for (float c : choice)
    most = fmaxf(most, c);
  return most;
}

/// Values in falling order of the places of kPlaces lanes, kStride apart.
template <int kPlaces, int kStride>
__device__ __forceinline__ float sort_lanes(float value) {
  const int place = lane_id() / kStride % kPlaces;
#pragma unroll
  for (int size = 2; size <= kPlaces; size *= 2) {
#pragma unroll
    for (int step = size / 2; step > 0; step /= 2) {
      const float other = __shfl_xor_sync(0xFFFFFFFFu, value, step * kStride);
      const bool keeps_larger = ((place & size) == 0) == ((place & step) == 0);
      value = (other > value) == keeps_larger ? other : value;
    }
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

/// The two largest of a group or of a part of it.
struct Best {
  float first;
  float second;

  __device__ __forceinline__ void add(const Best& b) {
    second = fmaxf(fminf(first, b.first), fmaxf(second, b.second));
    first = fmaxf(first, b.first);
  }
};

__device__ __forceinline__ Best best_of(const float (&choice)[kPairItems]) {
  Best best{fmaxf(choice[0], choice[1]), fminf(choice[0], choice[1])};
#pragma unroll
  for (int i = 2; i < kPairItems; i += 2)
    best.add({fmaxf(choice[i], choice[i + 1]), fminf(choice[i], choice[i + 1])});
  return best;
}

/// The lanes whose groups are kept, of each token.
struct KeptLanes {
  unsigned of[2];
  float most[2];  ///< of this lane
  bool sure;      ///< false: ratings are too near each other, or no numbers

  __device__ __forceinline__ KeptLanes(const Gate& g, const PairChoices& choices) {
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
    const bool sums = g.rating == GroupRating::kSumOfTwo;
    const float rating = sums ? mine.first + mine.second : mine.first;
    const float sorted = sort_lanes<kPairGroups, kGroupLanes>(rating);
    const int token = lane_id() % 2;
    const int last = kGroupLanes * (g.keep_groups - 1) + token;
    const float last_kept = __shfl_sync(0xFFFFFFFFu, sorted, last);
    const float next = __shfl_sync(0xFFFFFFFFu, sorted, last + kGroupLanes);
    // Sizes are not negative, so that they are in order as integers; those of NaN come last.
    const float size = fabsf(mine.first) + fabsf(mine.second);
    const float most_size = __uint_as_float(__reduce_max_sync(0xFFFFFFFFu, __float_as_uint(size)));
    float sum = 0.0f;  // of all: NaN, if there is one
#pragma unroll
    for (int i = 0; i < kPairItems; ++i)
      sum += choices[0][i] + choices[1][i];
    const bool clear = last_kept - next > 2 * (kSlack + kSlackOfSize * most_size);
    sure = __all_sync(0xFFFFFFFFu, clear && !isnan(sum));
    const unsigned kept = __ballot_sync(0xFFFFFFFFu, rating >= last_kept);
    constexpr unsigned kFirstLanes = 0x11111111u;  // of groups
    static_assert(kGroupLanes == 4);
#pragma unroll
    for (int i = 0; i < 2; ++i)
      of[i] = (kept >> i & kFirstLanes) * 15;
  }
};

/// The largest of every lane that is kept, of the token that this lane serves; -inf for the rest.
__device__ __forceinline__ float kept_parts(const KeptLanes& kept, PairMemory& memory) {
  memory.part[pair_token()][pair_place()] = -INFINITY;
  __syncwarp();
  const unsigned lower = (1u << lane_id()) - 1;
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const int place = __popc(kept.of[i] & lower);
    if ((kept.of[i] >> lane_id() & 1) != 0) memory.part[i][place] = kept.most[i];
  }
  __syncwarp();
  return memory.part[pair_token()][pair_place()];
}

// ---- candidates ----

/// Bit i: choice[i] > least. The sign of a difference, shifted in, is cheaper than a comparison;
/// that of a NaN is clear.
__device__ __forceinline__ uint32_t larger_than(float least,
                                                const float (&choice)[kPairItems],
                                                uint32_t mask) {
#pragma unroll
  for (int i = kPairItems - 1; i >= 0; --i)
    mask = __funnelshift_l(__float_as_uint(__fsub_rn(least, choice[i])), mask, 1);
  return mask;
}

/// Writes the ids of bits of `mask`, in their order.
__device__ __forceinline__ void write_ids(uint32_t mask, int32_t* to) {
  const int first = lane_id() * kPairItems - 1;
  while (mask != 0) {
    *to++ = first + __ffs(static_cast<int>(mask));
    mask &= mask - 1;
  }
}

/// Writes the experts of both tokens whose choice~ is larger than `least`, in their order. Returns
/// how many token 0 has, plus 2^16 for each of token 1; writes nothing if either has too many.
__device__ __forceinline__ int write_candidates(uint32_t mask, PairMemory& memory) {
  constexpr uint32_t kOfToken = (1u << kPairItems) - 1;
  const uint32_t of[2] = {mask & kOfToken, mask >> kPairItems};
  const int mine = __popc(of[0]) + (__popc(of[1]) << 16);
  const int up_to = sum_up_to_lane(mine);
  const int all = __shfl_sync(0xFFFFFFFFu, up_to, 31);
  if ((all & 0xFFFF) > kCandidates || all >> 16 > kCandidates) return all;
  const int before = up_to - mine;
  write_ids(of[0], memory.id[0] + (before & 0xFFFF));
  write_ids(of[1], memory.id[1] + (before >> 16));
  return all;
}

/// How many candidates of the token go before this lane's, which is one of the first `count`; other
/// lanes get their places. All choice scores are different, or else the sum of ranks falls short,
/// and ties are looked at. Comparisons as in larger_than; -0 is not among them.
__device__ __forceinline__ int rank_of(const float (&choices)[kCandidates],
                                       float choice,
                                       int count) {
  uint32_t larger = 0;
#pragma unroll
  for (float other : choices)
    larger = __funnelshift_l(__float_as_uint(__fsub_rn(choice, other)), larger, 1);
  const int place = pair_place();
  int rank = place < count ? __popc(larger) : place;
  constexpr int kSumOfRanks = kCandidates * (kCandidates - 1);  // of both tokens
  if (__reduce_add_sync(0xFFFFFFFFu, rank) == kSumOfRanks) return rank;
#pragma unroll 1
  for (int j = 0; j < place && place < count; ++j)
    rank += choices[j] == choice ? 1 : 0;
  return rank;
}

/// A softmax's constants of the token that this lane serves.
struct SoftmaxOf {
  float most = 0.0f;
  float divisor = 1.0f;

  /// parts: sorted, the largest of all first.
  __device__ __forceinline__ SoftmaxOf(float parts, const PairChoices& choices) {
    float sum[2] = {0.0f, 0.0f};
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const float top = __shfl_sync(0xFFFFFFFFu, parts, kCandidates * i);
#pragma unroll
      for (float c : choices[i])
        sum[i] += near_exp(c - top);
    }
    most = __shfl_sync(0xFFFFFFFFu, parts, lane_id() & kCandidates);
    divisor = combine_lanes<kCandidates>(combine_halves(sum[0], sum[1], Add()), Add());
  }

  SoftmaxOf() = default;
};

/// Both tokens of a pair, from `count` candidates of the token that this lane serves.
template <Choice kChoice>
__device__ __forceinline__ void choose_ranked(const Gate& g,
                                              int64_t pair,
                                              const PairRows& rows,
                                              const float (&bias)[kPairExperts],
                                              int count,
                                              const SoftmaxOf& softmax,
                                              PairMemory& memory) {
  const int token = pair_token();
  const int place = pair_place();
  const int64_t t = pair + token;
  float choice = -INFINITY;
  float score = 0.0f;
  int32_t id = 0;
  if (place < count) {
    id = memory.id[token][place];
    choice = exact_choice<kChoice>(g, rows.logit(g.format, id), bias[id], score) + 0.0f;
    if constexpr (kChoice == Choice::kLogit) score = expf(choice - softmax.most) / softmax.divisor;
  }
  memory.choice[token][place] = choice;
  __syncwarp();
  const int rank = rank_of(memory.choice[token], choice, count);
  if (rank < kMostChosen) {
    memory.chosen_score[token][rank] = rank < g.chosen ? score : 0.0f;
    memory.chosen_id[token][rank] = id;
  }
  __syncwarp();
  float sum = 0.0f;
#pragma unroll
  for (float chosen : memory.chosen_score[token])
    sum += chosen;
  if (t >= g.num_tokens) return;
  if (place < g.chosen) {
    write_choice(g, t, place, memory.chosen_score[token][place], memory.chosen_id[token][place],
                 sum);
  }
  write_shared(g, t, place, kCandidates);
}

/// One pair; false if it is to be done in rounds.
template <Choice kChoice, bool kGrouped>
__device__ __forceinline__ bool route_pair(const Gate& g,
                                           int64_t t,
                                           const PairRows& rows,
                                           const float (&bias)[kPairItems],
                                           const float (&all_bias)[kPairExperts],
                                           PairMemory& memory) {
  PairChoices choices;
  rows.load(g.format, choices);
#pragma unroll
  for (int i = 0; i < 2; ++i)
    near_choices<kChoice>(g, bias, choices[i]);
  float parts;
  uint32_t of_kept_groups = ~0u;
  if constexpr (kGrouped) {
    const KeptLanes kept(g, choices);
    if (!kept.sure) return false;
    parts = kept_parts(kept, memory);
    constexpr uint32_t kOfToken = (1u << kPairItems) - 1;
    const auto items = [&](int i) { return kept.of[i] >> lane_id() & 1 ? kOfToken : 0; };
    of_kept_groups = items(0) | items(1) << kPairItems;
  } else {
    parts = combine_halves(largest(choices[0]), largest(choices[1]), Max());
  }
  parts = sort_lanes<kCandidates, 1>(parts);
  SoftmaxOf softmax;
  if constexpr (kChoice == Choice::kLogit) softmax = SoftmaxOf(parts, choices);
  const float below = parts - fmaf(fabsf(parts), kSlackOfSize, kSlack);
  const float least[2] = {__shfl_sync(0xFFFFFFFFu, below, g.chosen - 1),
                          __shfl_sync(0xFFFFFFFFu, below, kCandidates + g.chosen - 1)};
  if (!(fminf(least[0], least[1]) > -INFINITY)) return false;
  const uint32_t mask = larger_than(least[0], choices[0], larger_than(least[1], choices[1], 0));
  const int counts = write_candidates(mask & of_kept_groups, memory);
  const int of[2] = {counts & 0xFFFF, counts >> 16};
  if (max(of[0], of[1]) > kCandidates || min(of[0], of[1]) < g.chosen) return false;
  __syncwarp();
  choose_ranked<kChoice>(g, t, rows, all_bias, pair_token() == 0 ? of[0] : of[1], softmax, memory);
  return true;
}

/// pairs: of a warp, one after the other.
template <Choice kChoice, bool kGrouped>
__global__ void __launch_bounds__(32 * kPairWarps, 8)
    route_pairs(const __grid_constant__ Gate g, int pairs) {
  __shared__ PairMemory all_memory[kPairWarps];
  __shared__ float all_bias[kPairExperts];
  let_next_start();
  wait_for_previous();
  PairMemory& memory = all_memory[warp_id()];
  const int64_t begin = 2 * pairs * (int64_t{blockIdx.x} * kPairWarps + warp_id());
  const int64_t end = min(begin + 2 * pairs, g.num_tokens);
  Scores<kPairItems, true, true> scores;  // a token's bits do not depend on the other's
  float bias[kPairItems];
  scores.load_bias(g, bias);
  if (warp_id() == 0) {
#pragma unroll
    for (int i = 0; i < kPairItems; ++i)
      all_bias[scores.expert(i)] = bias[i];
  }
  __syncthreads();
  const int64_t row_bytes = g.logits_stride * (g.format == Format::kF32 ? 4 : 2);
  const auto* row = static_cast<const uint8_t*>(g.logits) + begin * row_bytes;
#pragma unroll 1
  for (int64_t t = begin; t < end; t += 2, row += 2 * row_bytes) {
    const PairRows rows(row, row_bytes, t + 1 < end);
    if (route_pair<kChoice, kGrouped>(g, t, rows, bias, all_bias, memory)) {
      __syncwarp();  // all have read their results
      continue;
    }
#pragma unroll 1
    for (int64_t one = t; one < min(t + 2, end); ++one) {
      scores.load(g, one);
      scores.make(g, bias);
      if (kGrouped) keep_groups_of_lanes(g, scores);
      choose(g, one, scores, memory.rounds);
      __syncwarp();
    }
  }
}

template <Choice kChoice, bool kGrouped>
Status launch_pairs_of(const Exec& ex, const Gate& g) {
  // So many that there are blocks for every multiprocessor all the same.
  constexpr int64_t kEnoughWarps = 8192;
  const int64_t all = (g.num_tokens + 1) / 2;
  const int64_t pairs = std::clamp<int64_t>(all / kEnoughWarps, 1, 8);
  const int64_t of_block = pairs * kPairWarps;
  return launch_kernel(ex, route_pairs<kChoice, kGrouped>,
                       {.blocks = (all + of_block - 1) / of_block, .threads = 32 * kPairWarps}, g,
                       static_cast<int>(pairs));
}

template <Choice kChoice>
Status launch_pairs_by(const Exec& ex, const Gate& g) {
  if (g.keep_groups < g.num_groups) return launch_pairs_of<kChoice, true>(ex, g);
  return launch_pairs_of<kChoice, false>(ex, g);
}

inline Status launch_pairs(const Exec& ex, const Gate& g) {
  if (g.scoring == Scoring::kSoftmax) return launch_pairs_by<Choice::kLogit>(ex, g);
  if (g.rounds) return launch_pairs_by<Choice::kRoundedSigmoid>(ex, g);
  return launch_pairs_by<Choice::kSigmoid>(ex, g);
}

}  // namespace fathom::cuda
