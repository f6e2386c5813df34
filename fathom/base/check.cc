#include "fathom/base/check.h"

#include <array>
#include <atomic>
#include <cstdio>
#include <cstdlib>

namespace fathom {
namespace {

constexpr int kMaxHooks = 8;
std::array<std::atomic<CrashHook>, kMaxHooks> g_hooks{};
std::atomic<int> g_num_hooks{0};
std::atomic<bool> g_crashing{false};

}  // namespace

void add_crash_hook(CrashHook hook) {
  const int slot = g_num_hooks.fetch_add(1);
  if (slot < kMaxHooks) g_hooks[static_cast<size_t>(slot)].store(hook);
}

namespace internal {

void check_failed(const char* condition, const char* file, int line, std::string_view detail) {
  std::fprintf(stderr, "fathom: internal error: check failed: %s (%s:%d)%s%.*s\n", condition, file,
               line, detail.empty() ? "" : ": ", static_cast<int>(detail.size()), detail.data());
  if (!g_crashing.exchange(true)) {  // A hook that fails a check itself must not recurse.
    for (auto& slot : g_hooks) {
      if (CrashHook hook = slot.load()) hook();
    }
  }
  std::abort();
}

}  // namespace internal
}  // namespace fathom
