#include "fathom/base/log.h"

#include <atomic>
#include <cstdio>
#include <mutex>
#include <string>

namespace fathom {
namespace {

std::mutex g_mutex;
LogSink g_sink = nullptr;
std::atomic<LogLevel> g_level{LogLevel::kInfo};

// Messages quote files and arguments: what moves the cursor or changes colours is written out, and
// what is endless is cut. A line feed stays, since a message may have several lines.
std::string printable(std::string_view line) {
  constexpr size_t kMaxBytes = 4096;
  constexpr std::string_view kDigits = "0123456789abcdef";
  std::string text;
  for (const char c : line.substr(0, kMaxBytes)) {
    const auto byte = static_cast<unsigned char>(c);
    if ((byte >= ' ' && byte != 0x7f) || c == '\n') {
      text += c;
    } else {
      text += {'\\', 'x', kDigits[byte >> 4], kDigits[byte & 15]};
    }
  }
  return line.size() > kMaxBytes ? text + "..." : text;
}

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
  const std::string text = printable(line);
  std::fprintf(stderr, "fathom: %s%s\n", prefix, text.c_str());
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
