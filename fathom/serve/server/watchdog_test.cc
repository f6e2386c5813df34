#include "fathom/serve/server/watchdog.h"

#include <gtest/gtest.h>

#include "fathom/os/clock.h"
#include "fathom/serve/server/workers.h"

namespace fathom::serve {
namespace {

constexpr int64_t kSecond = 1'000'000'000;

TEST(LifeCycle, GoesForwardOnly) {
  LifeCycle life;
  EXPECT_EQ(life.state(), ServerState::kStarting);
  EXPECT_TRUE(life.advance(ServerState::kReady));
  EXPECT_TRUE(life.advance(ServerState::kDraining));
  EXPECT_FALSE(life.advance(ServerState::kReady));
  EXPECT_TRUE(life.advance(ServerState::kFaulted));
  EXPECT_FALSE(life.advance(ServerState::kStopped));
  EXPECT_EQ(server_state_name(life.state()), "faulted");
}

TEST(Progress, OfAnEngine) {
  ServiceStats stats;
  EXPECT_EQ(progress_of(stats, 1000 * kSecond, 60 * kSecond), Progress::kGoing);  // idle
  stats.last_step_ns = 100 * kSecond;
  EXPECT_EQ(progress_of(stats, 1000 * kSecond, 60 * kSecond), Progress::kGoing);  // idle again
  stats.busy_since_ns = 101 * kSecond;
  EXPECT_EQ(progress_of(stats, 161 * kSecond, 60 * kSecond), Progress::kGoing);
  EXPECT_EQ(progress_of(stats, 162 * kSecond, 60 * kSecond), Progress::kStalled);
  EXPECT_EQ(progress_of(stats, 1000 * kSecond, 0), Progress::kGoing);  // never
  stats.faulted = true;
  EXPECT_EQ(progress_of(stats, 102 * kSecond, 60 * kSecond), Progress::kFaulted);
}

struct Ended {
  std::atomic<int> code{-1};
  std::atomic<int64_t> at_ns{0};

  bool wait(double seconds) const {
    const int64_t end = monotonic_ns() + static_cast<int64_t>(seconds * 1e9);
    while (code < 0 && monotonic_ns() < end)
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    return code >= 0;
  }
};

WatchdogSettings settings_of(LifeCycle& life, Ended& ended) {
  return {.stats = [] { return ServiceStats{}; },
          .life = &life,
          .stall_timeout_s = 0.05,
          .stall_grace_s = 0.1,
          .fault_grace_s = 0.02,
          .poll_s = 0.005,
          .exit =
              [&ended](int code) {
                if (ended.code < 0) ended.at_ns = monotonic_ns();
                ended.code = code;
              }};
}

TEST(Watchdog, EndsAStalledProcessAfterItsGrace) {
  LifeCycle life;
  life.advance(ServerState::kReady);
  Ended ended;
  WatchdogSettings settings = settings_of(life, ended);
  const int64_t begin = monotonic_ns();
  settings.stats = [begin] {
    ServiceStats stats;
    stats.busy_since_ns = begin;
    return stats;
  };
  const Watchdog dog(std::move(settings));
  ASSERT_TRUE(ended.wait(10));
  EXPECT_EQ(ended.code, 70);
  EXPECT_GE(ended.at_ns - begin, kSecond * 15 / 100);
  EXPECT_EQ(life.state(), ServerState::kFaulted);
}

TEST(Watchdog, GivesTheWarmUpMoreTimeAndNotForever) {
  LifeCycle life;  // starting
  Ended ended;
  WatchdogSettings settings = settings_of(life, ended);
  settings.warm_up_timeout_s = 0.4;
  const int64_t begin = monotonic_ns();
  settings.stats = [begin] {
    ServiceStats stats;
    stats.busy_since_ns = begin;
    return stats;
  };
  const Watchdog dog(std::move(settings));
  ASSERT_TRUE(ended.wait(10));
  EXPECT_EQ(ended.code, 70);
  EXPECT_GE(ended.at_ns - begin, kSecond * 5 / 10);  // and the grace
  EXPECT_EQ(life.state(), ServerState::kFaulted);
}

TEST(Watchdog, LoadingHasNoLimit) {
  LifeCycle life;
  Ended ended;
  WatchdogSettings settings = settings_of(life, ended);
  settings.warm_up_timeout_s = 0.01;
  const Watchdog dog(std::move(settings));
  EXPECT_FALSE(ended.wait(0.3));
  EXPECT_EQ(life.state(), ServerState::kStarting);
}

TEST(Watchdog, EndsAFaultedProcess) {
  LifeCycle life;
  life.advance(ServerState::kReady);
  Ended ended;
  WatchdogSettings settings = settings_of(life, ended);
  settings.stats = [] {
    ServiceStats stats;
    stats.faulted = true;
    return stats;
  };
  const Watchdog dog(std::move(settings));
  ASSERT_TRUE(ended.wait(10));
  EXPECT_EQ(ended.code, 70);
}

TEST(Watchdog, LetsAGoingOneBe) {
  LifeCycle life;
  Ended ended;
  WatchdogSettings settings = settings_of(life, ended);
  settings.stats = [] {
    ServiceStats stats;
    stats.busy_since_ns = monotonic_ns() - kSecond / 100;
    return stats;
  };
  const Watchdog dog(std::move(settings));
  EXPECT_FALSE(ended.wait(0.3));
}

TEST(Watchdog, KeepsTheDeadlineOfAShutdown) {
  LifeCycle life;
  Ended ended;
  Watchdog dog(settings_of(life, ended));
  EXPECT_FALSE(ended.wait(0.05));
  dog.end_by(monotonic_ns() + kSecond / 20);
  ASSERT_TRUE(ended.wait(10));
  EXPECT_EQ(ended.code, 70);
}

TEST(Watchdog, TheDumpNamesRequestsPagesAndThreads) {
  ServiceStats stats;
  stats.busy_since_ns = kSecond;
  stats.core.scheduler.num_running = 3;
  stats.core.private_pages = 17;
  const std::string dump = state_dump(stats, 5 * kSecond);
  EXPECT_NE(dump.find("the step runs since 4"), std::string::npos) << dump;
  EXPECT_NE(dump.find("3 requests running"), std::string::npos);
  EXPECT_NE(dump.find("17 private"), std::string::npos);
  EXPECT_NE(dump.find("thread "), std::string::npos);
}

TEST(Workers, RunInOrderOfOneThreadAndRefuseTooMany) {
  std::vector<int> order;
  std::atomic<bool> go{false};
  {
    Workers workers(1, 3);
    std::atomic<bool> started{false};
    ASSERT_TRUE(workers.run([&] {
      started = true;
      while (!go)
        std::this_thread::yield();
    }));
    while (!started)
      std::this_thread::yield();
    for (int i = 0; i < 3; ++i)
      ASSERT_TRUE(workers.run([&order, i] { order.push_back(i); }));
    EXPECT_FALSE(workers.run([] {}));
    go = true;
  }  // what waits is done before it ends
  EXPECT_EQ(order, (std::vector<int>{0, 1, 2}));
}

}  // namespace
}  // namespace fathom::serve
