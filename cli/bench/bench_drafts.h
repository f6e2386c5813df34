// What `bench model --speculative` measures: how many drafts come out, and what they gain.
#pragma once

#include <string>

#include "cli/bench/bench_model.h"
#include "fathom/runtime/executor/compute.h"

namespace fathom::cli {

/// Has the engine answer `batch` prompts of flags.depth tokens (one at least) with
/// flags.generate tokens each, with drafts and without in turn; text about acceptance by place, the
/// tokens of a step and the speed-up. Answers are compared: they must be the same where a token has
/// the same bits however it was computed, on the CPU. Errors: those of check_speculative,
/// plan_memory and the engine; Internal for answers that differ.
Result<std::string> drafts_text(const Model& model,
                                const Compute& compute,
                                const BenchModelFlags& flags,
                                int64_t batch);

}  // namespace fathom::cli
