// Engines on small models, and what comes out of them token by token.
#pragma once

#include <gtest/gtest.h>
#include <memory>
#include <span>
#include <vector>

#include "fathom/api/engine.h"
#include "tests/support/cpu_kernels.h"

namespace fathom {

inline std::unique_ptr<Engine> load(const EngineOptions& options) {
  Result<std::unique_ptr<Engine>> engine = Engine::load(options);
  FATHOM_CHECK(engine.ok(), engine.ok() ? "" : engine.status().message());
  return std::move(engine).value();
}

inline SamplingParams greedy(int64_t max_tokens) {
  SamplingParams p;
  p.temperature = 0.0f;
  p.max_tokens = max_tokens;
  p.ignore_eos = true;
  p.top_logprobs = 0;
  return p;
}

/// Tokens with their log-probabilities, which must agree bit by bit where tokens must.
struct Trace {
  std::vector<int32_t> tokens;
  std::vector<float> logprobs;
  int64_t cached = 0;

  bool operator==(const Trace& o) const { return tokens == o.tokens && logprobs == o.logprobs; }
};

inline TokenCallback tracer(Trace& trace) {
  return [&trace](const TokenEvent& e) {
    if (e.token >= 0) {
      trace.tokens.push_back(e.token);
      trace.logprobs.push_back(e.logprob);
    }
    trace.cached = e.cached_tokens;
  };
}

inline Trace run_alone(Engine& engine,
                       std::span<const int32_t> prompt,
                       const SamplingParams& params) {
  Trace trace;
  const TokenCallback on_token = tracer(trace);
  const auto done = engine.generate(prompt, params, [&](const TextDelta& d) {
    on_token(d);
    return Flow::kContinue;
  });
  EXPECT_TRUE(done.ok()) << done.status().message();
  return trace;
}

/// The engine again, drafting whatever it costs: times do not decide what a test sees.
inline std::unique_ptr<EngineCore> always_drafting(const Engine& engine,
                                                   const Clock& clock,
                                                   Proposer* proposer = nullptr) {
  CoreSettings settings = engine.core().settings();
  if (proposer != nullptr) settings.proposer = proposer;
  settings.adaptive_drafts = false;
  auto core = EngineCore::create(settings, engine.model(), engine.machine().compute(),
                                 engine.tokenizer(), clock);
  FATHOM_CHECK(core.ok(), core.ok() ? "" : core.status().message());
  return std::move(core).value();
}

enum class Arrival { kAtOnce, kOneAStep };

/// All requests to their ends in one engine (Engine or EngineCore), prompts[i] with params[i].
template <class AnyEngine>
std::vector<Trace> run_together(AnyEngine& engine,
                                const std::vector<std::vector<int32_t>>& prompts,
                                const std::vector<SamplingParams>& params,
                                Arrival arrival) {
  std::vector<Trace> traces(prompts.size());
  for (size_t i = 0; i < prompts.size(); ++i) {
    Request r;
    r.prompt = prompts[i];
    r.sampling = params[i];
    r.on_token = tracer(traces[i]);
    EXPECT_TRUE(engine.submit(std::move(r)).ok());
    if (arrival == Arrival::kAtOnce) continue;
    EXPECT_TRUE(engine.step().ok());
  }
  bool stepped = true;
  while (stepped && !engine.idle()) {
    stepped = engine.step().ok();
    EXPECT_TRUE(stepped);
  }
  return traces;
}

/// The requests of another engine in a pool of so many blocks, too few for all of them: the traces,
/// and that some were put aside.
inline std::vector<Trace> run_in_blocks(Engine& engine,
                                        int64_t num_blocks,
                                        const std::vector<std::vector<int32_t>>& prompts,
                                        const SamplingParams& params) {
  CoreSettings settings = engine.core().settings();
  settings.plan.num_blocks = num_blocks;
  MonotonicClock clock;
  ThreadPool pool(2, PinThreads::kNo);
  auto core = EngineCore::create(settings, engine.model(),
                                 {.pool = &pool, .cpu_kernels = &cpu_kernels()}, nullptr, clock);
  FATHOM_CHECK(core.ok(), core.ok() ? "" : core.status().message());
  auto traces =
      run_together(**core, prompts, std::vector(prompts.size(), params), Arrival::kAtOnce);
  EXPECT_GT((*core)->stats().scheduler.num_preemptions, 0);
  return traces;
}

}  // namespace fathom
