#include "tests/support/allocation_count.h"

#include <gtest/gtest.h>
#include <memory>

#include "fathom/runtime/draft/tree/nextn_tree_proposer.h"
#include "tests/support/fake_draft_model.h"
#include "tests/support/fake_engine.h"

// Sanitizers keep their own operators, which nobody counts.
#ifndef FATHOM_SANITIZED
TEST(AllocationCount, SeesAnAllocation) {
  const int64_t before = fathom::allocation_count();

  const auto value = std::make_unique<int64_t>(1);

  EXPECT_EQ(fathom::allocation_count() - before, *value);
}

namespace fathom {
namespace {

TEST(AllocationCount, StepsWithTreesOfDraftsAllocateNothing) {
  NextnTreeProposer trees({.tokens = 4, .branches = 3, .width = 14});
  BenchOf<FakeDraftModel> bench({.num_pages = 2000, .max_queries = 15, .proposer = &trees});
  SamplingParams p = greedy(200);
  p.ignore_eos = true;
  p.top_logprobs = 2;
  for (const int32_t seed : {1, 2, 3}) {
    Request request;
    request.prompt = prompt_of(5, seed);
    request.sampling = p;
    ASSERT_TRUE(bench.core->submit(std::move(request)).ok());
  }
  for (int i = 0; i < 2; ++i)  // the prompts, and a first tree
    ASSERT_TRUE(bench.core->step().ok());

  const int64_t before = allocation_count();
  for (int i = 0; i < 25; ++i)
    ASSERT_TRUE(bench.core->step().ok());

  EXPECT_EQ(allocation_count() - before, 0);
  EXPECT_EQ(bench.core->stats().scheduler.num_running, 3);
  EXPECT_GT(bench.core->stats().accepted_tokens, 25);
}

}  // namespace
}  // namespace fathom
#endif
