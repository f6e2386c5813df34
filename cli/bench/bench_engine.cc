#include "cli/bench/bench_engine.h"

#include <algorithm>
#include <cstdio>
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
                                                    int64_t length,
                                                    const Clock& clock,
                                                    Proposer* proposer) {
  const EngineOptions& o = flags.engine;
  CoreSettings settings;
  FATHOM_ASSIGN(
      settings.plan,
      plan_memory(model,
                  {.max_model_len = length,
                   .max_num_seqs = flags.batch,
                   .max_num_batched_tokens = std::max(kStepTokens, flags.batch),
                   .num_ids = model.config().vocab_size,
                   .max_queries =
                       proposer == nullptr ? 1 : most_queries(o.speculative, o.speculative_tokens),
                   .drafts = proposer != nullptr && proposer->follows(),
                   .num_threads = compute.pool->size(),
                   .kernels = &compute.kernels(),
                   .gpu = compute.device()}));
  settings.cuda_graphs = o.cuda_graphs ? CudaGraphs::kOn : CudaGraphs::kOff;
  settings.pins = o.pins;
  settings.model_fingerprint = "bench";
  settings.proposer = proposer;
  settings.adaptive_drafts = false;
  return EngineCore::create(std::move(settings), model, compute, nullptr, clock);
}

Result<Rate> time_engine(const Model& model, const Compute& compute, const BenchModelFlags& flags) {
  const MonotonicClock clock;
  const int64_t prompt = std::max<int64_t>(flags.depth, 1);
  // The first requests decode while the prompts of the last are computed.
  const int64_t budget = std::max(kStepTokens, flags.batch);
  const int64_t tokens = flags.generate + 2 * ceil_div(flags.batch * prompt, budget) + 2;
  FATHOM_ASSIGN(const auto core,
                open_bench_core(model, compute, flags, prompt + tokens, clock, nullptr));
  std::vector<double> seconds;
  for (int r = -1; r < flags.repetitions; ++r) {  // the first captures and warms up
    int64_t started = 0;
    for (int64_t s = 0; s < flags.batch; ++s) {
      Request request;
      // Prompts of their own, so that no prefix is found.
      request.prompt = random_tokens(prompt, model.config().vocab_size,
                                     static_cast<uint64_t>((r + 2) * 100'003 + s));
      request.sampling = sampling_of(flags);
      request.sampling.max_tokens = tokens;
      request.on_token = [&started](const TokenEvent& e) { started += e.index == 0; };
      FATHOM_TRY(core->submit(std::move(request)).status());
    }
    while (started < flags.batch && !core->idle())
      FATHOM_TRY(core->step());
    const int64_t done = core->stats().generated_tokens;
    const int64_t begin = monotonic_ns();
    for (int64_t i = 0; i < flags.generate; ++i)
      FATHOM_TRY(core->step());
    const double elapsed = static_cast<double>(monotonic_ns() - begin) * 1e-9;
    if (core->stats().generated_tokens - done != flags.generate * flags.batch) {
      return internal_error("a timed step of the engine did not decode every request");
    }
    if (r >= 0) seconds.push_back(elapsed);
    while (!core->idle())
      FATHOM_TRY(core->step());
  }
  std::string name = str_cat("engine tg", flags.generate);
  if (flags.batch > 1) str_append(name, str_cat(" x ", flags.batch));
  if (flags.depth > 0) str_append(name, str_cat(" @ d", flags.depth));
  return rate_of(std::move(name), static_cast<double>(flags.generate * flags.batch), seconds,
                 static_cast<double>(flags.generate));
}

void print_engine_overhead(const Rate& engine, double executor_seconds) {
  std::printf("engine: %s us a step, %s us (%s %%) beyond the executor's\n",
              format_fixed(engine.step_seconds * 1e6, 1).c_str(),
              format_fixed((engine.step_seconds - executor_seconds) * 1e6, 1).c_str(),
              format_fixed(100 * (engine.step_seconds / executor_seconds - 1), 2).c_str());
}

}  // namespace fathom::cli
