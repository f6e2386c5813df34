#include "fathom/serve/prompt/turn_reader.h"

#include <algorithm>
#include <charconv>

#include "fathom/base/log.h"
#include "fathom/serve/prompt/answer_shape.h"
#include "fathom/serve/prompt/chat_prompt.h"
#include "fathom/text/json_writer.h"
#include "fathom/tokenizer/chat/chat_json.h"

namespace fathom::serve {
namespace {

constexpr size_t kShownTypes = 8;
constexpr size_t kShownBytes = 40;

std::string words(std::span<const std::string_view> list) {
  std::string all;
  for (const std::string_view word : list)
    all += str_cat(all.empty() ? "" : ", ", word);
  return all;
}

}  // namespace

ChatMessage& PlacedConversation::add(ChatRole role, std::string place) {
  places.push_back(std::move(place));
  return conversation.messages.emplace_back(ChatMessage{.role = role});
}

ApiError placed_error(const Status& status, const std::vector<std::string>& places) {
  constexpr std::string_view kBegin = "messages[";
  ApiError error = api_error(status);
  if (!error.param.starts_with(kBegin) || !error.message.starts_with(error.param)) return error;
  const std::string path = error.param.substr(kBegin.size());
  size_t index = 0;
  const auto [end, wrong] = std::from_chars(path.data(), path.data() + path.size(), index);
  if (wrong != std::errc{} || !std::string_view(end).starts_with("]") || index >= places.size()) {
    return error;
  }
  const std::string rest = error.message.substr(error.param.size());
  error.param = str_cat(places[index], std::string_view(end).substr(1));
  error.message = error.param + rest;
  return error;
}

void ContentReader::take_error(const Fields& inner) {
  if (inner.error()) root_.fail(*inner.error());
}

void ContentReader::fail(const std::string& where, std::string_view why, std::string code) {
  root_.fail(bad_value(where, str_cat(where, ": ", why), std::move(code)));
}

void ContentReader::count(size_t num_parts, const std::string& where) {
  num_parts_ += num_parts;
  if (num_parts_ <= kMaxContentParts) return;
  fail(where, str_cat("part ", kMaxContentParts + 1, " of the request and on, expected at most ",
                      kMaxContentParts, " parts"));
}

void ContentReader::append(std::string& text, std::string_view part, bool is_first) const {
  if (!is_first) text += reading_.part_separator;
  text += part;
}

std::string ContentReader::other_part(const Fields& part,
                                      std::string_view type,
                                      std::string_view expected,
                                      Of of) {
  if (of == Of::kToolResult && reading_.other_parts_of_results == ChatReading::OtherParts::kNamed) {
    return str_cat("[Unsupported ", type.substr(0, kShownBytes), "]");
  }
  fail(part.at("type"), str_cat("found \"", type.substr(0, kShownBytes), "\", expected ", expected),
       "unsupported_parameter");
  return {};
}

std::string ContentReader::join(const std::vector<std::string>& parts) const {
  std::string text;
  for (size_t i = 0; i < parts.size(); ++i)
    append(text, parts[i], i == 0);
  return text;
}

std::string ContentReader::text(const Json* content,
                                const std::string& where,
                                std::span<const std::string_view> types,
                                Of of) {
  return join(texts(content, where, types, of));
}

std::vector<std::string> ContentReader::texts(const Json* content,
                                              const std::string& where,
                                              std::span<const std::string_view> types,
                                              Of of) {
  if (!ok()) return {};
  if (content == nullptr || content->is_null()) {
    fail(where, "missing, expected a string or an array of parts");
    return {};
  }
  if (content->is_string()) return {content->as_string()};
  if (!content->is_array()) {
    fail(where,
         str_cat("found ", content->kind_name(), ", expected a string or an array of parts"));
    return {};
  }
  count(content->items().size(), where);
  std::vector<std::string> texts;
  for (size_t i = 0; i < content->items().size() && ok(); ++i)
    texts.push_back(part_text(content->items()[i], str_cat(where, "[", i, "]"), types, of));
  return texts;
}

std::string ContentReader::part_text(const Json& part,
                                     const std::string& where,
                                     std::span<const std::string_view> types,
                                     Of of) {
  if (!part.is_object()) {
    fail(where, str_cat("found ", part.kind_name(), ", expected an object"));
    return {};
  }
  Fields fields(part, where);
  const std::string type = fields.required_text("type", kMaxTextBytes);
  std::string text;
  if (fields.ok() && std::ranges::find(types, type) == types.end()) {
    text = other_part(fields, type, words(types), of);
  } else {
    text = fields.required_text(type == "refusal" ? "refusal" : "text", kMaxTextBytes);
  }
  take_error(fields);
  return text;
}

ToolDefinition read_flat_tool(Fields& tool, const Json& json, std::string_view schema_field) {
  ToolDefinition read;
  read.name = tool.required_text("name", kMaxIdBytes);
  read.description = tool.text("description", kMaxTextBytes).value_or("");
  tool.boolean("strict");
  const Json* schema = tool.object(schema_field);
  if (schema != nullptr) {
    const Status status = check_schema(*schema, tool.at(schema_field));
    if (!status.ok()) tool.fail(api_error(status));
    read.parameters = *schema;
  }
  std::vector<JsonMember> function;
  for (const auto& [key, value] : json.members()) {
    if (value.is_null()) continue;
    if (key == schema_field) {
      function.emplace_back("parameters", value);
    } else if (key == "name" || key == "description" || key == "strict") {
      function.emplace_back(key, value);
    }
  }
  read.definition = Json::object(
      {{"type", Json::string("function")}, {"function", Json::object(std::move(function))}});
  return read;
}

void log_skipped_tools(std::string_view route, const std::set<std::string>& types) {
  if (types.empty()) return;
  std::string shown;
  size_t count = 0;
  for (const std::string& type : types) {
    if (count++ == kShownTypes) break;
    if (!shown.empty()) shown += ", ";
    append_json_string(shown, std::string_view(type).substr(0, kShownBytes), JsonCharset::kAscii);
  }
  if (types.size() > kShownTypes) shown += ", ...";
  log_info(route, ": tools of these types are not supported and left out: ", shown);
}

}  // namespace fathom::serve
