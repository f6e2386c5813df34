#include "fathom/grammar/dsml_parameters.h"

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "fathom/base/str_cat.h"
#include "fathom/grammar/format_parts.h"
#include "fathom/text/json_writer.h"
#include "fathom/text/utf8.h"
#include "fathom/tokenizer/chat/control_tokens.h"

namespace fathom {
namespace {

constexpr int64_t kMaxNameBytes = 256;
constexpr int64_t kMaxForms = 1'000;          // schemas that are looked at for one parameter
constexpr int64_t kMaxCopiedBytes = 1 << 20;  // of schemas that references need beside them

// Where the schema of one parameter is put within that of the tool, so that its references hold.
constexpr std::string_view kValueKey = "fathom_value";

// How one parameter may be written: as text, in some forms, and as JSON.
struct ValueForms {
  std::vector<Json> texts;  // formats
  bool is_json = false;
  int64_t steps = 0;
};

bool is_type(const Json& schema, std::string_view type) {
  const Json* found = schema.find("type");
  if (found == nullptr) return false;
  if (found->is_string()) return found->as_string() == type;
  return std::any_of(found->items().begin(), found->items().end(),
                     [&](const Json& one) { return one.as_string() == type; });
}

bool is_only_type(const Json& schema, std::string_view type) {
  const Json* found = schema.find("type");
  return found != nullptr && found->is_string() && found->as_string() == type;
}

bool holds_reference(const Json& schema) {
  if (schema.is_array())
    return std::any_of(schema.items().begin(), schema.items().end(), holds_reference);
  if (!schema.is_object()) return false;
  return std::any_of(schema.members().begin(), schema.members().end(), [](const auto& member) {
    return member.first == "$ref" || holds_reference(member.second);
  });
}

class ParameterFormatter {
 public:
  ParameterFormatter(const Json& root, std::optional<int32_t> dsml) : root_(root), dsml_(dsml) {}

  // <｜DSML｜parameter name="NAME" string=...>VALUE</｜DSML｜parameter>\n
  Json parameter(const Json& name, std::vector<Json> values) const {
    return format::sequence({format::text("<"), marker(), format::text("parameter name=\""), name,
                             format::text("\" string=\""), format::one_of(std::move(values)),
                             format::text("</"), marker(), format::text("parameter>\n")});
  }

  Json text_value(Json text) const {
    return format::sequence({format::text("true\">"), std::move(text)});
  }

  Json any_text() const { return format::any_text(dsml_ ? std::string_view{} : control::kDsml); }

  static Json json_value(Json schema) {
    return format::sequence({format::text("false\">"), format::json_of(std::move(schema))});
  }

  /// Whether values_of() met more than it may.
  bool too_complex() const { return too_complex_; }

  // The values of a checked schema.
  std::vector<Json> values_of(const Json& schema) const {
    ValueForms forms;
    add_forms(schema, 0, forms);
    std::vector<Json> values;
    if (!forms.texts.empty()) values.push_back(text_value(format::one_of(std::move(forms.texts))));
    if (forms.is_json || values.empty()) values.push_back(json_value(with_references(schema)));
    return values;
  }

 private:
  Json marker() const { return dsml_ ? format::token(*dsml_) : format::text(control::kDsml); }

  // The schema of "#", "#/$defs/NAME" or "#/definitions/NAME"; null for other places, which need
  // not hold schemas.
  const Json* referred(const Json& schema) const {
    const std::string_view uri = schema.find("$ref")->as_string();
    if (uri == "#") return &root_;
    for (const std::string_view place : {"$defs", "definitions"}) {
      const std::string prefix = str_cat("#/", place, "/");
      if (!uri.starts_with(prefix)) continue;
      const Json* schemas = root_.find(place);
      const Json* found = schemas == nullptr ? nullptr : schemas->find(uri.substr(prefix.size()));
      return found != nullptr && (found->is_object() || found->is_bool()) ? found : nullptr;
    }
    return nullptr;
  }

  void add_forms(const Json& schema, int depth, ValueForms& forms) const {
    constexpr int kMaxReferences = 16;
    if (++forms.steps > kMaxForms) {  // branches may refer to each other
      too_complex_ = true;
      return;
    }
    if (schema.is_bool() || schema.members().empty()) {
      forms.texts.push_back(any_text());
      forms.is_json = true;
      return;
    }
    if (schema.find("$ref") != nullptr) {
      const Json* target = depth < kMaxReferences ? referred(schema) : nullptr;
      if (target == nullptr) {
        forms.is_json = true;  // the library says what is wrong with it
      } else {
        add_forms(*target, depth + 1, forms);
      }
      return;
    }
    for (const std::string_view keyword : {"anyOf", "oneOf"}) {
      const Json* branches = schema.find(keyword);
      if (branches == nullptr) continue;
      for (const Json& branch : branches->items())
        add_forms(branch, depth + 1, forms);
      return;
    }
    const Json* one = schema.find("const");
    const Json* many = schema.find("enum");
    if (one != nullptr || many != nullptr) {
      for (const Json& value : one != nullptr ? std::vector<Json>{*one} : many->items()) {
        if (value.is_string()) {
          forms.texts.push_back(format::text(value.as_string()));
        } else {
          forms.is_json = true;
        }
      }
      return;
    }
    if (is_type(schema, "string")) forms.texts.push_back(text_of(schema));
    if (!is_only_type(schema, "string")) forms.is_json = true;
  }

  // Text by the keywords of strings.
  Json text_of(const Json& schema) const {
    const Json* min = schema.find(kCheckedMinLength);
    const Json* max = schema.find(kCheckedMaxLength);
    const Json* pattern = schema.find("pattern");
    if (min == nullptr && max == nullptr)
      return pattern != nullptr ? format::regex(pattern->as_string()) : any_text();
    std::string count = str_cat("{", min != nullptr ? min->as_int() : 0, ",");
    if (max != nullptr) count += str_cat(max->as_int());
    return format::regex(str_cat("[\\s\\S]", count, "}"));
  }

  Json with_references(const Json& schema) const {
    if (!holds_reference(schema)) return schema;
    if (root_bytes_ == 0) root_bytes_ = static_cast<int64_t>(dump_json(root_).size());
    copied_bytes_ += root_bytes_;
    if (copied_bytes_ > kMaxCopiedBytes) {
      too_complex_ = true;
      return schema;
    }
    Json out = Json::object(
        {{"$ref", Json::string(str_cat("#/", kValueKey))}, {std::string{kValueKey}, schema}});
    for (const JsonMember& member : root_.members()) {
      if (member.first != "$ref") out.members().push_back(member);
    }
    return out;
  }

  const Json& root_;
  std::optional<int32_t> dsml_;
  mutable int64_t root_bytes_ = 0;
  mutable int64_t copied_bytes_ = 0;
  mutable bool too_complex_ = false;
};

Status not_parameters(const ToolDefinition& tool, std::string_view what) {
  return invalid_argument(str_cat("invalid_schema: tool '", tool.name, "': ", what));
}

// Any number of parameters, the values as their types say.
Json light_parameters(const ToolDefinition& tool, const ParameterFormatter& formatter) {
  const Json anything = Json::object();
  const auto values_of = [&](const Json* schema) {
    std::vector<Json> values;
    const bool is_known = schema != nullptr && schema->is_object();
    const Json* type = is_known ? schema->find("type") : nullptr;
    const bool is_text = type != nullptr && *type == Json::string("string");
    const bool is_other = type != nullptr && type->is_string() && !is_text;
    if (!is_other) values.push_back(formatter.text_value(formatter.any_text()));
    if (!is_text) values.push_back(ParameterFormatter::json_value(anything));
    return values;
  };
  const Json* properties = tool.parameters.find("properties");
  const Json* additional = tool.parameters.find("additionalProperties");
  std::vector<Json> parameters;
  if (properties != nullptr && properties->is_object()) {
    for (const auto& [name, schema] : properties->members()) {
      if (is_plain_name(name))
        parameters.push_back(formatter.parameter(format::text(name), values_of(&schema)));
    }
  } else if (!tool.parameters.is_null() &&
             (additional == nullptr || !(*additional == Json::boolean(false)))) {
    parameters.push_back(
        formatter.parameter(format::regex("[A-Za-z0-9_.$-]{1,64}"), values_of(nullptr)));
  }
  if (parameters.empty()) return format::text("\n");
  const Json one = format::one_of(std::move(parameters));
  return format::one_of({format::text("\n"), format::sequence({one, format::star(one)})});
}

// Those of the schema in its order, the required ones always.
Result<Json> full_parameters(const ToolDefinition& tool,
                             const Json& schema,
                             const ParameterFormatter& formatter) {
  for (const std::string_view keyword :
       {"$ref", "anyOf", "oneOf", "allOf", "const", "enum", "patternProperties", "propertyNames",
        "minProperties", "maxProperties"}) {
    if (schema.find(keyword) != nullptr) {
      return not_parameters(tool, str_cat("'", keyword,
                                          "' at the top of a schema cannot be written as "
                                          "parameters"));
    }
  }
  const Json* type = schema.find("type");
  if (type != nullptr && !is_only_type(schema, "object"))
    return not_parameters(tool, "'type' of the parameters is not 'object'");
  const Json* properties = schema.find("properties");
  const Json* required = schema.find("required");
  std::vector<Json> parts;
  bool has_required = false;
  for (const auto& [name, value] :
       properties != nullptr ? properties->members() : std::vector<JsonMember>{}) {
    if (!is_plain_name(name)) {
      return not_parameters(tool, str_cat("the property '", name,
                                          "' has a blank, a quote or one of < > { } ` in its "
                                          "name"));
    }
    Json parameter = formatter.parameter(format::text(name), formatter.values_of(value));
    const bool is_required =
        required != nullptr &&
        std::any_of(required->items().begin(), required->items().end(),
                    [&, &key = name](const Json& one) { return one.as_string() == key; });
    has_required = has_required || is_required;
    parts.push_back(is_required ? std::move(parameter) : format::optional(std::move(parameter)));
  }
  if (parts.empty()) return format::text("\n");
  Json all = format::sequence(std::move(parts));
  if (has_required) return all;
  return format::one_of({format::text("\n"), std::move(all)});
}

}  // namespace

bool is_plain_name(std::string_view name) {
  constexpr std::string_view kOther = "\"'<>{}`";
  return !name.empty() && static_cast<int64_t>(name.size()) <= kMaxNameBytes &&
         is_valid_utf8(name) && std::all_of(name.begin(), name.end(), [&](char c) {
           return static_cast<unsigned char>(c) > ' ' && c != '\x7F' &&
                  kOther.find(c) == kOther.npos;
         });
}

Result<Json> dsml_parameters_format(const ToolDefinition& tool,
                                    ToolGrammar level,
                                    const SchemaLimits& limits,
                                    std::optional<int32_t> dsml) {
  const Json nothing = Json::object();
  if (level != ToolGrammar::kFull) return light_parameters(tool, {nothing, dsml});
  if (tool.parameters.is_null()) return format::text("\n");
  auto schema = checked_schema(tool.parameters, limits, str_cat("tool '", tool.name, "'"));
  if (!schema.ok()) return std::move(schema).status();
  const Json* properties = schema->find("properties");
  const Json* additional = schema->find("additionalProperties");
  const bool is_open = schema->is_object() && properties == nullptr &&
                       (additional == nullptr || !additional->is_bool() || additional->as_bool());
  const bool has_names = schema->is_bool() || schema->members().empty() || is_open;
  if (schema->is_bool() && !schema->as_bool()) return not_parameters(tool, "'false' has no value");
  if (schema->is_object() && !schema->members().empty()) {
    const ParameterFormatter formatter{*schema, dsml};
    auto parameters = full_parameters(tool, *schema, formatter);
    if (formatter.too_complex()) {
      return invalid_argument(str_cat("grammar_too_complex: tool '", tool.name,
                                      "': its parameters refer to too many schemas"));
    }
    if (!parameters.ok() || !has_names) return parameters;
  }
  // An object whose names are free.
  if (additional != nullptr && additional->is_object())
    return not_parameters(tool,
                          "'additionalProperties' with a schema needs 'properties' beside it");
  return light_parameters({.name = tool.name, .parameters = *schema}, {nothing, dsml});
}

}  // namespace fathom
