// The rate of `bench model --engine`: decoding through requests, scheduler and prefix cache, as a
// server does it, beside the passes alone.
#pragma once

#include "cli/bench/bench_model_rates.h"
#include "fathom/os/clock.h"
#include "fathom/runtime/engine.h"
#include "fathom/runtime/executor/compute.h"

namespace fathom::cli {

/// An engine without a tokenizer for `batch` sequences of `length` tokens; it drafts if there
/// is a proposer, always, so that what is measured does not change on the way. Errors: those of
/// plan_memory and EngineCore::create.
Result<std::unique_ptr<EngineCore>> open_bench_core(const Model& model,
                                                    const Compute& compute,
                                                    const BenchModelFlags& flags,
                                                    int64_t batch,
                                                    int64_t length,
                                                    const Clock& clock,
                                                    Proposer* proposer);

/// Decodes `batch` requests of flags.generate tokens behind prompts of flags.depth tokens (one at
/// least), and times the steps in which all of them decode. Errors: those of plan_memory and the
/// engine.
Result<Rate> time_engine(const Model& model,
                         const Compute& compute,
                         const BenchModelFlags& flags,
                         int64_t batch);

/// What a step of the engine takes beyond a step of the executor by itself: a line.
std::string engine_overhead_text(const Rate& engine, double executor_seconds);

}  // namespace fathom::cli
