// The states of a server, and whether its engine goes forward.
//
//   starting -> ready -> draining -> stopped        any -> faulted
#pragma once

#include <atomic>
#include <cstdint>
#include <string_view>

#include "fathom/serve/service/service_observer.h"

namespace fathom::serve {

enum class ServerState : uint8_t { kStarting, kReady, kDraining, kStopped, kFaulted };

/// "starting", "ready", ...
std::string_view server_state_name(ServerState state);

/// Thread-safe.
class LifeCycle {
 public:
  ServerState state() const { return state_.load(std::memory_order_acquire); }

  /// Forward only; a fault is final. False if the change is none.
  bool advance(ServerState to);

 private:
  std::atomic<ServerState> state_{ServerState::kStarting};
};

/// What a look at the engine says.
enum class Progress : uint8_t {
  kGoing,    ///< idle, or a step ended within the stall timeout
  kStalled,  ///< work is there, and no step ended for longer
  kFaulted,  ///< the engine reported a fault
};

/// `now_ns` of the monotonic clock. 0 for `stall_ns`: never stalled.
Progress progress_of(const ServiceStats& stats, int64_t now_ns, int64_t stall_ns);

}  // namespace fathom::serve
