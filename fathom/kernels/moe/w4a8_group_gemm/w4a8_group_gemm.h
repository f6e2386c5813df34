// Grouped products: each run of FP8 rows times the int4 matrix of its expert.
#pragma once

#include <array>

#include "fathom/kernels/core/kernel_set/variants.h"
#include "fathom/kernels/gemm/gemm_shape.h"

namespace fathom {

/// The experts' linear layer over tokens sorted by expert, weights in int4 with a scale per row and
/// 128 columns (format w4_fp8), activations in E4M3 with one scale.
///
///   y[r,n] = x_scale * sum_b scale[e,n,b] * ( sum_{k in block b} x[r,k] * code[e,n,k] )
///   for offsets[e] <= r < offsets[e+1];  block b = 128 k
///
/// w is packed row-major, two's complement, even k in the low nibble (formats/integer/group_int.h).
/// Its scales are bf16 in the order of the reference kernel,
///   K % 512 == 0:  [E, K/512, N*4], element [e, g, 4n + j] = scale[e, n, 4g + j]
///   otherwise:     [E, K/128, N]
/// (w4_fp8_kernel_scales makes them), or float32 [E, N, K/128] as in a checkpoint, used in bf16.
/// x may have strided rows (in the reference's 3-D form [E, m, K], offsets are multiples of m), y
/// too; y must not overlap x. Rows outside [offsets[0], offsets[E]) are neither read nor written,
/// and the weights of an expert without rows are not read. `top_k` only serves the expected traffic
/// in cost().
/// Codes of both become bf16 exactly. float32 inside a block over k in order, then one fused
/// multiply-add with the scale of w into the accumulator; x_scale multiplies at the end and y is
/// rounded once. (The portable variant multiplies each code by its scale first.) Deterministic;
/// independent of other rows and of the number of threads. A NaN code makes its row NaN; f16
/// results beyond 65504 are infinite. Errors: InvalidArgument for offsets that decrease or leave
/// [0, R], for misshapen scales. Source: reference name cutlass_w4a8_moe_mm; sgl-project/sglang
/// (w4afp8.py).
struct W4a8GroupGemm {
  static constexpr KernelInfo kInfo{
      .name = "w4a8_group_gemm",
      .reference_names = {"cutlass_w4a8_moe_mm"},
      .signature =
          "x[R,K]:e4m3 x_scale[1]:f32 w[E,N,K]:w4_fp8 offsets[E1]:i32 -> "
          "y[R,N]:bf16|f32|f16",
      .limits = "E1==E+1, K%128==0, K>=128",
      .equation = "y[r] = x_scale x[r] w[e]^T for offsets[e] <= r < offsets[e+1]",
      .source = "sgl-project/sglang, cutlass_w4a8_moe_mm",
      .flops = "2*R*N*K",
  };

  struct Args {
    View x;
    View x_scale;
    QuantView w;
    View offsets;
    View y;
    int64_t top_k = 1;
  };

  static constexpr auto operands(const Args& a) {
    return std::array{&a.x, &a.x_scale, &a.w.values, &a.offsets, &a.y};
  }

  static Cost cost(const Args& a) { return product_cost(a.x.dim(0), a.w.rows(), a.w.cols()); }

  static void bytes(const Args& a, Cost& cost) {
    grouped_product_bytes(a.x, a.w.values, a.offsets, a.y, a.top_k, cost);
  }

  static int64_t workspace(const Args& a, int num_threads);

  static Status check(const Args& a);
};

extern const VariantTable<W4a8GroupGemm> w4a8_group_gemm_cpu;

}  // namespace fathom
