#include "cli/bench/bench_engine.h"

#include <algorithm>
#include <memory>

#include "cli/io/terminal.h"
#include "fathom/base/checked_math.h"
#include "fathom/os/clock.h"
#include "fathom/runtime/engine.h"

namespace fathom::cli {
namespace {

constexpr int64_t kStepTokens = 512;

}  // namespace

Result<std::unique_ptr<EngineCore>> open_bench_core(const Model& model,
                                                    const Compute& compute,
                                                    const BenchModelFlags& flags,
                                                    int64_t batch,
                                                    int64_t length,
                                                    const Clock& clock,
                                                    Proposer* proposer) {
  const EngineOptions& o = flags.engine;
  CoreSettings settings;
  FATHOM_ASSIGN(
      settings.plan,
      plan_memory(
          model,
          {.max_model_len = length,
           .max_num_seqs = batch,
           .max_num_batched_tokens = std::max(kStepTokens, batch),
           .num_ids = model.config().vocab_size,
           .max_queries = proposer == nullptr ? 1 : most_queries(o.speculative, o.draft_shape()),
           .drafts = proposer != nullptr && proposer->follows(),
           .trees = proposer != nullptr && o.draft_shape().is_tree(),
           .num_threads = compute.pool->size(),
           .kernels = &compute.kernels(),
           .gpu = compute.device()}));
  settings.scheduler.page_reserve = 0;  // the pool holds every request, and no other comes
  settings.cuda_graphs = o.cuda_graphs ? CudaGraphs::kOn : CudaGraphs::kOff;
  settings.pins = o.pins;
  settings.model_fingerprint = "bench";
  settings.proposer = proposer;
  settings.adaptive_drafts = false;
  settings.simulated_acceptance = flags.simulated_acceptance;
  return EngineCore::create(std::move(settings), model, compute, nullptr, clock);
}

Result<Rate> time_engine(const Model& model,
                         const Compute& compute,
                         const BenchModelFlags& flags,
                         int64_t batch) {
  const MonotonicClock clock;
  const int64_t prompt = std::max<int64_t>(flags.depth, 1);
  // The first requests decode while the prompts of the last are computed.
  const int64_t budget = std::max(kStepTokens, batch);
  const int64_t tokens = flags.generate + 2 * ceil_div(batch * prompt, budget) + 2;
  FATHOM_ASSIGN(const auto core,
                open_bench_core(model, compute, flags, batch, prompt + tokens, clock, nullptr));
  std::vector<double> seconds;
  for (int r = -1; r < flags.repetitions; ++r) {  // the first captures and warms up
    flags.on_run("decode through the engine");
    int64_t started = 0;
    for (int64_t s = 0; s < batch; ++s) {
      Request request;
      // Prompts of their own, so that no prefix is found.
      request.prompt = random_tokens(prompt, model.config().vocab_size,
                                     static_cast<uint64_t>((r + 2) * 100'003 + s));
      request.sampling = sampling_of(flags);
      request.sampling.max_tokens = tokens;
      request.on_token = [&started](const TokenEvent& e) { started += e.index == 0; };
      FATHOM_TRY(core->submit(std::move(request)).status());
    }
    while (started < batch && !core->idle()) {
      FATHOM_TRY(flags.go_on());
      FATHOM_TRY(core->step());
    }
    const int64_t done = core->stats().generated_tokens;
    const int64_t begin = monotonic_ns();
    for (int64_t i = 0; i < flags.generate; ++i) {
      FATHOM_TRY(flags.go_on());
      FATHOM_TRY(core->step());
    }
    const double elapsed = static_cast<double>(monotonic_ns() - begin) * 1e-9;
    const int64_t decoded = core->stats().generated_tokens - done;
    if (decoded != flags.generate * batch) {
      return internal_error(str_cat("timed steps of the engine decoded ", decoded,
                                    " tokens, expected ", flags.generate, " of each of ", batch,
                                    " requests"));
    }
    if (r >= 0) seconds.push_back(elapsed);
    while (!core->idle())
      FATHOM_TRY(core->step());
  }
  return rate_of(decode_test(flags, batch, "engine "), seconds,
                 static_cast<double>(flags.generate));
}

std::string engine_overhead_text(const Rate& engine, double executor_seconds) {
  return str_cat("engine: ", format_fixed(engine.step_seconds * 1e6, 1), " us a step, ",
                 format_fixed((engine.step_seconds - executor_seconds) * 1e6, 1), " us (",
                 format_fixed(100 * (engine.step_seconds / executor_seconds - 1), 2),
                 " %) beyond the executor's\n");
}

}  // namespace fathom::cli
