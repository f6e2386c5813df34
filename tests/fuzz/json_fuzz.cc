// JSON documents. Oracles: what is accepted dumps and parses to the same value in every style and
// stays within the limits; errors are short and valid UTF-8.
#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <string_view>

#include "fathom/text/json.h"
#include "fathom/text/json_writer.h"
#include "fathom/text/utf8.h"

namespace {

using fathom::Json;
using fathom::JsonCharset;
using fathom::JsonLimits;
using fathom::JsonStyle;

void require(bool condition, const char* what) {
  if (condition) return;
  std::fprintf(stderr, "%s\n", what);
  std::abort();
}

int depth_of(const Json& json) {
  int deepest = 0;
  if (json.is_array()) {
    for (const Json& item : json.items())
      deepest = std::max(deepest, depth_of(item));
    return deepest + 1;
  }
  if (json.is_object()) {
    for (const auto& [key, value] : json.members()) {
      require(fathom::is_valid_utf8(key), "key is no UTF-8");
      require(json.find(key) == &value, "key appears twice");
      deepest = std::max(deepest, depth_of(value));
    }
    return deepest + 1;
  }
  if (json.is_string()) require(fathom::is_valid_utf8(json.as_string()), "string is no UTF-8");
  return 0;
}

void check_round_trip(const Json& json, const JsonLimits& limits) {
  // ASCII escapes are up to six times as long as the text.
  JsonLimits wide = limits;
  wide.max_bytes = 64ll << 20;
  for (const auto style :
       {JsonStyle::kCompact, JsonStyle::kPython, JsonStyle::kIndented, JsonStyle::kIndented4}) {
    for (const auto charset : {JsonCharset::kUtf8, JsonCharset::kAscii}) {
      const std::string text = fathom::dump_json(json, style, charset);
      const auto again = fathom::parse_json(text, wide, "dump");
      require(again.ok(), "a dump does not parse");
      require(*again == json, "a dump has another value");
      require(fathom::dump_json(*again, style, charset) == text, "a dump is no fixed point");
    }
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view text{reinterpret_cast<const char*>(data), size};
  JsonLimits limits;
  limits.max_bytes = 1 << 20;
  const auto json = fathom::parse_json(text, limits, "input");
  if (!json.ok()) {
    const std::string message = json.status().message();
    require(json.status().code() == fathom::StatusCode::kCorrupt, "another code than Corrupt");
    require(message.size() < 400, "a long message");
    require(fathom::is_valid_utf8(message), "a message is no UTF-8");
    limits.big_integer = JsonLimits::BigInteger::kRound;
    (void)fathom::parse_json(text, limits, "input");
    return 0;
  }
  require(fathom::is_valid_utf8(text), "accepted invalid UTF-8");
  require(depth_of(*json) <= limits.max_depth, "too deep");
  const Json copy = *json;
  require(copy == *json, "a copy differs");
  check_round_trip(*json, limits);
  return 0;
}
