// A monotonic clock behind an interface, so that tests can turn the hands.
#pragma once

#include <cstdint>
#include <string>
#include <time.h>

namespace fathom {

/// Nanoseconds of a clock that never goes back. Its zero has no meaning. Thread-safe, no system
/// call on Linux.
inline int64_t monotonic_ns() {
  timespec now{};
  clock_gettime(CLOCK_MONOTONIC, &now);
  return int64_t{now.tv_sec} * 1'000'000'000 + now.tv_nsec;
}

/// "2026-01-31T12:00:00Z" of a Unix time in seconds.
std::string utc_timestamp(int64_t unix_seconds);

/// What code that waits or measures takes instead of calling monotonic_ns() itself.
class Clock {
 public:
  virtual ~Clock() = default;
  virtual int64_t now_ns() const = 0;
};

/// The real one.
class MonotonicClock final : public Clock {
 public:
  int64_t now_ns() const override { return monotonic_ns(); }
};

/// Stands still until it is told to move. For tests and simulations.
class ManualClock final : public Clock {
 public:
  explicit ManualClock(int64_t start_ns = 0) : now_ns_(start_ns) {}

  int64_t now_ns() const override { return now_ns_; }

  void advance_ns(int64_t by) { now_ns_ += by; }

 private:
  int64_t now_ns_;
};

}  // namespace fathom
