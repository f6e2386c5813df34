// Two tokens a warp.
//
// Of very many tokens the rounds of take_best would take most of the time. Instead, the largest
// keys of sixteen parts of a token (two lanes each) are sorted, two tokens at once; of a token in
// groups, those of its lanes. As many keys as are to be chosen are no smaller than the one that
// comes last of as many parts. Those keys, ten or so, are ranked by counting. Where ties or an
// uneven token make more of them than places, rounds it is.
#pragma once

#include "fathom/kernels/cuda/launch_cuda.h"
#include "fathom/kernels/moe/gate/gate_warp.cuh"

namespace fathom::cuda {

inline constexpr int kPairItems = kVector;
inline constexpr int kPairExperts = 32 * kPairItems;
inline constexpr int kCandidates = 16;  // of a token
inline constexpr int kMostChosen = 8;
inline constexpr int kPairWarps = 4;

using PairScores = Scores<kPairItems, true>;

/// Of one token, in shared memory; in order of experts, then of rank.
struct alignas(16) Candidates {
  uint32_t key[kCandidates];
  float score[kCandidates];
  int32_t id[kCandidates];
};

/// Lanes 0-15 serve token 0 of a pair, the others token 1.
__device__ __forceinline__ int pair_token() {
  return lane_id() / kCandidates;
}

__device__ __forceinline__ int pair_place() {
  return lane_id() % kCandidates;
}

__device__ __forceinline__ uint32_t largest_key(const PairScores& s) {
  uint32_t most = kRemoved;
#pragma unroll
  for (uint32_t key : s.key)
    most = max(most, key);
  return most;
}

/// Keys in falling order of the lanes, kLanes neighbours by themselves.
template <int kLanes>
__device__ __forceinline__ uint32_t sort_lanes(uint32_t key) {
  const int place = lane_id() % kLanes;
#pragma unroll
  for (int size = 2; size <= kLanes; size *= 2) {
#pragma unroll
    for (int step = size / 2; step > 0; step /= 2) {
      const uint32_t other = __shfl_xor_sync(0xFFFFFFFFu, key, step);
      const bool keeps_larger = ((place & size) == 0) == ((place & step) == 0);
      key = keeps_larger ? max(key, other) : min(key, other);
    }
  }
  return key;
}

/// A key of each token that as many as are to be chosen are no smaller than.
struct LeastKeys {
  uint32_t of[2];

  __device__ __forceinline__ LeastKeys(const Gate& g, const PairScores (&scores)[2]) {
    const uint32_t most[2] = {largest_key(scores[0]), largest_key(scores[1])};
    if (g.keep_groups < g.num_groups) {
      // Half of the lanes may be out of the race: each is a part of its own.
#pragma unroll
      for (int i = 0; i < 2; ++i)
        of[i] = __shfl_sync(0xFFFFFFFFu, sort_lanes<32>(most[i]), g.chosen - 1);
      return;
    }
    const bool first = pair_token() == 0;
    const uint32_t theirs = __shfl_xor_sync(0xFFFFFFFFu, first ? most[1] : most[0], kCandidates);
    const uint32_t parts = sort_lanes<kCandidates>(max(first ? most[0] : most[1], theirs));
#pragma unroll
    for (int i = 0; i < 2; ++i)
      of[i] = __shfl_sync(0xFFFFFFFFu, parts, kCandidates * i + g.chosen - 1);
  }
};

/// Writes the experts whose keys are no smaller than `least`, in order; false if they do not fit.
__device__ __forceinline__ bool keep_candidates(const PairScores& s,
                                                uint32_t least,
                                                Candidates& to) {
  int mine = 0;
#pragma unroll
  for (uint32_t key : s.key)
    mine += key >= least ? 1 : 0;
  const unsigned ones = __ballot_sync(0xFFFFFFFFu, (mine & 1) != 0);
  const unsigned twos = __ballot_sync(0xFFFFFFFFu, (mine & 2) != 0);
  const bool too_many = __any_sync(0xFFFFFFFFu, mine > 3);
  if (too_many || __popc(ones) + 2 * __popc(twos) > kCandidates || least == kRemoved) return false;
  const unsigned lower = (1u << lane_id()) - 1;
  int at = __popc(ones & lower) + 2 * __popc(twos & lower);
#pragma unroll
  for (int i = 0; i < kPairItems; ++i) {
    if (s.key[i] < least) continue;
    to.key[at] = s.key[i];
    to.score[at] = s.score[i];
    to.id[at] = s.expert(i);
    ++at;
  }
  return true;
}

/// How many candidates of the token go before this lane's.
__device__ __forceinline__ int rank_of(const Candidates& c, uint32_t key) {
  int rank = 0;
#pragma unroll
  for (int j = 0; j < kCandidates; ++j)
    rank += c.key[j] > key || (c.key[j] == key && j < pair_place()) ? 1 : 0;
  return rank;
}

/// Both tokens of a pair, from their candidates.
__device__ __forceinline__ void choose_ranked(
    const Gate& g, int64_t t, float divisor_0, float divisor_1, Candidates* candidates) {
  Candidates& mine = candidates[pair_token()];
  const int place = pair_place();
  const uint32_t key = mine.key[place];
  float score = mine.score[place];
  const int32_t id = mine.id[place];
  if (g.scoring == Scoring::kSoftmax) score /= pair_token() == 0 ? divisor_0 : divisor_1;
  const int rank = key == kRemoved ? kCandidates : rank_of(mine, key);
  __syncwarp();  // all have read
  if (rank < g.chosen) {
    mine.score[rank] = score;
    mine.id[rank] = id;
  }
  __syncwarp();
  float sum = 0.0f;
  for (int k = 0; g.renormalise && k < g.chosen; ++k)
    sum += mine.score[k];
  if (t + pair_token() >= g.num_tokens) return;
  if (place < g.chosen)
    write_choice(g, t + pair_token(), place, mine.score[place], mine.id[place], sum);
  write_shared(g, t + pair_token(), place, kCandidates);
}

static __global__ void __launch_bounds__(32 * kPairWarps) route_pairs(Gate g) {
  __shared__ Candidates all_candidates[kPairWarps][2];
  let_next_start();
  wait_for_previous();
  const int64_t t = 2 * (int64_t{blockIdx.x} * kPairWarps + warp_id());
  if (t >= g.num_tokens) return;
  Candidates* const candidates = all_candidates[warp_id()];
  PairScores scores[2];
  float bias[kPairItems];
#pragma unroll
  for (int i = 0; i < 2; ++i)
    scores[i].load(g, min(t + i, g.num_tokens - 1));
  scores[0].load_bias(g, bias);
  candidates[pair_token()].key[pair_place()] = kRemoved;
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    scores[i].make(g, bias);
    if (g.keep_groups < g.num_groups) keep_groups_of_lanes(g, scores[i]);
  }
  const LeastKeys least(g, scores);
  __syncwarp();
  bool fit = true;
#pragma unroll
  for (int i = 0; i < 2; ++i)
    fit = keep_candidates(scores[i], least.of[i], candidates[i]) && fit;
  __syncwarp();
  if (fit) return choose_ranked(g, t, scores[0].divisor, scores[1].divisor, candidates);
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    if (t + i < g.num_tokens)
      choose(g, t + i, scores[i], reinterpret_cast<uint32_t*>(&candidates[i]));
  }
}

inline Status launch_pairs(const Exec& ex, const Gate& g) {
  constexpr int kTokens = 2 * kPairWarps;
  return launch_kernel(
      ex, route_pairs,
      {.blocks = (g.num_tokens + kTokens - 1) / kTokens, .threads = 32 * kPairWarps}, g);
}

}  // namespace fathom::cuda
