// What products read, for calibration: the largest magnitude of their inputs.
#pragma once

#include "fathom/tensor/view.h"

namespace fathom {

/// amax[0] = max(amax[0], max |x[t,k]|), with NaN where an element is NaN.
///
/// x [T, K] in bf16 or f32 on the host, whose rows may lie in wider ones; amax f32.
void note_input_amax(const View& x, const View& amax);

/// The same for rows offsets[e] .. offsets[e+1]-1 of x [R, K] and amax[e]; offsets [E + 1] i32.
void note_expert_amax(const View& x, const View& offsets, const View& amax);

}  // namespace fathom
