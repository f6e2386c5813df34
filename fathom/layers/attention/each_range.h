// The two ranges of a step, one after the other.
#pragma once

#include "fathom/layers/attention/mla.h"
#include "fathom/layers/phase_scope.h"

namespace fathom {

/// Calls `attend(range, decode)` for each range that has tokens, prefill first. In a step with
/// both, records of a range carry its own phase.
template <class Attend>
Status each_range(Exec& ex, const AttentionBatch& batch, const Attend& attend) {
  const bool mixed = batch.prefill.num_tokens > 0 && batch.decode.num_tokens > 0;
  for (const TokenRange* range : {&batch.prefill, &batch.decode}) {
    if (range->num_tokens == 0) continue;
    const bool decode = range == &batch.decode;
    PhaseScope phase(mixed ? ex.recorder : nullptr, decode ? Phase::kDecode : Phase::kPrefill);
    FATHOM_TRY(attend(*range, decode));
  }
  return {};
}

}  // namespace fathom
