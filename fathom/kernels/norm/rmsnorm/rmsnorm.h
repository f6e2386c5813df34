// Root-mean-square normalisation of rows, alone and fused with the residual add before it.
#pragma once

#include <array>

#include "fathom/kernels/core/kernel_set/variants.h"

namespace fathom {

/// Root-mean-square normalisation of each row.
///
///   y[t,d] = x[t,d] * r[t] * w[d],   r[t] = 1 / sqrt( (1/D) sum_d x[t,d]^2 + eps )
///
/// Rows may be strided (column slices of a wider projection). x and y may be the same memory.
/// Squares are summed in float32, the product with w is formed in float32, and y is rounded once.
/// Deterministic; a row depends on no other row. A NaN makes its row NaN; an infinity becomes NaN
/// and the rest of its row 0. Source: Zhang and Sennrich, "Root Mean Square Layer Normalization",
/// eq. 4. The order of the casts is that of DeepSeek-V3.2's code; Hugging Face rounds x * r before
/// it multiplies by w.
struct RmsNorm {
  static constexpr KernelInfo kInfo{
      .name = "rmsnorm",
      .reference_names = {"rmsnorm"},
      .signature = "x[T,D]:bf16|f16|f32 w[D]:bf16|f16|f32 -> y[T,D]:bf16|f16|f32",
      .limits = "D>=1",
      .equation = "y = x / sqrt(mean(x^2) + eps) * w",
      .source = "Zhang and Sennrich 2019, eq. 4",
      .flops = "4*T*D",
  };

  struct Args {
    View x, w, y;
    float eps = 1e-6f;
  };

  static constexpr auto operands(const Args& a) { return std::array{&a.x, &a.w, &a.y}; }

  static Cost cost(const Args& a) { return {.flops = 4.0 * static_cast<double>(a.x.numel())}; }
};

/// Adds a branch to the residual stream and normalises the sum, in one pass.
///
///   s = float(h) + float(x);   h = round(s);   y = s / sqrt( mean(s^2) + eps ) * w
///
/// Both the variance and y read the unrounded sum s. h is updated in place; y may be the memory of
/// x, and none of the others may overlap. Rows may be strided. x, h and y have one format.
/// float32 inside, one rounding each of h and y. Deterministic; rows are independent. NaN and
/// infinities of s as in RmsNorm.
/// Errors: InvalidArgument if the formats of x, h and y differ.
/// Source: order (ii) of the residual stream: fused add-and-norm kernels, DeepSeek-V3.2 code.
struct AddRmsNorm {
  static constexpr KernelInfo kInfo{
      .name = "add_rmsnorm",
      .reference_names = {"fused_add_rmsnorm"},
      .signature =
          "x[T,D]:bf16|f16|f32 h[T,D]:bf16|f16|f32 w[D]:bf16|f16|f32 "
          "-> y[T,D]:bf16|f16|f32 h",
      .limits = "D>=1",
      .equation = "s = h + x; h = round(s); y = s / sqrt(mean(s^2) + eps) * w",
      .source = "Zhang and Sennrich 2019, eq. 4, on the residual stream",
      .flops = "6*T*D",
  };

  struct Args {
    View x, h, w, y;
    float eps = 1e-6f;
  };

  static constexpr auto operands(const Args& a) { return std::array{&a.x, &a.h, &a.w, &a.y}; }

  static Cost cost(const Args& a) { return {.flops = 6.0 * static_cast<double>(a.x.numel())}; }

  static Status check(const Args& a);
};

extern const VariantTable<RmsNorm> rmsnorm_cpu;
extern const VariantTable<RmsNorm> rmsnorm_cuda;
extern const VariantTable<AddRmsNorm> add_rmsnorm_cpu;
extern const VariantTable<AddRmsNorm> add_rmsnorm_cuda;

}  // namespace fathom
