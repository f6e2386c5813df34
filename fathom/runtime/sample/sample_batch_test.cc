#include "fathom/runtime/sample/sample_batch.h"

#include <algorithm>
#include <gtest/gtest.h>
#include <limits>
#include <vector>

#include "fathom/base/rng.h"

namespace fathom {
namespace {

constexpr int64_t kIds = 50;
const float kInf = std::numeric_limits<float>::infinity();

/// Rows that differ in everything, and the memory they point to.
struct Requests {
  SamplingParams drawn, greedy, penalised;
  std::vector<int32_t> prompt = {5, 3, 5};
  TokenCounts counts;
  std::vector<int32_t> banned = {7, 8};
  std::vector<SampleRow> rows;

  Requests() {
    drawn.temperature = 0.5f;
    drawn.top_k = 4;
    drawn.top_p = 0.9f;
    drawn.min_p = 0.1f;
    greedy.temperature = 0.0f;
    greedy.top_k = 4;
    greedy.top_p = 0.9f;
    greedy.min_p = 0.1f;
    penalised.repetition_penalty = 1.5f;
    penalised.presence_penalty = 0.25f;
    penalised.frequency_penalty = 0.125f;
    penalised.logit_bias = {{9, 2.0f}};
    counts = TokenCounts(penalised, prompt, 10, kIds);
    counts.add(3);
    rows = {{.params = &drawn, .seed = 11, .stream = 2, .position = 9},
            {.params = &greedy},
            {.params = &penalised, .counts = &counts, .banned = banned}};
  }
};

template <class T>
std::vector<T> values(const View& v) {
  return {v.as<const T>(), v.as<const T>() + v.numel()};
}

/// A block of a room, aligned.
std::vector<std::byte> block_of(const SampleRoom& room) {
  return std::vector<std::byte>(static_cast<size_t>(room.bytes()), std::byte{0xA5});
}

TEST(SampleBatch, PartsHaveTheRowsAndListsOfTheWhole) {
  const Requests r;
  const SampleRoom room = room_of(r.rows);
  std::vector<std::byte> block = block_of(room);
  const SampleBatch whole = pack_samples(block.data(), room, r.rows, 3, kIds);

  const SampleBatch part = whole.rows(1, 2);

  EXPECT_EQ(part.num_rows(), 2);
  EXPECT_EQ(values<float>(part.repetition), (std::vector<float>{1.0f, 1.5f}));
  EXPECT_EQ(values<float>(part.uniform)[1], values<float>(whole.uniform)[2]);
  EXPECT_EQ(values<int32_t>(part.mask_of_row), (std::vector<int32_t>{-1, -1}));
  const auto offsets = values<int32_t>(part.bias_offsets);
  EXPECT_EQ(offsets, (std::vector<int32_t>{0, 0, 3}));
  EXPECT_EQ(values<int32_t>(part.bias_tokens)[static_cast<size_t>(offsets[1])], 9);
}

TEST(SampleBatch, HoldsWhatTheRowsAskFor) {
  const Requests r;
  const SampleRoom room = room_of(r.rows);
  std::vector<std::byte> block = block_of(room);

  const SampleBatch b = pack_samples(block.data(), room, r.rows, 3, kIds);

  EXPECT_TRUE(b.altered && b.drawn);
  EXPECT_EQ(values<float>(b.temperature), (std::vector<float>{0.5f, 0, 1}));
  EXPECT_EQ(values<int32_t>(b.top_k), (std::vector<int32_t>{4, kIds, kIds}));
  EXPECT_EQ(values<float>(b.top_p), (std::vector<float>{0.9f, 1, 1}));
  EXPECT_EQ(values<float>(b.min_p), (std::vector<float>{0.1f, 0, 0}));
  EXPECT_EQ(values<float>(b.uniform)[0], Rng(11, 2, 9).next_uniform());
  EXPECT_EQ(values<float>(b.repetition), (std::vector<float>{1, 1, 1.5f}));
  EXPECT_EQ(values<float>(b.presence), (std::vector<float>{0, 0, 0.25f}));
  EXPECT_EQ(values<float>(b.frequency), (std::vector<float>{0, 0, 0.125f}));
  EXPECT_EQ(values<int32_t>(b.token_offsets), (std::vector<int32_t>{0, 0, 0, 2}));
  EXPECT_EQ(values<int32_t>(b.tokens), (std::vector<int32_t>{5, 3}));
  EXPECT_EQ(values<int32_t>(b.counts), (std::vector<int32_t>{0, 1}));
  EXPECT_EQ(values<int32_t>(b.bias_offsets), (std::vector<int32_t>{0, 0, 0, 3}));
  EXPECT_EQ(values<int32_t>(b.bias_tokens), (std::vector<int32_t>{9, 7, 8}));
  EXPECT_EQ(values<float>(b.bias_values), (std::vector<float>{2, -kInf, -kInf}));
}

TEST(SampleBatch, RowsOfPaddingAreGreedyAndAskForNothing) {
  const Requests r;
  const SampleRoom room{.rows = 8, .listed = 2, .biased = 3};
  std::vector<std::byte> block = block_of(room);

  const SampleBatch b = pack_samples(block.data(), room, std::span(r.rows).subspan(1, 1), 4, kIds);

  EXPECT_FALSE(b.altered || b.drawn);
  EXPECT_EQ(b.num_rows(), 4);
  EXPECT_EQ(values<float>(b.temperature), std::vector<float>(4, 0.0f));
  EXPECT_EQ(values<float>(b.repetition), std::vector<float>(4, 1.0f));
  EXPECT_EQ(values<int32_t>(b.token_offsets), std::vector<int32_t>(5, 0));
  EXPECT_EQ(values<int32_t>(b.bias_offsets), std::vector<int32_t>(5, 0));
}

// What a captured graph counts on.
TEST(SampleBatch, PlacesDependOnTheRoomAlone) {
  const Requests r;
  const SampleRoom room{.rows = 8, .listed = 100, .biased = 20};
  std::vector<std::byte> block = block_of(room);

  const SampleBatch one = pack_samples(block.data(), room, std::span(r.rows).first(1), 1, kIds);
  const SampleBatch all = pack_samples(block.data(), room, r.rows, 8, kIds);

  EXPECT_EQ(one.temperature.data, all.temperature.data);
  EXPECT_EQ(one.uniform.data, all.uniform.data);
  EXPECT_EQ(one.token_offsets.data, all.token_offsets.data);
  EXPECT_EQ(one.bias_values.data, all.bias_values.data);
  EXPECT_EQ(one.counts.data, all.counts.data);
}

TEST(SampleBatch, ACopyOfWhatIsUsedIsTheBatch) {
  const Requests r;
  const SampleRoom room{.rows = 8, .listed = 100, .biased = 20};
  std::vector<std::byte> block = block_of(room);
  std::vector<std::byte> copied = block_of(room);
  const SampleBatch b = pack_samples(block.data(), room, r.rows, 3, kIds);

  for (const SampleBatch::Range& part : b.used(block.data()))
    std::copy_n(block.data() + part.offset, part.bytes, copied.data() + part.offset);
  const SampleBatch copy = b.in_copy(block.data(), copied.data(), true);

  EXPECT_TRUE(copy.top_k.on_device);
  EXPECT_EQ(values<float>(copy.min_p), values<float>(b.min_p));
  EXPECT_EQ(values<int32_t>(copy.bias_offsets), values<int32_t>(b.bias_offsets));
  EXPECT_EQ(values<int32_t>(copy.bias_tokens), values<int32_t>(b.bias_tokens));
  EXPECT_EQ(values<float>(copy.bias_values), values<float>(b.bias_values));
  EXPECT_EQ(values<int32_t>(copy.tokens), values<int32_t>(b.tokens));
  EXPECT_EQ(values<int32_t>(copy.counts), values<int32_t>(b.counts));
  EXPECT_EQ(b.in_copy(block.data(), nullptr, true).counts.data, nullptr);
}

TEST(SampleBatch, MasksLieOneBehindTheOther) {
  Requests r;
  const std::vector<uint32_t> first = {1, 2};
  const std::vector<uint32_t> second = {3, 4};
  r.rows[0].mask = first;
  r.rows[0].most_probable = true;
  r.rows[2].mask = second;
  const SampleRoom room = room_of(r.rows);
  std::vector<std::byte> block = block_of(room);

  const SampleBatch b = pack_samples(block.data(), room, r.rows, 3, kIds);

  EXPECT_EQ(room.words, 4);
  EXPECT_TRUE(b.masked);
  EXPECT_EQ(values<int32_t>(b.mask_of_row), (std::vector<int32_t>{0, -1, 1}));
  EXPECT_EQ(values<int32_t>(b.mask), (std::vector<int32_t>{1, 2, 3, 4}));
  EXPECT_EQ(values<float>(b.temperature), (std::vector<float>{0, 0, 1}));
  EXPECT_EQ(values<int32_t>(b.top_k)[0], kIds);
  EXPECT_EQ(b.used(block.data())[5].bytes, 16);
}

TEST(SampleBatch, WithoutListsOneRangeIsUsed) {
  const Requests r;
  const SampleRoom room{.rows = 8, .listed = 100, .biased = 20};
  std::vector<std::byte> block = block_of(room);

  const auto used =
      pack_samples(block.data(), room, std::span(r.rows).first(2), 8, kIds).used(block.data());

  EXPECT_EQ(used[0].offset, 0);
  EXPECT_GT(used[0].bytes, 8 * 8 * 4);
  for (size_t i = 1; i < used.size(); ++i)
    EXPECT_EQ(used[i].bytes, 0);
}

TEST(SampleRoom, BytesArePlainToCount) {
  EXPECT_EQ((SampleRoom{.rows = 64, .listed = 1000, .biased = 100}.bytes()),
            9 * 64 * 4 + 2 * 272 + 2 * 400 + 2 * 4000);
}

}  // namespace
}  // namespace fathom
