// A weight in any format times tokens: one ordered table says which kernel serves which format.
#pragma once

#include <span>
#include <string>

#include "fathom/base/status.h"
#include "fathom/kernels/core/exec.h"
#include "fathom/tensor/view.h"
#include "fathom/trace/op.h"
#include "fathom/weights/weight_store.h"

namespace fathom {

/// Places in a model that have a kernel of their own for few tokens.
enum class LinearUse : uint8_t {
  kAny,
  kLatentDown,  ///< the projection into the query and key-value latents
  kRouter,      ///< logits of the experts, float32
};

/// A row of the table of linear layers: the first whose format, use and kernel limits fit wins.
struct LinearRow {
  Format format;
  LinearUse use;  ///< kAny: every use
  const char* kernel;
  /// Runs the kernel, `row` being this one's number. False, and nothing ran: it does not take the
  /// call.
  Result<bool> (*run)(
      Exec& ex, Op op, const View& x, const LinearWeight& w, const View& y, SelectionRow row);
  /// Why the kernel would not take the call; empty if it would.
  std::string (*why_not)(Exec& ex, Op op, const View& x, const LinearWeight& w, const View& y);
};

/// The table, in order of preference.
std::span<const LinearRow> linear_rows();

/// y = x w^T.
///
/// x [T, K] and y [T, N] may have strided rows; y in bf16, or f32 for logits. Weights of 8-bit
/// activations (fp8_channel, int8_channel, w4a8_*) and those with input_gs (nvfp4) quantise x
/// first, as the op "input_quant". The row that was chosen is recorded. Errors: Unsupported naming
/// the op if no row fits.
Status linear(Exec& ex,
              Op op,
              const View& x,
              const LinearWeight& w,
              const View& y,
              LinearUse use = LinearUse::kAny);

/// y = x w^T for weights that may lie in two parts; part i fills its columns of y. `part_ops` names
/// the parts when there are two, `op` the fused product.
Status linear_rows_of(Exec& ex,
                      Op op,
                      std::span<const Op> part_ops,
                      const View& x,
                      const RowsWeight& w,
                      const View& y,
                      LinearUse use = LinearUse::kAny);

/// A weight of that shape without data, as the loader would lay it out: for dry runs and questions.
LinearWeight shape_only_weight(Format format,
                               int64_t n,
                               int64_t k,
                               Nvfp4Inputs inputs = Nvfp4Inputs::kExact);

/// Which row serves a product of that shape, and why the rows before it do not, as lines of text.
/// Needs no data: for `inspect --explain`.
std::string explain_linear(Exec& ex,
                           Op op,
                           int64_t num_tokens,
                           const LinearWeight& w,
                           Format activations,
                           Format result,
                           LinearUse use);

/// Whether the grouped form takes x in FP8, with a scale for 128 of a row, for such weights.
bool takes_fp8_rows(Format weights);

/// Which rows are whose, as RouteOffsets has it.
struct ExpertRuns {
  View offsets;             ///< [E + 1] i32: rows offsets[e] .. offsets[e+1]-1 are expert e's
  View scale_offsets = {};  ///< [E + 1] i32, for weights with input_gs: where their scales begin
};

/// The grouped form for experts: the rows of expert e use matrix e of the stack. `top_k` serves the
/// expected traffic in costs. Weights in w4_fp8, and in nvfp4 with input_gs, quantise x first, with
/// the scales the checkpoint brings ("input_quant"). x in fp8_group has x_scales [R, K/128]; then
/// weights of four bits become E4M3 (kernels/gemm/nvfp4_fp8_gemm), MXFP4 exactly where its scales
/// are within 2^13 of the largest of their rows. Errors: Unsupported for a format without such a
/// product.
Status group_linear(Exec& ex,
                    Op op,
                    const View& x,
                    const LinearWeight& w,
                    const ExpertRuns& runs,
                    const View& y,
                    int64_t top_k,
                    const View& x_scales = {});

/// group_linear for weights that may lie in two stacks, as linear_rows_of is for linear.
Status group_linear_rows(Exec& ex,
                         Op op,
                         std::span<const Op> part_ops,
                         const View& x,
                         const RowsWeight& w,
                         const ExpertRuns& runs,
                         const View& y,
                         int64_t top_k,
                         const View& x_scales = {});

/// SwiGLU of group_linear_rows, gate rows first in w, by the product's kernel: y [R, N/2], and the
/// limit is SiluMul's. On a GPU, where the variant that would run the product alone takes the call
/// with the gate as well. False, and nothing ran: product and SiluMul are to be run. Errors: those
/// of the kernel.
Result<bool> gated_group_linear(Exec& ex,
                                Op op,
                                const View& x,
                                const RowsWeight& w,
                                const ExpertRuns& runs,
                                const View& y,
                                int64_t top_k,
                                float limit,
                                const View& x_scales = {});

/// One product a head: x [T, Nh, K], w [Nh, N, K], y [T, Nh, N].
Status head_linear(Exec& ex, Op op, const View& x, const LinearWeight& w, const View& y);

/// One product a group of rows: x [T, G, K], w [G*N, K], y [T, G, N]; group g of x meets rows g*N
/// to (g+1)*N - 1 of w. One call of the kernel of heads where it takes the format, else a linear a
/// group. Errors: those of linear; Unsupported if a group of rows cannot be cut out of w: N is to
/// be a multiple of 16, on a GPU of the rows of a scale block. `stack_axes` names the shape
/// [G, N, K].
Status group_rows_linear(
    Exec& ex, Op op, const View& x, const LinearWeight& w, const char* stack_axes, const View& y);

}  // namespace fathom
