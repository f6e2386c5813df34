// Quantisation of activations with one scale a token (FP8, INT8) or one for all of them (FP8).
#pragma once

#include <array>

#include "fathom/kernels/core/kernel_set/variants.h"

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

/// Quantises each row to INT8 with the scale that brings its largest magnitude to 127; the input of
/// int8_gemm and, with the sums, of w4a8_gemm_channel.
///
///   m[t] = max(max_i |x[t,i]|, 1e-10),   s[t] = m[t] / 127
///   q[t,i] = round( x[t,i] * (127 / m[t]) ), half away from zero,   x ~ q s
///   sums[t] = sum_i x[t,i]
///
/// Rows of x and q may be strided; D is any number. No operands overlap.
/// float32 quotients and product; s is rounded once more where it is f16. The sum is of the values
/// before quantisation, in double, sixteen partial sums side by side, rounded to float32, then f16.
/// A row of zeros has s = 1e-10 / 127 (0 in f16) and codes 0.
/// NaN does not enter the maximum and has code 0; it makes the sum NaN. A row with an infinity has
/// s = inf and codes 0. Every variant gives the same bits. Deterministic; a row depends on no other
/// row. Source: SmoothQuant, arXiv 2211.10438; QServe, arXiv 2405.04532; sgl-project/sglang
/// (per_token_quant_int8).
struct TokenQuantInt8 {
  static constexpr KernelInfo kInfo{
      .name = "token_quant_int8",
      .signature = "x[T,D]:bf16|f16|f32 -> q[T,D]:i8 s[T]:f32|f16 sums?[T]:f16",
      .equation = "s = max|x| / 127; q = round(x 127 / max|x|); sums = sum_i x[i]",
      .source = "SmoothQuant; QServe, arXiv 2405.04532",
      .flops = "3*T*D",
  };

  struct Args {
    View x, q, s;
    View sums = {};
  };

  static constexpr auto operands(const Args& a) { return std::array{&a.x, &a.q, &a.s, &a.sums}; }

  static Cost cost(const Args& a) { return {.flops = 3.0 * static_cast<double>(a.x.numel())}; }
};

/// Quantises all rows to E4M3 with one scale that is known beforehand, as a checkpoint brings it
/// (input_scale).
///
///   q[t,i] = e4m3( x[t,i] / s[0] )
///
/// Rows of x and q may be strided. No operands overlap. float32 division, one rounding to nearest
/// even, saturating at 448. A NaN has a NaN code, an infinity 448. A scale of 0 gives 448 (0 / 0:
/// NaN). Deterministic; a row depends on no other row. Source: sgl-project/sglang
/// (per_tensor_quant_fp8, static).
struct TensorQuantFp8 {
  static constexpr KernelInfo kInfo{
      .name = "tensor_quant_fp8",
      .signature = "x[T,D]:bf16|f16|f32 s[1]:f32 -> q[T,D]:e4m3",
      .equation = "q = e4m3(x / s)",
      .source = "sgl-project/sglang, per_tensor_quant_fp8",
      .flops = "T*D",
  };

  struct Args {
    View x, s, q;
  };

  static constexpr auto operands(const Args& a) { return std::array{&a.x, &a.s, &a.q}; }

  static Cost cost(const Args& a) { return {.flops = static_cast<double>(a.x.numel())}; }
};

extern const VariantTable<TokenQuantFp8> token_quant_fp8_cpu;
extern const VariantTable<TokenQuantFp8> token_quant_fp8_cuda;
extern const VariantTable<TokenQuantInt8> token_quant_int8_cpu;
extern const VariantTable<TokenQuantInt8> token_quant_int8_cuda;
extern const VariantTable<TensorQuantFp8> tensor_quant_fp8_cpu;
extern const VariantTable<TensorQuantFp8> tensor_quant_fp8_cuda;

}  // namespace fathom
