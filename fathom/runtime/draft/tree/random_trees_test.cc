// Trees of any shape, with right, wrong and senseless guesses: what they give is what comes
// without.
#include <algorithm>
#include <gtest/gtest.h>
#include <memory>

#include "tests/support/fake_constraint.h"
#include "tests/support/fake_engine.h"

namespace fathom {
namespace {

// Each node follows any earlier one. Siblings differ; of the others some are what greedy decoding
// gives behind their path, some are among the tokens `few`, some are no tokens.
class RandomTrees final : public Proposer {
 public:
  explicit RandomTrees(uint64_t seed, std::vector<int32_t> few = {})
      : rng_(seed), few_(std::move(few)) {}

  Status propose(Executor&, std::span<const DraftPlace> places) override {
    for (const DraftPlace& place : places) {
      Sequence& s = *place.sequence;
      EXPECT_TRUE(s.drafts.empty() && s.draft_parents.empty());
      const auto count =
          static_cast<int32_t>(rng_.next_below(static_cast<uint32_t>(place.most) + 1));
      for (int32_t i = 0; i < count; ++i)
        add_node(s, i);
    }
    return {};
  }

 private:
  void add_node(Sequence& s, int32_t node) {
    const auto parent = static_cast<int32_t>(rng_.next_below(static_cast<uint32_t>(node) + 1)) - 1;
    int32_t token = guess(s, parent);
    const auto is_sibling = [&] {
      for (int32_t i = 0; i < node; ++i)
        if (s.draft_parents[static_cast<size_t>(i)] == parent &&
            s.drafts[static_cast<size_t>(i)] == token)
          return true;
      return false;
    };
    while (is_sibling())
      token = static_cast<int32_t>(rng_.next_below(44)) - 2;
    s.drafts.push_back(token);
    s.draft_parents.push_back(parent);
  }

  int32_t guess(const Sequence& s, int32_t parent) {
    if (!few_.empty()) return few_[rng_.next_below(static_cast<uint32_t>(few_.size()))];
    if (rng_.next_below(3) == 0) return static_cast<int32_t>(rng_.next_below(44)) - 2;
    std::vector<int32_t> path;
    for (int32_t at = parent; at >= 0; at = s.draft_parents[static_cast<size_t>(at)])
      path.push_back(s.drafts[static_cast<size_t>(at)]);
    std::vector<int32_t> tokens = s.tokens;
    tokens.insert(tokens.end(), path.rbegin(), path.rend());
    const auto logits = FakeModel::logits_after(tokens, 40);
    return static_cast<int32_t>(std::ranges::max_element(logits) - logits.begin());
  }

  Rng rng_;
  std::vector<int32_t> few_;
};

TEST(RandomTrees, ChangeNoTokenAndNoLogprob) {
  int64_t accepted = 0;
  int64_t preemptions = 0;
  for (uint64_t seed = 1; seed <= 30; ++seed) {
    SCOPED_TRACE(str_cat("seed ", seed));
    const auto run = [&](Proposer* proposer, int64_t pages) {
      EngineBench bench({.num_pages = pages,
                         .max_num_batched_tokens = 40,
                         .max_queries = proposer == nullptr ? 1 : 2 + int64_t(seed % 14),
                         .proposer = proposer});
      std::vector<std::vector<float>> numbers(6);
      for (size_t i = 0; i < numbers.size(); ++i) {
        Request request;
        request.prompt = prompt_of(5 + int64_t(i), static_cast<int32_t>(i % 3));
        request.sampling = i % 2 == 0 ? greedy(40) : drawn(40, seed + i);
        request.sampling.ignore_eos = i % 3 != 0;
        request.sampling.top_logprobs = 2;
        request.on_token = [&, i](const TokenEvent& e) {
          if (e.token >= 0) numbers[i].push_back(static_cast<float>(e.token));
          numbers[i].push_back(e.logprob);
          for (const TokenLogprob& top : e.top_logprobs)
            numbers[i].push_back(top.logprob);
        };
        EXPECT_TRUE(bench.core->submit(std::move(request)).ok());
      }
      bench.run();
      EXPECT_EQ(bench.core->stats().owned_pages, 0);
      accepted += bench.core->stats().accepted_tokens;
      preemptions += bench.core->stats().scheduler.num_preemptions;
      return numbers;
    };
    RandomTrees trees(seed);
    EXPECT_EQ(run(&trees, 40), run(nullptr, 200));
  }
  EXPECT_GT(accepted, 1000);
  EXPECT_GT(preemptions, 10);
}

// Masks follow the path of each node; what was walked is taken back.
TEST(RandomTrees, AreMaskedAlongTheirPaths) {
  const auto rule = [](const std::vector<int32_t>& accepted) {
    using Next = FakeConstraint::Next;
    if (accepted.size() >= 40) return Next{.allowed = {kEnd}};
    if (accepted.size() / 10 == 1) return Next{ConstraintPlace::kFree, {}};
    // What is allowed depends on the token before.
    const bool even = accepted.empty() || accepted.back() % 2 == 0;
    if (accepted.size() % 3 == 2) return Next{ConstraintPlace::kStructure, {30, 31}};
    return even ? Next{.allowed = {20, 21, kEnd}} : Next{.allowed = {21, 30}};
  };
  int64_t accepted = 0;
  int64_t rolled_back = 0;
  for (uint64_t seed = 1; seed <= 15; ++seed) {
    const auto run = [&](Proposer* proposer) {
      EngineBench bench({.num_pages = 40,
                         .prefix_cache = false,
                         .max_queries = proposer == nullptr ? 1 : 9,
                         .proposer = proposer});
      std::vector<std::vector<int32_t>> answers(5);
      std::vector<std::shared_ptr<FakeConstraint>> constraints;
      for (size_t i = 0; i < answers.size(); ++i) {
        constraints.push_back(constraint_of(rule));
        Request request;
        request.prompt = prompt_of(8, static_cast<int32_t>(seed + i));
        request.sampling = i % 2 == 0 ? greedy(60) : drawn(60, seed + i);
        request.sampling.min_tokens = i % 3 == 2 ? 30 : 0;
        request.sampling.ignore_eos = i % 3 == 1;
        request.constraint = constraints.back();
        request.on_token = [&answers, i](const TokenEvent& e) {
          if (e.token >= 0) answers[i].push_back(e.token);
        };
        EXPECT_TRUE(bench.core->submit(std::move(request)).ok());
      }
      bench.run();
      for (size_t i = 0; i < answers.size(); ++i) {
        std::vector<int32_t> taken = constraints[i]->accepted;
        taken.resize(std::min(taken.size(), answers[i].size()));
        EXPECT_EQ(taken, answers[i]);
        rolled_back += constraints[i]->rolled_back;
      }
      accepted += bench.core->stats().accepted_tokens;
      return answers;
    };
    RandomTrees trees(seed, {20, 21, 30, 31, kEnd});

    const auto answers = run(&trees);

    EXPECT_EQ(answers, run(nullptr)) << "seed " << seed;
  }
  EXPECT_GT(accepted, 300);
  EXPECT_GT(rolled_back, accepted);
}

TEST(RandomTrees, StopStringsEndTheTextOnAPath) {
  auto tokenizer = Tokenizer::load(FATHOM_SOURCE_DIR "/tests/golden/micro-v3");
  ASSERT_TRUE(tokenizer.ok());
  const EngineLimits plain{
      .vocab = 4200, .num_ids = tokenizer->vocab_size(), .tokenizer = &*tokenizer};
  SamplingParams p = greedy(40);
  p.ignore_eos = true;
  const CollectedAnswer whole = EngineBench(plain).alone(prompt_of(5, 1), p);

  // The answer itself, with a wrong guess before each right one.
  struct Known final : Proposer {
    Status propose(Executor&, std::span<const DraftPlace> places) override {
      for (const DraftPlace& place : places) {
        Sequence& s = *place.sequence;
        const auto at = static_cast<size_t>(s.num_generated());
        int32_t last = -1;
        for (size_t i = at; i < answer.size() && std::ssize(s.drafts) + 2 <= place.most; ++i) {
          for (const int32_t token : {answer[i] ^ 1, answer[i]}) {
            s.drafts.push_back(token);
            s.draft_parents.push_back(last);
          }
          last = static_cast<int32_t>(s.drafts.size()) - 1;
        }
      }
      return {};
    }

    std::vector<int32_t> answer;
  } known;

  known.answer = whole.tokens;
  for (size_t cut = 1; cut + 3 < whole.text.size(); cut += 11) {
    p.stop = {whole.text.substr(cut, 3)};
    const CollectedAnswer expected = EngineBench(plain).alone(prompt_of(5, 1), p);
    EngineLimits drafted = plain;
    drafted.max_queries = 13;
    drafted.proposer = &known;
    EngineBench bench(drafted);

    const CollectedAnswer answer = bench.alone(prompt_of(5, 1), p);

    EXPECT_EQ(answer.tokens, expected.tokens) << p.stop[0];
    EXPECT_EQ(answer.text, expected.text);
    EXPECT_EQ(answer.finish, FinishReason::kStop);
    EXPECT_EQ(answer.events_after_end, 0);
  }
}

}  // namespace
}  // namespace fathom
