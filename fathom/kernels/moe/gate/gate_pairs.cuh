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
// done again for the token, exactly and in rounds.
//
// There are as many warps as find room at once; each takes every so many-th pair, and loads the
// next one's logits into the registers of choice~ as soon as candidates are known.
#pragma once

#include <limits>

#include "fathom/kernels/cuda/reduce.cuh"
#include "fathom/kernels/moe/gate/many_tokens.cuh"

namespace fathom::cuda {

inline constexpr int kPairWarps = 4;
inline constexpr int kPairBlocks = 9;  // of a multiprocessor, at 56 registers a thread

// ---- candidates ----

/// Candidates of this lane: the highest bits of a word for each token, the first item highest.
struct LaneCandidates {
  uint32_t of[2];

  template <int kItems>
  __device__ __forceinline__ LaneCandidates(const float (&least)[2],
                                            const PairChoices<kItems>& choices) {
    static_assert(2 * kItems <= 32);
    const uint32_t mask = larger_than(least[1], choices[1], larger_than(least[0], choices[0], 0));
    of[0] = mask >> kItems << (32 - kItems);
    of[1] = mask << (32 - kItems);
  }
};

/// How many candidates each token has; bit i of `failed`: too many or too few of token i, which
/// then has none.
struct CandidateCounts {
  int of[2];
  unsigned failed;

  /// both: those of token 0, plus 2^16 for each of token 1.
  __device__ __forceinline__ CandidateCounts(int both, int chosen)
      : of{both & 0xFFFF, both >> 16}, failed(0) {
    // Halves are negative where a count is out of bounds. One may seem so that is not, so each is
    // looked at below.
    constexpr unsigned kBoth = 0x10001u;
    const auto counts = static_cast<unsigned>(both);
    const unsigned bounds = (counts - static_cast<unsigned>(chosen) * kBoth) |
                            (static_cast<unsigned>(kCandidates) * kBoth - counts);
    if ((bounds & 0x8000u * kBoth) == 0) return;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      if (of[i] >= chosen && of[i] <= kCandidates) continue;
      failed |= 1u << i;
      of[i] = 0;
    }
  }
};

/// Writes the candidates of both tokens, in their order; none of those that failed.
template <int kItems>
__device__ __forceinline__ CandidateCounts write_candidates(const LaneCandidates& candidates,
                                                            int chosen,
                                                            PairMemory& memory) {
  const int mine = __popc(candidates.of[0]) + (__popc(candidates.of[1]) << 16);
  const int up_to = sum_up_to_lane(mine);
  const CandidateCounts counts(__shfl_sync(0xFFFFFFFFu, up_to, 31), chosen);
  const int before = up_to - mine;
  const auto expert_of = [](int item) { return lane_id() * kItems + item; };
  if (counts.of[0] != 0)
    write_ids(candidates.of[0], memory.of[0].id + (before & 0xFFFF), expert_of);
  if (counts.of[1] != 0) write_ids(candidates.of[1], memory.of[1].id + (before >> 16), expert_of);
  return counts;
}

/// How many candidates of the token go before this lane's, which is one of the first `count`; other
/// lanes get their places. All choice scores are different, or else the sum of ranks falls short,
/// and ties are looked at. Comparisons as in larger_than; -0 is not among them.
__device__ __forceinline__ int rank_of(const float (&choices)[kCandidates],
                                       float choice,
                                       int count) {
  uint32_t larger = 0;
#pragma unroll
  for (int j = 0; j < kCandidates; ++j)
    larger = __funnelshift_l(__float_as_uint(__fsub_rn(choice, choices[j])), larger, 1);
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
  template <int kItems>
  __device__ __forceinline__ SoftmaxOf(float parts, const PairChoices<kItems>& choices) {
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

/// What a lane reads and writes of a pair.
template <class T, int kItems>
struct PairPlace {
  int t;            ///< the first token
  const T* logits;  ///< its logits, those of this lane
  float* weights;   ///< of the token that this lane serves, from its place on
  int32_t* ids;

  __device__ __forceinline__ PairPlace(const Gate& g, int first_t) : t(first_t) {
    const int64_t mine = int64_t{t} + pair_token();
    const T* const all = static_cast<const T*>(g.logits);
    logits = all + t * g.logits_stride + lane_id() * kItems;
    weights = g.weights[mine] + pair_place();
    ids = g.ids[mine] + pair_place();
  }

  __device__ __forceinline__ void advance(const TokenSteps& steps) {
    t += steps.tokens;
    logits += steps.logits;
    weights += steps.weights;
    ids += steps.ids;
  }

  /// Loads the logits of a pair: those of a last token alone twice.
  __device__ __forceinline__ void load(const Gate& g, PackedPair<T, kItems>& packed) const {
    load_from(g, t, logits, packed);
  }

  /// Those of the next pair; of the last pair once more, so that loads are under no condition,
  /// which would make all wait for them.
  __device__ __forceinline__ void load_next(const Gate& g,
                                            const TokenSteps& steps,
                                            PackedPair<T, kItems>& packed) const {
    const bool exists = t + steps.tokens < token_count(g);
    load_from(g, t + steps.tokens, logits + (exists ? steps.logits : 0), packed);
  }

  /// That of an expert, of the token that this lane serves.
  __device__ __forceinline__ float logit(const Gate& g, int id) const {
    const T* const row = logits + (pair_token() == 0 ? 0 : g.logits_stride);
    return cuda::load(row + (id - lane_id() * kItems));
  }

  /// False for lanes that serve a second token where there is none.
  __device__ __forceinline__ bool serves(const Gate& g) const {
    return t + pair_token() < token_count(g);
  }

  __device__ __forceinline__ void write(const Gate& g, float score, int32_t id, float sum) const {
    if (pair_place() < g.chosen) {
      *weights = weight_of(g, score, sum);
      *ids = id;
    }
    write_shared_experts<kCandidates>(g, pair_place(), weights, ids);
  }

 private:
  static __device__ __forceinline__ void load_from(const Gate& g,
                                                   int first_t,
                                                   const T* first,
                                                   PackedPair<T, kItems>& packed) {
    const T* const from[2] = {first, first + (first_t + 1 < token_count(g) ? g.logits_stride : 0)};
    packed.load(from);
  }
};

/// Both tokens of a pair, from `count` candidates of the token that this lane serves; 0: none, and
/// no results.
template <Choice kChoice, class T, int kItems>
__device__ __forceinline__ void choose_ranked(const Gate& g,
                                              const PairPlace<T, kItems>& at,
                                              const float (&bias)[32 * kItems],
                                              int count,
                                              const SoftmaxOf& softmax,
                                              TokenMemory& memory) {
  const int place = pair_place();
  float choice = -INFINITY;
  float score = 0.0f;
  int32_t id = 0;
  if (place < count) {
    id = memory.id[place];
    choice = exact_choice<kChoice>(g, at.logit(g, id), bias[id], score) + 0.0f;
    if constexpr (is_softmax(kChoice)) score = expf(choice - softmax.most) / softmax.divisor;
  }
  memory.choice[place] = choice;
  __syncwarp();
  const int rank = rank_of(memory.choice, choice, count);
  if (rank < kMostChosen) {
    memory.chosen_score[rank] = rank < g.chosen ? score : 0.0f;
    memory.chosen_id[rank] = id;
  }
  __syncwarp();
  float sum = 0.0f;
  if (g.renormalise) {
#pragma unroll
    for (int k = 0; k < kMostChosen; ++k)
      sum += memory.chosen_score[k];
  }
  if (count == 0) return;
  const int of_lane = place % kMostChosen;
  at.write(g, memory.chosen_score[of_lane], memory.chosen_id[of_lane], sum);
}

/// One pair, of which `packed` holds the logits; loads those of the next one as soon as there is
/// room. Returns the tokens that are to be done in rounds: bit i for token i.
template <Choice kChoice, bool kGrouped, class T, int kItems>
__device__ __forceinline__ unsigned route_pair(const Gate& g,
                                               const TokenSteps& steps,
                                               const PairPlace<T, kItems>& at,
                                               const float (&all_bias)[32 * kItems],
                                               PackedPair<T, kItems>& packed,
                                               PairMemory& memory,
                                               TokenMemory& served) {
  PairChoices<kItems> choices;
  packed.unpack_all(choices);
  near_choices<kChoice, kItems>(g, all_bias, choices);
  float parts;
  [[maybe_unused]] KeptLanes kept{};
  if constexpr (kGrouped) {
    if constexpr (is_softmax(kChoice)) {
      kept.by_largest(g, choices);
    } else {
      kept.by_sums(g, choices);
    }
    parts = kept_parts(kept, memory, served);
  } else {
    parts = combine_halves(largest(choices[0]), largest(choices[1]), Max());
  }
  parts = sort_lanes<kCandidates, 1>(parts);
  SoftmaxOf softmax;
  if constexpr (is_softmax(kChoice)) softmax = SoftmaxOf(parts, choices);
  const float below = bound_below(parts);
  const float least[2] = {__shfl_sync(0xFFFFFFFFu, below, g.chosen - 1),
                          __shfl_sync(0xFFFFFFFFu, below, kCandidates + g.chosen - 1)};
  LaneCandidates candidates(least, choices);
  at.load_next(g, steps, packed);
  if constexpr (kGrouped) {
#pragma unroll
    for (int i = 0; i < 2; ++i)
      candidates.of[i] = (kept.of[i] >> lane_id() & 1) != 0 ? candidates.of[i] : 0;
  }
  const CandidateCounts counts = write_candidates<kItems>(candidates, g.chosen, memory);
  if (counts.failed == 3) return 3;
  __syncwarp();
  const int count = pair_token() == 0 ? counts.of[0] : counts.of[1];
  choose_ranked<kChoice>(g, at, all_bias, at.serves(g) ? count : 0, softmax, served);
  return counts.failed;
}

template <bool kGrouped, int kItems>
__device__ __forceinline__ void route_in_rounds(const Gate& g,
                                                int64_t t,
                                                const float (&all_bias)[32 * kItems],
                                                PairMemory& memory) {
  Scores<kItems, true, true> scores;  // a token's bits do not depend on how pairs do it
  float bias[kItems];
  bias_of_lane<kItems>(all_bias, bias);
  scores.load(g, t);
  scores.make(g, bias);
  if (kGrouped) keep_groups_of_lanes(g, scores);
  choose(g, t, scores, memory.rounds);
  __syncwarp();
}

template <int kItems>
__device__ __forceinline__ void share_bias(const Gate& g, float (&all_bias)[32 * kItems]) {
  if (warp_id() != 0) return;
  Scores<kItems, true, true> scores;
  float bias[kItems];
  scores.load_bias(g, bias);
#pragma unroll
  for (int i = 0; i < kItems; ++i)
    all_bias[scores.expert(i)] = bias[i];
}

template <Choice kChoice, bool kGrouped, class T, int kItems>
__global__ void __launch_bounds__(32 * kPairWarps, kPairBlocks)
    route_pairs(const __grid_constant__ Gate g, const __grid_constant__ TokenSteps steps) {
  __shared__ PairMemory all_memory[kPairWarps];
  alignas(16) __shared__ float shared_bias[32 * kItems];
  let_next_start();
  wait_for_previous();
  PairMemory& memory = kept_shared(all_memory[warp_id()]);
  TokenMemory& served = kept_shared(all_memory[warp_id()].of[pair_token()]);
  auto& all_bias = kept_shared(shared_bias);
  share_bias<kItems>(g, all_bias);
  __syncthreads();
  PairPlace<T, kItems> at(g, 2 * (static_cast<int>(blockIdx.x) * kPairWarps + warp_id()));
  if (at.t >= token_count(g)) return;
  PackedPair<T, kItems> packed;
  at.load(g, packed);
#pragma unroll 1
  for (; at.t < token_count(g); at.advance(steps)) {
    const unsigned failed =
        route_pair<kChoice, kGrouped>(g, steps, at, all_bias, packed, memory, served);
    __syncwarp();  // all have read their results
    if (failed == 0) continue;
#pragma unroll 1
    for (int i = 0; i < 2 && at.t + i < token_count(g); ++i) {
      if ((failed >> i & 1) != 0) route_in_rounds<kGrouped, kItems>(g, at.t + i, all_bias, memory);
    }
    // Once more, so that they need not be kept meanwhile.
    at.load_next(g, steps, packed);
  }
}

template <Choice kChoice, bool kGrouped, class T, int kItems>
Status launch_pairs_of(const Exec& ex, const Gate& g) {
  return launch_in_steps(ex, g, route_pairs<kChoice, kGrouped, T, kItems>, 2, kPairWarps,
                         kPairBlocks);
}

/// No softmax router in groups has either.
inline bool is_adjusted(const Gate& g) {
  return g.scoring == Scoring::kSoftmax && (g.bias != nullptr || g.softcap != 0.0f);
}

template <Choice kChoice, class T, int kItems>
Status launch_pairs_by(const Exec& ex, const Gate& g) {
  if (g.keep_groups < g.num_groups) return launch_pairs_of<kChoice, true, T, kItems>(ex, g);
  return launch_pairs_of<kChoice, false, T, kItems>(ex, g);
}

template <class T, int kItems>
Status launch_softmax_pairs(const Exec& ex, const Gate& g) {
  if (is_adjusted(g)) return launch_pairs_of<Choice::kAdjustedLogit, false, T, kItems>(ex, g);
  return launch_pairs_by<Choice::kLogit, T, kItems>(ex, g);
}

template <class T>
Status launch_pairs_from(const Exec& ex, const Gate& g) {
  if (g.scoring == Scoring::kSoftmax) {
    return g.num_experts == 160 ? launch_softmax_pairs<T, 5>(ex, g)
                                : launch_softmax_pairs<T, kVector>(ex, g);
  }
  if constexpr (sizeof(T) == 2) {
    if (g.rounds) return launch_pairs_by<Choice::kRoundedSigmoid, T, kVector>(ex, g);
  }
  return launch_pairs_by<Choice::kSigmoid, T, kVector>(ex, g);
}

inline Status launch_pairs(const Exec& ex, const Gate& g) {
  return launch_by_logits(g, [&]<class T>() { return launch_pairs_from<T>(ex, g); });
}

/// Numbers of experts of models, as far as lanes have them; 160 of them in softmax routers.
inline bool pairs_take(const Gate& g) {
  const bool experts_fit = g.num_experts == 32 * kVector
                               ? g.in_vectors
                               : g.num_experts == 160 && g.scoring == Scoring::kSoftmax;
  const bool groups_fit =
      g.keep_groups == g.num_groups ||
      (g.num_groups == kPairGroups && g.keep_groups <= kMostKept && !is_adjusted(g));
  constexpr int64_t kMostTokens = std::numeric_limits<int>::max() / 2;
  return experts_fit && groups_fit && g.chosen > 0 && g.chosen <= kMostChosen &&
         g.num_tokens <= kMostTokens;
}

}  // namespace fathom::cuda
