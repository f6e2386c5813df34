// Token embedding and LM head.
#pragma once

#include "fathom/base/status.h"
#include "fathom/kernels/core/exec.h"
#include "fathom/layers/linear.h"

namespace fathom {

/// y[t] = table[ids[t]], converted to the format of y. Errors: InvalidArgument for an id outside
/// the vocabulary.
Status embed_tokens(Exec& ex, const View& ids, const View& table, const View& y);

/// logits[r] = head * hidden[rows[r]], float32: only the rows that somebody wants are computed.
///
/// hidden [T, H] is normed already; rows [R] i32, or absent for all of them; logits [R, V] f32.
Status lm_head(
    Exec& ex, const View& hidden, const View& rows, const LinearWeight& head, const View& logits);

}  // namespace fathom
