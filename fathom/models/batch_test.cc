#include "fathom/models/batch.h"

#include <algorithm>
#include <gtest/gtest.h>

#include "tests/support/pooled_layout.h"

namespace fathom {
namespace {

std::vector<int32_t> numbers(const View& v) {
  return {v.as<int32_t>(), v.as<int32_t>() + v.numel()};
}

CacheLayout one_group(int64_t block) {
  return {.block_tokens = block,
          .groups = {{.name = "rows",
                      .layers = {0},
                      .rows = block,
                      .codec = PageCodec::dense("rows", Format::kF32, 1, nullptr)}}};
}

std::vector<int64_t> slots_of(const Batch& batch, size_t group) {
  const View& v = batch.slots[group];
  return {v.as<int64_t>(), v.as<int64_t>() + v.numel()};
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
  BatchBuffer buffer(one_group(4));

  const Batch batch = buffer.build({}, r.decode, {.requests = 5, .pages = 4}).value();

  const TokenRange& range = batch.attention.decode;
  EXPECT_EQ(range.num_tokens, 5);
  EXPECT_EQ(numbers(batch.token_ids), (std::vector<int32_t>{70, 71, 72, 71, 71}));
  EXPECT_EQ(numbers(batch.attention.positions), (std::vector<int32_t>{9, 3, 6, 3, 3}));
  EXPECT_EQ(numbers(batch.logit_rows), (std::vector<int32_t>{0, 1, 2, 3, 4}));
  EXPECT_EQ(numbers(range.query_offsets_view), (std::vector<int32_t>{0, 1, 2, 3, 4, 5}));
  EXPECT_EQ(numbers(range.kv_lens_view), (std::vector<int32_t>{10, 4, 7, 4, 4}));
  EXPECT_EQ(slots_of(batch, 0), (std::vector<int64_t>{13, 19, 26, -1, -1}));
  EXPECT_EQ(numbers(range.block_table),
            (std::vector<int32_t>{1, 2, 3, 0, 4, 0, 0, 0, 5, 6, 0, 0, 4, 0, 0, 0, 4, 0, 0, 0}));
  // A replay has other lengths: shapes follow from what the table has room for.
  EXPECT_EQ(range.most_keys(), 16);
  EXPECT_EQ(range.keys_of(1), 16);
}

TEST(BatchPadding, LeavesPromptsAndEmptyRangesAlone) {
  const ThreeRequests r;
  const std::vector<int32_t> prompt{1, 2, 3};
  const std::vector<int32_t> page{7};
  const std::vector<SequenceStep> prefill{{.tokens = prompt, .cached = 0, .pages = page}};
  BatchBuffer buffer(one_group(4));

  const Batch alone = buffer.build(prefill, {}, {.requests = 8, .pages = 8}).value();
  EXPECT_EQ(alone.num_tokens(), 3);
  EXPECT_EQ(alone.attention.decode.num_requests(), 0);
  EXPECT_EQ(alone.attention.prefill.block_table.dim(1), 1);

  const Batch both = buffer.build(prefill, r.decode, {.requests = 4, .pages = 3}).value();
  EXPECT_EQ(both.attention.prefill.num_tokens, 3);
  EXPECT_EQ(both.attention.prefill.most_keys(), 3);
  EXPECT_EQ(both.attention.decode.most_keys(), 12);
  EXPECT_EQ(both.attention.decode.token_begin, 3);
  EXPECT_EQ(both.attention.decode.num_tokens, 4);
  EXPECT_EQ(numbers(both.logit_rows), (std::vector<int32_t>{2, 3, 4, 5, 6}));
}

TEST(BatchPadding, ChangesNothingWhereThereIsEnough) {
  const ThreeRequests r;
  BatchBuffer buffer(one_group(4));

  const Batch batch = buffer.build({}, r.decode, {.requests = 2, .pages = 1}).value();

  EXPECT_EQ(batch.num_tokens(), 3);
  EXPECT_EQ(batch.attention.decode.block_table.dim(1), 3);
}

TEST(BatchPadding, CopiesHaveAsManyTokensAsTheRequests) {
  const std::vector<int32_t> tokens{70, 71, 72, 73};
  const std::vector<int32_t> pages{1, 2, 3};
  const std::span<const int32_t> ids(tokens);
  const std::vector<SequenceStep> decode{{.tokens = ids.subspan(0, 2),
                                          .cached = 5,
                                          .pages = std::span(pages).subspan(0, 2),
                                          .logits = LogitRows::kAll},
                                         {.tokens = ids.subspan(2, 2),
                                          .cached = 1,
                                          .pages = std::span(pages).subspan(2, 1),
                                          .logits = LogitRows::kAll}};
  BatchBuffer buffer(one_group(4));

  const Batch batch = buffer.build({}, decode, {.requests = 4, .pages = 2}).value();

  EXPECT_EQ(numbers(batch.token_ids), (std::vector<int32_t>{70, 71, 72, 73, 72, 73, 72, 73}));
  EXPECT_EQ(numbers(batch.attention.positions), (std::vector<int32_t>{5, 6, 1, 2, 1, 2, 1, 2}));
  EXPECT_EQ(numbers(batch.logit_rows), (std::vector<int32_t>{0, 1, 2, 3, 4, 5, 6, 7}));
  EXPECT_EQ(slots_of(batch, 0), (std::vector<int64_t>{9, 10, 13, 14, -1, -1, -1, -1}));
  EXPECT_EQ(numbers(batch.attention.decode.query_offsets_view),
            (std::vector<int32_t>{0, 2, 4, 6, 8}));
}

// A request with fewer tokens is padded by its caller. Logits are those of the last token that is
// read, and every request counts for as many rows of them.
TEST(BatchPadding, LogitsAreOfTokensBeforeThePadding) {
  const std::vector<int32_t> tokens{70, 71, 71, 72, 72, 72};
  const std::vector<int32_t> pages{1, 2, 3};
  const std::span<const int32_t> ids(tokens);
  std::vector<SequenceStep> decode{{.tokens = ids.subspan(0, 3),
                                    .cached = 4,
                                    .pages = std::span(pages).subspan(0, 2),
                                    .padding = 1},
                                   {.tokens = ids.subspan(3, 3),
                                    .cached = 0,
                                    .pages = std::span(pages).subspan(2, 1),
                                    .logits = LogitRows::kNone,
                                    .padding = 2},
                                   {.tokens = ids.subspan(3, 3),
                                    .cached = 0,
                                    .pages = std::span(pages).subspan(2, 1),
                                    .padding = 2}};
  BatchBuffer buffer(one_group(4));

  const Batch batch = buffer.build({}, decode, {.requests = 4, .pages = 2}).value();

  EXPECT_EQ(batch.num_tokens(), 12);
  EXPECT_EQ(numbers(batch.logit_rows), (std::vector<int32_t>{1, 6, 2, 3}));
  EXPECT_EQ(slots_of(batch, 0),
            (std::vector<int64_t>{8, 9, 10, 12, 13, 14, 12, 13, 14, -1, -1, -1}));
  decode[0].logits = decode[2].logits = LogitRows::kNone;
  EXPECT_EQ(buffer.build({}, decode, {.requests = 4}).value().num_logits(), 0);
  decode[0].logits = LogitRows::kAll;
  EXPECT_EQ(numbers(buffer.build({}, decode).value().logit_rows), (std::vector<int32_t>{0, 1}));
  decode[0].padding = 3;
  EXPECT_NE(buffer.build({}, decode).status().message().find("3 new tokens, 3 of them padding"),
            std::string::npos);
}

// Tokens go to a row each in one group, to one row for every four in another, and round a ring of
// six rows in a third, which has room for the last of a long step alone.
TEST(BatchSlots, FollowTheExtentOfEachGroup) {
  const PageCodec codec = PageCodec::dense("rows", Format::kF32, 1, nullptr);
  const CacheLayout layout{
      .block_tokens = 8,
      .groups = {{.name = "rows", .layers = {0}, .rows = 8, .codec = codec},
                 {.name = "fours", .layers = {0}, .tokens_per_row = 4, .rows = 2, .codec = codec},
                 {.name = "window",
                  .layers = {0},
                  .extent = CacheExtent::kWindow,
                  .window = 4,
                  .rows = 6,
                  .codec = codec},
                 {.name = "state",
                  .layers = {0},
                  .extent = CacheExtent::kState,
                  .rows = 1,
                  .codec = codec}}};
  const std::vector<int32_t> tokens(9);
  const std::vector<int32_t> pages{5, 2};
  const std::vector<SequenceStep> prefill{
      {.tokens = tokens, .cached = 5, .pages = pages, .slot = 3}};
  BatchBuffer buffer(layout);

  const Batch batch = buffer.build(prefill, {}).value();

  EXPECT_EQ(slots_of(batch, 0), (std::vector<int64_t>{45, 46, 47, 16, 17, 18, 19, 20, 21}));
  EXPECT_EQ(slots_of(batch, 1), (std::vector<int64_t>{-1, -1, 11, -1, -1, -1, 4, -1, -1}));
  EXPECT_EQ(slots_of(batch, 2), (std::vector<int64_t>{-1, -1, -1, 20, 21, 22, 23, 18, 19}));
  EXPECT_EQ(slots_of(batch, 3), std::vector<int64_t>(9, -1));
  EXPECT_EQ(numbers(batch.attention.prefill.request_slots), std::vector<int32_t>{3});

  const std::vector<SequenceStep> without{{.tokens = tokens, .cached = 5, .pages = pages}};
  EXPECT_EQ(buffer.build(without, {}).status().code(), StatusCode::kInvalidArgument);
}

std::vector<int64_t> long_numbers(const View& v) {
  return {v.as<int64_t>(), v.as<int64_t>() + v.numel()};
}

TEST(BatchPooled, RowsAreGatheredFromTheStepAndFromTheRing) {
  BatchBuffer buffer(pooled_rows());
  const std::vector<int32_t> tokens(6, 70);
  const std::vector<int32_t> pages{5, 3};

  // Tokens 6 to 11 complete the rows of tokens 4 to 7 and 8 to 11.
  const Batch batch =
      buffer
          .build(
              std::vector<SequenceStep>{{.tokens = tokens, .cached = 6, .pages = pages, .slot = 2}},
              {})
          .value();

  EXPECT_FALSE(batch.pooled[0].slots.present());
  const PooledRows& rows = batch.pooled[1];
  EXPECT_EQ(numbers(rows.positions), (std::vector<int32_t>{4, 8}));
  // Row 1 of page 5, row 0 of page 3.
  EXPECT_EQ(long_numbers(rows.slots), (std::vector<int64_t>{11, 6}));
  // Tokens of the step are 0 to 5; slot s of the ring is 6 + s, and slot 2 has 24 to 35.
  const auto ring = [](int64_t position) { return 6 + 2 * 12 + position % 12; };
  EXPECT_EQ(long_numbers(rows.gather),
            (std::vector<int64_t>{ring(0), ring(1), ring(2), ring(3), ring(4), ring(5), 0, 1,  //
                                  ring(4), ring(5), 0, 1, 2, 3, 4, 5}));
}

TEST(BatchPooled, NothingStandsBeforeTheFirstToken) {
  BatchBuffer buffer(pooled_rows());
  const std::vector<int32_t> tokens(5, 70);
  const std::vector<int32_t> pages{1};

  const Batch batch =
      buffer.build(std::vector<SequenceStep>{{.tokens = tokens, .pages = pages, .slot = 0}}, {})
          .value();

  // The second row that five tokens might complete is not complete.
  EXPECT_EQ(long_numbers(batch.pooled[1].slots), (std::vector<int64_t>{2, -1}));
  EXPECT_EQ(long_numbers(batch.pooled[1].gather),
            (std::vector<int64_t>{-1, -1, -1, -1, 0, 1, 2, 3,  //
                                  -1, -1, -1, -1, -1, -1, -1, -1}));
}

// As many rows whatever is complete, so that a captured step serves every position.
TEST(BatchPooled, CopiesOfARequestCompleteNothing) {
  BatchBuffer buffer(pooled_rows());
  const int32_t token = 70;
  const std::vector<int32_t> pages{1};
  for (const int64_t cached : {6, 7}) {
    const std::vector<SequenceStep> decode{
        {.tokens = {&token, 1}, .cached = cached, .pages = pages, .slot = 0}};

    const Batch batch = buffer.build({}, decode, {.requests = 3, .pages = 1}).value();

    EXPECT_EQ(long_numbers(batch.pooled[1].slots),
              (std::vector<int64_t>{cached == 7 ? 3 : -1, -1, -1}));
  }
}

// Seven tokens before; a root in row 7, two behind it, one behind the first of these and one behind
// that; and a chain of two beside it.
std::vector<uint64_t> masks_of(const Batch& batch) {
  const View& masks = batch.attention.decode.tree_masks;
  const auto* at = masks.as<const uint64_t>();
  return {at, at + masks.dim(0)};
}

TEST(BatchTrees, TokensStandBehindTheirPathAndSeeIt) {
  const std::vector<int32_t> tree{50, 51, 52, 53, 54};
  const std::vector<int32_t> parents{-1, 0, 0, 1, 3};
  const std::vector<int32_t> pages{2, 5, 1};
  const std::vector<int32_t> chain{60, 61};
  const std::vector<int32_t> other{3};
  const std::vector<SequenceStep> decode{
      {.tokens = tree, .cached = 7, .pages = pages, .logits = LogitRows::kAll, .parents = parents},
      {.tokens = chain, .cached = 1, .pages = other}};
  BatchBuffer buffer(one_group(4));

  const Batch batch = buffer.build({}, decode).value();

  EXPECT_EQ(numbers(batch.attention.positions), (std::vector<int32_t>{7, 8, 8, 9, 10, 1, 2}));
  EXPECT_EQ(slots_of(batch, 0), (std::vector<int64_t>{23, 4, 5, 6, 7, 13, 14}));
  EXPECT_EQ(numbers(batch.attention.decode.kv_lens_view), (std::vector<int32_t>{12, 3}));
  // The roots lie before the trees, those of chains too.
  EXPECT_EQ(numbers(batch.attention.decode.tree_begins), (std::vector<int32_t>{8, 2}));
  EXPECT_EQ(masks_of(batch), (std::vector<uint64_t>{0, 0b1, 0b10, 0b101, 0b1101, 0, 0b1}));
  EXPECT_FALSE(batch.attention.prefill.tree_masks.present());
  EXPECT_FALSE(
      buffer.build({}, std::span(decode).subspan(1)).value().attention.decode.tree_masks.present());
}

// A later level of a tree whose first rows are in the cache.
TEST(BatchTrees, GoOnBehindRowsThatAreThere) {
  const std::vector<int32_t> tokens{70, 71};
  const std::vector<int32_t> parents{-1, -1, 0, 1};
  const std::vector<int32_t> pages{0, 1};
  const std::vector<SequenceStep> decode{
      {.tokens = tokens, .cached = 5, .pages = pages, .parents = parents}};
  BatchBuffer buffer(one_group(4));

  const Batch batch = buffer.build({}, decode).value();

  EXPECT_EQ(numbers(batch.attention.positions), (std::vector<int32_t>{4, 4}));
  EXPECT_EQ(slots_of(batch, 0), (std::vector<int64_t>{5, 6}));
  EXPECT_EQ(numbers(batch.attention.decode.tree_begins), (std::vector<int32_t>{3}));
  EXPECT_EQ(masks_of(batch), (std::vector<uint64_t>{0b101, 0b1010}));
}

// Requests that are not there see what the one that they copy sees.
TEST(BatchTrees, CopiesHaveTheTreeOfTheShortest) {
  const std::vector<int32_t> tokens{50, 51, 52};
  const std::vector<int32_t> parents{-1, 0, 0};
  const std::vector<int32_t> chain_like{-1, 0, 1};
  const std::vector<int32_t> pages{0, 1, 2};
  const std::vector<SequenceStep> decode{
      {.tokens = tokens, .cached = 6, .pages = pages, .parents = chain_like},
      {.tokens = tokens, .cached = 2, .pages = pages, .parents = parents},
      {.tokens = tokens, .cached = 5, .pages = pages, .parents = chain_like}};
  BatchBuffer buffer(one_group(4));

  const Batch batch = buffer.build({}, decode, {.requests = 4, .pages = 4}).value();

  EXPECT_EQ(numbers(batch.attention.decode.tree_begins), (std::vector<int32_t>{7, 3, 6, 3}));
  EXPECT_EQ(masks_of(batch),
            (std::vector<uint64_t>{0, 0b1, 0b11, 0, 0b1, 0b10, 0, 0b1, 0b11, 0, 0b1, 0b10}));
}

TEST(BatchTrees, AMaskHasRoomForSixtyFourRowsBehindARoot) {
  const auto built = [](size_t tokens, bool has_root, size_t chain) {
    std::vector<int32_t> parents(tokens, has_root ? 0 : -1);
    parents[0] = -1;
    const std::vector<int32_t> ids(std::max(tokens, chain), 3);
    std::vector<int32_t> pages(40);
    const std::vector<SequenceStep> decode{
        {.tokens = std::span(ids).first(tokens), .cached = 1, .pages = pages, .parents = parents},
        {.tokens = std::span(ids).first(chain), .cached = 5, .pages = pages}};
    BatchBuffer buffer(one_group(4));
    const auto batch = buffer.build({}, decode);
    return batch.ok() ? str_cat(masks_of(*batch)[tokens - 1] >> 62) : batch.status().message();
  };

  EXPECT_EQ(built(65, true, 1), "2");
  EXPECT_EQ(built(64, false, 65), "2");
  EXPECT_EQ(built(66, true, 1),
            "request 0 of a step with trees has 66 rows of its own, expected at most 64 behind a "
            "root");
  EXPECT_EQ(built(65, false, 1),
            "request 0 of a step with trees has 65 rows of its own, expected at most 64 behind a "
            "root");
  EXPECT_EQ(built(3, true, 66),
            "request 1 of a step with trees has 66 rows of its own, expected at most 64 behind a "
            "root");
}

// Two paths, 5 6 7 each, complete the row of tokens 4 to 7 side by side; and a chain beside them.
TEST(BatchTrees, EachPathCompletesRowsOfItsOwn) {
  BatchBuffer buffer(pooled_rows());
  const std::vector<int32_t> tokens{50, 51, 52, 53, 54};
  const std::vector<int32_t> parents{-1, 0, 0, 1, 2};
  const std::vector<int32_t> pages{5, 3, 7};
  const std::vector<int32_t> chain{60, 61};
  const std::vector<int32_t> other{1};
  const std::vector<SequenceStep> decode{
      {.tokens = tokens, .cached = 5, .pages = pages, .slot = 2, .parents = parents},
      {.tokens = chain, .cached = 2, .pages = other, .slot = 0}};

  const Batch batch = buffer.build({}, decode).value();

  const PooledRows& rows = batch.pooled[1];
  // Row 1 of the sequence and the one behind it, which is not yet in use; row 0 of the other.
  EXPECT_EQ(long_numbers(rows.slots), (std::vector<int64_t>{-1, -1, -1, 11, 6, -1, 2}));
  EXPECT_EQ(numbers(rows.positions), (std::vector<int32_t>{0, 0, 0, 4, 4, 0, 0}));
  EXPECT_EQ(long_numbers(rows.tree_masks), (std::vector<int64_t>{0, 0, 0, 0b1, 0b10, 0, 0b1}));
  EXPECT_EQ(batch.attention.decode.block_table.dim(1), 3);
  const auto ring = [](int64_t slot, int64_t position) { return 7 + slot * 12 + position % 12; };
  const std::vector<int64_t> gather = long_numbers(rows.gather);
  const auto entries_of = [&](int64_t token) {
    return std::vector(gather.begin() + 8 * token, gather.begin() + 8 * (token + 1));
  };
  EXPECT_EQ(entries_of(3), (std::vector<int64_t>{ring(2, 0), ring(2, 1), ring(2, 2), ring(2, 3),
                                                 ring(2, 4), 0, 1, 3}));
  EXPECT_EQ(entries_of(4), (std::vector<int64_t>{ring(2, 0), ring(2, 1), ring(2, 2), ring(2, 3),
                                                 ring(2, 4), 0, 2, 4}));
  EXPECT_EQ(entries_of(6), (std::vector<int64_t>{-1, -1, -1, -1, ring(0, 0), ring(0, 1), 5, 6}));
}

// Entries of tokens that a tree had in an earlier step are in the ring, where these lie.
TEST(BatchTrees, RowsArePooledFromEarlierLevels) {
  BatchBuffer buffer(pooled_rows());
  const std::vector<int32_t> tokens{70, 71};
  const std::vector<int32_t> parents{-1, -1, 0, 1};
  const std::vector<int32_t> pages{0, 1};
  const std::vector<SequenceStep> decode{
      {.tokens = tokens, .cached = 4, .pages = pages, .slot = 0, .parents = parents}};

  const PooledRows rows = buffer.build({}, decode).value().pooled[1];

  EXPECT_EQ(long_numbers(rows.slots), (std::vector<int64_t>{0, 1}));
  EXPECT_EQ(long_numbers(rows.gather), (std::vector<int64_t>{-1, -1, -1, -1, 2, 3, 4, 0,  //
                                                             -1, -1, -1, -1, 2, 3, 5, 1}));
}

TEST(BatchTrees, CopiesCompleteNothing) {
  BatchBuffer buffer(pooled_rows());
  const std::vector<int32_t> tokens{50, 51, 52};
  const std::vector<int32_t> parents{-1, 0, 0};
  const std::vector<int32_t> pages{0, 1, 2};
  const std::vector<SequenceStep> decode{
      {.tokens = tokens, .cached = 6, .pages = pages, .slot = 1, .parents = parents}};

  const Batch batch = buffer.build({}, decode, {.requests = 2, .pages = 4}).value();

  EXPECT_EQ(long_numbers(batch.pooled[1].slots), (std::vector<int64_t>{-1, 1, 2, -1, -1, -1}));
  EXPECT_EQ(long_numbers(batch.pooled[1].tree_masks),
            (std::vector<int64_t>{0, 0b1, 0b10, 0, 0b1, 0b10}));
}

TEST(BatchTrees, RingsMustHoldThem) {
  BatchBuffer buffer(pooled_rows());
  const std::vector<int32_t> tokens(6, 50);
  const std::vector<int32_t> parents{-1, 0, 0, 0, 0, 0};
  const std::vector<int32_t> pages(8);
  const std::vector<SequenceStep> decode{
      {.tokens = tokens, .cached = 8, .pages = pages, .slot = 0, .parents = parents}};

  EXPECT_EQ(buffer.build({}, decode).status().message(),
            "request 0 of a step is a tree of 6 rows, and the rings of this model can be cut back "
            "by 4 tokens, expected at most 5 rows");
}

TEST(BatchTrees, WhatIsNoTreeIsRefused) {
  const std::vector<int32_t> tokens{1, 2, 3};
  const std::vector<int32_t> pages{0, 1};
  const auto refused = [&](std::vector<int32_t> parents, CacheLayout layout, bool prompt = false) {
    const std::vector<SequenceStep> step{
        {.tokens = tokens, .cached = 2, .pages = pages, .parents = parents}};
    BatchBuffer buffer(std::move(layout));
    const auto built = prompt ? buffer.build(step, {}) : buffer.build({}, step);
    return built.ok() ? std::string() : built.status().message();
  };

  EXPECT_EQ(refused({-1, 0, 1}, one_group(4)), "");
  EXPECT_EQ(refused({-1, 1, 0}, one_group(4)), "row 1 of a tree follows row 1, expected -1 to 0");
  EXPECT_EQ(refused({-1, 0}, one_group(4)),
            "request 0 of a step has 3 new tokens after 2 in a tree of 2, expected a tree that "
            "holds the new ones");
  EXPECT_EQ(refused({-1, 0, 1}, one_group(4), true),
            "a prompt of a step is a tree of tokens, expected it to decode");
  CacheLayout pooled = one_group(4);
  pooled.groups[0].tokens_per_row = 2;
  pooled.groups[0].rows = 2;
  EXPECT_EQ(
      refused({-1, 0, 1}, pooled),
      "request 0 of a step is a tree of tokens, and the cache of this model keeps no rows that "
      "nodes could have, expected a chain");
}

}  // namespace
}  // namespace fathom
