// The residual stream and its normalisation: adding a branch and normalising are one step.
#pragma once

#include "fathom/base/status.h"
#include "fathom/kernels/core/exec.h"
#include "fathom/tensor/view.h"
#include "fathom/trace/op.h"

namespace fathom {

/// The state that runs through the layers of a model.
///
/// A sublayer reads `normed` and leaves its result in `branch`; the next add_norm adds the branch
/// to `residual` and normalises the unrounded sum in the same pass.
struct Hidden {
  View residual;  ///< h [T, H]
  View branch;    ///< [T, H], meaningful while `pending`
  View normed;    ///< [T, H]
  bool pending = false;
};

/// Takes the three tensors of a step from the activation arena.
Result<Hidden> make_hidden(Exec& ex, int64_t num_tokens, int64_t width, Format format);

/// residual += branch (if pending); normed = RMSNorm(residual) * w. The sum is normalised before it
/// is rounded to the activation format. DeepSeek-V3 report, section 2.1.
Status add_norm(Exec& ex, Op op, Hidden& h, const View& w, float eps);

/// y = RMSNorm(x) * w; rows may be strided, y may be x.
Status rms_norm(Exec& ex, Op op, const View& x, const View& w, const View& y, float eps);

}  // namespace fathom
