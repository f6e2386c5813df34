// Levelled log into one replaceable sink. The library never writes to stdout.
#pragma once

#include <string>
#include <string_view>

#include "fathom/base/str_cat.h"

namespace fathom {

enum class LogLevel { kError, kWarn, kInfo, kDebug, kTrace };

/// Receives every line at or below the level. Called under a lock, one line at a time.
using LogSink = void (*)(LogLevel level, std::string_view line);

/// Replaces the sink; null restores the default (stderr, "fathom: warning: ...").
void set_log_sink(LogSink sink);

/// Lines above this level are dropped before they are built. Default: kInfo.
void set_log_level(LogLevel level);
LogLevel log_level();

void log_line(LogLevel level, std::string_view line);

template <class... Parts>
void log_error(const Parts&... parts) {
  log_line(LogLevel::kError, str_cat(parts...));
}

template <class... Parts>
void log_warn(const Parts&... parts) {
  if (log_level() >= LogLevel::kWarn) log_line(LogLevel::kWarn, str_cat(parts...));
}

template <class... Parts>
void log_info(const Parts&... parts) {
  if (log_level() >= LogLevel::kInfo) log_line(LogLevel::kInfo, str_cat(parts...));
}

template <class... Parts>
void log_debug(const Parts&... parts) {
  if (log_level() >= LogLevel::kDebug) log_line(LogLevel::kDebug, str_cat(parts...));
}

}  // namespace fathom
