// Recordings of the engine's own steps with drafts, on a CPU: what the draft layer runs, what the
// target verifies, and what is sampled.
#pragma once

#include "fathom/report/record/live_trace.h"

namespace fathom {

/// Runs the engine until `generate` steps that decode have been recorded, without the pauses of
/// drafting. Each pass is a step of its phase: prefill, prefill_chunked, draft (the draft layer
/// behind a step), draft_chain (run again on its own output), verify, and decode where nothing was
/// drafted. Errors: those of check_speculative, plan_memory and the engine; Unsupported on a GPU.
Result<LiveRun> run_live_drafts(const Model& model,
                                const Compute& compute,
                                const LiveOptions& options);

}  // namespace fathom
