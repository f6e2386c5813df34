// Gated activations: the nonlinearity between the two products of a feed-forward block.
#pragma once

#include <array>

#include "fathom/kernels/core/kernel_set/variants.h"

namespace fathom {

/// SwiGLU's elementwise part: the first half of each row gates the second.
///
///   y[t,i] = silu(x[t,i]) * x[t,I+i],   silu(z) = z / (1 + e^-z),   J = 2 I
///
/// x holds [gate | up] as the fused gate_up projection writes it. Rows may be strided; leading
/// dimensions beyond one are folded into T (reshape). I is any number, 0 included. y may lie on the
/// gate half of x if both have the same row stride and format; no other overlap.
///
/// With a limit (0: none), what is multiplied is clamped before: the gate from above alone, the up
/// half from both sides,
///
///   y[t,i] = silu(min(x[t,i], limit)) * max(-limit, min(x[t,I+i], limit))
///
/// as DeepSeek-V4's experts do, routed and shared. A NaN stays one.
/// float32 inside, rounded once. Deterministic; elements are independent.
/// NaN in gate or up gives NaN there and nowhere else. A gate of +inf gives +inf times up, one of
/// -inf gives NaN (inf / inf), as the equation does in floating point.
/// Errors: InvalidArgument if the formats of x and y differ, or the limit is negative or NaN.
/// Source: Shazeer, "GLU Variants Improve Transformer"; DeepSeek-V3 technical report, section 2.1;
/// limit: DeepSeek-V4, inference/model.py (Expert, swiglu_limit).
struct SiluMul {
  static constexpr KernelInfo kInfo{
      .name = "silu_mul",
      .reference_names = {"silu_and_mul"},
      .signature = "x[T,J]:bf16|f16|f32 -> y[T,I]:bf16|f16|f32",
      .limits = "J==2*I",
      .equation = "y = silu(x[:I]) * x[I:]",
      .source = "Shazeer 2020, SwiGLU",
      .flops = "6*T*I",
  };

  struct Args {
    View x, y;
    float limit = 0.0f;
  };

  static constexpr auto operands(const Args& a) { return std::array{&a.x, &a.y}; }

  static Cost cost(const Args& a) { return {.flops = 6.0 * static_cast<double>(a.y.numel())}; }

  static Status check(const Args& a);
};

/// GEGLU's elementwise part, with the exact error function.
///
///   y[t,i] = gelu(x[t,i]) * x[t,I+i],   gelu(z) = z/2 * (1 + erf(z / sqrt 2)),   J = 2 I
///
/// Everything else as SiluMul, but that a limit is refused. The bracket is computed as erfc(-z /
/// sqrt 2), which keeps its digits where 1 + erf cancels (z below -3). Where results have 16 bits,
/// a variant may be 2^-17 of the value off before the rounding. Source: Hendrycks and Gimpel,
/// "Gaussian Error Linear Units", eq. 1; Shazeer 2020.
struct GeluMul {
  static constexpr KernelInfo kInfo{
      .name = "gelu_mul",
      .reference_names = {"gelu_and_mul"},
      .signature = "x[T,J]:bf16|f16|f32 -> y[T,I]:bf16|f16|f32",
      .limits = "J==2*I",
      .equation = "y = gelu(x[:I]) * x[I:], exact erf",
      .source = "Hendrycks and Gimpel 2016, eq. 1",
      .flops = "6*T*I",
      .outside = "another activation: every DeepSeek model has SiLU",
  };

  using Args = SiluMul::Args;

  static constexpr auto operands(const Args& a) { return SiluMul::operands(a); }

  static Cost cost(const Args& a) { return SiluMul::cost(a); }

  static Status check(const Args& a);
};

/// GEGLU's elementwise part, with the approximation by tanh.
///
///   y[t,i] = g(x[t,i]) * x[t,I+i],   g(z) = z/2 * (1 + tanh(u)),   J = 2 I
///   u = sqrt(2/pi) (z + 0.044715 z^3)
///
/// Everything else as SiluMul, but that a limit is refused. Computed as z / (1 + e^-2u), which is
/// the same number and keeps its digits where 1 + tanh cancels. Source: Hendrycks and Gimpel,
/// "Gaussian Error Linear Units", section 2.
struct GeluTanhMul {
  static constexpr KernelInfo kInfo{
      .name = "gelu_tanh_mul",
      .reference_names = {"gelu_tanh_and_mul"},
      .signature = "x[T,J]:bf16|f16|f32 -> y[T,I]:bf16|f16|f32",
      .limits = "J==2*I",
      .equation = "y = gelu_tanh(x[:I]) * x[I:]",
      .source = "Hendrycks and Gimpel 2016, section 2",
      .flops = "6*T*I",
      .outside = "another activation: every DeepSeek model has SiLU",
  };

  using Args = SiluMul::Args;

  static constexpr auto operands(const Args& a) { return SiluMul::operands(a); }

  static Cost cost(const Args& a) { return SiluMul::cost(a); }

  static Status check(const Args& a);
};

extern const VariantTable<SiluMul> silu_mul_cpu;
extern const VariantTable<SiluMul> silu_mul_cuda;
extern const VariantTable<GeluMul> gelu_mul_cpu;
extern const VariantTable<GeluMul> gelu_mul_cuda;
extern const VariantTable<GeluTanhMul> gelu_tanh_mul_cpu;
extern const VariantTable<GeluTanhMul> gelu_tanh_mul_cuda;

}  // namespace fathom
