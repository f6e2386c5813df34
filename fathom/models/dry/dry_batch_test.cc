#include "fathom/models/dry/dry_batch.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <string_view>

#include "fathom/models/registry.h"

namespace fathom {
namespace {

using testing::HasSubstr;

CacheLayout layout_of(std::string_view preset) {
  OpenOptions dry;
  dry.weights = WeightOrigin::kNone;
  return open_model(ModelSource::describe(find_preset(preset).value()), {}, dry)
      .value()
      ->cache_layout();
}

// The same step, built with contents.
class Built {
 public:
  Built(const CacheLayout& layout, const BatchShape& shape)
      : buffer_(layout), pages_(1 << 10), tokens_(1 << 10), parents_(1 << 10) {
    parents_[0] = -1;
    std::vector<SequenceStep> prefill = steps_of(shape.prefill, shape.logits);
    const auto more = steps_of(shape.more_prefill, shape.logits);
    prefill.insert(prefill.end(), more.begin(), more.end());
    const LogitRows decoded = shape.decode.new_tokens > 1 ? LogitRows::kAll : shape.logits;
    std::vector<SequenceStep> decode = steps_of(shape.decode, decoded);
    if (shape.trees) {
      for (SequenceStep& step : decode)
        step.parents = std::span(parents_).first(step.tokens.size());
    }
    batch = buffer_.build(prefill, decode, shape.padding).value();
  }

  Batch batch;

 private:
  std::vector<SequenceStep> steps_of(const BatchShape::Requests& r, LogitRows logits) const {
    const SequenceStep step{.tokens = std::span(tokens_).first(static_cast<size_t>(r.new_tokens)),
                            .cached = r.cached,
                            .pages = pages_,
                            .slot = 0,
                            .logits = logits};
    return std::vector<SequenceStep>(static_cast<size_t>(r.count), step);
  }

  BatchBuffer buffer_;
  std::vector<int32_t> pages_;
  std::vector<int32_t> tokens_;
  std::vector<int32_t> parents_;
};

std::string text_of(const View& v) {
  return str_cat(describe(v), " ", std::string_view(v.axes == nullptr ? "-" : v.axes), " strides ",
                 v.stride(0), " ", v.stride(1), v.data == nullptr ? "" : " data");
}

void expect_sizes(const View& dry, View built, std::string_view what) {
  built.data = nullptr;
  EXPECT_EQ(text_of(dry), text_of(built)) << what;
}

void expect_range(const TokenRange& dry, const TokenRange& built) {
  EXPECT_EQ(dry.token_begin, built.token_begin);
  EXPECT_EQ(dry.num_tokens, built.num_tokens);
  EXPECT_TRUE(std::ranges::equal(dry.query_offsets, built.query_offsets));
  EXPECT_TRUE(std::ranges::equal(dry.kv_lens, built.kv_lens));
  expect_sizes(dry.query_offsets_view, built.query_offsets_view, "query_offsets");
  expect_sizes(dry.kv_lens_view, built.kv_lens_view, "kv_lens");
  expect_sizes(dry.block_table, built.block_table, "block_table");
  expect_sizes(dry.request_slots, built.request_slots, "request_slots");
  expect_sizes(dry.tree_masks, built.tree_masks, "tree_masks");
  expect_sizes(dry.tree_begins, built.tree_begins, "tree_begins");
}

const BatchShape kShapes[] = {
    {.prefill = {.count = 3, .new_tokens = 130}},
    {.prefill = {.count = 2, .new_tokens = 70, .cached = 64}, .logits = LogitRows::kNone},
    {.prefill = {.count = 2, .new_tokens = 9, .cached = 3},
     .more_prefill = {.count = 1, .new_tokens = 5, .cached = 0},
     .logits = LogitRows::kAll},
    {.decode = {.count = 5, .new_tokens = 1, .cached = 200}},
    {.decode = {.count = 3, .new_tokens = 1, .cached = 127}, .padding = {.requests = 8}},
    {.prefill = {.count = 1, .new_tokens = 33},
     .decode = {.count = 3, .new_tokens = 2, .cached = 62},
     .padding = {.requests = 4, .pages = 7}},
    {.prefill = {.count = 1, .new_tokens = 1}, .padding = {.requests = 4, .pages = 7}},
    {.decode = {.count = 1, .new_tokens = 4, .cached = 0},
     .logits = LogitRows::kNone,
     .padding = {.requests = 1}},
    {.prefill = {.count = 1, .new_tokens = 33},
     .decode = {.count = 3, .new_tokens = 9, .cached = 62},
     .padding = {.requests = 4, .pages = 7},
     .trees = true},
};

class DryBatchOf : public testing::TestWithParam<const char*> {};

TEST_P(DryBatchOf, HasTheSizesOfTheBatchWithContents) {
  const CacheLayout layout = layout_of(GetParam());
  for (size_t i = 0; i < std::size(kShapes); ++i) {
    SCOPED_TRACE(testing::Message() << "shape " << i);
    const Built built(layout, kShapes[i]);
    const DryBatch step = DryBatch::create(layout, kShapes[i]).value();
    const Batch& dry = step.batch();

    expect_sizes(dry.token_ids, built.batch.token_ids, "token_ids");
    expect_sizes(dry.logit_rows, built.batch.logit_rows, "logit_rows");
    expect_sizes(dry.attention.positions, built.batch.attention.positions, "positions");
    expect_range(dry.attention.prefill, built.batch.attention.prefill);
    expect_range(dry.attention.decode, built.batch.attention.decode);
    ASSERT_EQ(dry.slots.size(), built.batch.slots.size());
    ASSERT_EQ(dry.pooled.size(), built.batch.pooled.size());
    for (size_t g = 0; g < dry.slots.size(); ++g) {
      expect_sizes(dry.slots[g], built.batch.slots[g], "slots");
      expect_sizes(dry.pooled[g].gather, built.batch.pooled[g].gather, "gather");
      expect_sizes(dry.pooled[g].positions, built.batch.pooled[g].positions, "pooled positions");
      expect_sizes(dry.pooled[g].slots, built.batch.pooled[g].slots, "pooled slots");
      expect_sizes(dry.pooled[g].tree_masks, built.batch.pooled[g].tree_masks, "pooled masks");
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Layouts,
                         DryBatchOf,
                         testing::Values("deepseek-v3", "deepseek-v3.2", "deepseek-v4-flash"));

TEST(DryBatch, RefusesWhatOffsetsCannotCount) {
  const CacheLayout layout = layout_of("deepseek-v3");

  const auto many = DryBatch::create(layout, {.prefill = {.count = 4096, .new_tokens = 1 << 20}});
  const auto none = DryBatch::create(layout, {.prefill = {.count = 1, .new_tokens = 0}});

  EXPECT_EQ(many.status().code(), StatusCode::kInvalidArgument);
  EXPECT_THAT(many.status().message(),
              HasSubstr("4096 requests of 1048576 new tokens after 0 in one step"));
  EXPECT_EQ(none.status().code(), StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace fathom
