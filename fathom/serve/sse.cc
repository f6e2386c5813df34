#include "fathom/serve/sse.h"

#include "fathom/base/str_cat.h"

namespace fathom::serve {

Status SseParser::push(std::string_view bytes,
                       const std::function<void(const SseEvent&)>& on_event) {
  while (!bytes.empty() && !too_long_) {
    if (after_cr_ && bytes.front() == '\n') bytes.remove_prefix(1);
    after_cr_ = false;
    const size_t end = bytes.find_first_of("\r\n");
    line_ += bytes.substr(0, end);
    too_long_ = static_cast<int64_t>(line_.size() + event_.data.size()) > max_event_bytes_;
    if (end == std::string_view::npos || too_long_) break;
    after_cr_ = bytes[end] == '\r';
    bytes.remove_prefix(end + 1);
    end_line(on_event);
  }
  if (!too_long_) return {};
  return corrupt(str_cat("an event of the stream has more than ", max_event_bytes_, " bytes"));
}

void SseParser::end_line(const std::function<void(const SseEvent&)>& on_event) {
  constexpr std::string_view kByteOrderMark = "\xEF\xBB\xBF";
  std::string_view line = line_;
  if (first_line_ && line.starts_with(kByteOrderMark)) line.remove_prefix(kByteOrderMark.size());
  first_line_ = false;
  if (line.empty()) {
    if (event_.type.empty()) event_.type = "message";
    if (has_data_) on_event(event_);
    event_ = {};
    has_data_ = false;
  } else {
    const size_t colon = line.find(':');
    const std::string_view name = line.substr(0, colon);
    std::string_view value = colon == std::string_view::npos ? "" : line.substr(colon + 1);
    if (value.starts_with(' ')) value.remove_prefix(1);
    if (name == "data") {
      if (has_data_) event_.data += '\n';
      event_.data += value;
      has_data_ = true;
    } else if (name == "event") {
      event_.type = value;
    }
  }
  line_.clear();
}

}  // namespace fathom::serve
