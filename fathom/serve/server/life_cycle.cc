#include "fathom/serve/server/life_cycle.h"

#include <algorithm>

namespace fathom::serve {

std::string_view server_state_name(ServerState state) {
  constexpr std::string_view kNames[] = {"starting", "ready", "draining", "stopped", "faulted"};
  return kNames[static_cast<size_t>(state)];
}

bool LifeCycle::advance(ServerState to) {
  ServerState now = state_.load();
  while (now < to) {
    if (state_.compare_exchange_weak(now, to)) return true;
  }
  return false;
}

Progress progress_of(const ServiceStats& stats, int64_t now_ns, int64_t stall_ns) {
  if (stats.faulted) return Progress::kFaulted;
  // A step that runs counts from its beginning: before it the engine was idle, or had just ended
  // another.
  if (stall_ns == 0 || stats.busy_since_ns == 0) return Progress::kGoing;
  const int64_t since = std::max(stats.busy_since_ns, stats.last_step_ns);
  return now_ns - since > stall_ns ? Progress::kStalled : Progress::kGoing;
}

}  // namespace fathom::serve
