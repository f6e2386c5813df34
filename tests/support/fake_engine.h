// An engine around the fake model, and what requests to it must give.
#pragma once

#include <algorithm>
#include <cmath>
#include <gtest/gtest.h>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "fathom/runtime/engine.h"
#include "tests/support/cpu_kernels.h"
#include "tests/support/fake_model.h"

namespace fathom {

/// The end token of the fake engine.
inline constexpr int32_t kEnd = 2;

struct CollectedAnswer {
  RequestId id = 0;
  std::vector<int32_t> tokens;
  std::string text;
  FinishReason finish = FinishReason::kNone;
  int64_t cached = 0;
  int events_after_end = 0;
};

struct EngineLimits {
  int64_t num_pages = 200;
  int64_t max_num_seqs = 8;
  int64_t max_num_batched_tokens = 64;
  int64_t max_prefill_chunk = 0;
  bool prefix_cache = true;
  bool share_decoded_pages = false;
  int64_t vocab = 40;
  int64_t num_ids = 40;
  uint64_t seed = 0;
  int64_t step_target_ns = 0;
  const Tokenizer* tokenizer = nullptr;
  int64_t max_queries = 1;
  Proposer* proposer = nullptr;
  bool adaptive_drafts = false;
  std::optional<double> simulated_acceptance = std::nullopt;
  Pins pins = {};
};

/// An engine around a fake model.
template <class AnyModel>
class BenchOf {
 public:
  explicit BenchOf(const EngineLimits& limits = {}) : model(limits.vocab) {
    CoreSettings settings;
    Result<MemoryPlan> plan =
        plan_memory(model, {.max_num_seqs = limits.max_num_seqs,
                            .max_num_batched_tokens = limits.max_num_batched_tokens,
                            .num_ids = limits.num_ids,
                            .max_queries = limits.max_queries,
                            .drafts = limits.proposer != nullptr && limits.proposer->follows(),
                            .trees = limits.proposer != nullptr,
                            .num_threads = pool_.size(),
                            .kernels = &cpu_kernels()});
    FATHOM_CHECK(plan.ok(), plan.ok() ? "" : plan.status().message());
    settings.plan = *plan;
    settings.plan.num_blocks = limits.num_pages;
    settings.scheduler = {.max_num_seqs = limits.max_num_seqs,
                          .max_num_batched_tokens = limits.max_num_batched_tokens,
                          .max_prefill_chunk = limits.max_prefill_chunk,
                          .max_model_len = settings.plan.max_model_len,
                          .share_decoded_pages = limits.share_decoded_pages};
    settings.prefix_cache = limits.prefix_cache;
    settings.model_fingerprint = "fake";
    settings.seed = limits.seed;
    settings.step_target_ns = limits.step_target_ns;
    settings.end_ids = {kEnd};
    settings.pins = limits.pins;
    settings.proposer = limits.proposer;
    settings.adaptive_drafts = limits.adaptive_drafts;
    settings.simulated_acceptance = limits.simulated_acceptance;
    auto created = EngineCore::create(
        settings, model, {.pool = &pool_, .cpu_kernels = &cpu_kernels()}, limits.tokenizer, clock);
    FATHOM_CHECK(created.ok(), created.ok() ? "" : created.status().message());
    core = std::move(created).value();
  }

  // Submits a request whose answer is collected.
  std::shared_ptr<CollectedAnswer> submit(std::vector<int32_t> prompt,
                                          SamplingParams params,
                                          std::string salt = "") {
    auto answer = std::make_shared<CollectedAnswer>();
    Request request;
    request.prompt = std::move(prompt);
    request.sampling = std::move(params);
    request.cache_salt = std::move(salt);
    request.on_token = [answer](const TokenEvent& e) {
      if (answer->finish != FinishReason::kNone) ++answer->events_after_end;
      if (e.token >= 0) {
        EXPECT_EQ(e.index, static_cast<int64_t>(answer->tokens.size()));
        answer->tokens.push_back(e.token);
      }
      answer->text += e.text;
      answer->finish = e.finish;
      answer->cached = e.cached_tokens;
    };
    Result<RequestId> id = core->submit(std::move(request));
    EXPECT_TRUE(id.ok()) << id.status().message();
    if (id.ok()) answer->id = *id;
    return answer;
  }

  void run() {
    for (int i = 0; !core->idle(); ++i) {
      ASSERT_LT(i, 10'000);
      const Status s = core->step();
      ASSERT_TRUE(s.ok()) << s.message();
    }
  }

  CollectedAnswer alone(std::vector<int32_t> prompt, const SamplingParams& params) {
    auto answer = submit(std::move(prompt), params);
    run();
    return *answer;
  }

  AnyModel model;
  ManualClock clock{1};
  std::unique_ptr<EngineCore> core;

 private:
  ThreadPool pool_{2, PinThreads::kNo};
};

using EngineBench = BenchOf<FakeModel>;

inline SamplingParams greedy(int64_t max_tokens) {
  SamplingParams p;
  p.temperature = 0.0f;
  p.max_tokens = max_tokens;
  return p;
}

inline SamplingParams long_answer(int64_t count) {
  SamplingParams p = greedy(count);
  p.ignore_eos = true;
  return p;
}

inline SamplingParams drawn(int64_t max_tokens, uint64_t seed) {
  SamplingParams p;
  p.max_tokens = max_tokens;
  p.seed = seed;
  p.top_p = 0.9f;
  return p;
}

inline std::vector<int32_t> prompt_of(int64_t length, int32_t first) {
  std::vector<int32_t> prompt(static_cast<size_t>(length));
  for (size_t i = 0; i < prompt.size(); ++i) {
    prompt[i] = static_cast<int32_t>((static_cast<size_t>(first) + i * 7) % 12 + 14);
  }
  return prompt;
}

// What greedy decoding of the fake model must give.
inline std::vector<int32_t> expected_greedy(std::vector<int32_t> tokens,
                                            int64_t count,
                                            int64_t vocab = 40) {
  const size_t begin = tokens.size();
  while (static_cast<int64_t>(tokens.size() - begin) < count) {
    const auto logits = FakeModel::logits_after(tokens, vocab);
    if (std::isnan(logits[0])) break;
    tokens.push_back(static_cast<int32_t>(std::ranges::max_element(logits) - logits.begin()));
    if (tokens.back() == kEnd) break;
  }
  return {tokens.begin() + static_cast<int64_t>(begin), tokens.end()};
}

}  // namespace fathom
