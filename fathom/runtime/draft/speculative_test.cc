#include "fathom/runtime/draft/speculative.h"

#include <gtest/gtest.h>

#include "tests/support/fake_draft_model.h"

namespace fathom {
namespace {

// A cache with a ring that holds `spare` tokens more than a query sees, or with a state.
struct RingModel final : FakeDraftModel {
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

// On the CPU.
Status checked(Speculative method, const DraftShape& shape, const Model& model) {
  return check_speculative(method, shape, model);
}

TEST(Speculative, CachesThatGrowCanBeCutBackByAnyNumber) {
  EXPECT_TRUE(checked(Speculative::kNgram, {.tokens = kMostDrafts}, FakeModel()).ok());
}

TEST(Speculative, DraftsBeyondWhatARingHoldsAreRefused) {
  EXPECT_TRUE(checked(Speculative::kNgram, {.tokens = 4}, RingModel(4)).ok());
  EXPECT_TRUE(checked(Speculative::kOff, {.tokens = 5}, RingModel(4)).ok());

  const Status s = checked(Speculative::kNgram, {.tokens = 5}, RingModel(4));

  EXPECT_EQ(s.code(), StatusCode::kUnsupported);
  EXPECT_EQ(s.message(),
            "--speculative-tokens is 5, but the caches of this model can be cut back by 4 tokens, "
            "expected at most so many");
}

TEST(Speculative, CachesThatCannotBeCutBackAreRefused) {
  for (const RingModel& model : {RingModel(0), RingModel(4, true)}) {
    const Status s = checked(Speculative::kNgram, {.tokens = 1}, model);
    EXPECT_EQ(s.code(), StatusCode::kUnsupported);
    EXPECT_EQ(s.message(),
              "--speculative ngram: the caches of this model cannot be cut back, so no draft can "
              "be taken back\nhint: use --speculative off");
  }
}

TEST(Speculative, AModelWithoutADraftLayerIsRefused) {
  EXPECT_TRUE(checked(Speculative::kMtp, {.tokens = 4}, FakeDraftModel()).ok());

  const Status none = checked(Speculative::kMtp, {.tokens = 4}, FakeModel());
  FakeModel left_out;
  left_out.set_nextn_layers(1);
  const Status missing = checked(Speculative::kMtp, {.tokens = 4}, left_out);

  EXPECT_EQ(none.code(), StatusCode::kUnsupported);
  EXPECT_EQ(none.message(),
            "--speculative mtp: this model has no draft layer\nhint: --speculative ngram "
            "needs no draft layer");
  EXPECT_EQ(
      missing.message(),
      "--speculative mtp: the draft layer of this model is not in the checkpoint (config.json "
      "says num_nextn_predict_layers 1)\nhint: --speculative ngram needs no draft layer");
}

TEST(Speculative, TreesAreOfTheDraftLayer) {
  const DraftShape tree{.tokens = 3, .branches = 4};
  EXPECT_TRUE(checked(Speculative::kMtp, tree, FakeDraftModel()).ok());

  const Status ngram = checked(Speculative::kNgram, tree, FakeDraftModel());

  struct ChainsAlone final : FakeDraftModel {
    bool takes_trees() const override { return false; }
  };

  const Status chains = checked(Speculative::kMtp, tree, ChainsAlone());

  EXPECT_EQ(ngram.code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(
      ngram.message(),
      "--speculative-topk is 4 with --speculative ngram, which guesses chains; expected 1, or "
      "--speculative mtp");
  EXPECT_EQ(chains.code(), StatusCode::kUnsupported);
  EXPECT_EQ(chains.message(),
            "--speculative-topk is 4, but the attention of this model takes no trees; expected 1, "
            "which makes chains");
}

TEST(Speculative, ATreeHasRoomForAPathAndForItsFirstLevel) {
  for (
      const auto& [shape, expected] :
      {std::pair<DraftShape, const char*>{
           {.tokens = 5, .branches = 3, .width = 4},
           "--speculative-width is 4 with --speculative-tokens 5 and --speculative-topk 3, "
           "expected 5 to 39"},
       {{.tokens = 2, .branches = 4, .width = 3},
        "--speculative-width is 3 with --speculative-tokens 2 and --speculative-topk 4, expected 4 "
        "to 20"},
       {{.tokens = 2, .branches = 2, .width = 7},
        "--speculative-width is 7 with --speculative-tokens 2 and --speculative-topk 2, expected 2 "
        "to 6"},
       {{.tokens = 16, .branches = 8, .width = 65},
        "--speculative-width is 65 with --speculative-tokens 16 and --speculative-topk 8, expected "
        "16 to 64"},
       {{.tokens = 3, .branches = 1, .width = 3},
        "--speculative-width is 3 with --speculative-topk 1, which makes chains of "
        "--speculative-tokens; expected --speculative-topk of at least 2, or no "
        "--speculative-width"}}) {
    const Status s = checked(Speculative::kMtp, shape, FakeDraftModel());
    EXPECT_EQ(s.code(), StatusCode::kInvalidArgument);
    EXPECT_EQ(s.message(), expected);
  }
  EXPECT_TRUE(
      checked(Speculative::kMtp, {.tokens = 2, .branches = 2, .width = 6}, FakeDraftModel()).ok());
}

// Rings hold the rows of a tree, and those that the draft layer makes it of.
TEST(Speculative, TreesBeyondWhatARingHoldsAreRefused) {
  const RingModel model(16);
  const auto refused = [&](const DraftShape& shape) {
    const Status s = checked(Speculative::kMtp, shape, model);
    return s.ok() ? std::string() : s.message();
  };

  EXPECT_EQ(refused({.tokens = 4, .branches = 4}), "");
  EXPECT_EQ(refused({.tokens = 5, .branches = 4, .width = 16}), "");
  EXPECT_EQ(refused({.tokens = 5, .branches = 4}),
            "--speculative-tokens 5 and --speculative-topk 4 make trees of 20 drafts, but the "
            "caches of this model can be cut back by 16 tokens, expected --speculative-width of at "
            "most so many");
  EXPECT_EQ(refused({.tokens = 5, .branches = 4, .width = 17}),
            "--speculative-width is 17 with --speculative-tokens 5 and --speculative-topk 4, "
            "expected 5 to 16");
  EXPECT_EQ(refused({.tokens = 4, .branches = 8, .width = 16}),
            "--speculative-tokens is 4 with --speculative-topk 8, expected at most 3: a tree has "
            "up to 17 rows of the draft layer");
}

// All levels but the last have rows of the draft layer, whose masks have 64 bits.
TEST(Speculative, ADeepAndWideTreeIsRefused) {
  const Status deep = checked(Speculative::kMtp, {.tokens = 10, .branches = 8}, FakeDraftModel());

  EXPECT_EQ(deep.code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(deep.message(),
            "--speculative-tokens is 10 with --speculative-topk 8, expected at most 9: a tree has "
            "up to 64 rows of the draft layer");
  for (const DraftShape& shape : {DraftShape{.tokens = 9, .branches = 8},
                                  {.tokens = 13, .branches = 5},
                                  {.tokens = 16, .branches = 4}})
    EXPECT_TRUE(checked(Speculative::kMtp, shape, FakeDraftModel()).ok()) << shape.branches;
}

TEST(Speculative, EachMethodHasItsProposer) {
  const DraftShape chain{.tokens = 5};
  const DraftShape tree{.tokens = 5, .branches = 3};
  EXPECT_FALSE(make_proposer(Speculative::kNgram, chain)->follows());
  EXPECT_TRUE(make_proposer(Speculative::kMtp, chain)->follows());
  EXPECT_TRUE(make_proposer(Speculative::kMtp, tree)->follows());
  EXPECT_EQ(make_proposer(Speculative::kOff, chain), nullptr);
  EXPECT_NE(make_proposer(Speculative::kNgram, chain), nullptr);
  EXPECT_EQ(most_queries(Speculative::kOff, chain), 1);
  EXPECT_EQ(most_queries(Speculative::kNgram, chain), 6);
  EXPECT_EQ(most_queries(Speculative::kMtp, tree), 16);
  EXPECT_EQ(most_queries(Speculative::kMtp, {.tokens = 5, .branches = 3, .width = 9}), 10);
  EXPECT_EQ(most_queries(Speculative::kMtp, {.tokens = 16, .branches = 8}), 1 + kMostTreeDrafts);
  EXPECT_EQ(make_proposer(Speculative::kMtp, chain)->reach(5).rows, 5);
  EXPECT_EQ(make_proposer(Speculative::kMtp, tree)->reach(15).depth, 5);
  // Four levels of three rows, of which the first stands at the last known token.
  EXPECT_EQ(make_proposer(Speculative::kMtp, tree)->reach(9).rows, 11);
}

}  // namespace
}  // namespace fathom
