#include "fathom/grammar/spec_format.h"

#include <string_view>
#include <utility>
#include <vector>

#include "fathom/base/str_cat.h"
#include "fathom/grammar/call_format.h"
#include "fathom/grammar/format_parts.h"
#include "fathom/grammar/schema_check.h"
#include "fathom/text/json_writer.h"
#include "fathom/text/utf8.h"

namespace fathom {
namespace {

using Kind = GrammarSpec::Kind;

Status check_size(std::string_view what, int64_t size, int64_t limit) {
  if (size <= limit) return {};
  return invalid_argument(
      str_cat("grammar_too_complex: ", what, " has ", size, " bytes, at most ", limit));
}

Status check_text(std::string_view what, const std::string& text, int64_t limit) {
  FATHOM_TRY(check_size(what, static_cast<int64_t>(text.size()), limit));
  if (text.empty()) return invalid_argument(str_cat("invalid_schema: ", what, " is empty"));
  if (!is_valid_utf8(text))
    return invalid_argument(str_cat("invalid_schema: ", what, " is not UTF-8"));
  return {};
}

Result<Json> parsed(std::string_view what, const std::string& text, const GrammarLimits& limits) {
  FATHOM_TRY(check_text(what, text, limits.max_schema_bytes));
  JsonLimits json;
  json.max_depth = static_cast<int>(limits.max_json_depth);
  auto document = parse_json(text, json, what);
  if (!document.ok())
    return invalid_argument(str_cat("invalid_schema: ", document.status().message()));
  return document;
}

Result<Json> choice_format(const std::vector<std::string>& choices, int64_t limit) {
  if (choices.empty()) return invalid_argument("invalid_schema: there is no choice");
  int64_t size = 0;
  std::vector<Json> texts;
  for (const std::string& choice : choices) {
    size += static_cast<int64_t>(choice.size());
    FATHOM_TRY(check_text("a choice", choice, limit));
    texts.push_back(format::text(choice));
  }
  FATHOM_TRY(check_size("the list of choices", size, limit));
  return format::one_of(std::move(texts));
}

// A structural tag of a client: its schemas are checked, and tokens are not for clients to name.
class ClientTag {
 public:
  explicit ClientTag(const GrammarLimits& limits) : limits_(limits) {}

  Result<Json> format_of(const Json& document) const {
    const Json* format = document.find("format");
    if (format != nullptr) return checked(*format, "format", 0);
    if (document.find("structures") == nullptr)
      return invalid_argument("invalid_schema: the structural tag has no 'format'");
    auto tags = from_structures(document);
    if (!tags.ok()) return std::move(tags).status();
    return checked(*tags, "structures", 0);
  }

 private:
  // The older form: {"structures": [{"begin", "schema", "end"}], "triggers": [...]}.
  static Result<Json> from_structures(const Json& document) {
    const Json* structures = document.find("structures");
    const Json* triggers = document.find("triggers");
    if (!structures->is_array() || triggers == nullptr)
      return invalid_argument(
          "invalid_schema: 'structures' needs a list, and 'triggers' beside it");
    Json tags = Json::array();
    for (const Json& one : structures->items()) {
      const Json* begin = one.find("begin");
      const Json* schema = one.find("schema");
      const Json* end = one.find("end");
      if (begin == nullptr || schema == nullptr || end == nullptr)
        return invalid_argument("invalid_schema: a structure needs 'begin', 'schema' and 'end'");
      tags.items().push_back(format::typed(
          "tag", {{"begin", *begin}, {"content", format::json_of(*schema)}, {"end", *end}}));
    }
    return format::typed("triggered_tags", {{"triggers", *triggers}, {"tags", std::move(tags)}});
  }

  Result<Json> checked(const Json& value, const std::string& path, int64_t depth) const {
    if (depth > 4 * limits_.max_schema_depth) {
      return invalid_argument(
          str_cat("grammar_too_complex: ", path, " is nested deeper than the limit"));
    }
    if (value.is_array()) {
      Json out = Json::array();
      for (const Json& item : value.items()) {
        auto one = checked(item, path, depth + 1);
        if (!one.ok()) return one;
        out.items().push_back(*std::move(one));
      }
      return out;
    }
    if (!value.is_object()) return value;
    if (const Json* type = value.find("type"); type != nullptr && type->is_string()) {
      const std::string_view name = type->as_string();
      if (name.find("token") != name.npos) {
        return invalid_argument(
            str_cat("invalid_schema: ", path, ": the format '", name, "' is not for clients"));
      }
    }
    Json out = Json::object();
    for (const auto& [key, member] : value.members()) {
      const std::string inner = str_cat(path, ".", key);
      const bool is_expression = (key == "pattern" || key == "grammar") && member.is_string();
      if (is_expression) FATHOM_TRY(check_repetitions(member.as_string(), inner));
      if (key == "pattern" && member.is_string()) {
        FATHOM_TRY(check_size(inner, static_cast<int64_t>(member.as_string().size()),
                              limits_.max_pattern_bytes));
      }
      auto one = key == "json_schema"
                     ? checked_schema(member,
                                      {limits_.max_schema_bytes, limits_.max_schema_depth,
                                       limits_.max_pattern_bytes},
                                      inner)
                     : checked(member, inner, depth + 1);
      if (!one.ok()) return one;
      out.members().emplace_back(key, *std::move(one));
    }
    return out;
  }

  const GrammarLimits& limits_;
};

// What the content of an answer without calls is.
Result<Json> content_format(const GrammarSpec& spec,
                            const SchemaLimits& schema_limits,
                            const GrammarLimits& limits) {
  switch (spec.kind) {
    case Kind::kJson:
      return format::json_of(Json::object(
          {{"type", Json::string("object")}, {"additionalProperties", Json::boolean(true)}}));
    case Kind::kJsonSchema: {
      auto schema = parsed("the schema", spec.text, limits);
      if (schema.ok()) schema = checked_schema(*schema, schema_limits, "schema");
      if (!schema.ok()) return schema;
      return format::json_of(*std::move(schema));
    }
    case Kind::kRegex:
      FATHOM_TRY(check_text("the expression", spec.text, limits.max_pattern_bytes));
      FATHOM_TRY(check_repetitions(spec.text, "the expression"));
      return format::regex(spec.text);
    case Kind::kChoice:
      return choice_format(spec.choices, limits.max_schema_bytes);
    case Kind::kEbnf:
      FATHOM_TRY(check_text("the grammar", spec.text, limits.max_schema_bytes));
      FATHOM_TRY(check_repetitions(spec.text, "the grammar"));
      return format::ebnf(spec.text);
    case Kind::kStructuralTag: {
      auto document = parsed("the structural tag", spec.text, limits);
      if (!document.ok()) return document;
      return ClientTag{limits}.format_of(*document);
    }
    case Kind::kTools:
      break;
  }
  return internal_error("a grammar of no known kind");
}

void append_part(std::string& key, std::string_view part) {
  key += str_cat(part.size(), ":");
  key += part;
}

}  // namespace

Result<Json> spec_format(const GrammarSpec& spec,
                         const CallMarkers& markers,
                         const GrammarLimits& limits) {
  const SchemaLimits schema_limits{limits.max_schema_bytes, limits.max_schema_depth,
                                   limits.max_pattern_bytes};
  auto format = spec.kind == Kind::kTools
                    ? call_section_format(
                          spec, markers, schema_limits,
                          spec.must_call ? SectionStart::kWhole : SectionStart::kBehindTrigger)
                    : content_format(spec, schema_limits, limits);
  if (!format.ok()) return format;
  if (spec.free_until && spec.kind != Kind::kTools) {
    format = format::sequence({format::optional(format::text("\n")),
                               format::optional(format::text("\n")), *std::move(format)});
  }
  if (spec.kind != Kind::kTools && spec.has_calls()) {
    auto calls = call_section_format(spec, markers, schema_limits, SectionStart::kWhole);
    if (!calls.ok()) return calls;
    format = format::one_of({*std::move(calls), *std::move(format)});
  }
  return format::typed("structural_tag", {{"format", *std::move(format)}});
}

std::string spec_key(const GrammarSpec& spec) {
  std::string key =
      str_cat(static_cast<int>(spec.kind), " ", static_cast<int>(spec.level), " ",
              spec.must_call ? 1 : 0, spec.parallel_calls ? 1 : 0, " ",
              spec.free_until.value_or(-1), " ", static_cast<int>(spec.answer.tool_calls), " ");
  append_part(key, spec.answer.section);
  append_part(key, spec.text);
  for (const std::string& choice : spec.choices)
    append_part(key, choice);
  for (const ToolDefinition& tool : spec.tools) {
    append_part(key, tool.name);
    append_part(key, dump_json(tool.parameters));
  }
  return key;
}

}  // namespace fathom
