// A few threads for what is too slow for the event loop: parsing, encoding, compiling, waiting for
// the engine thread.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

namespace fathom::serve {

class Workers {
 public:
  /// At most `max_waiting` tasks wait.
  Workers(int num_threads, int64_t max_waiting);

  /// Finishes the tasks that wait.
  ~Workers();
  Workers(const Workers&) = delete;
  Workers& operator=(const Workers&) = delete;

  /// False if too many wait, or after stop(). Thread-safe.
  bool run(std::function<void()> task);

  /// Forgets the tasks that wait, and waits for those that run. Not from a task.
  void stop();

 private:
  void work();
  void end();

  std::mutex mutex_;
  std::condition_variable filled_;
  std::deque<std::function<void()>> tasks_;
  int64_t max_waiting_;
  bool stopping_ = false;
  std::vector<std::thread> threads_;
};

}  // namespace fathom::serve
