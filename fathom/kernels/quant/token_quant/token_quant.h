// Dynamic FP8 quantisation of activations with one scale a token.
#pragma once

#include <array>

#include "fathom/kernels/core/variants.h"

namespace fathom {

/// Quantises each row to E4M3 with the scale that brings its largest magnitude to 448.
///
///   s[t] = max_i |x[t,i]| / 448,   q[t,i] = e4m3( x[t,i] * (1 / s[t]) ),   x ~ q s
///
/// Rows of x and q may be strided; D is any number. No operands overlap.
/// float32 amax, quotient, reciprocal and product; round to nearest even, saturating (recipe
/// kFp8PerToken of formats/block_fp8.h). The reciprocal, not a division, decides codes at ties.
/// A row of zeros has s = 0 and codes 0. Other scales are not below 2^-126, so a row beneath
/// 448 * 2^-126 loses precision, never finiteness.
/// NaN does not enter the maximum and has a NaN code (7F). A row with an infinity has s = inf,
/// codes 0 for what is finite and NaN for the infinity. Deterministic; a row depends on no other
/// row. Source: sgl-kernel, per_token_quant_fp8.cu; OCP 8-bit Floating Point 1.0.
struct TokenQuantFp8 {
  static constexpr KernelInfo kInfo{
      .name = "token_quant_fp8",
      .reference_names = {"sgl_per_token_quant_fp8"},
      .signature = "x[T,D]:bf16|f16|f32 -> q[T,D]:e4m3 s[T]:f32",
      .equation = "s = max|x| / 448; q = e4m3(x (1/s))",
      .source = "sgl-kernel, per_token_quant_fp8",
      .flops = "3*T*D",
  };

  struct Args {
    View x, q, s;
  };

  static constexpr auto operands(const Args& a) { return std::array{&a.x, &a.q, &a.s}; }

  static Cost cost(const Args& a) { return {.flops = 3.0 * static_cast<double>(a.x.numel())}; }
};

extern const VariantTable<TokenQuantFp8> token_quant_fp8_cpu;

}  // namespace fathom
