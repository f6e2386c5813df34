#include "fathom/serve/server/watchdog.h"

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <system_error>

#include "fathom/base/log.h"
#include "fathom/os/clock.h"

namespace fathom::serve {
namespace {

constexpr int kExitEngineFault = 70;
constexpr double kLogSeconds = 2;  // that a line of the log may take

int64_t to_ns(double seconds) {
  return static_cast<int64_t>(seconds * 1e9);
}

std::string first_line(const std::filesystem::path& file) {
  std::ifstream in(file);
  std::string line;
  std::getline(in, line);
  return line;
}

// Of /proc: name, state and where in the kernel each thread waits.
std::string threads_of_process() {
  std::string out;
  std::error_code error;
  for (auto task = std::filesystem::directory_iterator("/proc/self/task", error);
       !error && task != std::filesystem::directory_iterator(); task.increment(error)) {
    const std::filesystem::path& folder = task->path();
    std::ifstream status(folder / "status");
    std::string state;
    for (std::string line; std::getline(status, line);) {
      if (line.starts_with("State:")) state = line.substr(6);
    }
    str_append(out,
               str_cat("\n  thread ", folder.filename().string(), " ", first_line(folder / "comm"),
                       ":", state, ", waits in ", first_line(folder / "wchan")));
  }
  return out;
}

}  // namespace

std::string state_dump(const ServiceStats& s, int64_t now_ns) {
  const CoreStats& core = s.core;
  const double busy =
      s.busy_since_ns == 0 ? 0.0 : static_cast<double>(now_ns - s.busy_since_ns) * 1e-9;
  return str_cat("state dump: the step runs since ", busy, " s; ", core.scheduler.num_running,
                 " requests running, ", core.scheduler.num_waiting, " waiting; ", core.num_steps,
                 " steps, ", core.generated_tokens, " tokens; pages: ", core.private_pages,
                 " private, ", core.cached_pages, " cached, of ", core.num_pages,
                 threads_of_process());
}

Watchdog::Watchdog(WatchdogSettings settings)
    : settings_(std::move(settings)), thread_([this] { watch(); }) {}

Watchdog::~Watchdog() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  woken_.notify_all();
  thread_.join();
  alive_->store(false);
}

void Watchdog::watch() {
  std::unique_lock lock(mutex_);
  while (!stopping_) {
    lock.unlock();
    look(monotonic_ns());
    lock.lock();
    woken_.wait_for(lock, std::chrono::duration<double>(settings_.poll_s),
                    [this] { return stopping_; });
  }
}

void Watchdog::end_by(int64_t deadline_ns) {
  const std::lock_guard lock(looking_);
  deadline_ns_ = deadline_ns;
}

void Watchdog::stop_looking() {
  const std::lock_guard lock(looking_);
  blind_ = true;
}

// Whatever the log does: a full pipe may hold up who writes to it.
void Watchdog::exit_after(double seconds) const {
  std::thread([exit = settings_.exit, seconds, alive = alive_] {
    std::this_thread::sleep_for(std::chrono::duration<double>(seconds));
    if (alive->load()) exit(kExitEngineFault);
  }).detach();
}

// How long a step may take now.
double Watchdog::timeout_s() const {
  const double stall_s = settings_.stall_timeout_s;
  const bool warms_up = settings_.life->state() == ServerState::kStarting && stall_s > 0;
  return warms_up ? std::max(stall_s, settings_.warm_up_timeout_s) : stall_s;
}

void Watchdog::look(int64_t now_ns) {
  const std::lock_guard lock(looking_);
  if (deadline_ns_ != 0 && now_ns >= deadline_ns_) {
    exit_after(kLogSeconds);
    log_error("the shutdown did not end in time; the process ends now");
    settings_.exit(kExitEngineFault);
    return;
  }
  if (exit_at_ns_ != 0) {
    if (now_ns >= exit_at_ns_) settings_.exit(kExitEngineFault);
    return;
  }
  if (blind_) return;
  const ServiceStats stats = settings_.stats();
  const double timeout = timeout_s();
  const Progress progress = progress_of(stats, now_ns, to_ns(timeout));
  if (progress == Progress::kGoing) return;
  settings_.life->advance(ServerState::kFaulted);
  const bool stalled = progress == Progress::kStalled;
  const double grace = stalled ? settings_.stall_grace_s : settings_.fault_grace_s;
  exit_at_ns_ = now_ns + to_ns(grace);
  exit_after(grace + kLogSeconds);
  if (stalled) {
    log_error("no step ended for ", timeout, " s (--stall-timeout); the process ends with 70 in ",
              grace, " s. ", state_dump(stats, now_ns));
  } else {
    log_error("the engine had a fault; the process ends with 70 in ", grace, " s");
  }
}

}  // namespace fathom::serve
