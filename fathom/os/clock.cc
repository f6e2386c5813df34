#include "fathom/os/clock.h"

namespace fathom {

std::string utc_timestamp(int64_t unix_seconds) {
  const auto seconds = static_cast<time_t>(unix_seconds);
  tm date{};
  gmtime_r(&seconds, &date);
  char text[64];
  return {text, strftime(text, sizeof text, "%Y-%m-%dT%H:%M:%SZ", &date)};
}

}  // namespace fathom
