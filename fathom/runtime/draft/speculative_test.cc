#include "fathom/runtime/draft/speculative.h"

#include <gtest/gtest.h>

#include "tests/support/fake_draft_model.h"

namespace fathom {
namespace {

// A cache with a ring that holds `spare` tokens more than a query sees, or with a state.
struct RingModel final : FakeModel {
  RingModel(int64_t spare, bool state = false) : spare_tokens(spare), has_state(state) {}

  CacheLayout cache_layout() const override {
    CacheLayout layout = FakeModel::cache_layout();
    CacheGroup ring = layout.groups[0];
    ring.name = "ring";
    ring.extent = has_state ? CacheExtent::kState : CacheExtent::kWindow;
    ring.window = 8;
    ring.rows = 8 + spare_tokens;
    layout.groups.push_back(ring);
    return layout;
  }

  int64_t spare_tokens;
  bool has_state;
};

TEST(Speculative, CachesThatGrowCanBeCutBackByAnyNumber) {
  EXPECT_TRUE(check_speculative(Speculative::kNgram, kMostDrafts, FakeModel()).ok());
}

TEST(Speculative, DraftsBeyondWhatARingHoldsAreRefused) {
  EXPECT_TRUE(check_speculative(Speculative::kNgram, 4, RingModel(4)).ok());
  EXPECT_TRUE(check_speculative(Speculative::kOff, 5, RingModel(4)).ok());

  const Status s = check_speculative(Speculative::kNgram, 5, RingModel(4));

  EXPECT_EQ(s.code(), StatusCode::kUnsupported);
  EXPECT_EQ(s.message(),
            "--speculative-tokens is 5, but the caches of this model can be cut back by 4 tokens, "
            "expected at most so many");
}

TEST(Speculative, CachesThatCannotBeCutBackAreRefused) {
  for (const RingModel& model : {RingModel(0), RingModel(4, true)}) {
    const Status s = check_speculative(Speculative::kNgram, 1, model);
    EXPECT_EQ(s.code(), StatusCode::kUnsupported);
    EXPECT_EQ(s.message(),
              "--speculative ngram: the caches of this model cannot be cut back, so no draft can "
              "be taken back\nhint: use --speculative off");
  }
}

TEST(Speculative, AModelWithoutADraftLayerIsRefused) {
  EXPECT_TRUE(check_speculative(Speculative::kMtp, 4, FakeDraftModel()).ok());

  const Status none = check_speculative(Speculative::kMtp, 4, FakeModel());
  FakeModel left_out;
  left_out.set_nextn_layers(1);
  const Status missing = check_speculative(Speculative::kMtp, 4, left_out);

  EXPECT_EQ(none.code(), StatusCode::kUnsupported);
  EXPECT_EQ(none.message(),
            "--speculative mtp: this model has no draft layer\nhint: --speculative ngram "
            "needs no draft layer");
  EXPECT_EQ(
      missing.message(),
      "--speculative mtp: the draft layer of this model is not in the checkpoint (config.json "
      "says num_nextn_predict_layers 1)\nhint: --speculative ngram needs no draft layer");
}

TEST(Speculative, EachMethodHasItsProposer) {
  EXPECT_FALSE(make_proposer(Speculative::kNgram)->follows());
  EXPECT_TRUE(make_proposer(Speculative::kMtp)->follows());
  EXPECT_EQ(make_proposer(Speculative::kOff), nullptr);
  EXPECT_NE(make_proposer(Speculative::kNgram), nullptr);
  EXPECT_EQ(most_queries(Speculative::kOff, 5), 1);
  EXPECT_EQ(most_queries(Speculative::kNgram, 5), 6);
}

}  // namespace
}  // namespace fathom
