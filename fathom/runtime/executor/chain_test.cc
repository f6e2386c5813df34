// Chains of draft passes in one step against the same passes one by one, on a real draft layer.
#include <algorithm>
#include <gtest/gtest.h>
#include <memory>
#include <numeric>
#include <string>
#include <vector>

#include "fathom/models/registry.h"
#include "fathom/runtime/executor/executor.h"
#include "tests/support/cpu_kernels.h"
#include "tests/support/draft_checkpoint.h"

namespace fathom {
namespace {

constexpr int64_t kPage = 16;
constexpr int64_t kPagesEach = 4;

ThreadPool& pool() {
  static ThreadPool threads(2, PinThreads::kNo);
  return threads;
}

/// Three sequences with prompts and the rows of the draft layer behind them, ready for guesses.
class Drafted {
 public:
  explicit Drafted(const Model& model) {
    const StepShape shape{.max_num_seqs = 3,
                          .max_num_batched_tokens = 64,
                          .max_model_len = kPage * kPagesEach,
                          .max_queries = 6,
                          .num_ids = model.config().vocab_size,
                          .drafts = true,
                          .num_threads = 2,
                          .kernels = &cpu_kernels()};
    executor_ =
        Executor::create(
            model, {.pool = &pool(), .cpu_kernels = &cpu_kernels()},
            {.shape = shape, .num_blocks = 3 * kPagesEach, .memory = step_memory(model, shape).value()})
            .value();
    pages_.resize(3 * kPagesEach);
    std::iota(pages_.begin(), pages_.end(), 0);
    for (int64_t s = 0; s < 3; ++s) {
      std::vector<int32_t>& prompt = prompts_[static_cast<size_t>(s)];
      for (int64_t i = 0; i < 13 + s; ++i)  // one of them ends in another page than it began
        prompt.push_back(static_cast<int32_t>((17 * i + 5 * s) % 90 + 3));
    }
    const StepResults forward = run({.prefill = all_of(prompts_), .wants = StepWants::kNothing});
    for (auto& prompt : prompts_) {
      prompt.erase(prompt.begin());
      prompt.push_back(7);
    }
    std::vector<int32_t> rows(13 + 14 + 15);
    std::iota(rows.begin(), rows.end(), 0);
    hidden_ = run({.prefill = all_of(prompts_),
                   .wants = StepWants::kNothing,
                   .pass = Step::Pass::kDraft,
                   .draft_input = forward.hidden,
                   .draft_rows = rows})
                  .hidden;
    last_ = {12, 26, 41};
    tokens_ = {9, 10, 11};
  }

  StepResults run(const Step& step) {
    const Result<StepResults> results = executor_->run(step);
    FATHOM_CHECK(results.ok(), results.ok() ? "" : results.status().message());
    return *results;
  }

  /// Guesses [passes, 3], in chains of `chain` passes.
  std::vector<int32_t> guess(const SamplingParams& params, int64_t passes, int64_t chain) {
    std::vector<int32_t> out;
    for (int64_t at = 0; at < passes; at += chain) {
      std::vector<SequenceStep> decode;
      std::vector<SampleRow> samples;
      for (size_t s = 0; s < 3; ++s)
        decode.push_back(step_of(s, std::span(tokens_).subspan(s, 1), length_of(s) + at));
      for (int64_t pass = at; pass < at + chain; ++pass) {
        for (size_t s = 0; s < 3; ++s) {
          samples.push_back(
              {.params = &params, .seed = 5, .stream = s, .position = length_of(s) + 2 + pass});
        }
      }
      const StepResults results = run({.decode = decode,
                                       .wants = StepWants::kTokens,
                                       .samples = samples,
                                       .pass = Step::Pass::kDraft,
                                       .draft_input = hidden_,
                                       .draft_rows = last_,
                                       .chain = chain});
      EXPECT_EQ(results.samples.size(), samples.size());
      for (const SampleResult& r : results.samples)
        out.push_back(r.finite ? r.token : -1);
      hidden_ = results.hidden;
      last_ = {0, 1, 2};
      std::copy(out.end() - 3, out.end(), tokens_.begin());
    }
    return out;
  }

  std::vector<std::byte> states() const {
    const auto* bytes = hidden_.as<const std::byte>();
    return {bytes, bytes + hidden_.numel() * element_bytes(hidden_.format)};
  }

  /// Rows of the draft layer, and of all others.
  std::vector<std::byte> cache() {
    std::vector<std::byte> out;
    for (const View& v : executor_->cache().groups()[0].views) {
      const auto* bytes = v.as<const std::byte>();
      out.insert(out.end(), bytes, bytes + v.numel() * element_bytes(v.format));
    }
    return out;
  }

  Executor& executor() { return *executor_; }

  const View& hidden() const { return hidden_; }

 private:
  int64_t length_of(size_t s) const { return std::ssize(prompts_[s]); }

  SequenceStep step_of(size_t s, std::span<const int32_t> tokens, int64_t cached) const {
    return {.tokens = tokens,
            .cached = cached,
            .pages = std::span(pages_).subspan(s * kPagesEach, kPagesEach)};
  }

  std::span<const SequenceStep> all_of(const std::vector<int32_t> (&tokens)[3]) {
    steps_.clear();
    for (size_t s = 0; s < 3; ++s) {
      steps_.push_back(step_of(s, tokens[s], 0));
      steps_.back().logits = LogitRows::kNone;
    }
    return steps_;
  }

  std::unique_ptr<Executor> executor_;
  std::vector<int32_t> pages_;
  std::vector<int32_t> prompts_[3];
  std::vector<SequenceStep> steps_;
  View hidden_;
  std::vector<int32_t> last_;
  std::vector<int32_t> tokens_;
};

class Chain : public testing::TestWithParam<const char*> {};

TEST_P(Chain, EqualsSinglePassesBitForBit) {
  const DraftCheckpoint checkpoint(GetParam());
  OpenOptions open;
  open.model.page_size = kPage;
  open.pool = &pool();
  const auto model = open_model(ModelSource::open(checkpoint.path()).value(), {}, open).value();
  SamplingParams drawn;
  drawn.temperature = 0.9f;
  for (const SamplingParams& params : {greedy_sampling(), drawn}) {
    SCOPED_TRACE(params.temperature);
    Drafted singly(*model);
    Drafted chained(*model);
    Drafted in_parts(*model);

    const std::vector<int32_t> expected = singly.guess(params, 4, 1);

    EXPECT_EQ(chained.guess(params, 4, 4), expected);
    EXPECT_EQ(in_parts.guess(params, 4, 2), expected);
    EXPECT_EQ(std::ranges::count(expected, -1), 0);
    EXPECT_NE(std::ranges::count(expected, expected[0]), 12);
    EXPECT_TRUE(chained.states() == singly.states());
    EXPECT_TRUE(in_parts.states() == singly.states());
    EXPECT_TRUE(chained.cache() == singly.cache());
  }
}

INSTANTIATE_TEST_SUITE_P(Executor, Chain, testing::Values("micro-v3", "micro-v32"));

TEST(ChainLimits, LongerChainsThanPlannedAreRefused) {
  const DraftCheckpoint checkpoint;
  OpenOptions open;
  open.model.page_size = kPage;
  open.pool = &pool();
  const auto model = open_model(ModelSource::open(checkpoint.path()).value(), {}, open).value();
  Drafted drafted(*model);
  EXPECT_EQ(drafted.executor().shape().most_chained(), 4);
  const int32_t token = 9;
  const int32_t row = 12;
  const int32_t page = 0;
  const SequenceStep one{
      .tokens = std::span(&token, 1), .cached = 13, .pages = std::span(&page, 1)};

  const auto refused = drafted.executor().run({.decode = std::span(&one, 1),
                                               .wants = StepWants::kTokens,
                                               .pass = Step::Pass::kDraft,
                                               .draft_input = drafted.hidden(),
                                               .draft_rows = std::span(&row, 1),
                                               .chain = 5});

  ASSERT_FALSE(refused.ok());
  EXPECT_NE(refused.status().message().find("a chain of 5 draft passes, expected 1 to 4"),
            std::string::npos)
      << refused.status().message();
}

}  // namespace
}  // namespace fathom
