// Products with MXFP8 weights of activations in bf16 or float32.
//
// A kernel of its own beside fp8_block_gemm and nvfp4_gemm: the former has one scale for sixteen
// rows and 128 k, which its loops multiply with a finished sum, the latter codes of four bits and
// global scales; both have quantised x and variants for GPUs, which would all have to refuse this.
#pragma once

#include <array>

#include "fathom/kernels/core/kernel_set/variants.h"
#include "fathom/kernels/gemm/gemm_shape.h"

namespace fathom {

/// A linear layer with MXFP8 weights.
///
///   y[t,n] = sum_b 2^e[n,b] * ( sum_{k in block b} x[t,k] * code[n,k] )
///
/// block b = 32 k; a partial block at the end of K has a scale of its own. Codes are E4M3, scales
/// UE8M0: row-major [N, ceil(K/32)], or with the codes in the tiles of layout kRows16. x and y may
/// have strided rows; y must not overlap x.
/// avx512: codes become bf16 exactly, the sum of a block is float32, over k in order, and one fused
/// multiply-add with 2^e brings it into the accumulator. amx, avx2 and portable multiply each code
/// by 2^e first, amx to a bf16, which is exact too (amx sums even and odd k of 32 apart). y is
/// rounded once. A row's bits depend on that row and on w alone. Deterministic.
/// A weight of less than 2^-126 may count as zero and one of 2^128 or more as infinite: that is
/// what amx does, and a variant that rounds neither may. A NaN code or activation makes its outputs
/// NaN, row by row; scales are not NaN (byte 255), which loaders refuse.
/// Errors: InvalidArgument for missing or misshapen scales. No variant for a GPU.
/// Source: OCP Microscaling Formats 1.0; NVIDIA/Model-Optimizer (mxfp8_tensor.py).
struct Mxfp8Gemm {
  static constexpr KernelInfo kInfo{
      .name = "mxfp8_gemm",
      .signature = "x[T,K]:bf16|f32 w[N,K]:mxfp8 -> y[T,N]:bf16|f16|f32",
      .equation = "y[t,n] = sum_b 2^e[n,b] sum_{k in b} x[t,k] code[n,k]",
      .source = "OCP Microscaling Formats 1.0",
      .flops = "2*T*N*K",
      .outside = "checkpoints in MXFP8 (ModelOpt)",
  };

  struct Args {
    View x;
    QuantView w;
    View y;
  };

  static constexpr auto operands(const Args& a) { return std::array{&a.x, &a.w.values, &a.y}; }

  static Cost cost(const Args& a) { return product_cost(a.x.dim(0), a.w.rows(), a.w.cols()); }

  static int64_t workspace(const Args& a, int num_threads) {
    return product_workspace(a.x.dim(0), a.w.cols(), num_threads);
  }

  static Status check(const Args& a) { return check_weight(a.w); }
};

extern const VariantTable<Mxfp8Gemm> mxfp8_gemm_cpu;

}  // namespace fathom
