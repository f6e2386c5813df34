// SwiGLU at the end of a grouped product of gate and up rows: one option of the products'
// contracts.
#pragma once

#include "fathom/base/checked_math.h"
#include "fathom/kernels/core/exec.h"
#include "fathom/tensor/quant_view.h"

namespace fathom {

/// What becomes of the N outputs p of a row of a grouped product.
///
/// Off: they are y [R, N]. On: the first half of the rows of w are those of the gate, the others
/// those of up, and y [R, N/2] is SiluMul of p,
///
///   y[r,i] = silu(min(p[r,i], limit)) * max(-limit, min(p[r,N/2+i], limit))
///
/// in float32 without a rounding between: y is closer to the equations than the product in bf16 and
/// SiluMul behind it, and not the same bits. y is bf16 then, N is even, and x has no four-bit
/// codes. NaN and infinities do what they do in SiluMul.
struct OutputGate {
  bool on = false;
  float limit = 0.0f;  ///< as SiluMul's; 0: none
};

/// Whether the columns of y are what the gate leaves of N. Errors: InvalidArgument.
Status check_output_gate(const OutputGate& gate, const View& x, const QuantView& w, const View& y);

/// Bytes of workspace that run_gated takes beside the product's; a multiple of 64.
inline int64_t gated_workspace(const OutputGate& gate, int64_t rows, int64_t n) {
  return gate.on ? align_up<int64_t>(rows * n * 4, 64) : 0;
}

/// SiluMul of the rows of experts of `products`, float32 [R, N], which it writes over.
Status gate_outputs(
    Exec& ex, const View& products, const View& offsets, float limit, const View& y);

/// The definition, for a CPU: run(ex, args) with a product in float32, then the gate.
template <class Args>
Status run_gated(Exec& ex, const Args& a, Status (*run)(Exec&, const Args&)) {
  if (!a.gate.on) return run(ex, a);
  const int64_t rows = a.x.dim(0);
  const int64_t n = a.w.rows();
  void* const whole = ex.workspace;
  Args product = a;
  product.gate = {};
  product.y = make_view(whole, {rows, n}, Format::kF32);
  ex.workspace = static_cast<std::byte*>(whole) + gated_workspace(a.gate, rows, n);
  Status status = run(ex, product);
  ex.workspace = whole;
  if (!status.ok()) return status;
  return gate_outputs(ex, product.y, a.offsets, a.gate.limit, a.y);
}

/// accepts() of variants without a gate.
template <class Args, bool (*kAccepts)(const Args&)>
bool ungated(const Args& a) {
  return !a.gate.on && kAccepts(a);
}

}  // namespace fathom
