// Softmax attention of one query, one block of keys at a time: the plain form.
#pragma once

#include <cmath>
#include <limits>

#include "fathom/kernels/core/elements.h"

namespace fathom {

/// Running maximum and sum of e^(score - maximum) over the keys seen so far.
struct SoftmaxState {
  float max = -std::numeric_limits<float>::infinity();
  float sum = 0.0f;

  /// Log-sum-exp of the scores; -inf if no key had any weight.
  float lse() const {
    return sum == 0.0f ? -std::numeric_limits<float>::infinity() : max + std::log(sum);
  }

  /// What the accumulated values are multiplied by in the end.
  float inverse_sum() const { return sum == 0.0f ? 0.0f : 1.0f / sum; }
};

/// o[0:Dv] = sum over keys of e^(score - max) * value, unnormalised, for scores scale * q . key.
/// Keys first_key .. num_keys-1 are taken in blocks of kBlock that lie at absolute positions;
/// before a block is added, what was summed so far is rescaled to the new maximum. key_at(j) and
/// value_at(j) give pointers to the numbers of key j.
template <int kBlock, class Q, class KeyAt, class ValueAt>
SoftmaxState attend(const Q* q,
                    int64_t Dq,
                    int64_t Dv,
                    int64_t first_key,
                    int64_t num_keys,
                    float scale,
                    KeyAt key_at,
                    ValueAt value_at,
                    float* o) {
  SoftmaxState state;
  for (int64_t d = 0; d < Dv; ++d)
    o[d] = 0.0f;
  for (int64_t begin = first_key / kBlock * kBlock; begin < num_keys; begin += kBlock) {
    const int64_t first = begin < first_key ? first_key - begin : 0;
    const int64_t count = num_keys - begin < kBlock ? num_keys - begin : kBlock;
    float weights[kBlock];
    float block_max = state.max;
    for (int64_t j = first; j < count; ++j) {
      const auto* key = key_at(begin + j);
      float dot = 0.0f;
      for (int64_t d = 0; d < Dq; ++d)
        dot += to_float(q[d]) * to_float(key[d]);
      weights[j] = scale * dot;
      block_max = weights[j] > block_max ? weights[j] : block_max;
    }
    // A maximum of -inf means that no key has any weight yet; e^(-inf - 0) is 0 as it should be.
    const float reference = block_max == -std::numeric_limits<float>::infinity() ? 0.0f : block_max;
    const float rescale = std::exp(state.max - reference);
    state.max = block_max;
    state.sum *= rescale;
    for (int64_t d = 0; d < Dv; ++d)
      o[d] *= rescale;
    for (int64_t j = first; j < count; ++j) {
      const auto* value = value_at(begin + j);
      const float weight = std::exp(weights[j] - reference);
      state.sum += weight;
      for (int64_t d = 0; d < Dv; ++d)
        o[d] += weight * to_float(value[d]);
    }
  }
  return state;
}

}  // namespace fathom
