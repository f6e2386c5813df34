// The parts of a fused layer that are no kernel of their own: routing by method, and what lies
// between the two products.
#pragma once

#include "fathom/kernels/core/exec.h"
#include "fathom/kernels/moe/fused_moe/fused_moe.h"

namespace fathom {

/// Chooses experts: ids [T,K] and weights [T,K], by launching the router of the method.
Status route_tokens(Exec& ex,
                    const View& logits,
                    const View& bias,
                    const MoeRouting& routing,
                    const View& ids,
                    const View& weights);

/// The order of rows by expert, by launching route_offsets.
Status sort_rows(
    Exec& ex, const View& ids, const View& offsets, const View& src_row, const View& dest);

/// Every token's weighted sum of its experts' rows, by launching unpermute_weighted_sum.
Status sum_rows(Exec& ex, const View& rows, const View& dest, const View& weights, const View& y);

/// Ids of experts [first, first + count) as 0 .. count-1, -1 for all others.
void localize_experts(const View& ids, int64_t first, int64_t count);

/// What an expert does to the sums of its first product, and how the result is stored.
struct GatedRows {
  GatedActivation act = GatedActivation::kSwiGlu;
  View up_scale = {}, gate_scale = {}, bias_up = {};
  View alpha = {}, beta = {}, clamp = {};

  View sums;         ///< [R, 2I] f32, u before g
  View out;          ///< [R, I]: bf16 or f32; E4M3 codes (fp8_group); packed E2M1 (nvfp4)
  View scales = {};  ///< of codes: f32 [R, ceil(I/128)], or e4m3 [R, I/16]
};

/// Rows [begin, end), which all belong to expert e.
void gate_rows(const GatedRows& g, int64_t e, int64_t begin, int64_t end, float* row);

/// rows[begin, end) = rows * scale[e] + bias[e], each where it is given.
void finish_rows(
    const View& rows, const View& scale, const View& bias, int64_t e, int64_t begin, int64_t end);

}  // namespace fathom
