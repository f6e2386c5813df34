#include "fathom/serve/anthropic/tool_input.h"

#include <cstdint>
#include <string>

namespace fathom::serve {
namespace {

// What is known of a text up to the end of its last whole value.
class Closer {
 public:
  std::string close(std::string_view text) && {
    for (size_t i = 0; i < text.size(); ++i) {
      if (in_string_) {
        on_string_char(text[i], i);
      } else {
        on_char(text[i], i);
      }
    }
    std::string closed(text.substr(0, whole_));
    for (auto open = whole_open_.rbegin(); open != whole_open_.rend(); ++open)
      closed += *open == '{' ? '}' : ']';
    return closed;
  }

 private:
  void mark(size_t end) {
    whole_ = end;
    whole_open_ = open_;
  }

  void on_string_char(char c, size_t i) {
    if (is_escaped_) {
      is_escaped_ = false;
    } else if (c == '\\') {
      is_escaped_ = true;
    } else if (c == '"') {
      in_string_ = false;
      if (!expects_key_) mark(i + 1);
    }
  }

  void on_char(char c, size_t i) {
    switch (c) {
      case '"':
        in_string_ = true;
        break;
      case '{':
      case '[':
        open_ += c;
        expects_key_ = c == '{';
        mark(i + 1);
        break;
      case '}':
      case ']':
        if (!open_.empty()) open_.pop_back();
        expects_key_ = false;
        mark(i + 1);
        break;
      case ',':
        mark(i);
        expects_key_ = !open_.empty() && open_.back() == '{';
        break;
      case ':':
        expects_key_ = false;
        break;
      default:
        break;
    }
  }

  std::string open_;  // brackets
  bool in_string_ = false;
  bool is_escaped_ = false;
  bool expects_key_ = false;
  size_t whole_ = 0;
  std::string whole_open_;
};

Result<Json> parse(std::string_view text) {
  const JsonLimits limits{.max_bytes = INT64_MAX,
                          .max_string_bytes = INT64_MAX,
                          .big_integer = JsonLimits::BigInteger::kRound};
  return parse_json(text, limits, "arguments");
}

}  // namespace

Json tool_input(std::string_view arguments) {
  if (Result<Json> whole = parse(arguments); whole.ok()) return std::move(whole).value();
  if (Result<Json> closed = parse(Closer().close(arguments)); closed.ok()) {
    return std::move(closed).value();
  }
  return Json::object();
}

}  // namespace fathom::serve
