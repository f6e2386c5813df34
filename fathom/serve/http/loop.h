// The event loop: one thread that waits for descriptors and time and runs what others post. It
// alone includes Asio.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>

#include "fathom/base/status.h"
#include "fathom/serve/exchange.h"

namespace fathom::serve {

enum class FdEvent : uint8_t {
  kReadable,
  kWritable,
  kFailed,  ///< the peer reset the connection or closed both of its directions
};

/// Hears of a descriptor, on the loop. Kept alive by the waits it has.
class FdListener : public std::enable_shared_from_this<FdListener> {
 public:
  virtual ~FdListener() = default;
  virtual void on_fd(FdEvent event) = 0;
};

/// A descriptor in the loop; owns it. Its end ends the waits without a call. On the loop only.
class FdWatch {
 public:
  virtual ~FdWatch() = default;

  /// Calls the listener once when the event comes, at once if it is there. One wait for each kind
  /// of event at a time.
  virtual void wait(FdEvent event) = 0;

  virtual int descriptor() const = 0;
};

class Loop {
 public:
  /// Starts the thread. Unavailable if the system gives none.
  static Result<std::shared_ptr<Loop>> start();
  virtual ~Loop() = default;

  /// Runs `f` on the loop, in the order of the calls. Thread-safe; after stop() nothing runs.
  virtual void post(std::function<void()> f) = 0;

  /// Runs `f` on the loop after a time. On the loop only.
  virtual void after(int64_t ms, std::function<void()> f) = 0;

  virtual bool on_loop() const = 0;

  /// Takes a descriptor (closed on failure). The listener outlives the watch or owns it, and the
  /// watch ends before the loop does. On the loop only. Errors: Io.
  virtual Result<std::unique_ptr<FdWatch>> watch(int fd, FdListener* listener) = 0;

  /// Ends the thread and drops what was posted. Not from the loop.
  virtual void stop() = 0;
};

}  // namespace fathom::serve
