// Engines on small models, and what comes out of them token by token.
#pragma once

#include <gtest/gtest.h>
#include <memory>
#include <span>
#include <vector>

#include "fathom/api/engine.h"

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

}  // namespace fathom
