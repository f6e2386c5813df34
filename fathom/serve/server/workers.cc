#include "fathom/serve/server/workers.h"

#include <exception>
#include <utility>

#include "fathom/base/log.h"

namespace fathom::serve {

Workers::Workers(int num_threads, int64_t max_waiting) : max_waiting_(max_waiting) {
  // Where the system refuses a thread, those before it are joined: one that is not would end the
  // process.
  struct Unfinished {
    Workers* workers;

    ~Unfinished() {
      if (workers != nullptr) workers->end();
    }
  } unfinished{this};

  for (int i = 0; i < num_threads; ++i)
    threads_.emplace_back([this] { work(); });
  unfinished.workers = nullptr;
}

Workers::~Workers() {
  end();
}

void Workers::stop() {
  std::deque<std::function<void()>> forgotten;
  {
    const std::lock_guard lock(mutex_);
    forgotten.swap(tasks_);
  }
  end();
}

void Workers::end() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  filled_.notify_all();
  for (std::thread& thread : threads_)
    thread.join();
  threads_.clear();
}

bool Workers::run(std::function<void()> task) {
  {
    const std::lock_guard lock(mutex_);
    if (stopping_ || static_cast<int64_t>(tasks_.size()) >= max_waiting_) return false;
    tasks_.push_back(std::move(task));
  }
  filled_.notify_one();
  return true;
}

void Workers::work() {
  for (;;) {
    std::function<void()> task;
    {
      std::unique_lock lock(mutex_);
      filled_.wait(lock, [this] { return stopping_ || !tasks_.empty(); });
      if (tasks_.empty()) return;
      task = std::move(tasks_.front());
      tasks_.pop_front();
    }
    // Memory that is not there: the exchange of the task answers 500 when it is let go.
    try {
      task();
    } catch (const std::exception& e) {
      log_error("a worker caught: ", e.what());
    }
  }
}

}  // namespace fathom::serve
