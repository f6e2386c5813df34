// Grouped products: each run of rows times the FP8 matrix of its expert.
#pragma once

#include <array>

#include "fathom/kernels/core/kernel_set/variants.h"
#include "fathom/kernels/gemm/gemm_shape.h"
#include "fathom/kernels/moe/gated_product.h"

namespace fathom {

/// The experts' linear layer over tokens sorted by expert.
///
///   y[r,n] = sum_b x_scale[r,b] * scale[e,n/128,b] * ( sum_{k in block b} x[r,k] * code[e,n,k] )
///   for offsets[e] <= r < offsets[e+1];  block b = 128 k
///
/// x is bf16 or float32, without x_scale; or E4M3 codes (format fp8_group) with x_scales float32
/// [R, ceil(K/128)] in any strides. w in either layout; its row-major block scales are
/// [E, ceil(N/128), ceil(K/128)], which is what the reference's transposed [E, K/128, N/128] is.
/// With `gate` on, w has gate rows above up rows, and y [R, N/2] is SiluMul of the N outputs
/// (moe/gated_product.h). Without, row r has the bits of Fp8BlockGemm on that row with matrix e;
/// precision and what NaN does are as there. Rows outside [offsets[0], offsets[E]) are neither read
/// nor written, and the weights of an expert without rows are not read. x and y may have strided
/// rows; y must not overlap x. In layout kRows16, N must be a multiple of 16. `top_k`, the number
/// of experts that a token chose, only serves the expected traffic in cost(). Deterministic;
/// independent of other rows and of the number of threads. The reference's problem_sizes say
/// nothing that shapes and offsets do not. Errors: InvalidArgument for offsets that decrease or
/// leave [0, R], for missing or misshapen scales. Source: DeepSeek-V3 technical report,
/// section 3.3.2; deepseek-ai/DeepGEMM.
struct Fp8GroupGemm {
  static constexpr KernelInfo kInfo{
      .name = "fp8_group_gemm",
      .reference_names = {"fp8_blockwise_scaled_grouped_mm"},
      .signature =
          "x[R,K]:bf16|f32|fp8_group w[E,N,K]:fp8_block|fp8_block_ue8m0 offsets[E1]:i32 -> "
          "y[R,M]:bf16|f32|f16",
      .limits = "E1==E+1",
      .equation = "y[r] = x[r] w[e]^T for offsets[e] <= r < offsets[e+1]",
      .source = "DeepSeek-V3 technical report, section 3.3.2; deepseek-ai/DeepGEMM",
      .flops = "2*R*N*K",
  };

  struct Args {
    View x;
    QuantView w;
    View offsets;
    View y;
    int64_t top_k = 1;
    OutputGate gate = {};  ///< M is N, or N/2 with a gate
    View x_scales = {};    ///< of fp8_group x
  };

  static constexpr auto operands(const Args& a) {
    return std::array{&a.x, &a.w.values, &a.offsets, &a.y};
  }

  static Cost cost(const Args& a) { return product_cost(a.x.dim(0), a.w.rows(), a.w.cols()); }

  static void bytes(const Args& a, Cost& cost) {
    grouped_product_bytes(a.x, a.w.values, a.offsets, a.y, a.top_k, cost);
  }

  static int64_t workspace(const Args& a, int num_threads);

  static Status check(const Args& a);
};

/// Fp8GroupGemm for loads that differ much between experts: the bits are the same, the schedule is
/// not.
///
/// An expert with many rows is cut over all threads, which share its weights; experts with few rows
/// are dealt out whole, the heaviest first, each to the thread with the least work so far, so that
/// a thread reads the weights of one expert as one stream. Which is which follows from the offsets
/// alone. Operands, precision and errors are those of Fp8GroupGemm.
/// Source: sgl-project/sglang, expert_specialization (tiles by rows of an expert); Graham, "Bounds
/// on Multiprocessing Timing Anomalies" (longest first).
struct Fp8GroupGemmSkewed {
  static constexpr KernelInfo kInfo{
      .name = "fp8_group_gemm_skewed",
      .reference_names = {"es_fp8_blockwise_scaled_grouped_mm"},
      .signature = Fp8GroupGemm::kInfo.signature,
      .limits = Fp8GroupGemm::kInfo.limits,
      .equation = "y[r] = x[r] w[e]^T for offsets[e] <= r < offsets[e+1], scheduled by load",
      .source = "sgl-project/sglang, expert_specialization",
      .flops = "2*R*N*K",
      .outside = "grouped products of uneven experts, chosen by callers",
  };

  using Args = Fp8GroupGemm::Args;

  static constexpr auto operands(const Args& a) { return Fp8GroupGemm::operands(a); }

  static Cost cost(const Args& a) { return Fp8GroupGemm::cost(a); }

  static void bytes(const Args& a, Cost& cost) { Fp8GroupGemm::bytes(a, cost); }

  static int64_t workspace(const Args& a, int num_threads);

  static Status check(const Args& a) { return Fp8GroupGemm::check(a); }
};

extern const VariantTable<Fp8GroupGemm> fp8_group_gemm_cpu;
extern const VariantTable<Fp8GroupGemm> fp8_group_gemm_cuda;
extern const VariantTable<Fp8GroupGemmSkewed> fp8_group_gemm_skewed_cpu;
extern const VariantTable<Fp8GroupGemmSkewed> fp8_group_gemm_skewed_cuda;

}  // namespace fathom
