// Greedy choice of the next token, with the check that logits are usable.
#pragma once

#include <array>

#include "fathom/kernels/core/kernel_set/variants.h"

namespace fathom {

/// The largest logit of each row.
///
///   ids[t] = the lowest v with logits[t,v] = max over v
///   bad[t] = 1 if the row holds NaN or +inf, or nothing but -inf; else 0
///
/// NaN never is the maximum (a row of nothing but NaN gives id 0), so ids are in [0, V) whatever
/// the bits. -0 equals 0. The check takes no second pass. Source: the definition of greedy
/// sampling.
struct Argmax {
  static constexpr KernelInfo kInfo{
      .name = "argmax",
      .signature = "logits[T,V]:f32 -> ids[T]:i32 bad[T]:i32",
      .limits = "V>=1",
      .equation = "ids = argmax(logits), lowest index first; bad = not finite",
      .flops = "T*V",
  };

  struct Args {
    View logits, ids, bad;
  };

  static constexpr auto operands(const Args& a) { return std::array{&a.logits, &a.ids, &a.bad}; }

  static Cost cost(const Args& a) { return {.flops = static_cast<double>(a.logits.numel())}; }

  /// A partial result of each piece of a row.
  static int64_t workspace(const Args& a, int num_threads);
};

extern const VariantTable<Argmax> argmax_cpu;
extern const VariantTable<Argmax> argmax_cuda;

}  // namespace fathom
