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

std::unique_ptr<Model> open_checkpoint(const std::string& path,
                                       int64_t page = DraftedSequences::kPage) {
  OpenOptions open;
  open.model.page_size = page;
  open.pool = &pool();
  return open_model(ModelSource::open(path).value(), {}, open).value();
}

void expect_equal_rows(DraftedSequences& a, DraftedSequences& b) {
  EXPECT_TRUE(a.states() == b.states());
  EXPECT_TRUE(a.cache() == b.cache());
}

class Chain : public testing::TestWithParam<const char*> {};

TEST_P(Chain, EqualsSinglePassesBitForBit) {
  const DraftCheckpoint checkpoint(GetParam());
  const auto model = open_checkpoint(checkpoint.path());
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
    expect_equal_rows(chained, singly);
    expect_equal_rows(in_parts, singly);
  }
}

// The nodes of a level are chosen where the passes run as the tree of the host chooses them.
void expect_equal_levels(const std::string& checkpoint, int64_t page) {
  const auto model = open_checkpoint(checkpoint, page);
  DraftedSequences singly(*model, on_cpu(), CudaGraphs::kOn, true);
  DraftedSequences chained(*model, on_cpu(), CudaGraphs::kOn, true);
  DraftedSequences in_parts(*model, on_cpu(), CudaGraphs::kOn, true);

  const auto expected = singly.grow(6, 1);

  EXPECT_EQ(expected.size(), 6u * 6 * 2);
  EXPECT_EQ(chained.grow(6, 3), expected);
  EXPECT_EQ(in_parts.grow(6, 2), expected);
  expect_equal_rows(chained, singly);
  expect_equal_rows(in_parts, singly);
  EXPECT_EQ(chained.executor().most_levels(2), 3);
}

TEST_P(Chain, LevelsOfTreesEqualSingleOnesBitForBit) {
  expect_equal_levels(DraftCheckpoint(GetParam()).path(), DraftedSequences::kPage);
}

TEST(ChainOfWindows, LevelsOfTreesEqualSingleOnesBitForBit) {
  expect_equal_levels(V4Checkpoint().path(), 32);
}

INSTANTIATE_TEST_SUITE_P(Executor, Chain, testing::Values("micro-v3", "micro-v32"));

// A chain of passes over a token, or of levels of two nodes that end so many rows of a tree.
Status run_chain(DraftedSequences& drafted, int64_t chain, size_t rows) {
  const std::vector<int32_t> tokens(rows > 0 ? 2 : 1, 9), parents(rows, -1);
  const std::vector<float> paths(rows > 0 ? 2 : 0, -0.5f);
  const SequenceStep one{.tokens = tokens, .parents = parents};
  return drafted.executor()
      .run({.decode = std::span(&one, 1),
            .wants = StepWants::kTokens,
            .pass = Step::Pass::kDraft,
            .draft_input = drafted.hidden(),
            .draft_rows = tokens,
            .chain = chain,
            .node_paths = paths})
      .status();
}

TEST(ChainLimits, LongerChainsThanPlannedAreRefused) {
  const DraftCheckpoint checkpoint;
  const auto model = open_checkpoint(checkpoint.path());
  DraftedSequences chains(*model, on_cpu());
  DraftedSequences trees(*model, on_cpu(), CudaGraphs::kOn, true);
  EXPECT_EQ(chains.executor().shape().most_chained(), 4);
  EXPECT_EQ(chains.executor().most_levels(2), 1);
  EXPECT_EQ(trees.executor().most_levels(2), 3);
  EXPECT_EQ(trees.executor().most_levels(kMostBranches + 1), 1);
  const auto expect_refused = [](const Status& s, std::string_view why) {
    EXPECT_NE(s.message().find(why), s.message().npos) << s.message();
  };

  expect_refused(run_chain(chains, 5, 0), "a chain of 5 draft passes, expected 1 to 4");
  expect_refused(run_chain(chains, 2, 2), "a chain of 2 draft passes, expected 1 to 1");
  expect_refused(run_chain(trees, 3, 61), "a chain of 3 levels ends at 65 rows of a tree");
}

}  // namespace
}  // namespace fathom
