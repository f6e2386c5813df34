// Chains of draft passes in one step against the same passes one by one, on a real draft layer.
#include <algorithm>
#include <gtest/gtest.h>
#include <string>
#include <vector>

#include "fathom/models/registry.h"
#include "tests/support/cpu_kernels.h"
#include "tests/support/draft_checkpoint.h"
#include "tests/support/drafted_sequences.h"
#include "tests/support/v4_checkpoint.h"

namespace fathom {
namespace {

ThreadPool& pool() {
  static ThreadPool threads(2, PinThreads::kNo);
  return threads;
}

Compute on_cpu() {
  return {.pool = &pool(), .cpu_kernels = &cpu_kernels()};
}

class Chain : public testing::TestWithParam<const char*> {};

TEST_P(Chain, EqualsSinglePassesBitForBit) {
  const DraftCheckpoint checkpoint(GetParam());
  OpenOptions open;
  open.model.page_size = DraftedSequences::kPage;
  open.pool = &pool();
  const auto model = open_model(ModelSource::open(checkpoint.path()).value(), {}, open).value();
  SamplingParams drawn;
  drawn.temperature = 0.9f;
  for (const SamplingParams& params : {greedy_sampling(), drawn}) {
    SCOPED_TRACE(params.temperature);
    DraftedSequences singly(*model, on_cpu());
    DraftedSequences chained(*model, on_cpu());
    DraftedSequences in_parts(*model, on_cpu());

    const std::vector<int32_t> expected = singly.guess(params, 4, 1);

    EXPECT_EQ(chained.guess(params, 4, 4), expected);
    EXPECT_EQ(in_parts.guess(params, 4, 2), expected);
    EXPECT_EQ(std::ranges::count(expected, -1), 0);
    EXPECT_NE(std::ranges::count(expected, expected[0]), 12);
    EXPECT_TRUE(chained.states() == singly.states());
    EXPECT_TRUE(in_parts.states() == singly.states());
    EXPECT_TRUE(chained.cache() == singly.cache());
    EXPECT_TRUE(in_parts.cache() == singly.cache());
  }
}

// The nodes of a level are chosen where the passes run as the tree of the host chooses them.
void expect_equal_levels(const std::string& checkpoint, int64_t page) {
  OpenOptions open;
  open.model.page_size = page;
  open.pool = &pool();
  const auto model = open_model(ModelSource::open(checkpoint).value(), {}, open).value();
  DraftedSequences singly(*model, on_cpu(), CudaGraphs::kOn, true);
  DraftedSequences chained(*model, on_cpu(), CudaGraphs::kOn, true);
  DraftedSequences in_parts(*model, on_cpu(), CudaGraphs::kOn, true);

  const auto expected = singly.grow(6, 1);

  EXPECT_EQ(expected.size(), 6u * 6 * 2);
  EXPECT_EQ(chained.grow(6, 3), expected);
  EXPECT_EQ(in_parts.grow(6, 2), expected);
  EXPECT_TRUE(chained.states() == singly.states());
  EXPECT_TRUE(in_parts.states() == singly.states());
  EXPECT_TRUE(chained.cache() == singly.cache());
  EXPECT_TRUE(in_parts.cache() == singly.cache());
  EXPECT_EQ(chained.executor().most_levels(2), 3);
}

TEST_P(Chain, LevelsOfTreesEqualSingleOnesBitForBit) {
  expect_equal_levels(DraftCheckpoint(GetParam()).path(), DraftedSequences::kPage);
}

TEST(ChainOfWindows, LevelsOfTreesEqualSingleOnesBitForBit) {
  expect_equal_levels(V4Checkpoint().path(), 32);
}

INSTANTIATE_TEST_SUITE_P(Executor, Chain, testing::Values("micro-v3", "micro-v32"));

// Runs a chain of levels of two nodes behind `rows` of a tree.
Status run_levels(DraftedSequences& drafted, int64_t chain, size_t rows) {
  SamplingParams best = greedy_sampling();
  best.top_logprobs = 2;
  const std::vector<int32_t> tokens{9, 10}, read{12, 12}, pages{0}, parents(rows, -1);
  const std::vector<float> paths{-0.5f, -0.6f};
  const std::vector<SampleRow> samples(2 * static_cast<size_t>(chain), {.params = &best});
  const SequenceStep one{.tokens = tokens,
                         .cached = 13,
                         .pages = pages,
                         .logits = LogitRows::kAll,
                         .parents = parents};
  return drafted.executor()
      .run({.decode = std::span(&one, 1),
            .wants = StepWants::kTokens,
            .samples = samples,
            .pass = Step::Pass::kDraft,
            .draft_input = drafted.hidden(),
            .draft_rows = read,
            .chain = chain,
            .node_paths = paths})
      .status();
}

TEST(ChainLimits, LevelsOfTreesThatHaveNoRoomAreRefused) {
  const DraftCheckpoint checkpoint;
  OpenOptions open;
  open.model.page_size = DraftedSequences::kPage;
  open.pool = &pool();
  const auto model = open_model(ModelSource::open(checkpoint.path()).value(), {}, open).value();
  DraftedSequences chains(*model, on_cpu());
  DraftedSequences trees(*model, on_cpu(), CudaGraphs::kOn, true);
  EXPECT_EQ(chains.executor().most_levels(2), 1);
  EXPECT_EQ(trees.executor().most_levels(2), 3);
  EXPECT_EQ(trees.executor().most_levels(6), 1);
  EXPECT_EQ(trees.executor().most_levels(kMostBranches + 1), 1);
  const auto expect_refused = [](const Status& s, std::string_view why) {
    ASSERT_FALSE(s.ok());
    EXPECT_NE(s.message().find(why), std::string::npos) << s.message();
  };

  expect_refused(run_levels(chains, 2, 2),
                 "a chain of 2 levels of 2 tokens a tree, expected 1 to 1");
  expect_refused(run_levels(trees, 4, 2),
                 "a chain of 4 levels of 2 tokens a tree, expected 1 to 3");
  expect_refused(run_levels(trees, 3, 61),
                 "a chain of 3 levels of 2 tokens a tree ends with 65 rows of a tree, expected at "
                 "most 64");
}

TEST(ChainLimits, LongerChainsThanPlannedAreRefused) {
  const DraftCheckpoint checkpoint;
  OpenOptions open;
  open.model.page_size = DraftedSequences::kPage;
  open.pool = &pool();
  const auto model = open_model(ModelSource::open(checkpoint.path()).value(), {}, open).value();
  DraftedSequences drafted(*model, on_cpu());
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
