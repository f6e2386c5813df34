// Products with weights in four bits, NVFP4 or MXFP4, of activations in bf16 or in NVFP4.
#pragma once

#include <array>

#include "fathom/kernels/core/kernel_set/variants.h"
#include "fathom/kernels/cpu/products/products.h"
#include "fathom/kernels/gemm/gemm_shape.h"

namespace fathom {

/// How block scales E4M3 of NVFP4 lie in memory (formats/layout/scale_layout.h has the diagrams).
enum class BlockScaleLayout {
  kLinear,         ///< [rows, K/16]
  kSwizzled128x4,  ///< padded to [ceil(rows/128)*128, ceil(K/64)*4]; padding is never used
};

/// A linear layer with NVFP4 weights, or MXFP4.
///
///   y[t,n] = global * alpha * sum_b scale[n,b] * ( sum_{k in block b} x[t,k] * code[n,k] )
///
/// block b = 16 k. x is one of
///   bf16 or float32, without x_scales and alpha;
///   E2M1 codes (W4A4; format nvfp4, low nibble first, K a multiple of 16) with x_scales: then
///   x[t,k] = code * x_scale[t, k/16].
/// x and y may have strided rows (of whole bytes); y must not overlap x.
/// w in MXFP4 has scale[n,b] = 2^e, b of 32 k, and no global; in layout kRows16 it lies in the
/// tiles of NVFP4, exactly (formats/tile_layout.h), and the loops are the same. x is then not
/// quantised. On a GPU `any_layout` alone takes it: models have it there as NVFP4.
/// `global` belongs to the matrix; in layout kRows16 every 16 rows have one. alpha is one float32,
/// for the global scale of the activations. It may be left out (1). Where it is given, row-major
/// weights may have no global, as in the reference call, which passes alpha alone.
/// x_scales are E4M3: linear [T, K/16] with any row stride, or swizzled. Those of a row-major w are
/// linear or swizzled too, packed.
/// Codes become bf16 exactly, also times an E4M3 scale. The sum of a block is float32, over k in
/// order; one fused multiply-add with the block scale brings it into the accumulator; at the end
/// global, then alpha, multiply, and y is rounded once. (The portable variant multiplies each code
/// by its two scales first. amx multiplies it by its block scale, and sums even and odd k of 32
/// apart.) A row's bits depend on that row and on w alone. Deterministic. NaN and infinity in x or
/// x_scales reach their own row; scales of w are not negative and not NaN.
/// Errors: InvalidArgument for missing, superfluous or misshapen scales, or x in NVFP4 with w in
/// MXFP4.
/// Source: NVIDIA/Model-Optimizer (nvfp4_tensor.py); formats/block/block_fp4.h; sgl-project/sglang;
/// OCP Microscaling Formats 1.0.
struct Nvfp4Gemm {
  static constexpr KernelInfo kInfo{
      .name = "nvfp4_gemm",
      .reference_names = {"cutlass_scaled_fp4_mm"},
      .signature = "x[T,K]:bf16|f32|nvfp4 w[N,K]:nvfp4|mxfp4 -> y[T,N]:bf16|f16|f32",
      .equation = "y[t,n] = global alpha sum_b scale[n,b] sum_{k in b} x[t,k] code[n,k]",
      .source = "NVIDIA/Model-Optimizer",
      .flops = "2*T*N*K",
  };

  struct Args {
    View x;
    QuantView w;
    View y;
    View x_scales = {};  ///< of nvfp4 x
    View alpha = {};     ///< [1]; only with nvfp4 x
    BlockScaleLayout x_scale_layout = BlockScaleLayout::kLinear;
    BlockScaleLayout w_scale_layout = BlockScaleLayout::kLinear;
  };

  static constexpr auto operands(const Args& a) { return std::array{&a.x, &a.w.values, &a.y}; }

  static Cost cost(const Args& a) { return product_cost(a.x.dim(0), a.w.rows(), a.w.cols()); }

  static int64_t workspace(const Args& a, int num_threads);
  static Status check(const Args& a);
};

/// Runs a loop on x of format nvfp4, decoded to bf16 or float32.
Status run_quantised_x(Exec& ex, const Nvfp4Gemm::Args& a, ProductLoop loop, ElementType type);

extern const VariantTable<Nvfp4Gemm> nvfp4_gemm_cpu;
extern const VariantTable<Nvfp4Gemm> nvfp4_gemm_cuda;

}  // namespace fathom
