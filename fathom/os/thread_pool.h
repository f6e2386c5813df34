// A fixed set of threads for data-parallel regions. A region is one function that is called once
// with the number of each thread; work is divided by arithmetic on that number alone, so a result
// never depends on timing. Regions do not nest.
//
//   ThreadPool pool(8, PinThreads::kYes);
//   pool.for_rows(num_rows, [&](int64_t begin, int64_t end) { ... });
//
// Between regions the workers spin for some tens of microseconds and then sleep, so that regions
// that follow each other start within a fraction of a microsecond and an idle process costs
// nothing. Starting a region allocates nothing.
//
// On a machine that has other work to do, a worker may lack its CPU for milliseconds while the
// region that waits for it takes microseconds. So a part belongs to who claims it first: its
// worker, or the caller when it has waited kLateNs (thread_pool.cc) in vain. A worker that was late
// is left out for some milliseconds, longer each time, and sleeps; the caller does its part at
// once. docs/performance.md has figures.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <exception>
#include <memory>
#include <mutex>
#include <thread>
#include <type_traits>
#include <vector>

#include "fathom/base/status.h"

namespace fathom {

/// Whether thread i stays on the i-th allowed CPU. Pinning includes the thread that makes the pool,
/// which gets its old mask back when the pool ends.
enum class PinThreads { kNo, kYes };

struct RowRange {
  int64_t begin;
  int64_t end;
};

/// Part `part` of n rows cut into `parts` contiguous pieces whose sizes differ by at most one, the
/// longer ones first. n >= 0, 0 <= part < parts.
constexpr RowRange static_partition(int64_t n, int part, int parts) {
  const int64_t each = n / parts;
  const int64_t longer = n % parts;
  const int64_t begin = each * part + std::min<int64_t>(part, longer);
  return {begin, begin + each + (part < longer ? 1 : 0)};
}

class ThreadPool {
 public:
  static constexpr int kMaxThreads = 1024;

  /// num_threads counts the calling thread and is 1 to kMaxThreads. Being refused a thread by the
  /// system is fatal here; use create() where the number comes from outside.
  explicit ThreadPool(int num_threads, PinThreads pin = PinThreads::kYes);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  /// As the constructor, with a Status: InvalidArgument for a number out of range, OutOfMemory when
  /// the system refuses a thread.
  static Result<std::unique_ptr<ThreadPool>> create(int num_threads, PinThreads pin);

  int size() const { return num_threads_; }

  /// Calls f(thread_id, num_threads) once for every thread, on that thread unless it is late; the
  /// caller is thread 0. No call may wait for another. Returns when all calls have returned, and
  /// what they wrote is then visible. An exception of the standard library (bad_alloc) ends the
  /// call it comes from, and run() passes it on when all others have returned. A region inside a
  /// region, or two at once, is a broken invariant.
  template <class F>
  void run(F&& f) {
    using Callable = std::remove_reference_t<F>;
    const Region region(*this);
    if (num_threads_ == 1) {
      f(0, 1);
      return;
    }
    const Task task = [](void* callable, int thread_id, int num_threads) {
      (*static_cast<Callable*>(callable))(thread_id, num_threads);
    };
    run_on_all(task, const_cast<void*>(static_cast<const void*>(std::addressof(f))));
  }

  /// Calls f(begin, end) on each thread that has rows, as static_partition cuts n >= 0 rows.
  template <class F>
  void for_rows(int64_t n, F&& f) {
    if (n <= 1) {  // the only row belongs to the caller: no need to wake anybody
      const Region region(*this);
      if (n == 1) f(int64_t{0}, int64_t{1});
      return;
    }
    run([&](int thread_id, int num_threads) {
      const RowRange rows = static_partition(n, thread_id, num_threads);
      if (rows.begin < rows.end) f(rows.begin, rows.end);
    });
  }

  /// Calls f(block) for each of num_blocks >= 0 blocks; a thread gets a contiguous run of them.
  template <class F>
  void for_blocks(int64_t num_blocks, F&& f) {
    for_rows(num_blocks, [&](int64_t begin, int64_t end) {
      for (int64_t block = begin; block < end; ++block)
        f(block);
    });
  }

 private:
  using Task = void (*)(void* callable, int thread_id, int num_threads);

  // What a worker and the caller tell each other, each in a line of its own (two, for the
  // adjacent-line prefetcher): the caller reads `done` while it waits, and `claimed` only when the
  // worker is late.
  struct Worker {
    alignas(128) std::atomic<uint32_t> done{0};      // newest region whose part the worker finished
    alignas(128) std::atomic<uint32_t> claimed{0};   // newest region whose part somebody took
    alignas(128) std::atomic<uint32_t> left_out{0};  // 1: sleeps until it is 0
    // Of the caller alone.
    int64_t left_out_until_ns = 0;
    int64_t left_out_ns = 0;  // how long the last time
    int64_t taken_back_ns = 0;
  };

  // From the beginning of a region to its end, however it ends.
  class Region {
   public:
    explicit Region(ThreadPool& pool);
    ~Region();
    Region(const Region&) = delete;
    Region& operator=(const Region&) = delete;

   private:
    ThreadPool& pool_;
  };

  struct Unstarted {};

  ThreadPool(Unstarted, int num_threads);

  Status start(PinThreads pin);
  void stop();
  void run_and_keep_exception(int thread_id);
  void run_on_all(Task task, void* callable);
  void work(int thread_id);
  uint32_t wait_for_region(uint32_t seen);
  void wait_until_done(int thread_id, uint32_t region, int64_t own_ns);
  void leave_out(Worker& worker, int64_t now_ns);
  void take_back(int64_t now_ns);

  int num_threads_;
  bool oversubscribed_ = false;  // more threads than CPUs: waiting must give the CPU away
  std::atomic<bool> in_region_{false};
  std::atomic<bool> stopping_{false};
  Task task_ = nullptr;  // published by region_
  void* callable_ = nullptr;
  alignas(128) std::atomic<uint32_t> region_{0};  // number of the newest region
  alignas(128) std::atomic<int> num_sleepers_{0};
  std::unique_ptr<Worker[]> slots_;  // [num_threads], of thread 0 unused
  int num_left_out_ = 0;
  bool watching_ = false;  // a worker was late not long ago: regions are timed
  int64_t last_late_ns_ = 0;
  std::mutex exception_mutex_;
  std::exception_ptr exception_;  // the first of the region, if any
  std::vector<std::thread> workers_;
  std::vector<int> caller_cpus_;  // where the constructing thread was allowed; empty if not pinned
  std::thread::id caller_;
};

}  // namespace fathom
