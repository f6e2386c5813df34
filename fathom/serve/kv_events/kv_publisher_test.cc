#include "fathom/serve/kv_events/kv_publisher.h"

#include <chrono>
#include <gtest/gtest.h>

namespace fathom::serve {
namespace {

constexpr PrefixKey kRoot = {0, uint64_t{1} << 63};
constexpr int kPatienceMs = 10'000;

KvPublisherSettings settings() {
  return {.endpoint = "tcp://127.0.0.1:*",
          .replay_endpoint = "tcp://127.0.0.1:*",
          .pod_id = "pod-1",
          .model_name = "tiny",
          .frame = {.block_size = 2}};
}

std::string big_endian(uint64_t value) {
  std::string bytes;
  for (int shift = 56; shift >= 0; shift -= 8)
    bytes += static_cast<char>((value >> shift) & 0xff);
  return bytes;
}

// The bytes of a batch but for its time, which stands in bytes 2 to 9.
std::string without_time(const std::string& batch) {
  return batch.size() < 10 ? batch : batch.substr(0, 2) + batch.substr(10);
}

std::string stored(uint64_t hash) {
  const KvEvent event{KvEvent::Type::kStored, {hash}, std::nullopt, {7, 8}};
  return without_time(encode_kv_batch({.block_size = 2}, 0, {event}));
}

class KvPublisherTest : public testing::Test {
 protected:
  void SetUp() override {
#ifdef __SANITIZE_THREAD__
    GTEST_SKIP() << "the thread sanitizer does not see how libzmq orders its memory";
#endif
    auto opened = ZmqLibrary::open();
    if (!opened.ok()) GTEST_SKIP() << opened.status().message();
    context_ = std::make_shared<ZmqContext>(**opened);
  }

  std::unique_ptr<KvPublisher> publisher(KvPublisherSettings s = settings()) {
    auto made = KvPublisher::create(std::move(s));
    EXPECT_TRUE(made.ok()) << made.status().message();
    return made.ok() ? std::move(made).value() : nullptr;
  }

  std::unique_ptr<ZmqSocket> connected(ZmqSocketType type, const std::string& endpoint) {
    auto socket = ZmqSocket::create(context_, type, 1000);
    EXPECT_TRUE(socket.ok());
    EXPECT_TRUE((*socket)->attach("connect:" + endpoint).ok());
    return std::move(socket).value();
  }

  // Sequence and bytes of all batches from `start` on, until the end marker.
  std::vector<std::pair<std::string, std::string>> replay(const KvPublisher& from, uint64_t start) {
    const auto dealer = connected(ZmqSocketType::kDealer, from.replay_endpoint());
    EXPECT_TRUE(dealer->send({"", big_endian(start)}));
    std::vector<std::pair<std::string, std::string>> batches;
    while (true) {
      const std::vector<std::string> frames = dealer->receive(kPatienceMs);
      EXPECT_EQ(frames.size(), 3u) << "no answer, or of another form";
      if (frames.size() != 3) return batches;
      EXPECT_EQ(frames[0], "");
      if (frames[1] == big_endian(UINT64_MAX)) {
        EXPECT_EQ(frames[2], "");
        return batches;
      }
      batches.emplace_back(frames[1], without_time(frames[2]));
    }
  }

  static void store(KvPublisher& to, uint64_t hash) {
    to.on_stored({hash, 0}, kRoot, std::vector<int32_t>{7, 8});
    to.end_step();
  }

  // Waits for the publisher's thread, which has no other way to say that it is done.
  static bool wait_for(const KvPublisher& p, int64_t published) {
    const auto end = std::chrono::steady_clock::now() + std::chrono::milliseconds(kPatienceMs);
    while (p.num_published() < published) {
      if (std::chrono::steady_clock::now() > end) return false;
      std::this_thread::yield();
    }
    return true;
  }

  std::shared_ptr<ZmqContext> context_;
};

TEST_F(KvPublisherTest, PublishesThreeFramesABatch) {
  const auto p = publisher();
  const auto sub = connected(ZmqSocketType::kSub, p->endpoint());
  sub->subscribe("kv@pod-1@");
  // A subscription takes a while to arrive: batches are lost until then.
  std::vector<std::string> frames;
  uint64_t sent = 0;
  for (; frames.empty() && sent < 500; ++sent) {
    store(*p, 1000 + sent);
    frames = sub->receive(20);
  }

  ASSERT_EQ(frames.size(), 3u);
  EXPECT_EQ(frames[0], "kv@pod-1@tiny");
  uint64_t sequence = 0;
  for (const char c : frames[1])
    sequence = (sequence << 8) | static_cast<unsigned char>(c);
  EXPECT_EQ(frames[1].size(), 8u);
  EXPECT_LT(sequence, sent);
  EXPECT_EQ(without_time(frames[2]), stored(1000 + sequence));
  EXPECT_EQ(p->num_dropped(), 0);
}

TEST_F(KvPublisherTest, ConnectsToACollector) {
  auto collector = ZmqSocket::create(context_, ZmqSocketType::kSub, 1000);
  ASSERT_TRUE(collector.ok());
  ASSERT_TRUE((*collector)->attach("tcp://127.0.0.1:*").ok());
  (*collector)->subscribe("");
  KvPublisherSettings s = settings();
  s.endpoint = "connect:" + (*collector)->endpoint();
  const auto p = publisher(s);
  ASSERT_NE(p, nullptr);

  std::vector<std::string> frames;
  for (uint64_t i = 0; frames.empty() && i < 500; ++i) {
    store(*p, i);
    frames = (*collector)->receive(20);
  }

  ASSERT_EQ(frames.size(), 3u);
  EXPECT_EQ(frames[0], p->topic());
}

TEST_F(KvPublisherTest, ReplaysFromASequenceOn) {
  const auto p = publisher();
  for (uint64_t i = 0; i < 5; ++i)
    store(*p, 50 + i);
  ASSERT_TRUE(wait_for(*p, 5));

  const auto all = replay(*p, 0);
  ASSERT_EQ(all.size(), 5u);
  for (uint64_t i = 0; i < 5; ++i) {
    EXPECT_EQ(all[i].first, big_endian(i));
    EXPECT_EQ(all[i].second, stored(50 + i));
  }
  const auto tail = replay(*p, 3);
  ASSERT_EQ(tail.size(), 2u);
  EXPECT_EQ(tail[0].first, big_endian(3));
  EXPECT_TRUE(replay(*p, 5).empty());
}

TEST_F(KvPublisherTest, ReplaysMoreThanASocketHoldsByDefault) {
  const auto p = publisher();
  for (uint64_t i = 0; i < 3000; ++i) {
    store(*p, i);
    if (i % 500 == 499) {
      ASSERT_TRUE(wait_for(*p, static_cast<int64_t>(i) + 1));
    }
  }

  const auto all = replay(*p, 0);

  ASSERT_EQ(all.size(), 3000u);
  EXPECT_EQ(all.back().second, stored(2999));
}

TEST_F(KvPublisherTest, KeepsTheLastBatchesOnly) {
  KvPublisherSettings s = settings();
  s.kept_batches = 3;
  const auto p = publisher(s);
  for (uint64_t i = 0; i < 10; ++i)
    store(*p, i);
  ASSERT_TRUE(wait_for(*p, 10));

  const auto kept = replay(*p, 0);

  ASSERT_EQ(kept.size(), 3u);
  EXPECT_EQ(kept[0].first, big_endian(7));
}

TEST_F(KvPublisherTest, KeepsNoMoreBytesThanAllowed) {
  KvPublisherSettings s = settings();
  s.kept_bytes = static_cast<int64_t>(2 * (stored(1).size() + 8));
  const auto p = publisher(s);
  for (uint64_t i = 0; i < 10; ++i)
    store(*p, i);
  ASSERT_TRUE(wait_for(*p, 10));

  EXPECT_EQ(replay(*p, 0).size(), 2u);
}

TEST_F(KvPublisherTest, SendsTheEventsOfAStepTogetherAndAClearingAtOnce) {
  const auto p = publisher();
  p->end_step();  // nothing happened: no batch
  p->on_stored({1, 0}, kRoot, std::vector<int32_t>{7, 8});
  p->on_removed({2, 0});
  p->on_cleared();
  ASSERT_TRUE(wait_for(*p, 1));

  const auto all = replay(*p, 0);

  ASSERT_EQ(all.size(), 1u);
  const std::vector<KvEvent> events = {{KvEvent::Type::kStored, {1}, std::nullopt, {7, 8}},
                                       {KvEvent::Type::kRemoved, {2}, std::nullopt, {}},
                                       {}};
  EXPECT_EQ(all[0].second, without_time(encode_kv_batch({.block_size = 2}, 0, events)));
}

TEST_F(KvPublisherTest, DropsWhatTheQueueHasNoRoomForAndLeavesAGap) {
  KvPublisherSettings s = settings();
  s.max_queued = 0;  // no batch ever has room
  const auto p = publisher(s);

  store(*p, 1);
  store(*p, 2);

  EXPECT_EQ(p->num_dropped(), 2);
  EXPECT_EQ(p->num_published(), 0);
  EXPECT_TRUE(replay(*p, 0).empty());
}

TEST_F(KvPublisherTest, GoesOnAfterRequestsThatAreNone) {
  const auto p = publisher();
  store(*p, 1);
  ASSERT_TRUE(wait_for(*p, 1));
  const auto dealer = connected(ZmqSocketType::kDealer, p->replay_endpoint());
  EXPECT_TRUE(dealer->send({"", "short"}));
  EXPECT_TRUE(dealer->send({"no empty frame"}));
  EXPECT_TRUE(dealer->send({"", "12345678", "more"}));

  EXPECT_EQ(replay(*p, 0).size(), 1u);
}

TEST_F(KvPublisherTest, NamesAnEndpointThatCannotBeHad) {
  const auto p = publisher();
  KvPublisherSettings s = settings();
  s.endpoint = p->endpoint();
  const auto taken = KvPublisher::create(s);
  ASSERT_FALSE(taken.ok());
  EXPECT_EQ(taken.status().code(), StatusCode::kIo);
  EXPECT_NE(taken.status().message().find(p->endpoint()), std::string::npos);
  EXPECT_NE(taken.status().message().find("in use"), std::string::npos);

  s.endpoint = "5556";
  const auto no_endpoint = KvPublisher::create(s);
  ASSERT_FALSE(no_endpoint.ok());
  EXPECT_EQ(no_endpoint.status().code(), StatusCode::kInvalidArgument);
  EXPECT_NE(no_endpoint.status().message().find("\"5556\""), std::string::npos);
}

TEST_F(KvPublisherTest, EndsWithoutAReader) {
  KvPublisherSettings s = settings();
  s.endpoint = "connect:tcp://127.0.0.1:1";
  const auto begin = std::chrono::steady_clock::now();
  {
    const auto p = publisher(s);
    for (uint64_t i = 0; i < 100; ++i)
      store(*p, i);
  }
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(5));
}

}  // namespace
}  // namespace fathom::serve
