#include "fathom/models/batch.h"

#include <gtest/gtest.h>

namespace fathom {
namespace {

std::vector<int32_t> numbers(const View& v) {
  return {v.as<int32_t>(), v.as<int32_t>() + v.numel()};
}

// Three requests of 9, 3 and 6 tokens in pages of four, one more each.
struct ThreeRequests {
  std::vector<int32_t> tokens{70, 71, 72};
  std::vector<int32_t> pages{1, 2, 3, 4, 5, 6};
  std::vector<SequenceStep> decode;

  ThreeRequests() {
    const std::span<const int32_t> ids(tokens);
    const std::span<const int32_t> p(pages);
    decode = {{.tokens = ids.subspan(0, 1), .cached = 9, .pages = p.subspan(0, 3)},
              {.tokens = ids.subspan(1, 1), .cached = 3, .pages = p.subspan(3, 1)},
              {.tokens = ids.subspan(2, 1), .cached = 6, .pages = p.subspan(4, 2)}};
  }
};

TEST(BatchPadding, CopiesReadWhatTheShortestRequestReadsAndWriteNothing) {
  const ThreeRequests r;
  BatchBuffer buffer(4);

  const Batch batch = buffer.build({}, r.decode, {.requests = 5, .pages = 4}).value();

  const TokenRange& range = batch.attention.decode;
  EXPECT_EQ(range.num_tokens, 5);
  EXPECT_EQ(numbers(batch.token_ids), (std::vector<int32_t>{70, 71, 72, 71, 71}));
  EXPECT_EQ(numbers(batch.attention.positions), (std::vector<int32_t>{9, 3, 6, 3, 3}));
  EXPECT_EQ(numbers(batch.logit_rows), (std::vector<int32_t>{0, 1, 2, 3, 4}));
  EXPECT_EQ(numbers(range.query_offsets_view), (std::vector<int32_t>{0, 1, 2, 3, 4, 5}));
  EXPECT_EQ(numbers(range.kv_lens_view), (std::vector<int32_t>{10, 4, 7, 4, 4}));
  const auto* slots = batch.attention.slots.as<int64_t>();
  EXPECT_EQ(std::vector<int64_t>(slots, slots + 5), (std::vector<int64_t>{13, 19, 26, -1, -1}));
  EXPECT_EQ(numbers(range.block_table),
            (std::vector<int32_t>{1, 2, 3, 0, 4, 0, 0, 0, 5, 6, 0, 0, 4, 0, 0, 0, 4, 0, 0, 0}));
}

TEST(BatchPadding, LeavesPromptsAndEmptyRangesAlone) {
  const ThreeRequests r;
  const std::vector<int32_t> prompt{1, 2, 3};
  const std::vector<int32_t> page{7};
  const std::vector<SequenceStep> prefill{{.tokens = prompt, .cached = 0, .pages = page}};
  BatchBuffer buffer(4);

  const Batch alone = buffer.build(prefill, {}, {.requests = 8, .pages = 8}).value();
  EXPECT_EQ(alone.num_tokens(), 3);
  EXPECT_EQ(alone.attention.decode.num_requests(), 0);
  EXPECT_EQ(alone.attention.prefill.block_table.dim(1), 1);

  const Batch both = buffer.build(prefill, r.decode, {.requests = 4, .pages = 3}).value();
  EXPECT_EQ(both.attention.prefill.num_tokens, 3);
  EXPECT_EQ(both.attention.decode.token_begin, 3);
  EXPECT_EQ(both.attention.decode.num_tokens, 4);
  EXPECT_EQ(numbers(both.logit_rows), (std::vector<int32_t>{2, 3, 4, 5, 6}));
}

TEST(BatchPadding, ChangesNothingWhereThereIsEnough) {
  const ThreeRequests r;
  BatchBuffer buffer(4);

  const Batch batch = buffer.build({}, r.decode, {.requests = 2, .pages = 1}).value();

  EXPECT_EQ(batch.num_tokens(), 3);
  EXPECT_EQ(batch.attention.decode.block_table.dim(1), 3);
}

}  // namespace
}  // namespace fathom
