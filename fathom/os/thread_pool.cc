#include "fathom/os/thread_pool.h"

#include <sched.h>
#include <system_error>
#include <utility>

#include "fathom/base/check.h"
#include "fathom/base/str_cat.h"
#include "fathom/os/affinity.h"
#include "fathom/os/clock.h"
#include "fathom/os/cpu_info.h"

namespace fathom {
namespace {

// How long a worker without work keeps its CPU before it sleeps: longer than the serial parts
// between the regions of one forward pass, short enough to be invisible in the load of a machine.
constexpr int64_t kSpinNs = 60'000;

// Reading the clock costs about as much as one pause; a look at every 32nd keeps the wait
// responsive.
constexpr int kPausesPerClockRead = 32;

inline void pause_cpu() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

// Waits for `ready`, first by spinning. Returns whether it became true within kSpinNs.
template <class Ready>
bool spin_until(bool oversubscribed, Ready ready) {
  for (int pauses = 0; pauses < 4 * kPausesPerClockRead; ++pauses) {
    if (ready()) return true;
    if (oversubscribed) break;
    pause_cpu();
  }
  const int64_t deadline = monotonic_ns() + kSpinNs;
  while (monotonic_ns() < deadline) {
    if (oversubscribed) sched_yield();
    for (int pauses = 0; pauses < kPausesPerClockRead; ++pauses) {
      if (ready()) return true;
      if (oversubscribed) break;
      pause_cpu();
    }
  }
  return ready();
}

Status check_size(int num_threads) {
  if (num_threads >= 1 && num_threads <= ThreadPool::kMaxThreads) return {};
  return invalid_argument(
      str_cat("number of threads: ", num_threads, ", expected 1 to ", ThreadPool::kMaxThreads));
}

}  // namespace

ThreadPool::ThreadPool(Unstarted, int num_threads)
    : num_threads_(num_threads), caller_(std::this_thread::get_id()) {}

ThreadPool::ThreadPool(int num_threads, PinThreads pin) : ThreadPool(Unstarted{}, num_threads) {
  Status status = check_size(num_threads);
  if (status.ok()) status = start(pin);
  FATHOM_CHECK(status.ok(), status.message());
}

ThreadPool::~ThreadPool() {
  stop();
}

Result<std::unique_ptr<ThreadPool>> ThreadPool::create(int num_threads, PinThreads pin) {
  FATHOM_TRY(check_size(num_threads));
  std::unique_ptr<ThreadPool> pool(new ThreadPool(Unstarted{}, num_threads));
  FATHOM_TRY(pool->start(pin));
  return pool;
}

Status ThreadPool::start(PinThreads pin) {
  const std::vector<int>& cpus = cpu_info().allowed_cpus;
  oversubscribed_ = num_threads_ > static_cast<int>(cpus.size());
  done_ = std::make_unique<DoneSlot[]>(static_cast<size_t>(num_threads_));
  const auto pin_to_own_cpu = [&cpus](int thread_id) {
    const int cpu = cpus[static_cast<size_t>(thread_id) % cpus.size()];
    set_thread_affinity({&cpu, 1});
  };
  workers_.reserve(static_cast<size_t>(num_threads_ - 1));
  try {
    for (int thread_id = 1; thread_id < num_threads_; ++thread_id) {
      workers_.emplace_back([this, pin, pin_to_own_cpu, thread_id] {
        if (pin == PinThreads::kYes) pin_to_own_cpu(thread_id);
        work(thread_id);
      });
    }
  } catch (const std::system_error& error) {
    const size_t started = workers_.size() + 1;
    stop();
    return out_of_memory(str_cat("cannot start thread ", started, " of ", num_threads_, ": ",
                                 error.code().message()));
  }
  // Last, since threads inherit the mask of their maker.
  if (pin == PinThreads::kYes && num_threads_ > 1) {
    caller_cpus_ = thread_affinity();
    pin_to_own_cpu(0);
  }
  return {};
}

void ThreadPool::stop() {
  FATHOM_CHECK(!in_region_.load(std::memory_order_relaxed), "thread pool ends inside a region");
  stopping_ = true;
  region_.fetch_add(1, std::memory_order_seq_cst);
  region_.notify_all();
  for (std::thread& worker : workers_)
    worker.join();
  workers_.clear();
  if (!caller_cpus_.empty() && std::this_thread::get_id() == caller_) {
    set_thread_affinity(caller_cpus_);
  }
}

ThreadPool::Region::Region(ThreadPool& pool) : pool_(pool) {
  const bool was_inside = pool_.in_region_.exchange(true, std::memory_order_acquire);
  FATHOM_CHECK(!was_inside, "parallel regions do not nest");
}

ThreadPool::Region::~Region() {
  pool_.in_region_.store(false, std::memory_order_release);
}

void ThreadPool::run_on_all(Task task, void* callable) {
  task_ = task;
  callable_ = callable;
  const uint32_t region = region_.fetch_add(1, std::memory_order_seq_cst) + 1;
  // notify_all() is a system call even when nobody sleeps: 1.5 us a region instead of 0.15 (two
  // threads of one core). Both this load and the one before a worker's sleep are sequentially
  // consistent, so either we see the sleeper or it sees the region.
  if (num_sleepers_.load(std::memory_order_seq_cst) > 0) region_.notify_all();
  run_and_keep_exception(0);
  for (int worker = 1; worker < num_threads_; ++worker)
    wait_until_done(worker, region);
  if (exception_ != nullptr) std::rethrow_exception(std::exchange(exception_, nullptr));
}

void ThreadPool::wait_until_done(int worker, uint32_t region) const {
  const std::atomic<uint32_t>& done = done_[static_cast<size_t>(worker)].region;
  const auto is_done = [&] { return done.load(std::memory_order_acquire) == region; };
  // A worker that is late this long may lack a CPU; ours might be the one it needs.
  if (spin_until(oversubscribed_, is_done)) return;
  while (!is_done())
    sched_yield();
}

// The callable lives on the caller's stack: nothing may unwind past a region that still runs.
void ThreadPool::run_and_keep_exception(int thread_id) {
  try {
    task_(callable_, thread_id, num_threads_);
  } catch (...) {
    const std::lock_guard lock(exception_mutex_);
    if (exception_ == nullptr) exception_ = std::current_exception();
  }
}

void ThreadPool::work(int thread_id) {
  uint32_t seen = 0;
  while (true) {
    wait_for_region(seen);
    ++seen;  // the caller starts no region before all workers have finished the last one
    if (stopping_) return;
    run_and_keep_exception(thread_id);
    done_[static_cast<size_t>(thread_id)].region.store(seen, std::memory_order_release);
  }
}

void ThreadPool::wait_for_region(uint32_t seen) {
  const auto is_new = [&] { return region_.load(std::memory_order_acquire) != seen; };
  if (spin_until(oversubscribed_, is_new)) return;
  num_sleepers_.fetch_add(1, std::memory_order_seq_cst);
  if (region_.load(std::memory_order_seq_cst) == seen) {
    region_.wait(seen, std::memory_order_acquire);
  }
  num_sleepers_.fetch_sub(1, std::memory_order_relaxed);
}

}  // namespace fathom
