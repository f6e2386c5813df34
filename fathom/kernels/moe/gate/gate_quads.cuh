// Four tokens (a quad) a warp, for very many tokens, where the number of instructions counts: what
// a token costs whatever the number of its experts (sorting, listing and ranking) is divided by
// four.
//
// Few experts of a token matter. So all experts get no more than a choice score that is near the
// exact one (choice~: exact logits, or sigmoids by the approximate instructions), and those that
// may be among the best, ten or so, get the exact score. They are the token's candidates.
//
// A token has eight lanes, each of which has an eighth of its experts: a group, where they are in
// eight groups, so that groups need no exchanges. Logits are copied into shared memory of the
// warp's own; the copies of the next quad begin when the exact logits of this one's candidates have
// been read, and other warps are busy until they have come.
//
//   parts    = the largest choice~ of sixteen parts of a token: two of each lane; of a token in
//              groups, four of each lane of the groups kept
//   least    = the part that comes last of as many as are to be chosen, less what choice~ may be
//              off; a closer bound, found by halving, where it lets more than sixteen pass
//   rank     = candidates whose exact choice score is larger, counted
//
// What the approximation leaves open (groups of nearly the same rating), what does not fit (more
// candidates than places, as ties make) and what has no place in an order (NaN, infinities) is done
// again for the token, exactly and in rounds. How a token is done depends on its logits alone.
#pragma once

#include <cstddef>
#include <limits>

#include "fathom/kernels/cuda/reduce.cuh"
#include "fathom/kernels/cuda/tensor_core.cuh"
#include "fathom/kernels/moe/gate/many_tokens.cuh"
#include "fathom/kernels/moe/gate/quad_choices.cuh"

namespace fathom::cuda {

inline constexpr int kQuadWarps = 4;

/// Blocks of a multiprocessor, by registers.
template <int kItems>
inline constexpr int kQuadBlocks = kItems == 32 ? 7 : 9;
static_assert(kCandidates == 2 * kTokenLanes && kMostChosen == kTokenLanes);

/// Of a token of a quad. 224 bytes: the tokens' same places lie in different banks. Ids are those
/// of experts at all times, some of them left over from another quad.
struct alignas(16) QuadTokenMemory {
  float choice[kCandidates];  // parts before; rounds use those of token 0
  int32_t id[kCandidates];    // of candidates
  float chosen_score[kMostChosen];
  int32_t chosen_id[kMostChosen];
  uint32_t unused[8];
};

static_assert(sizeof(QuadTokenMemory) % 128 == 96);

/// What a lane has of it: its first words are those of the lane's place.
struct PlaceMemory {
  float choice[kCandidates];
  int32_t id[kCandidates];
  float chosen_score[kMostChosen];
  int32_t chosen_id[kMostChosen];
};

static_assert(offsetof(PlaceMemory, id) == offsetof(QuadTokenMemory, id) &&
              offsetof(PlaceMemory, chosen_score) == offsetof(QuadTokenMemory, chosen_score) &&
              offsetof(PlaceMemory, chosen_id) == offsetof(QuadTokenMemory, chosen_id));

/// Of a warp.
union QuadMemory {
  QuadTokenMemory of[kQuadTokens];
  uint32_t rounds[2 * kMostChosen];
};

/// Of a block.
template <class T, int kItems>
struct QuadBlock {
  static constexpr int kExperts = kTokenLanes * kItems;

  alignas(128) T logits[kQuadWarps][kQuadTokens][kExperts];
  alignas(128) float bias[kExperts];
  QuadMemory memory[kQuadWarps];
};

/// What a lane writes of a quad, and what it copies of a coming one.
template <class T, int kItems>
struct QuadPlace {
  int t;            ///< the first token
  int coming_t;     ///< of the quad that is to be copied next, the token of this lane
  const T* coming;  ///< its logits, from this lane's first sixteen bytes on
  float* weights;   ///< of the token and place of this lane
  int32_t* ids;

  __device__ __forceinline__ QuadPlace(const Gate& g, int first_t)
      : t(first_t), coming_t(first_t + quad_token()) {
    coming = static_cast<const T*>(g.logits) + coming_t * g.logits_stride + token_place() * kChunk;
    weights = g.weights[coming_t] + token_place();
    ids = g.ids[coming_t] + token_place();
  }

  __device__ __forceinline__ void advance(const TokenSteps& steps) {
    t += steps.tokens;
    weights += steps.weights;
    ids += steps.ids;
  }

  /// Starts to copy the logits of the coming quad, those of tokens that exist, and goes on. to:
  /// this lane's first sixteen bytes.
  __device__ __forceinline__ void copy_coming(const Gate& g, const TokenSteps& steps, uint32_t to) {
    constexpr int kChunks = kTokenLanes * kItems / kChunk;  // of a token
    if (coming_t < token_count(g)) {
#pragma unroll
      for (int c = 0; c < kChunks; c += kTokenLanes) {
        if (c + kTokenLanes <= kChunks || token_place() < kChunks - c)
          copy_chunk(to + 16 * static_cast<uint32_t>(c), coming + c * kChunk, true);
      }
    }
    commit_copies();
    coming_t += steps.tokens;
    coming += steps.logits;
  }

  /// False for lanes of a token that does not exist.
  __device__ __forceinline__ bool exists(const Gate& g) const {
    return t + quad_token() < token_count(g);
  }

  __device__ __forceinline__ void write(const Gate& g, float weight, int32_t id) const {
    if (token_place() < g.chosen) {
      *weights = weight;
      *ids = id;
    }
    write_shared_experts<kTokenLanes>(g, token_place(), weights, ids);
  }

 private:
  static constexpr int kChunk = 16 / sizeof(T);
};

// ---- candidates ----

/// Candidates of this lane: the highest bits, the first item highest. And of its token: how many
/// lie in places before this one, and in all.
struct QuadCandidates {
  uint32_t mask = 0;
  int before = 0;
  int count = 0;

  template <int kPart>
  __device__ __forceinline__ QuadCandidates(float least,
                                            bool kept,
                                            const float (&choices)[kLaneParts][kPart]) {
    constexpr int kItems = kLaneParts * kPart;
    uint32_t larger = 0;
#pragma unroll
    for (int p = 0; p < kLaneParts; ++p)
      larger = larger_than(least, choices[p], larger);
    mask = kept ? larger << (32 - kItems) : 0;
    const int mine = __popc(mask);
    const int up_to = sum_up_to_lane<kTokenLanes>(mine);
    before = up_to - mine;
    count = of_place(up_to, kTokenLanes - 1);
  }

  /// Writes the ids of candidates, in the order of items.
  template <class T, int kItems>
  __device__ __forceinline__ void write_ids(int32_t* to) const {
    cuda::write_ids(mask, to + before, [](int item) { return expert_of<T, kItems>(item); });
  }
};

/// Candidates of this lane's token, by the sorted parts of it: more or fewer than wanted, if they
/// cannot be told.
template <int kPart>
__device__ __forceinline__ QuadCandidates candidates_of(const Gate& g,
                                                        float sorted_part,
                                                        bool kept,
                                                        const float (&choices)[kLaneParts][kPart]) {
  float enough = of_place(sorted_part, g.chosen - 1);
  QuadCandidates found(bound_below(enough), kept, choices);
  if (!__any_sync(0xFFFFFFFFu, found.count > kCandidates)) return found;
  // Between a bound that lets enough pass and one that may not. Most tokens with seventeen or more
  // have a few more.
  float most = of_place(sorted_part, 0);
  constexpr int kTrials = 8;
#pragma unroll 1
  for (int trial = 0; trial < kTrials; ++trial) {
    const float higher = 0.875f * enough + 0.125f * most;
    if (QuadCandidates(higher, kept, choices).count >= g.chosen) {
      enough = higher;
    } else {
      most = higher;
    }
    const QuadCandidates closer(bound_below(enough), kept, choices);
    if (found.count > kCandidates) found = closer;
    if (!__any_sync(0xFFFFFFFFu, found.count > kCandidates)) break;
  }
  return found;
}

/// The ranks of this lane's candidates among the first 8 kSlots of its token, as far as choice
/// scores tell; slots from `count` on get their places.
template <int kSlots>
__device__ __forceinline__ void count_larger(const QuadTokenMemory& memory,
                                             const float (&choice)[kSlots],
                                             int count,
                                             int (&rank)[kSlots]) {
  float all[kSlots * kTokenLanes];
#pragma unroll
  for (int j = 0; j < kSlots * kTokenLanes; ++j)
    all[j] = memory.choice[j];
#pragma unroll
  for (int i = 0; i < kSlots; ++i) {
    const int slot = token_place() + i * kTokenLanes;
    // Counted by all lanes: without a branch, one of whose sides would load them again.
    const uint32_t larger = kept(static_cast<uint32_t>(__popc(larger_than(choice[i], all, 0))));
    rank[i] = slot < count ? static_cast<int>(larger) : slot;
  }
}

/// Candidates of the same choice score and a lower id.
__device__ __forceinline__ int count_ties(const QuadTokenMemory& memory, int slot, int count) {
  int ties = 0;
#pragma unroll 1
  for (int j = 0; slot < count && j < count; ++j)
    ties += memory.choice[j] == memory.choice[slot] && memory.id[j] < memory.id[slot] ? 1 : 0;
  return ties;
}

// ---- parts of groups ----

/// The largest parts of the groups kept in falling order; `kept`, which says whether the token
/// exists, then says whether this lane's group is kept.
template <bool kMayBeNan>
__device__ __forceinline__ float sort_kept_parts(
    const Gate& g, const RatedLane& rated, float slack, QuadTokenMemory& memory, bool& kept) {
  const int place = token_place();
  const unsigned places = rated.template kept<kMayBeNan>(g, slack);
  auto* const two = reinterpret_cast<float2*>(memory.choice);
  auto* const four = reinterpret_cast<float4*>(memory.choice);
  two[place] = make_float2(-INFINITY, -INFINITY);
  __syncwarp();
  const bool among = (places >> place & 1) != 0;
  kept = kept && among;
  if (among) {
    four[__popc(places & ((1u << place) - 1))] =
        make_float4(rated.part[0], rated.part[1], rated.part[2], rated.part[3]);
  }
  __syncwarp();
  const float2 mine = two[place];
  return largest_eight(mine.x, mine.y);
}

// ---- softmax ----

/// What a softmax router makes of logits: exp(z - m) for m near the largest logit, by the
/// approximate instruction. The product with log2(e) is not rounded before m is taken off, and
/// what m is off cancels out with the divisor.
struct QuadSoftmax {
  float most = 0.0f;
  float divisor = 1.0f;

  /// Of logits whose largest one is `top`.
  template <int kPart>
  __device__ __forceinline__ QuadSoftmax(float top, const float (&choices)[kLaneParts][kPart])
      : most(top * kLog2e), divisor(0.0f) {
    float sum[kLaneParts];
#pragma unroll
    for (int p = 0; p < kLaneParts; ++p) {
      sum[p] = of(choices[p][0]);
#pragma unroll
      for (int i = 1; i < kPart; ++i)
        sum[p] += of(choices[p][i]);
    }
    divisor = combine_lanes<kTokenLanes>((sum[0] + sum[1]) + (sum[2] + sum[3]), Add());
  }

  __device__ __forceinline__ float of(float z) const {
    return exp2_approx(fmaf(z, kLog2e, -most));
  }

  QuadSoftmax() = default;

  static constexpr float kLog2e = 1.4426950408889634f;

  /// What m is off grows with the logits; as much a divisor may be below one, where its reciprocal
  /// need not be correctly rounded.
  static constexpr float kMostLogit = 0x1p20f;
};

// ---- a quad ----

/// Four tokens, of which this lane's has `count` candidates in `memory`, 8 kSlots at most; 0: none,
/// and no results. mine: `memory` from this lane's place on. row: the token's logits, which are not
/// read any more once `is_read` has been called.
template <int kSlots, Choice kChoice, class T, int kItems, class IsRead>
__device__ __forceinline__ void choose_quad(const Gate& g,
                                            const QuadPlace<T, kItems>& at,
                                            const T* row,
                                            const float* all_bias,
                                            int count,
                                            const QuadSoftmax& softmax,
                                            QuadTokenMemory& memory,
                                            PlaceMemory& mine,
                                            IsRead is_read) {
  const int place = token_place();
  [[maybe_unused]] float inverse = 1.0f;
  if constexpr (is_softmax(kChoice)) inverse = reciprocal_above_one(softmax.divisor);
  float choice[kSlots];
  float score[kSlots];
  int32_t id[kSlots];
#pragma unroll
  for (int i = 0; i < kSlots; ++i) {
    const int slot = place + i * kTokenLanes;
    id[i] = mine.id[i * kTokenLanes];
    const float z = cuda::load(row + id[i]);
    choice[i] = z;
    if constexpr (is_softmax(kChoice)) {
      score[i] = softmax.of(z) * inverse;
    } else {
      choice[i] = exact_choice(z, all_bias[id[i]], score[i]);
    }
    choice[i] = slot < count ? choice[i] + 0.0f : -INFINITY;
  }
#pragma unroll
  for (int i = 0; i < kSlots; ++i)
    mine.choice[i * kTokenLanes] = choice[i];
  __syncwarp();
  is_read();
  int rank[kSlots];
  count_larger(memory, choice, count, rank);
  // All choice scores are different, or else the sum of ranks falls short.
  constexpr int kSumOfRanks = kQuadTokens * kSlots * kTokenLanes * (kSlots * kTokenLanes - 1) / 2;
  int ranks = 0;
#pragma unroll
  for (int r : rank)
    ranks += r;
  if (__reduce_add_sync(0xFFFFFFFFu, ranks) != kSumOfRanks) {
#pragma unroll
    for (int i = 0; i < kSlots; ++i)
      rank[i] += count_ties(memory, place + i * kTokenLanes, count);
  }
#pragma unroll
  for (int i = 0; i < kSlots; ++i) {
    if (rank[i] < kMostChosen) {
      memory.chosen_score[rank[i]] = score[i];
      memory.chosen_id[rank[i]] = id[i];
    }
  }
  __syncwarp();
  const float chosen = place < g.chosen ? mine.chosen_score[0] : 0.0f;
  float weight = chosen * g.scaling;
  if (g.renormalise) weight = weight_of(g, chosen, combine_lanes<kTokenLanes>(chosen, Add()));
  if (count != 0) at.write(g, weight, mine.chosen_id[0]);
}

/// One quad. Returns the tokens that are to be done in rounds: bit 8 i for token i.
template <Choice kChoice, bool kGrouped, class T, int kItems, class IsRead>
__device__ __forceinline__ unsigned route_quad(const Gate& g,
                                               const QuadPlace<T, kItems>& at,
                                               const T* row,
                                               const float* all_bias,
                                               float slack,
                                               QuadTokenMemory& memory,
                                               PlaceMemory& mine,
                                               IsRead is_read) {
  QuadChoices<kItems> choices;
  near_quad_choices<kChoice, T, kItems>(row, all_bias, choices);
  float sorted;
  bool can_be_told = at.exists(g);
  bool kept = can_be_told;
  if constexpr (kGrouped) {
    RatedLane rated;
    if constexpr (is_softmax(kChoice)) {
      rated.by_largest(choices);
    } else {
      rated.by_sum(choices);
    }
    sorted = sort_kept_parts<!is_softmax(kChoice)>(g, rated, slack, memory, kept);
  } else {
    float part[kLaneParts];
#pragma unroll
    for (int p = 0; p < kLaneParts; ++p)
      part[p] = largest(choices[p]);
    sorted = largest_eight(fmaxf(part[0], part[1]), fmaxf(part[2], part[3]));
  }
  QuadSoftmax softmax;
  if constexpr (is_softmax(kChoice)) {
    const float top = of_place(sorted, 0);
    softmax = QuadSoftmax(top, choices);
    can_be_told = can_be_told && fabsf(top) < QuadSoftmax::kMostLogit;
  }
  const QuadCandidates candidates = candidates_of(g, sorted, kept, choices);
  can_be_told = can_be_told && candidates.count >= g.chosen && candidates.count <= kCandidates;
  if (can_be_told) candidates.template write_ids<T, kItems>(memory.id);
  __syncwarp();
  const int count = can_be_told ? candidates.count : 0;
  // Of 60 experts, in twelve parts of which six pass, half of all quads have no ninth candidate.
  constexpr bool kMayBeFew = kItems == 20;
  if (kMayBeFew && !__any_sync(0xFFFFFFFFu, count > kTokenLanes)) {
    choose_quad<1, kChoice>(g, at, row, all_bias, count, softmax, memory, mine, is_read);
  } else {
    choose_quad<2, kChoice>(g, at, row, all_bias, count, softmax, memory, mine, is_read);
  }
  constexpr unsigned kFirstLanes = 0x01010101u;
  return __ballot_sync(0xFFFFFFFFu, at.exists(g) && !can_be_told) & kFirstLanes;
}

// ---- rounds ----

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

template <bool kGrouped, int kItems>
__device__ __forceinline__ void route_in_rounds(const Gate& g,
                                                int64_t t,
                                                const float (&all_bias)[32 * kItems],
                                                QuadMemory& memory) {
  Scores<kItems, true, true> scores;
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

// ---- the kernel ----

template <Choice kChoice, bool kGrouped, class T, int kItems>
__global__ void __launch_bounds__(32 * kQuadWarps, kQuadBlocks<kItems>)
    route_quads(const __grid_constant__ Gate g, const __grid_constant__ TokenSteps steps) {
  // Rounds have all 32 lanes for a token.
  constexpr int kRoundItems = kItems * kTokenLanes / 32;
  __shared__ QuadBlock<T, kItems> block;
  let_next_start();
  wait_for_previous();
  const int warp = warp_id();
  share_bias<kRoundItems>(g, block.bias);
  __syncthreads();
  QuadPlace<T, kItems> at(g, kQuadTokens * (static_cast<int>(blockIdx.x) * kQuadWarps + warp));
  // The logits of this lane's token, and what of them the lane copies.
  const uint32_t first_logit = kept(shared_address(&block.logits[warp][quad_token()][0]));
  const uint32_t copied = kept(first_logit + 16 * static_cast<uint32_t>(token_place()));
  at.copy_coming(g, steps, copied);
  float slack = 0.0f;
  if constexpr (kGrouped && !is_softmax(kChoice)) slack = slack_of_sums(block.bias);
  QuadMemory& memory = kept_shared(block.memory[warp]);
  QuadTokenMemory& served = kept_shared(block.memory[warp].of[quad_token()]);
  auto& mine = reinterpret_cast<PlaceMemory&>(kept_shared(served.choice[token_place()]));
  auto& all_bias = kept_shared(block.bias);
  for (int i = 0; i < 2; ++i)
    mine.id[i * kTokenLanes] = 0;
  const auto* row = static_cast<const T*>(__cvta_shared_to_generic(first_logit));
#pragma unroll 1
  for (; at.t < token_count(g); at.advance(steps)) {
    wait_copies_all();
    __syncwarp();
    const unsigned failed = route_quad<kChoice, kGrouped>(
        g, at, row, all_bias, slack, served, mine, [&] { at.copy_coming(g, steps, copied); });
    __syncwarp();  // all have read their results
    if (failed == 0) continue;
#pragma unroll 1
    for (int i = 0; i < kQuadTokens; ++i) {
      if ((failed >> (kTokenLanes * i) & 1) != 0)
        route_in_rounds<kGrouped, kRoundItems>(g, at.t + i, all_bias, memory);
    }
  }
}

template <Choice kChoice, bool kGrouped, class T, int kItems>
Status launch_quads_of(const Exec& ex, const Gate& g) {
  return launch_in_steps(ex, g, route_quads<kChoice, kGrouped, T, kItems>, kQuadTokens, kQuadWarps,
                         kQuadBlocks<kItems>);
}

template <Choice kChoice, class T, int kItems>
Status launch_quads_by(const Exec& ex, const Gate& g) {
  if (g.keep_groups < g.num_groups) return launch_quads_of<kChoice, true, T, kItems>(ex, g);
  return launch_quads_of<kChoice, false, T, kItems>(ex, g);
}

template <class T>
Status launch_quads_from(const Exec& ex, const Gate& g) {
  if (g.scoring == Scoring::kSigmoid) return launch_quads_by<Choice::kSigmoid, T, 32>(ex, g);
  if (g.num_experts == 160) return launch_quads_by<Choice::kLogit, T, 20>(ex, g);
  return launch_quads_by<Choice::kLogit, T, 32>(ex, g);
}

inline Status launch_quads(const Exec& ex, const Gate& g) {
  return launch_by_logits(g, [&]<class T>() { return launch_quads_from<T>(ex, g); });
}

/// Whether there are as many tokens as the warps of a GPU of so many multiprocessors take at once:
/// what counts then is the number of instructions. On an H200 16,384 tokens of 256 experts take as
/// long as 2,048 do with a warp a token (7.3 us, results/h200/all_kernels.csv).
inline bool quads_pay(int64_t num_tokens, int num_sms) {
  return num_tokens >= int64_t{kQuadTokens} * kQuadWarps * kQuadBlocks<32> * num_sms;
}

/// Numbers of experts of models, as far as lanes have them; 160 of them in softmax routers. Logits
/// as they are, without softcap or bias of a softmax; scores that are not rounded.
inline bool quads_take(const Gate& g) {
  constexpr int kMostKept = kCandidates / kLaneParts;  // groups: all parts of each have a place
  constexpr int64_t kMostTokens = std::numeric_limits<int>::max() / kQuadTokens;
  const bool softmax = g.scoring == Scoring::kSoftmax;
  const bool experts_fit = g.num_experts == 256 || (g.num_experts == 160 && softmax);
  const bool groups_fit =
      g.keep_groups == g.num_groups || (g.num_groups == kQuadGroups && g.keep_groups <= kMostKept &&
                                        g.keep_groups * kLaneParts >= g.chosen);
  const bool adjusted = softmax && (g.bias != nullptr || g.softcap != 0.0f);
  return experts_fit && g.in_vectors && groups_fit && !adjusted && !g.rounds && g.chosen > 0 &&
         g.chosen <= kMostChosen && g.num_tokens <= kMostTokens;
}

}  // namespace fathom::cuda
