#include "fathom/base/log.h"

#include <atomic>
#include <cstdio>
#include <mutex>

namespace fathom {
namespace {

std::mutex g_mutex;
LogSink g_sink = nullptr;
std::atomic<LogLevel> g_level{LogLevel::kInfo};

void write_to_stderr(LogLevel level, std::string_view line) {
  const char* prefix = "";
  switch (level) {
    case LogLevel::kError:
      prefix = "error: ";
      break;
    case LogLevel::kWarn:
      prefix = "warning: ";
      break;
    case LogLevel::kInfo:
      break;
    case LogLevel::kDebug:
      prefix = "debug: ";
      break;
    case LogLevel::kTrace:
      prefix = "trace: ";
      break;
  }
  std::fprintf(stderr, "fathom: %s%.*s\n", prefix, static_cast<int>(line.size()), line.data());
}

}  // namespace

void set_log_sink(LogSink sink) {
  std::lock_guard lock(g_mutex);
  g_sink = sink;
}

void set_log_level(LogLevel level) {
  g_level.store(level);
}

LogLevel log_level() {
  return g_level.load(std::memory_order_relaxed);
}

void log_line(LogLevel level, std::string_view line) {
  if (level > log_level()) return;
  std::lock_guard lock(g_mutex);
  (g_sink ? g_sink : write_to_stderr)(level, line);
}

}  // namespace fathom
