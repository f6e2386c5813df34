#include "fathom/serve/load/server_counters.h"

#include <gtest/gtest.h>

namespace fathom::serve {
namespace {

TEST(DraftCounters, AreSumsOverLabelsWhateverThePrefix) {
  const auto c = read_draft_counters(
      "# HELP vllm:spec_decode_num_drafts_total x\n"
      "vllm:spec_decode_num_drafts_total{engine=\"0\",model_name=\"a } b\"} 10.0\n"
      "vllm:spec_decode_num_drafts_total{engine=\"1\"} 5\n"
      "fathom:spec_decode_num_draft_tokens_total 3e1\n"
      "spec_decode_num_accepted_tokens_total{engine=\"0\"} 12 1700000000\n"
      "fathom:spec_decode_num_accepted_tokens_per_pos_total{position=\"1\"} 4\n"
      "fathom:spec_decode_num_accepted_tokens_per_pos_total{position=\"0\"} 8\n"
      "fathom:spec_decode_num_accepted_tokens_per_pos_total{position=\"99999999999\"} 8\n"
      "broken{ 1\nother NaN\n");

  ASSERT_TRUE(c);
  EXPECT_EQ(c->drafts, 15);
  EXPECT_EQ(c->draft_tokens, 30);
  EXPECT_EQ(c->accepted_tokens, 12);
  EXPECT_EQ(c->accepted_at, (std::vector<double>{8, 4}));
}

TEST(DraftCounters, AreAbsentWithoutSpeculation) {
  EXPECT_FALSE(read_draft_counters(""));
  EXPECT_FALSE(read_draft_counters("fathom:prompt_tokens_total 5\n"));
}

TEST(DraftCounters, Subtract) {
  const DraftCounters after{
      .drafts = 5, .draft_tokens = 9, .accepted_tokens = 4, .accepted_at = {3, 1}};
  const DraftCounters before{
      .drafts = 1, .draft_tokens = 2, .accepted_tokens = 3, .accepted_at = {2}};

  const DraftCounters d = after - before;

  EXPECT_EQ(d.drafts, 4);
  EXPECT_EQ(d.draft_tokens, 7);
  EXPECT_EQ(d.accepted_tokens, 1);
  EXPECT_EQ(d.accepted_at, (std::vector<double>{1, 1}));
}

}  // namespace
}  // namespace fathom::serve
