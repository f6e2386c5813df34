// The experts of very few tokens without sorting: each token's chosen matrices are read where they
// lie, and the shared expert is one more of them. The grouped way takes six kernels for this and
// three for the shared expert; here two do it all. In a decode step, where a launch costs as much
// as the work in it, that is most of the time.
#pragma once

#include <array>

#include "fathom/kernels/core/kernel_set/variants.h"

namespace fathom {

/// Gate and up of the chosen experts and of the shared one, with the activation.
///
///   y[t, k I + i] = silu(g) u,   g = sum_h x[t,h] experts[e, i, h]
///                                u = sum_h x[t,h] experts[e, I + i, h]
///   y[t, K I + s] = silu(g) u,   g = sum_h x[t,h] shared[s, h]
///                                u = sum_h x[t,h] shared[S + s, h]
///
/// for e = ids[t,k], 0 <= i < I, 0 <= s < S; J = 2 I, P = 2 S, A = K I + S;
/// silu(g) = g / (1 + exp(-g)).
/// Sums, activation and product are float32 and rounded once. A negative id stands for no expert:
/// its I columns are zeros. shared may be left out (S = 0). Matrices lie in rows; x and y may have
/// strided rows and must not overlap. Deterministic; of one variant, a row's bits depend on that
/// row, its experts and the matrices alone. NaN and infinity in x reach all of their own row.
/// Errors: InvalidArgument for an odd J or P, a width of y other than K I + S, formats that differ,
/// and ids outside [-1, E). (The host does not see a GPU's memory: there larger ids are taken for
/// -1.)
/// Source: DeepSeek-V3 technical report, section 2.1.2, eq. 12 (before the sum).
struct ChosenExpertsGateUp {
  static constexpr KernelInfo kInfo{
      .name = "chosen_experts_gate_up",
      .signature =
          "x[T,H]:bf16|f32 experts[E,J,H]:bf16|f32 ids[T,K]:i32 shared?[P,H]:bf16|f32 "
          "-> y[T,A]:bf16|f32",
      .limits = "T<=16",
      .equation = "y[t,k I+i] = silu(x[t] experts[e,i]^T) x[t] experts[e,I+i]^T, e = ids[t,k]",
      .source = "DeepSeek-V3 report, 2.1.2",
      .flops = "4*T*A*H",
      .outside = "a token or two on a GPU; on a CPU their rows are sorted by expert",
  };

  struct Args {
    View x, experts, ids, shared{}, y;
  };

  static constexpr auto operands(const Args& a) {
    return std::array{&a.x, &a.experts, &a.ids, &a.shared, &a.y};
  }

  static Cost cost(const Args& a);

  /// Every chosen matrix once, as if no two tokens chose the same.
  static void bytes(const Args& a, Cost& cost);

  static Status check(const Args& a);
};

/// Down of the same experts, weighted and summed.
///
///   y[t,n] = sum_s x[t, K I + s] shared[n,s]
///          + sum_k weights[t,k] sum_i x[t, k I + i] experts[e,n,i]
///
/// for e = ids[t,k]; A = K I + S. x is what ChosenExpertsGateUp writes. All in float32, rounded
/// once; the shared expert is added first, then k = 0, 1, .. (on a GPU within each lane, and the
/// lanes last). A negative id's columns are not read. Everything else as ChosenExpertsGateUp.
/// Source: DeepSeek-V3 technical report, section 2.1.2, eq. 12.
struct ChosenExpertsDown {
  static constexpr KernelInfo kInfo{
      .name = "chosen_experts_down",
      .signature =
          "x[T,A]:bf16|f32 experts[E,N,I]:bf16|f32 ids[T,K]:i32 weights[T,K]:f32 "
          "shared?[N,S]:bf16|f32 -> y[T,N]:bf16|f32",
      .limits = "T<=16",
      .equation = "y[t] = x_shared[t] shared^T + sum_k weights[t,k] x_k[t] experts[ids[t,k]]^T",
      .source = "DeepSeek-V3 report, 2.1.2",
      .flops = "2*T*N*A",
      .outside = "a token or two on a GPU; on a CPU their rows are sorted by expert",
  };

  struct Args {
    View x, experts, ids, weights, shared{}, y;
  };

  static constexpr auto operands(const Args& a) {
    return std::array{&a.x, &a.experts, &a.ids, &a.weights, &a.shared, &a.y};
  }

  static Cost cost(const Args& a);
  static void bytes(const Args& a, Cost& cost);
  static Status check(const Args& a);
};

extern const VariantTable<ChosenExpertsGateUp> chosen_experts_gate_up_cpu;
extern const VariantTable<ChosenExpertsGateUp> chosen_experts_gate_up_cuda;
extern const VariantTable<ChosenExpertsDown> chosen_experts_down_cpu;
extern const VariantTable<ChosenExpertsDown> chosen_experts_down_cuda;

}  // namespace fathom
