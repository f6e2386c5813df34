// Work in a process of its own, so that what kills it kills nothing else.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>

#include "fathom/base/status.h"

namespace fathom {

/// Sends one message to the parent. The letter says what the bytes are.
using SendMessage = std::function<void(char kind, std::string_view bytes)>;
using OnMessage = std::function<void(char kind, std::string_view bytes)>;

/// How a child ended: empty if it did all its work, else "signal 11 (Segmentation fault)" or
/// "exit code 3".
struct ChildEnd {
  std::string how{};

  bool crashed() const { return !how.empty(); }
};

/// Runs `work` in a forked process and calls `on_message` here for each message, in order, as they
/// arrive; a message that the child's death cut short is dropped. Only the calling thread lives on
/// in the child, so this process must not have a thread pool at work. The child ends with its
/// parent, and at once when it is interrupted (SIGINT), whatever the parent does then. `stop`, if
/// there is one, is asked some times a second; when it says so, the child is killed, and what it
/// sent until then still arrives. Errors: Io
/// when the system refuses a process.
Result<ChildEnd> run_in_child(const std::function<void(const SendMessage& send)>& work,
                              const OnMessage& on_message,
                              const std::function<bool()>& stop = nullptr);

}  // namespace fathom
