// What `bench model --speculative` measures: how many drafts come out, and what they gain.
#pragma once

#include "cli/bench/bench_model.h"
#include "fathom/runtime/executor/compute.h"

namespace fathom::cli {

/// Has the engine answer flags.batch prompts of flags.depth tokens (one at least) with
/// flags.generate tokens each, with drafts and without in turn, and prints acceptance by place, the
/// tokens of a step and the speed-up. Answers are compared: they must be the same where a token has
/// the same bits however it was computed, on the CPU. Errors: those of check_speculative,
/// plan_memory and the engine; Internal for answers that differ.
Status print_drafts(const Model& model, const Compute& compute, const BenchModelFlags& flags);

}  // namespace fathom::cli
