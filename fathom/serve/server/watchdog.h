// Ends a process whose engine does not go forward. Its thread takes no lock of the engine's step.
// Loading is no step and has no limit: how long it may take depends on the size of the model and on
// its disk, which only the operator knows; health says "loading" meanwhile.
//
//   stalled    state dump in the log, state faulted; after a grace time exit 70
//   faulted    state faulted; exit 70 after a shorter time, in which clients get their error
//   shutdown   a deadline after which the process ends even if its teardown hangs
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>

#include "fathom/serve/server/life_cycle.h"

namespace fathom::serve {

struct WatchdogSettings {
  std::function<ServiceStats()> stats;  ///< must not block
  LifeCycle* life = nullptr;
  double stall_timeout_s = 600;  ///< without the end of a step while one runs; 0: never
  /// In place of it, if it is longer, before the server is ready: the first token touches all of
  /// the memory and captures graphs.
  double warm_up_timeout_s = 600;
  double stall_grace_s = 30;  ///< from the dump to the exit
  double fault_grace_s = 5;   ///< from a fault to the exit
  double poll_s = 0.25;
  std::function<void(int)> exit;  ///< ends the process at once: _exit
};

class Watchdog {
 public:
  explicit Watchdog(WatchdogSettings settings);
  ~Watchdog();
  Watchdog(const Watchdog&) = delete;
  Watchdog& operator=(const Watchdog&) = delete;

  /// The process ends with 70 at this time of the monotonic clock unless this object ends before.
  void end_by(int64_t deadline_ns);

  /// The engine is not looked at any more: it is about to be taken apart.
  void stop_looking();

 private:
  void watch();
  void look(int64_t now_ns);
  double timeout_s() const;
  void exit_after(double seconds) const;

  WatchdogSettings settings_;
  std::mutex looking_;  // held while the engine is looked at
  int64_t deadline_ns_ = 0;
  bool blind_ = false;
  int64_t exit_at_ns_ = 0;
  std::mutex mutex_;
  std::condition_variable woken_;
  bool stopping_ = false;
  std::shared_ptr<std::atomic<bool>> alive_ = std::make_shared<std::atomic<bool>>(true);
  std::thread thread_;
};

/// Requests, pages and what each thread of the process waits for, as lines for the log.
std::string state_dump(const ServiceStats& stats, int64_t now_ns);

}  // namespace fathom::serve
