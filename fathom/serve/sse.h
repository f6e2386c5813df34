// Server-sent events as a client reads them: bytes in any pieces, the same events.
//
//   event: message_delta      the type; "message" where there is none
//   data: {"a":1}             several lines of data are joined by '\n'
//   : ping                    a comment, which says nothing
//   (empty line)              ends the event
//
// Source: WHATWG HTML, "Server-sent events", section 9.2.6. Lines end with LF, CR or CR LF.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>

#include "fathom/base/status.h"

namespace fathom::serve {

struct SseEvent {
  std::string type;  ///< "message" unless the stream names another
  std::string data;

  friend bool operator==(const SseEvent&, const SseEvent&) = default;
};

/// Takes a stream apart. Fields but `event` and `data` are read over, and so is an event that the
/// stream ends within.
class SseParser {
 public:
  explicit SseParser(int64_t max_event_bytes = int64_t{16} << 20)
      : max_event_bytes_(max_event_bytes) {}

  /// The next bytes; calls with each event that they complete. Errors: Corrupt for an event or a
  /// line above the limit, and then for every further call.
  Status push(std::string_view bytes, const std::function<void(const SseEvent&)>& on_event);

 private:
  void end_line(const std::function<void(const SseEvent&)>& on_event);

  int64_t max_event_bytes_;
  std::string line_;
  SseEvent event_;
  bool has_data_ = false;
  bool after_cr_ = false;   // an LF that follows belongs to the line end before it
  bool first_line_ = true;  // which may begin with a byte order mark
  bool too_long_ = false;
};

}  // namespace fathom::serve
