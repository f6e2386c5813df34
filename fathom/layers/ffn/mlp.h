// The gated feed-forward block of dense layers and of shared experts.
#pragma once

#include "fathom/base/status.h"
#include "fathom/kernels/core/exec.h"
#include "fathom/tensor/view.h"
#include "fathom/weights/weight_store.h"

namespace fathom {

struct MlpWeights {
  RowsWeight gate_up;                  ///< [2*I, H], gate rows first
  LinearWeight down;                   ///< [H, I]
  const char* gate_up_axes = "T,2*I";  ///< of its activations, for records: dense layers have Id
  const char* act_axes = "T,I";
};

/// y = W_down ( silu(W_gate x) * (W_up x) ). x [T, H], y [T, H] may not overlap x. A limit clamps
/// gate and up as SiluMul says; 0: none.
/// Source: Shazeer, "GLU Variants Improve Transformer"; DeepSeek-V3 report, section 2.1.
Status mlp(Exec& ex, const MlpWeights& w, const View& x, const View& y, float limit = 0.0f);

}  // namespace fathom
