#include "fathom/os/thread_pool.h"

#include <atomic>
#include <chrono>
#include <cstdint>
#include <ctime>
#include <gtest/gtest.h>
#include <numeric>
#include <pthread.h>
#include <sched.h>
#include <set>
#include <signal.h>
#include <stdexcept>
#include <vector>

#include "fathom/os/affinity.h"
#include "fathom/os/cpu_info.h"

namespace fathom {
namespace {

/// Holds the caller until all workers have begun, so that it does the part of none.
class Start {
 public:
  void begin(int thread_id, int num_threads) {
    if (thread_id > 0) {
      num_begun_.fetch_add(1);
      return;
    }
    while (num_begun_.load() < num_threads - 1)
      std::this_thread::yield();
  }

 private:
  std::atomic<int> num_begun_{0};
};

class ThreadPoolTest : public testing::TestWithParam<int> {};

INSTANTIATE_TEST_SUITE_P(Sizes, ThreadPoolTest, testing::Values(1, 2, 3, 8));

TEST_P(ThreadPoolTest, RunsEveryThreadOnceWithItsNumber) {
  ThreadPool pool(GetParam());
  std::vector<int> calls(static_cast<size_t>(GetParam()), 0);
  std::vector<int> totals(static_cast<size_t>(GetParam()), 0);

  pool.run([&](int thread_id, int num_threads) {
    ++calls[static_cast<size_t>(thread_id)];
    totals[static_cast<size_t>(thread_id)] = num_threads;
  });

  EXPECT_EQ(pool.size(), GetParam());
  EXPECT_EQ(calls, std::vector<int>(calls.size(), 1));
  EXPECT_EQ(totals, std::vector<int>(totals.size(), GetParam()));
}

TEST_P(ThreadPoolTest, CallerIsThreadZero) {
  ThreadPool pool(GetParam());
  std::vector<std::thread::id> ids(static_cast<size_t>(GetParam()));

  Start start;
  pool.run([&](int thread_id, int num_threads) {
    start.begin(thread_id, num_threads);
    ids[static_cast<size_t>(thread_id)] = std::this_thread::get_id();
  });

  EXPECT_EQ(ids[0], std::this_thread::get_id());
  EXPECT_EQ(std::set<std::thread::id>(ids.begin(), ids.end()).size(), ids.size());
}

TEST_P(ThreadPoolTest, ManyShortRegionsEachSeeTheOneBefore) {
  ThreadPool pool(GetParam());
  const int num_regions = GetParam() <= 2 ? 20'000 : 500;
  std::vector<int64_t> counts(static_cast<size_t>(GetParam()), 0);
  int64_t mismatches = 0;

  for (int region = 0; region < num_regions; ++region) {
    // Each thread reads what its neighbour wrote in the region before.
    std::vector<int64_t> next(counts.size());
    pool.run([&](int thread_id, int num_threads) {
      next[static_cast<size_t>(thread_id)] =
          counts[static_cast<size_t>((thread_id + 1) % num_threads)] + 1;
    });
    counts = next;
    for (const int64_t count : counts)
      mismatches += count != region + 1;
  }

  EXPECT_EQ(mismatches, 0);
}

TEST_P(ThreadPoolTest, WakesWorkersThatHaveGoneToSleep) {
  ThreadPool pool(GetParam());
  std::vector<int> calls(static_cast<size_t>(GetParam()), 0);

  for (int round = 0; round < 5; ++round) {
    std::this_thread::sleep_for(std::chrono::milliseconds(2));  // far beyond the spin time
    pool.run([&](int thread_id, int) { ++calls[static_cast<size_t>(thread_id)]; });
  }

  EXPECT_EQ(calls, std::vector<int>(calls.size(), 5));
}

TEST_P(ThreadPoolTest, ForRowsTakesEachRowOnceAtEverySize) {
  ThreadPool pool(GetParam());
  for (const int64_t n : {0, 1, 2, 3, 7, 8, 9, 97, 1009}) {
    std::vector<int> visits(static_cast<size_t>(n), 0);

    pool.for_rows(n, [&](int64_t begin, int64_t end) {
      for (int64_t row = begin; row < end; ++row)
        ++visits[static_cast<size_t>(row)];
    });

    EXPECT_EQ(visits, std::vector<int>(visits.size(), 1)) << n << " rows";
  }
}

TEST_P(ThreadPoolTest, ForBlocksTakesEachBlockOnceAtEverySize) {
  ThreadPool pool(GetParam());
  for (const int64_t n : {0, 1, 2, 3, 7, 8, 9, 97}) {
    std::vector<int> visits(static_cast<size_t>(n), 0);

    pool.for_blocks(n, [&](int64_t block) { ++visits[static_cast<size_t>(block)]; });

    EXPECT_EQ(visits, std::vector<int>(visits.size(), 1)) << n << " blocks";
  }
}

TEST_P(ThreadPoolTest, RowsOfAPartDoNotDependOnTiming) {
  ThreadPool pool(GetParam());
  const auto owners = [&] {
    std::vector<int64_t> first_of_part(1009);
    pool.for_rows(1009, [&](int64_t begin, int64_t end) {
      for (int64_t row = begin; row < end; ++row)
        first_of_part[static_cast<size_t>(row)] = begin;
    });
    return first_of_part;
  };

  const auto first = owners();

  for (int repeat = 0; repeat < 20; ++repeat)
    EXPECT_EQ(owners(), first);
}

TEST_P(ThreadPoolTest, ExceptionOfAnyThreadReachesTheCallerAfterTheOthersAreDone) {
  ThreadPool pool(GetParam());
  for (int thrower = 0; thrower < GetParam(); ++thrower) {
    std::atomic<int> finished{0};
    const auto body = [&](int thread_id, int) {
      if (thread_id == thrower) (void)std::vector<int>().at(0);
      ++finished;
    };
    EXPECT_THROW(pool.run(body), std::out_of_range) << "thread " << thrower;
    EXPECT_EQ(finished.load(), GetParam() - 1);
  }
  std::atomic<int> calls{0};

  pool.run([&](int, int) { ++calls; });

  EXPECT_EQ(calls.load(), GetParam());
}

TEST_P(ThreadPoolTest, NestedRegionIsRefused) {
  testing::FLAGS_gtest_death_test_style = "threadsafe";
  EXPECT_DEATH(
      {
        ThreadPool pool(GetParam());
        pool.run([&](int, int) { pool.run([](int, int) {}); });
      },
      "parallel regions do not nest");
}

TEST_P(ThreadPoolTest, NestedShortLoopIsRefusedToo) {
  testing::FLAGS_gtest_death_test_style = "threadsafe";
  EXPECT_DEATH(
      {
        ThreadPool pool(GetParam());
        pool.run([&](int, int) { pool.for_rows(0, [](int64_t, int64_t) {}); });
      },
      "parallel regions do not nest");
}

TEST_P(ThreadPoolTest, SecondPoolWorksInsideARegionOfTheFirst) {
  ThreadPool outer(GetParam());
  ThreadPool inner(2);
  std::vector<int> rows(10, 0);

  outer.for_rows(1, [&](int64_t, int64_t) {
    inner.for_blocks(10, [&](int64_t block) { ++rows[static_cast<size_t>(block)]; });
  });

  EXPECT_EQ(std::accumulate(rows.begin(), rows.end(), 0), 10);
}

TEST_P(ThreadPoolTest, IdlePoolUsesNoCpu) {
  ThreadPool pool(GetParam());
  pool.run([](int, int) {});
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  const std::clock_t before = std::clock();

  std::this_thread::sleep_for(std::chrono::milliseconds(200));

  // Processor time of all threads; spinning workers would use 200 ms each.
  EXPECT_LT(static_cast<double>(std::clock() - before) / CLOCKS_PER_SEC, 0.1);
}

TEST_P(ThreadPoolTest, CallerGetsItsCpusBack) {
  const std::vector<int> before = thread_affinity();

  {
    ThreadPool pool(GetParam(), PinThreads::kYes);
    pool.run([](int, int) {});
  }

  EXPECT_EQ(thread_affinity(), before);
}

TEST_P(ThreadPoolTest, PinnedThreadsStayOnTheirCpu) {
  ThreadPool pool(GetParam(), PinThreads::kYes);
  std::vector<std::vector<int>> masks(static_cast<size_t>(GetParam()));

  Start start;
  pool.run([&](int thread_id, int num_threads) {
    start.begin(thread_id, num_threads);
    masks[static_cast<size_t>(thread_id)] = thread_affinity();
  });

  const std::vector<int>& cpus = cpu_info().allowed_cpus;
  for (size_t i = 0; i < masks.size() && GetParam() > 1; ++i) {
    EXPECT_EQ(masks[i], std::vector<int>{cpus[i % cpus.size()]}) << "thread " << i;
  }
}

TEST(ThreadPool, UnpinnedThreadsKeepTheWholeMask) {
  const std::vector<int> allowed = thread_affinity();
  ThreadPool pool(3, PinThreads::kNo);
  std::vector<std::vector<int>> masks(3);

  pool.run([&](int thread_id, int) { masks[static_cast<size_t>(thread_id)] = thread_affinity(); });

  for (const auto& mask : masks)
    EXPECT_EQ(mask, allowed);
}

std::atomic<bool> g_held{false};  // read by a signal handler

void hold(int) {
  while (g_held.load())
    sched_yield();
}

TEST(ThreadPool, CallerDoesThePartOfAWorkerThatGetsNoCpuAndTakesItBackLater) {
  ThreadPool pool(2, PinThreads::kYes);
  pthread_t worker{};
  Start start;
  pool.run([&](int thread_id, int num_threads) {
    start.begin(thread_id, num_threads);
    if (thread_id == 1) worker = pthread_self();
  });

  struct sigaction action {};

  action.sa_handler = hold;

  struct sigaction before {};

  ASSERT_EQ(sigaction(SIGUSR1, &action, &before), 0);
  g_held = true;
  ASSERT_EQ(pthread_kill(worker, SIGUSR1), 0);

  std::vector<pthread_t> ids(2);
  const auto run = [&] {
    pool.run([&](int thread_id, int) { ids[static_cast<size_t>(thread_id)] = pthread_self(); });
  };
  for (int region = 0; region < 100; ++region) {
    ids.assign(2, pthread_t{});
    run();
    EXPECT_EQ(ids[1], pthread_self());
  }
  g_held = false;
  int64_t regions = 0;
  while (ids[1] != worker && ++regions < 100'000'000)
    run();

  EXPECT_EQ(ids[1], worker);
  sigaction(SIGUSR1, &before, nullptr);
}

TEST(ThreadPool, MoveOnlyAndConstCallablesWork) {
  ThreadPool pool(2);
  auto count = std::make_unique<std::atomic<int>>(0);
  const auto add = [&count](int, int) { ++*count; };

  pool.run(add);
  pool.run([owned = std::make_unique<int>(3), &count](int, int) { *count += *owned; });

  EXPECT_EQ(count->load(), 2 + 6);
}

TEST(ThreadPool, CreateRefusesSizesOutOfRange) {
  const auto zero = ThreadPool::create(0, PinThreads::kNo);
  const auto many = ThreadPool::create(1025, PinThreads::kNo);

  EXPECT_EQ(zero.status().message(), "number of threads: 0, expected 1 to 1024");
  EXPECT_EQ(many.status().code(), StatusCode::kInvalidArgument);
}

TEST(ThreadPool, CreateMakesAWorkingPool) {
  auto pool = ThreadPool::create(3, PinThreads::kNo);
  ASSERT_TRUE(pool.ok());
  std::atomic<int> count{0};

  (*pool)->run([&](int, int) { ++count; });

  EXPECT_EQ(count.load(), 3);
}

TEST(ThreadPool, TwoPoolsTakeTurns) {
  ThreadPool first(2);
  ThreadPool second(3);
  std::atomic<int> count{0};

  for (int i = 0; i < 100; ++i) {
    first.run([&](int, int) { ++count; });
    second.run([&](int, int) { ++count; });
  }

  EXPECT_EQ(count.load(), 500);
}

TEST(StaticPartition, PiecesTileTheRowsInOrderAndDifferByAtMostOne) {
  for (const int64_t n : {int64_t{0}, int64_t{1}, int64_t{7}, int64_t{64}, int64_t{1} << 60}) {
    for (const int parts : {1, 2, 3, 8, 64, 1024}) {
      int64_t expected_begin = 0;
      for (int part = 0; part < parts; ++part) {
        const RowRange range = static_partition(n, part, parts);
        EXPECT_EQ(range.begin, expected_begin);
        EXPECT_GE(range.end - range.begin, n / parts);
        EXPECT_LE(range.end - range.begin, n / parts + 1);
        expected_begin = range.end;
      }
      EXPECT_EQ(expected_begin, n) << parts << " parts";
    }
  }
}

}  // namespace
}  // namespace fathom
