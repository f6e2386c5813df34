#include "fathom/serve/server/workers.h"

namespace fathom::serve {

Workers::Workers(int num_threads, int64_t max_waiting) : max_waiting_(max_waiting) {
  for (int i = 0; i < num_threads; ++i)
    threads_.emplace_back([this] { work(); });
}

Workers::~Workers() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  filled_.notify_all();
  for (std::thread& thread : threads_)
    thread.join();
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
    task();
  }
}

}  // namespace fathom::serve
