#include "fathom/serve/kv_events/kv_event.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/fake_engine.h"

namespace fathom::serve {
namespace {

using Type = KvEvent::Type;

PrefixKey block(uint64_t hash) {
  return {hash, 0};
}

constexpr PrefixKey kRoot = {99, uint64_t{1} << 63};

TEST(KvEventRecorder, JoinsBlocksThatFollowEachOther) {
  KvEventRecorder recorder;
  recorder.on_stored(block(1), kRoot, std::vector<int32_t>{10, 11});
  recorder.on_stored(block(2), block(1), std::vector<int32_t>{12, 13});
  recorder.on_stored(block(7), block(6), std::vector<int32_t>{14, 15});
  recorder.on_stored(block(8), kRoot, std::vector<int32_t>{16, 17});
  recorder.on_removed(block(1));
  recorder.on_removed(block(8));
  recorder.on_stored(block(1), kRoot, std::vector<int32_t>{10, 11});
  recorder.on_cleared();

  const std::vector<KvEvent> expected = {
      {Type::kStored, {1, 2}, std::nullopt, {10, 11, 12, 13}},
      {Type::kStored, {7}, 6, {14, 15}},
      {Type::kStored, {8}, std::nullopt, {16, 17}},
      {Type::kRemoved, {1, 8}, std::nullopt, {}},
      {Type::kStored, {1}, std::nullopt, {10, 11}},
      {Type::kCleared, {}, std::nullopt, {}},
  };
  EXPECT_EQ(recorder.take(), expected);
  EXPECT_TRUE(recorder.empty());
}

// Written by hand from the formats of MessagePack.
TEST(KvBatch, HasTheBytesOfItsForms) {
  const KvEvent removed{Type::kRemoved, {5, 300}, std::nullopt, {}};
  const std::string head = std::string("\x93\xcb\x3f\xf8\0\0\0\0\0\0", 10);

  EXPECT_EQ(encode_kv_batch({.block_size = 2, .medium = "GPU", .dp_rank = 1}, 1.5, {removed}),
            head + "\x91\x84\xa4type\xac" + "BlockRemoved\xac" +
                "block_hashes\x92\x05\xcd\x01\x2c" + "\xa6medium\xa3GPU\xa9group_idx\xc0\x01");
  EXPECT_EQ(encode_kv_batch({.block_size = 2, .form = KvEventForm::kArray}, 1.5, {removed, {}}),
            head + "\x92\x93\xac" + "BlockRemoved\x92\x05\xcd\x01\x2c\xa3" + "CPU" + "\x91\xb0" +
                "AllBlocksCleared" + std::string(1, '\0'));
}

TEST(KvBatch, GivesAStoredBlockEveryFieldOfTheContract) {
  const KvEvent stored{Type::kStored, {UINT64_MAX}, std::nullopt, {1, 70'000}};

  EXPECT_EQ(encode_kv_batch({.block_size = 2}, 0, {stored}),
            std::string("\x93\xcb\0\0\0\0\0\0\0\0\x91\x8c", 12) + "\xa4type\xab" + "BlockStored" +
                "\xac" + "block_hashes\x91\xcf\xff\xff\xff\xff\xff\xff\xff\xff" +
                "\xb1parent_block_hash\xc0" + "\xa9token_ids\x92\x01" +
                std::string("\xce\x00\x01\x11\x70", 5) + "\xaa" + "block_size\x02" +
                "\xa7lora_id\xc0" + "\xa6medium\xa3" + "CPU" + "\xa9lora_name\xc0" + "\xaa" +
                "extra_keys\xc0" + "\xa9group_idx\xc0" + "\xb2kv_cache_spec_kind\xc0" +
                "\xbckv_cache_spec_sliding_window\xc0" + std::string(1, '\0'));
}

// An engine whose cache is watched.
struct Watched {
  explicit Watched(const EngineLimits& limits = {}) : bench(limits) {
    bench.core->set_prefix_observer(&recorder);
    block_size = bench.model.cache_layout().block_tokens;
  }

  KvEventRecorder recorder;
  EngineBench bench;
  int64_t block_size = 0;
};

TEST(KvEvents, TellWhichBlocksOfAPromptCanBeFound) {
  Watched w;
  const std::vector<int32_t> prompt = prompt_of(2 * w.block_size + 1, 3);

  w.bench.alone(prompt, greedy(2));

  const std::vector<KvEvent> events = w.recorder.take();
  ASSERT_EQ(events.size(), 1u);
  EXPECT_EQ(events[0].type, Type::kStored);
  EXPECT_EQ(events[0].hashes.size(), 2u);
  EXPECT_NE(events[0].hashes[0], events[0].hashes[1]);
  EXPECT_EQ(events[0].parent, std::nullopt);
  EXPECT_EQ(events[0].tokens, std::vector<int32_t>(prompt.begin(), prompt.end() - 1));
}

TEST(KvEvents, TellNothingOfBlocksThatWereFound) {
  Watched w;
  const std::vector<int32_t> prompt = prompt_of(2 * w.block_size + 1, 3);
  w.bench.alone(prompt, greedy(2));
  const std::vector<KvEvent> first = w.recorder.take();

  std::vector<int32_t> longer = prompt_of(3 * w.block_size + 1, 3);
  EXPECT_GT(w.bench.alone(longer, greedy(2)).cached, 0);

  const std::vector<KvEvent> events = w.recorder.take();
  ASSERT_EQ(events.size(), 1u);
  EXPECT_EQ(events[0].hashes.size(), 1u);
  EXPECT_EQ(events[0].parent, first[0].hashes[1]);
  EXPECT_EQ(events[0].tokens,
            std::vector<int32_t>(longer.end() - 1 - w.block_size, longer.end() - 1));
}

TEST(KvEvents, HashTheSameTokensOfTwoTenantsApart) {
  Watched w;
  const std::vector<int32_t> prompt = prompt_of(w.block_size + 1, 3);
  w.bench.submit(prompt, greedy(1), "a");
  w.bench.submit(prompt, greedy(1), "b");
  w.bench.run();

  const std::vector<KvEvent> events = w.recorder.take();
  ASSERT_EQ(events.size(), 2u);
  EXPECT_EQ(events[0].tokens, events[1].tokens);
  EXPECT_NE(events[0].hashes, events[1].hashes);
}

// What a subscriber that follows the events knows must be what the cache can find, at every step.
TEST(KvEvents, FollowEvictionsInOrder) {
  Watched w({.num_pages = 12});
  std::set<uint64_t> known;
  int64_t num_removed = 0;
  for (int32_t first = 0; first < 10; ++first) {
    w.bench.alone(prompt_of(3 * w.block_size + 1, first), greedy(3));
    for (const KvEvent& event : w.recorder.take()) {
      ASSERT_NE(event.type, Type::kCleared);
      for (const uint64_t hash : event.hashes) {
        if (event.type == Type::kStored) {
          EXPECT_TRUE(known.insert(hash).second) << "stored twice";
        } else {
          EXPECT_EQ(known.erase(hash), 1u) << "removed and not known";
          ++num_removed;
        }
      }
    }
    EXPECT_EQ(static_cast<int64_t>(known.size()), w.bench.core->stats().cached_pages);
  }
  EXPECT_GT(num_removed, 0);
}

TEST(KvEvents, TellOfAReset) {
  Watched w;
  w.bench.alone(prompt_of(2 * w.block_size + 1, 3), greedy(2));
  w.recorder.take();

  w.bench.core->drop_prefix_cache();

  EXPECT_THAT(w.recorder.take(), testing::ElementsAre(KvEvent{}));
  EXPECT_EQ(w.bench.core->stats().cached_pages, 0);
}

TEST(KvEvents, AreNotMadeWithoutAPrefixCache) {
  Watched w({.prefix_cache = false});
  w.bench.alone(prompt_of(2 * w.block_size + 1, 3), greedy(2));
  w.bench.core->drop_prefix_cache();

  EXPECT_TRUE(w.recorder.empty());
}

}  // namespace
}  // namespace fathom::serve
