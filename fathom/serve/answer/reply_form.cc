#include "fathom/serve/answer/reply_form.h"

#include <array>

#include "fathom/base/str_cat.h"
#include "fathom/os/random.h"

namespace fathom::serve {

std::string unguessable_id(std::string_view prefix) {
  constexpr std::string_view kDigits = "0123456789abcdef";
  std::array<uint8_t, 12> bytes{};
  fill_unguessable(bytes);
  std::string id(prefix);
  for (const uint8_t byte : bytes) {
    id += kDigits[byte >> 4];
    id += kDigits[byte & 15];
  }
  return id;
}

HttpReply event_stream_head() {
  return {.status = 200,
          .content_type = "text/event-stream; charset=utf-8",
          .headers = {{"Cache-Control", "no-cache"}, {"X-Accel-Buffering", "no"}},
          .body = {}};
}

std::string data_event(std::string_view json) {
  return str_cat("data: ", json, "\n\n");
}

std::string named_event(std::string_view name, std::string_view json) {
  return str_cat("event: ", name, "\n", data_event(json));
}

void write_ids(JsonWriter& w, const std::vector<int32_t>& ids) {
  w.begin_array();
  for (const int32_t id : ids)
    w.integer(id);
  w.end_array();
}

}  // namespace fathom::serve
