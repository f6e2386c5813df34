// Checks for broken invariants of our own. Input from outside never ends here: it yields a Status.
#pragma once

#include <string_view>

namespace fathom {

/// Called once when a FATHOM_CHECK fails, after the message is printed and before the process
/// aborts. The recorder registers one that dumps its ring.
using CrashHook = void (*)();

/// Registers a crash hook. At most eight are kept; later ones are ignored. Thread-safe.
void add_crash_hook(CrashHook hook);

namespace internal {
[[noreturn]] void check_failed(const char* condition,
                               const char* file,
                               int line,
                               std::string_view detail);
}  // namespace internal
}  // namespace fathom

/// Aborts with a message when an invariant of ours is broken. The second argument, if given, is
/// text (std::string, const char*) with the values involved.
#define FATHOM_CHECK(condition, ...)                                     \
  do {                                                                   \
    if (!(condition)) [[unlikely]]                                       \
      ::fathom::internal::check_failed(#condition, __FILE__, __LINE__,   \
                                       ::std::string_view{__VA_ARGS__}); \
  } while (false)

#ifdef NDEBUG
#define FATHOM_DCHECK(condition, ...) \
  do {                                \
  } while (false)
#else
#define FATHOM_DCHECK(condition, ...) FATHOM_CHECK(condition, __VA_ARGS__)
#endif
