#include "fathom/grammar/schema_check.h"

#include <algorithm>
#include <array>
#include <initializer_list>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "fathom/base/str_cat.h"
#include "fathom/text/json_writer.h"

namespace fathom {
namespace {

using Words = std::span<const std::string_view>;

bool is_one_of(std::string_view word, Words words) {
  return std::find(words.begin(), words.end(), word) != words.end();
}

constexpr std::string_view kRefused[] = {"not",
                                         "if",
                                         "then",
                                         "else",
                                         "dependentRequired",
                                         "dependentSchemas",
                                         "dependencies",
                                         "contains",
                                         "minContains",
                                         "maxContains",
                                         "additionalItems",
                                         "$dynamicRef",
                                         "$recursiveRef"};

// In the order in which the library looks for them; it ignores the later ones and all keywords of
// types.
constexpr std::array<std::string_view, 6> kWhole = {"$ref",  "const", "enum",
                                                    "anyOf", "oneOf", "allOf"};

constexpr std::string_view kOfStrings[] = {"minLength", "maxLength", "pattern", "format"};
constexpr std::string_view kOfNumbers[] = {"minimum", "maximum", "exclusiveMinimum",
                                           "exclusiveMaximum", "multipleOf"};
constexpr std::string_view kOfObjects[] = {"properties",           "required",
                                           "additionalProperties", "minProperties",
                                           "maxProperties",        "unevaluatedProperties",
                                           "patternProperties",    "propertyNames"};
constexpr std::string_view kOfArrays[] = {"items", "prefixItems", "unevaluatedItems", "minItems",
                                          "maxItems"};
constexpr std::string_view kDefinitions[] = {"$defs", "definitions"};

// What holds schemas: by names, in a list, or one (of "items" once a list too).
constexpr std::string_view kSchemasByName[] = {"properties", "patternProperties", "$defs",
                                               "definitions", "dependentSchemas"};
constexpr std::string_view kSchemaLists[] = {"anyOf", "oneOf", "allOf", "prefixItems"};
constexpr std::string_view kSingleSchemas[] = {"items",
                                               "additionalProperties",
                                               "unevaluatedProperties",
                                               "unevaluatedItems",
                                               "propertyNames",
                                               "not",
                                               "if",
                                               "then",
                                               "else",
                                               "contains",
                                               "additionalItems"};

// Formats that the library enforces. It then ignores pattern and lengths.
constexpr std::string_view kEnforcedFormats[] = {"email",         "date",
                                                 "time",          "date-time",
                                                 "duration",      "ipv4",
                                                 "ipv6",          "hostname",
                                                 "uuid",          "uri",
                                                 "uri-reference", "uri-template",
                                                 "json-pointer",  "relative-json-pointer"};

// How far the library counts with states of their own. What counts further it works out for every
// mask anew, at 30 ms each.
constexpr int64_t kMaxCount = 128;

// The largest number of repetitions in an expression, "{3,40}".
int64_t largest_repetition(std::string_view pattern) {
  int64_t largest = 0;
  for (size_t at = pattern.find('{'); at != pattern.npos; at = pattern.find('{', at + 1)) {
    int64_t count = 0;
    for (size_t i = at + 1; i < pattern.size() && pattern[i] != '}'; ++i) {
      const char c = pattern[i];
      if (c != ',' && (c < '0' || c > '9')) break;
      count = c == ',' ? 0 : std::min<int64_t>(count * 10 + (c - '0'), 1'000'000);
      largest = std::max(largest, count);
    }
  }
  return largest;
}

bool is_keyword(std::string_view key) {
  return is_one_of(key, kOfStrings) || is_one_of(key, kOfNumbers) || is_one_of(key, kOfObjects) ||
         is_one_of(key, kOfArrays);
}

bool is_of_type(const Json& value, std::string_view type) {
  if (type == "null") return value.is_null();
  if (type == "boolean") return value.is_bool();
  if (type == "string") return value.is_string();
  if (type == "array") return value.is_array();
  if (type == "object") return value.is_object();
  if (type == "number") return value.is_number();
  if (type != "integer" || !value.is_number()) return false;
  if (value.kind() != Json::Kind::kDouble) return true;
  constexpr double kExact = 9007199254740992.0;
  const double number = value.as_double();
  return number >= -kExact && number <= kExact &&
         number == static_cast<double>(static_cast<int64_t>(number));
}

class SchemaChecker {
 public:
  explicit SchemaChecker(const SchemaLimits& limits) : limits_(limits) {}

  Result<Json> check(const Json& schema, const std::string& path, int64_t depth);

 private:
  static Status invalid(const std::string& path, std::string_view what) {
    return invalid_argument(str_cat("invalid_schema: ", path, ": ", what));
  }

  static Status not_enforced(const std::string& path, std::string_view key) {
    return invalid(path, str_cat("'", key, "' is not supported by constrained decoding"));
  }

  Status check_refused(const Json& schema, const std::string& path) const;
  Result<std::vector<std::string>> types_of(const Json& schema, const std::string& path) const;
  Status check_whole(const Json& schema,
                     std::string_view keyword,
                     const std::vector<std::string>& types,
                     const std::string& path) const;
  Status check_values(const Json& schema,
                      std::string_view keyword,
                      const std::vector<std::string>& types,
                      const std::string& path) const;
  Status check_typed(const Json& schema,
                     std::vector<std::string> types,
                     const std::string& path) const;
  Status check_strings(const Json& schema, const std::string& path) const;
  Status check_objects(const Json& schema, const std::string& path) const;
  static Status write_lengths(Json& schema, const std::string& path);
  Result<JsonMember> copied(const JsonMember& member, const std::string& path, int64_t depth);

  SchemaLimits limits_;
};

Result<Json> SchemaChecker::check(const Json& schema, const std::string& path, int64_t depth) {
  if (schema.is_bool()) return schema;
  if (depth > limits_.max_depth) {
    return invalid_argument(str_cat("grammar_too_complex: ", path, " is nested deeper than ",
                                    limits_.max_depth, " schemas"));
  }
  if (!schema.is_object())
    return invalid(path, str_cat("expected a schema, found ", schema.kind_name()));
  FATHOM_TRY(check_refused(schema, path));
  auto types = types_of(schema, path);
  if (!types.ok()) return std::move(types).status();

  std::string_view whole;
  for (const std::string_view keyword : kWhole) {
    if (schema.find(keyword) == nullptr) continue;
    FATHOM_TRY(check_whole(schema, keyword, *types, path));
    whole = keyword;
    break;
  }
  if (whole.empty()) FATHOM_TRY(check_typed(schema, *types, path));

  Json out = Json::object();
  for (const JsonMember& member : schema.members()) {
    const std::string_view key = member.first;
    const bool is_kept = whole.empty() ? key == "type" || is_keyword(key) : key == whole;
    if (!is_kept && !is_one_of(key, kDefinitions)) continue;
    auto copy = copied(member, str_cat(path, ".", key), depth);
    if (!copy.ok()) return std::move(copy).status();
    out.members().push_back(*std::move(copy));
  }
  if (!whole.empty()) return out;
  if (std::find(types->begin(), types->end(), "string") != types->end())
    FATHOM_TRY(write_lengths(out, path));
  const bool is_object = out.find("properties") != nullptr ||
                         std::find(types->begin(), types->end(), "object") != types->end();
  // Without these the library would close what the schema leaves open. An object whose keys follow
  // patterns is closed: a key that follows one must not come in as another.
  if (is_object && out.find("additionalProperties") == nullptr &&
      out.find("unevaluatedProperties") == nullptr) {
    const bool is_open = out.find("patternProperties") == nullptr;
    out.members().emplace_back("additionalProperties", Json::boolean(is_open));
  }
  const bool is_array = out.find("prefixItems") != nullptr ||
                        std::find(types->begin(), types->end(), "array") != types->end();
  if (is_array && out.find("items") == nullptr && out.find("unevaluatedItems") == nullptr)
    out.members().emplace_back("items", Json::boolean(true));
  return out;
}

Status SchemaChecker::check_refused(const Json& schema, const std::string& path) const {
  for (const auto& [key, value] : schema.members()) {
    const bool says_nothing =
        value.is_bool() && value.as_bool() == (key != "uniqueItems") && key != "not";
    if (key == "uniqueItems" && !says_nothing) return not_enforced(path, key);
    if (is_one_of(key, kRefused) && !(key == "additionalItems" && says_nothing))
      return not_enforced(path, key);
  }
  return {};
}

Result<std::vector<std::string>> SchemaChecker::types_of(const Json& schema,
                                                         const std::string& path) const {
  constexpr std::string_view kTypes[] = {"null",   "boolean", "string", "integer",
                                         "number", "array",   "object"};
  std::vector<std::string> types;
  const Json* type = schema.find("type");
  if (type == nullptr) return types;
  const std::vector<Json> one = type->is_array() ? type->items() : std::vector<Json>{*type};
  if (one.empty()) return invalid(path, "'type' is an empty list");
  for (const Json& name : one) {
    if (!name.is_string() || !is_one_of(name.as_string(), kTypes)) {
      return invalid(path, str_cat("'type' is ", dump_json(name),
                                   ", expected null, boolean, string, integer, number, array or "
                                   "object"));
    }
    types.push_back(name.as_string());
  }
  return types;
}

// A keyword that decides alone: what else constrains the value would be ignored.
Status SchemaChecker::check_whole(const Json& schema,
                                  std::string_view keyword,
                                  const std::vector<std::string>& types,
                                  const std::string& path) const {
  for (const auto& [key, value] : schema.members()) {
    const bool is_other =
        key != keyword &&
        (is_keyword(key) || std::find(kWhole.begin(), kWhole.end(), key) != kWhole.end());
    if (is_other) {
      return invalid(path, str_cat("'", key, "' beside '", keyword,
                                   "' is not supported by constrained decoding"));
    }
  }
  const Json& value = *schema.find(keyword);
  if (keyword == "const" || keyword == "enum") return check_values(schema, keyword, types, path);
  if (keyword == "$ref") {
    if (!value.is_string() || !value.as_string().starts_with('#'))
      return invalid(path,
                     str_cat("'$ref' is ", dump_json(value), ", expected one of this schema"));
    if (!types.empty()) return invalid(path, "'type' beside '$ref' is not supported");
    return {};
  }
  if (!value.is_array() || value.items().empty())
    return invalid(path, str_cat("'", keyword, "' is no list of schemas"));
  if (keyword == "allOf" && value.items().size() > 1)
    return invalid(path, "'allOf' with more than one schema is not supported");
  for (const Json& branch : value.items()) {
    const Json* type = branch.find("type");
    const Json* outer = schema.find("type");
    if (outer != nullptr && (type == nullptr || !(*type == *outer))) {
      return invalid(path, str_cat("'type' beside '", keyword,
                                   "' is not supported, unless each schema of it says the same"));
    }
  }
  return {};
}

Status SchemaChecker::check_values(const Json& schema,
                                   std::string_view keyword,
                                   const std::vector<std::string>& types,
                                   const std::string& path) const {
  const Json& value = *schema.find(keyword);
  if (keyword == "enum" && (!value.is_array() || value.items().empty()))
    return invalid(path, "'enum' is no list of values");
  const std::vector<Json> values = keyword == "enum" ? value.items() : std::vector<Json>{value};
  for (const Json& one : values) {
    const bool fits = types.empty() || std::any_of(types.begin(), types.end(), [&](const auto& t) {
                        return is_of_type(one, t);
                      });
    if (!fits) return invalid(path, str_cat("'", keyword, "' has a value of another 'type'"));
  }
  return {};
}

Status SchemaChecker::check_typed(const Json& schema,
                                  std::vector<std::string> types,
                                  const std::string& path) const {
  const auto has_any = [&](std::initializer_list<std::string_view> words) {
    return std::any_of(words.begin(), words.end(),
                       [&](std::string_view word) { return schema.find(word) != nullptr; });
  };
  if (types.empty()) {
    // What the library takes for the type.
    if (has_any({"properties", "additionalProperties", "unevaluatedProperties"})) {
      types = {"object"};
    } else if (has_any({"items", "prefixItems", "unevaluatedItems"})) {
      types = {"array"};
    } else {
      for (const auto& [key, value] : schema.members()) {
        if (is_keyword(key) && key != "format")
          return invalid(path, str_cat("'", key, "' needs a 'type' beside it"));
      }
      return {};
    }
  }
  const auto has_type = [&](std::string_view type) {
    return std::find(types.begin(), types.end(), type) != types.end();
  };
  if (has_type("string")) FATHOM_TRY(check_strings(schema, path));
  if (has_type("object")) FATHOM_TRY(check_objects(schema, path));
  if (has_type("number") && schema.find("multipleOf") != nullptr)
    return invalid(path, "'multipleOf' is supported for integers only");
  return {};
}

Status SchemaChecker::check_strings(const Json& schema, const std::string& path) const {
  const Json* pattern = schema.find("pattern");
  const Json* format = schema.find("format");
  if (format != nullptr && !format->is_string()) return invalid(path, "'format' is no string");
  const bool is_enforced = format != nullptr && is_one_of(format->as_string(), kEnforcedFormats);
  const bool has_length =
      schema.find("minLength") != nullptr || schema.find("maxLength") != nullptr;
  if (pattern != nullptr) {
    if (!pattern->is_string()) return invalid(path, "'pattern' is no string");
    const auto size = static_cast<int64_t>(pattern->as_string().size());
    if (size > limits_.max_pattern_bytes) {
      return invalid_argument(str_cat("grammar_too_complex: ", path, ": 'pattern' has ", size,
                                      " bytes, at most ", limits_.max_pattern_bytes));
    }
    FATHOM_TRY(check_repetitions(pattern->as_string(), path));
    if (is_enforced) return invalid(path, "'pattern' beside 'format' is not supported");
  }
  if (has_length && (pattern != nullptr || is_enforced)) {
    return invalid(path, str_cat("'minLength' and 'maxLength' beside '",
                                 pattern != nullptr ? "pattern" : "format",
                                 "' are not supported; write them into the pattern"));
  }
  return {};
}

Status SchemaChecker::check_objects(const Json& schema, const std::string& path) const {
  const Json* properties = schema.find("properties");
  const Json* patterns = schema.find("patternProperties");
  const Json* additional = schema.find("additionalProperties");
  if (const Json* required = schema.find("required")) {
    if (!required->is_array()) return invalid(path, "'required' is no list of names");
    for (const Json& name : required->items()) {
      if (!name.is_string()) return invalid(path, "'required' holds what is no name");
      if (properties == nullptr || properties->find(name.as_string()) == nullptr) {
        return invalid(path, str_cat("'required' names '", name.as_string(),
                                     "', which is not in 'properties'"));
      }
    }
  }
  if (patterns != nullptr) {
    if (!patterns->is_object() || patterns->members().size() != 1)
      return invalid(path, "'patternProperties' with other than one pattern is not supported");
    for (const std::string_view other : {"properties", "propertyNames"}) {
      if (schema.find(other) != nullptr)
        return invalid(path, str_cat("'", other, "' beside 'patternProperties' is not supported"));
    }
    for (const std::string_view other : {"additionalProperties", "unevaluatedProperties"}) {
      const Json* value = schema.find(other);
      if (value != nullptr && !(value->is_bool() && !value->as_bool())) {
        return invalid(path, str_cat("'", other,
                                     "' beside 'patternProperties' is not supported, "
                                     "unless it is false"));
      }
    }
    const std::string& pattern = patterns->members()[0].first;
    FATHOM_TRY(check_repetitions(pattern, path));
    if (static_cast<int64_t>(pattern.size()) > limits_.max_pattern_bytes) {
      return invalid_argument(str_cat("grammar_too_complex: ", path, ": a pattern has ",
                                      pattern.size(), " bytes, at most ",
                                      limits_.max_pattern_bytes));
    }
  }
  const bool is_closed = additional != nullptr && additional->is_bool() && !additional->as_bool();
  if (schema.find("propertyNames") != nullptr && is_closed)
    return invalid(path, "'propertyNames' beside 'additionalProperties': false is not supported");
  return {};
}

// Lengths as a pattern: by its own rule for lengths the library lets control characters into
// strings.
Status SchemaChecker::write_lengths(Json& schema, const std::string& path) {
  const Json* const lengths[] = {schema.find("minLength"), schema.find("maxLength")};
  if (lengths[0] == nullptr && lengths[1] == nullptr) return {};
  int64_t bounds[] = {0, kMaxCount};
  for (int i = 0; i < 2; ++i) {
    if (lengths[i] == nullptr) continue;
    if (!lengths[i]->is_int() || lengths[i]->as_int() < 0)
      return invalid(path, "'minLength' and 'maxLength' need an integer that is not negative");
    bounds[i] = lengths[i]->as_int();
    if (bounds[i] > kMaxCount) {
      return invalid_argument(str_cat("grammar_too_complex: ", path, ": a length of ", bounds[i],
                                      ", at most ", kMaxCount));
    }
  }
  if (bounds[0] > bounds[1]) return invalid(path, "'minLength' is greater than 'maxLength'");
  const std::string last = lengths[1] != nullptr ? str_cat(bounds[1]) : std::string{};
  for (JsonMember& member : schema.members()) {
    if (member.first == "minLength") member.first = kCheckedMinLength;
    if (member.first == "maxLength") member.first = kCheckedMaxLength;
  }
  schema.members().emplace_back("pattern",
                                Json::string(str_cat("^[^\\n]{", bounds[0], ",", last, "}$")));
  return {};
}

// A member with its schemas checked.
Result<JsonMember> SchemaChecker::copied(const JsonMember& member,
                                         const std::string& path,
                                         int64_t depth) {
  const auto& [key, value] = member;
  if (is_one_of(key, kSchemasByName)) {
    if (!value.is_object()) return invalid(path, str_cat("expected an object of schemas"));
    Json out = Json::object();
    for (const auto& [name, schema] : value.members()) {
      auto checked = check(schema, str_cat(path, ".", name), depth + 1);
      if (!checked.ok()) return std::move(checked).status();
      out.members().emplace_back(name, *std::move(checked));
    }
    return JsonMember{key, std::move(out)};
  }
  if (is_one_of(key, kSchemaLists)) {
    if (!value.is_array()) return invalid(path, "expected a list of schemas");
    Json out = Json::array();
    for (size_t i = 0; i < value.items().size(); ++i) {
      auto checked = check(value.items()[i], str_cat(path, "[", i, "]"), depth + 1);
      if (!checked.ok()) return std::move(checked).status();
      // The library takes no true here.
      const bool is_true = checked->is_bool() && checked->as_bool() && key == "prefixItems";
      out.items().push_back(is_true ? Json::object() : *std::move(checked));
    }
    return JsonMember{key, std::move(out)};
  }
  if (is_one_of(key, kSingleSchemas)) {
    auto checked = check(value, path, depth + 1);
    if (!checked.ok()) return std::move(checked).status();
    return JsonMember{key, *std::move(checked)};
  }
  return member;
}

}  // namespace

int64_t schema_depth(const Json& schema) {
  if (!schema.is_object()) return 0;
  int64_t deepest = 0;
  const auto look = [&](const Json& inner) { deepest = std::max(deepest, schema_depth(inner)); };
  for (const auto& [key, value] : schema.members()) {
    const bool is_single = is_one_of(key, kSingleSchemas);
    if (value.is_object() && is_one_of(key, kSchemasByName)) {
      for (const auto& [name, inner] : value.members())
        look(inner);
    } else if (value.is_array() && (is_single || is_one_of(key, kSchemaLists))) {
      for (const Json& inner : value.items())
        look(inner);
    } else if (is_single) {
      look(value);
    }
  }
  return deepest + 1;
}

Status check_repetitions(std::string_view pattern, std::string_view what) {
  const int64_t largest = largest_repetition(pattern);
  if (largest <= kMaxCount) return {};
  return invalid_argument(str_cat("grammar_too_complex: ", what, ": ", largest,
                                  " repetitions in an expression, at most ", kMaxCount));
}

Result<Json> checked_schema(const Json& schema, const SchemaLimits& limits, std::string_view what) {
  const auto size = static_cast<int64_t>(dump_json(schema).size());
  if (size > limits.max_bytes) {
    return invalid_argument(str_cat("grammar_too_complex: ", what, " has ", size,
                                    " bytes, at most ", limits.max_bytes));
  }
  return SchemaChecker{limits}.check(schema, std::string{what}, 1);
}

}  // namespace fathom
