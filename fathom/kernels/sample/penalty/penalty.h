// What a request may do to its logits before they become probabilities.
#pragma once

#include <array>

#include "fathom/kernels/core/kernel_set/variants.h"

namespace fathom {

/// Penalties and bias, in place, token by token of a list; other logits are not touched.
///
///   For each (v, n) in the list of row t, n = how often v was generated (0: only in the prompt):
///     z  = logits[t,v]
///     z  = z > 0 ? z / repetition[t] : z * repetition[t]
///     z -= frequency[t] * n + presence[t] * (n > 0)
///   then, for each (v, b) in the bias list of row t:  z += b
///
/// tokens, counts: the lists of all rows, one after the other; list t is token_offsets[t] ..
/// token_offsets[t+1]-1, and names a token once. bias_tokens, bias_values, bias_offsets: likewise.
/// A bias of -inf bans a token. repetition 1, frequency 0 and presence 0 change nothing. float32.
/// Errors: InvalidArgument if offsets are not ascending within the lists, a token is outside [0,
/// V), or a repetition is not positive. Source: OpenAI API (frequency, presence, logit_bias);
/// Keskar et al., arXiv 1909.05858, section 4.1 (repetition).
struct Penalty {
  static constexpr KernelInfo kInfo{
      .name = "penalty",
      .signature =
          "logits[T,V]:f32 tokens[L]:i32 counts[L]:i32 token_offsets[T1]:i32 "
          "presence[T]:f32 frequency[T]:f32 repetition[T]:f32 bias_tokens[B]:i32 "
          "bias_values[B]:f32 bias_offsets[T1]:i32 -> logits",
      .limits = "T1==T+1",
      .equation = "z = (z > 0 ? z / r : z * r) - f * n - p * (n > 0) + b",
      .source = "arXiv 1909.05858, section 4.1; OpenAI API",
      .flops = "5*L+B",
  };

  struct Args {
    View logits, tokens, counts, token_offsets, presence, frequency, repetition, bias_tokens,
        bias_values, bias_offsets;
  };

  static constexpr auto operands(const Args& a) {
    return std::array{&a.logits,      &a.tokens,      &a.counts,     &a.token_offsets,
                      &a.presence,    &a.frequency,   &a.repetition, &a.bias_tokens,
                      &a.bias_values, &a.bias_offsets};
  }

  static Cost cost(const Args& a) {
    return {.flops = 5.0 * static_cast<double>(a.tokens.numel()) +
                     static_cast<double>(a.bias_tokens.numel())};
  }

  /// Only the logits that are listed.
  static void bytes(const Args& a, Cost& cost);

  static Status check(const Args& a);
};

extern const VariantTable<Penalty> penalty_cpu;
extern const VariantTable<Penalty> penalty_cuda;

}  // namespace fathom
