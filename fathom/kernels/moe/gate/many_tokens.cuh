// What the kernels of routers for very many tokens have in common: as many warps as find room at
// once, each of which takes a few tokens, then those so many steps later.
#pragma once

#include <algorithm>
#include <cstdint>

#include "fathom/kernels/cuda/arithmetic.cuh"
#include "fathom/kernels/cuda/launch_cuda.h"
#include "fathom/kernels/moe/gate/gate_warp.cuh"
#include "fathom/kernels/moe/gate/quad_choices.cuh"

namespace fathom::cuda {

/// From the tokens of a warp to its next ones.
struct TokenSteps {
  int tokens;
  int64_t logits, weights, ids;  // elements
};

/// Kernels for very many tokens count them in 32 bits.
__device__ __forceinline__ int token_count(const Gate& g) {
  return static_cast<int>(g.num_tokens);
}

/// Below this every expert that can be chosen is not, if as many as are to be chosen are no smaller
/// than `choice`.
__device__ __forceinline__ float bound_below(float choice) {
  return choice - fmaf(fabsf(choice), kSlackOfSize, kSlack);
}

/// Shifts in a bit for every item, the first one highest: choice[i] > least. The sign of a
/// difference is cheaper than a comparison; that of a NaN is clear.
template <int kItems>
__device__ __forceinline__ uint32_t larger_than(float least,
                                                const float (&choice)[kItems],
                                                uint32_t mask) {
#pragma unroll
  for (float c : choice)
    mask = __funnelshift_l(__float_as_uint(__fsub_rn(least, c)), mask, 1);
  return mask;
}

/// Writes the ids of bits of `mask`, the highest first: expert_of(item) for item 0, 1, ...
template <class ExpertOf>
__device__ __forceinline__ void write_ids(uint32_t mask, int32_t* to, ExpertOf expert_of) {
  while (mask != 0) {
    const uint32_t item = leading_zeros(mask);
    *to++ = expert_of(static_cast<int>(item));
    mask &= 0x7FFFFFFFu >> item;
  }
}

/// Writes the shared experts of a token behind those chosen, by kLanes lanes. weights, ids: those
/// of the token from this lane's place on.
template <int kLanes>
__device__ __forceinline__ void write_shared_experts(const Gate& g,
                                                     int place,
                                                     float* weights,
                                                     int32_t* ids) {
#pragma unroll 1
  for (int i = place; i < g.num_shared; i += kLanes) {
    weights[g.chosen + i - place] = g.shared_weight;
    ids[g.chosen + i - place] = g.num_experts + i;
  }
}

/// Launches `kernel`, a warp of which takes `each` tokens at a time, with up to `most_blocks`
/// blocks of `warps` warps a multiprocessor.
inline Status launch_in_steps(const Exec& ex,
                              const Gate& g,
                              void (*kernel)(Gate, TokenSteps),
                              int each,
                              int warps,
                              int most_blocks) {
  const int64_t all = (g.num_tokens + each - 1) / each;
  const int64_t blocks =
      std::min<int64_t>((all + warps - 1) / warps, int64_t{most_blocks} * ex.device->num_sms);
  const int64_t tokens = each * blocks * warps;
  const TokenSteps steps{.tokens = static_cast<int>(tokens),
                         .logits = tokens * g.logits_stride,
                         .weights = tokens * g.weights.stride,
                         .ids = tokens * g.ids.stride};
  return launch_kernel(ex, kernel, {.blocks = blocks, .threads = 32 * warps}, g, steps);
}

/// Calls launch<T>() for the elements of logits.
template <class Launch>
Status launch_by_logits(const Gate& g, Launch launch) {
  if (g.format == Format::kF32) return launch.template operator()<float>();
  if (g.format == Format::kBf16) return launch.template operator()<Bf16>();
  return launch.template operator()<F16>();
}

}  // namespace fathom::cuda
