// Gated activations: the nonlinearity between the two products of a feed-forward block.
#pragma once

#include <array>

#include "fathom/kernels/core/variants.h"

namespace fathom {

/// SwiGLU's elementwise part: the first half of each row gates the second.
///
///   y[t,i] = silu(x[t,i]) * x[t,I+i],   silu(z) = z / (1 + e^-z),   J = 2 I
///
/// x holds [gate | up] as the fused gate_up projection writes it. Rows may be strided. y may lie on
/// the gate half of x if both have the same row stride and format; no other overlap.
/// float32 inside, rounded once. Deterministic; elements are independent.
/// Errors: InvalidArgument if the formats of x and y differ.
/// Source: Shazeer, "GLU Variants Improve Transformer"; DeepSeek-V3 technical report, section 2.1.
struct SiluMul {
  static constexpr KernelInfo kInfo{
      .name = "silu_mul",
      .reference_names = {"silu_and_mul"},
      .signature = "x[T,J]:bf16|f32 -> y[T,I]:bf16|f32",
      .limits = "J==2*I",
      .equation = "y = silu(x[:I]) * x[I:]",
      .source = "Shazeer 2020, SwiGLU",
  };

  struct Args {
    View x, y;
  };

  static constexpr auto operands(const Args& a) { return std::array{&a.x, &a.y}; }

  static Cost cost(const Args& a) { return {.flops = 6.0 * static_cast<double>(a.y.numel())}; }

  static Status check(const Args& a);
};

extern const VariantTable<SiluMul> silu_mul_cpu;

}  // namespace fathom
