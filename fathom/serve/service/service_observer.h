// What a service tells those who count: steps, tokens, ends of requests. And its figures now.
#pragma once

#include <cstdint>

#include "fathom/runtime/engine.h"

namespace fathom::serve {

/// Monotonic nanoseconds; 0: not yet.
struct RequestTimes {
  int64_t submitted_ns = 0;
  int64_t started_ns = 0;  ///< its first token of the prompt was computed from here on
  int64_t first_token_ns = 0;
  int64_t last_token_ns = 0;
};

/// Seconds between two of them; 0 if one has not come.
inline double seconds_between(int64_t from_ns, int64_t to_ns) {
  return from_ns == 0 || to_ns < from_ns ? 0.0 : static_cast<double>(to_ns - from_ns) * 1e-9;
}

/// A request at its end.
struct RequestRecord {
  int64_t prompt_tokens = 0;
  int64_t cached_tokens = 0;
  int64_t generated_tokens = 0;
  int64_t max_tokens = 0;
  FinishReason finish = FinishReason::kNone;
  RequestTimes times;
  int64_t ended_ns = 0;
};

/// One step of the engine.
struct StepRecord {
  int64_t prompt_tokens = 0;  ///< computed in it
  int64_t generated_tokens = 0;
  int64_t running = 0;
  double seconds = 0;
};

/// Called on the engine thread; must be quick.
class ServiceObserver {
 public:
  virtual ~ServiceObserver() = default;
  virtual void on_step(const StepRecord& step) = 0;
  virtual void on_token(double seconds_since_last) = 0;  ///< of a request, from its second token on
  virtual void on_first_token(double seconds_since_submit) = 0;
  virtual void on_end(const RequestRecord& request) = 0;
};

struct ServiceStats {
  CoreStats core;
  int64_t last_step_ns = 0;   ///< monotonic: end of the last step; 0: none
  int64_t busy_since_ns = 0;  ///< a step runs since then; 0: none
  bool faulted = false;
  bool draining = false;
};

}  // namespace fathom::serve
