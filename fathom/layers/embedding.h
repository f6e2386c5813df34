// Token embedding, states of tokens, and LM head.
#pragma once

#include "fathom/base/status.h"
#include "fathom/kernels/core/exec.h"
#include "fathom/layers/linear.h"

namespace fathom {

/// y[t] = table[ids[t]], converted to the format of y. Errors: InvalidArgument for an id outside
/// the vocabulary.
Status embed_tokens(Exec& ex, const View& ids, const View& table, const View& y);

/// States that the tokens of a step read: `hidden` [N, W] as it is where `rows` [T] i32 is absent,
/// else its rows, which are copied to `room` [T, W]. That must not overlap hidden; its rows may be
/// strided.
Result<View> select_states(Exec& ex, const View& hidden, const View& rows, const View& room);

/// logits[r] = head * hidden[rows[r]], float32: only the rows that somebody wants are computed.
///
/// hidden [T, H] is normed already; rows [R] i32, or absent for all of them; logits [R, V] f32.
Status lm_head(
    Exec& ex, const View& hidden, const View& rows, const LinearWeight& head, const View& logits);

}  // namespace fathom
