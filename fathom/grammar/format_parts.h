// Pieces of a structural tag: the JSON in which the grammar library is told what an answer looks
// like. A format is a Json value that describes a piece of text; formats nest.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "fathom/text/json.h"

namespace fathom::format {

inline Json typed(std::string_view type, std::vector<JsonMember> members) {
  members.insert(members.begin(), {"type", Json::string(std::string{type})});
  return Json::object(std::move(members));
}

/// Exactly this text.
inline Json text(std::string_view value) {
  return typed("const_string", {{"value", Json::string(std::string{value})}});
}

/// Exactly this token, whatever its text.
inline Json token(int32_t id) {
  return typed("token", {{"token", Json::integer(id)}});
}

/// One after the other; at least one element.
inline Json sequence(std::vector<Json> elements) {
  return typed("sequence", {{"elements", Json::array(std::move(elements))}});
}

/// One of them; at least one element.
inline Json one_of(std::vector<Json> elements) {
  return typed("or", {{"elements", Json::array(std::move(elements))}});
}

inline Json optional(Json content) {
  return typed("optional", {{"content", std::move(content)}});
}

/// Any number of times, also none.
inline Json star(Json content) {
  return typed("star", {{"content", std::move(content)}});
}

inline Json regex(std::string_view pattern) {
  return typed("regex", {{"pattern", Json::string(std::string{pattern})}});
}

inline Json ebnf(std::string_view grammar) {
  return typed("grammar", {{"grammar", Json::string(std::string{grammar})}});
}

/// Any text in which `without` does not occur; empty: any text at all.
inline Json any_text(std::string_view without) {
  std::vector<JsonMember> members;
  if (!without.empty())
    members.emplace_back("excludes", Json::array({Json::string(std::string{without})}));
  return typed("any_text", std::move(members));
}

/// How many blanks or line ends may stand between two signs of JSON: enough for any layout, and no
/// more, as a model that goes on with blanks never ends.
inline constexpr int64_t kMaxBlanks = 40;

/// JSON that follows a schema (schema_check.h).
inline Json json_of(Json schema) {
  return typed("json_schema", {{"json_schema", std::move(schema)},
                               {"max_whitespace_cnt", Json::integer(kMaxBlanks)}});
}

}  // namespace fathom::format
