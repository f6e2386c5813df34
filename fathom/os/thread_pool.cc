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

// How long the caller waits for a worker that has not begun, behind its own part and kSpinNs. Ten
// times what waking a thread takes on a machine that has nothing else to do.
constexpr int64_t kLateNs = 200'000;

// How long a late worker is left out: from the first, doubled while it is late again soon, to the
// last. A scheduler gives a thread its CPU for some milliseconds at a time.
constexpr int64_t kLeastLeftOutNs = 4'000'000;
constexpr int64_t kMostLeftOutNs = 128'000'000;

// How long behind the last late worker regions are timed, so that one is noticed that loses its CPU
// within its part.
constexpr int64_t kWatchNs = 1'000'000'000;

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
  slots_ = std::make_unique<Worker[]>(static_cast<size_t>(num_threads_));
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
    return out_of_memory(
        str_cat("cannot start thread ", started, " of ", num_threads_, ": ", error.code().message(),
                "\nhint: lower --threads, or raise the limit of processes (ulimit -u)"));
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
  stopping_.store(true, std::memory_order_relaxed);
  region_.fetch_add(1, std::memory_order_seq_cst);
  region_.notify_all();
  take_back(INT64_MAX);
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
  const int64_t begin_ns = watching_ ? monotonic_ns() : 0;
  if (num_left_out_ > 0) take_back(begin_ns);
  const uint32_t region = region_.load(std::memory_order_relaxed) + 1;
  for (int w = 1; num_left_out_ > 0 && w < num_threads_; ++w) {
    Worker& worker = slots_[static_cast<size_t>(w)];
    if (worker.left_out_until_ns != 0) worker.claimed.store(region, std::memory_order_relaxed);
  }
  region_.store(region, std::memory_order_seq_cst);
  // notify_all() is a system call even when nobody sleeps: 1.5 us a region instead of 0.15 (two
  // threads of one core). Both this load and the one before a worker's sleep are sequentially
  // consistent, so either we see the sleeper or it sees the region.
  if (num_sleepers_.load(std::memory_order_seq_cst) > 0) region_.notify_all();
  run_and_keep_exception(0);
  for (int w = 1; num_left_out_ > 0 && w < num_threads_; ++w)
    if (slots_[static_cast<size_t>(w)].left_out_until_ns != 0) run_and_keep_exception(w);
  const int64_t own_ns = watching_ ? monotonic_ns() - begin_ns : 0;
  for (int w = 1; w < num_threads_; ++w)
    if (slots_[static_cast<size_t>(w)].left_out_until_ns == 0) wait_until_done(w, region, own_ns);
  if (watching_ && begin_ns - last_late_ns_ > kWatchNs) watching_ = false;
  if (exception_ != nullptr) std::rethrow_exception(std::exchange(exception_, nullptr));
}

// own_ns: what the parts of the caller took, if the clock is read; else 0.
void ThreadPool::wait_until_done(int thread_id, uint32_t region, int64_t own_ns) {
  Worker& worker = slots_[static_cast<size_t>(thread_id)];
  const auto is_done = [&] { return worker.done.load(std::memory_order_acquire) == region; };
  if (spin_until(oversubscribed_, is_done)) return;
  // A worker that is late this long may lack a CPU; ours might be the one it needs.
  const int64_t begin_ns = monotonic_ns();
  int64_t now = begin_ns;
  while (!is_done()) {
    sched_yield();
    now = monotonic_ns();
    uint32_t before = region - 1;
    if (now - begin_ns < kLateNs || worker.claimed.load(std::memory_order_relaxed) == region ||
        !worker.claimed.compare_exchange_strong(before, region, std::memory_order_acq_rel)) {
      continue;
    }
    leave_out(worker, now);
    run_and_keep_exception(thread_id);
    return;
  }
  // It lost its CPU within its part.
  if (own_ns > 0 && now - begin_ns > std::max(kLateNs, 4 * own_ns)) leave_out(worker, now);
}

void ThreadPool::leave_out(Worker& worker, int64_t now_ns) {
  const bool again = now_ns - worker.taken_back_ns < 4 * worker.left_out_ns;
  worker.left_out_ns = again ? std::min(2 * worker.left_out_ns, kMostLeftOutNs) : kLeastLeftOutNs;
  worker.left_out_until_ns = now_ns + worker.left_out_ns;
  worker.left_out.store(1, std::memory_order_release);
  ++num_left_out_;
  last_late_ns_ = now_ns;
  watching_ = true;
}

// Workers whose time is over take part from the next region on.
void ThreadPool::take_back(int64_t now_ns) {
  for (int w = 1; num_left_out_ > 0 && w < num_threads_; ++w) {
    Worker& worker = slots_[static_cast<size_t>(w)];
    if (worker.left_out_until_ns == 0 || worker.left_out_until_ns > now_ns) continue;
    worker.taken_back_ns = now_ns;
    worker.left_out_until_ns = 0;
    --num_left_out_;
    worker.left_out.store(0, std::memory_order_release);
    worker.left_out.notify_one();
  }
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
  Worker& worker = slots_[static_cast<size_t>(thread_id)];
  uint32_t seen = 0;
  while (true) {
    worker.left_out.wait(1, std::memory_order_acquire);
    seen = wait_for_region(seen);
    if (stopping_.load(std::memory_order_relaxed)) return;
    // The region cannot end before all its parts were done, so one that is claimed is the newest.
    uint32_t before = seen - 1;
    if (!worker.claimed.compare_exchange_strong(before, seen, std::memory_order_acq_rel)) continue;
    run_and_keep_exception(thread_id);
    worker.done.store(seen, std::memory_order_release);
  }
}

// The newest region, which may not be the one behind `seen`: the caller does not wait for a worker
// whose part it does itself.
uint32_t ThreadPool::wait_for_region(uint32_t seen) {
  const auto is_new = [&] { return region_.load(std::memory_order_acquire) != seen; };
  if (!spin_until(oversubscribed_, is_new)) {
    num_sleepers_.fetch_add(1, std::memory_order_seq_cst);
    if (region_.load(std::memory_order_seq_cst) == seen) {
      region_.wait(seen, std::memory_order_acquire);
    }
    num_sleepers_.fetch_sub(1, std::memory_order_relaxed);
  }
  return region_.load(std::memory_order_acquire);
}

}  // namespace fathom
