#include "fathom/serve/exchange.h"

#include <algorithm>

#include "fathom/base/ascii.h"

namespace fathom::serve {
namespace {

// "%41+b" is "A b"; what is no escape stays.
std::string decoded(std::string_view text) {
  std::string out;
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] == '%' && i + 2 < text.size() && hex_value(text[i + 1]) >= 0 &&
        hex_value(text[i + 2]) >= 0) {
      out += static_cast<char>(hex_value(text[i + 1]) * 16 + hex_value(text[i + 2]));
      i += 2;
    } else {
      out += text[i] == '+' ? ' ' : text[i];
    }
  }
  return out;
}

}  // namespace

HttpReply json_reply(std::string body) {
  HttpReply reply;
  reply.body = std::move(body);
  return reply;
}

std::string_view HttpRequest::header(std::string_view name) const {
  for (const auto& [key, value] : headers) {
    if (equal_without_case(key, name)) return value;
  }
  return {};
}

std::string HttpRequest::query_value(std::string_view name) const {
  std::string_view rest = query;
  while (!rest.empty()) {
    const std::string_view pair = rest.substr(0, rest.find('&'));
    const size_t equals = pair.find('=');
    if (decoded(pair.substr(0, equals)) == name) {
      return equals == std::string_view::npos ? std::string{} : decoded(pair.substr(equals + 1));
    }
    rest.remove_prefix(std::min(rest.size(), pair.size() + 1));
  }
  return {};
}

}  // namespace fathom::serve
