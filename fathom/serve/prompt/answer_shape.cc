#include "fathom/serve/prompt/answer_shape.h"

#include <algorithm>

#include "fathom/base/log.h"
#include "fathom/grammar/schema_check.h"
#include "fathom/text/json_writer.h"
#include "fathom/tokenizer/chat/chat_json.h"
#include "fathom/tokenizer/chat/control_tokens.h"

namespace fathom::serve {
namespace {

using Kind = GrammarSpec::Kind;

constexpr int64_t kMaxToolNameBytes = 256;
constexpr int64_t kMaxWords = 1'024;  // of a choice

// Of the document, whatever it means.
int64_t depth_of(const Json& json) {
  int64_t deepest = 0;
  if (json.is_array()) {
    for (const Json& item : json.items())
      deepest = std::max(deepest, depth_of(item));
    return deepest + 1;
  }
  if (!json.is_object()) return 0;
  for (const auto& [key, value] : json.members())
    deepest = std::max(deepest, depth_of(value));
  return deepest + 1;
}

// At most one field may ask for a shape.
class ShapeReader {
 public:
  explicit ShapeReader(Fields& fields) : fields_(fields) {}

  void set(Fields& from, std::string_view name, Kind kind, std::string text) {
    if (!from.ok()) return;
    if (shape_) {
      from.fail(bad_value(from.at(name), str_cat(from.at(name), ": the request has ", shape_->field,
                                                 " already, expected one of them")));
      return;
    }
    shape_ =
        ContentShape{.kind = kind, .text = std::move(text), .choices = {}, .field = from.at(name)};
  }

  void schema(Fields& from, std::string_view name, const Json& value) {
    if (const Status status = check_schema(value, from.at(name)); !status.ok()) {
      from.fail(api_error(status));
      return;
    }
    set(from, name, Kind::kJsonSchema, dump_json(value));
  }

  // A schema as an object, or as a text that holds one.
  void read_json(Fields& from, std::string_view name) {
    const Json* value = from.value(name);
    if (value == nullptr) return;
    if (!value->is_string()) return schema(from, name, *value);
    const JsonLimits json{.max_depth = static_cast<int>(GrammarLimits{}.max_json_depth)};
    const Result<Json> parsed = parse_json(value->as_string(), json, from.at(name));
    if (parsed.ok()) return schema(from, name, *parsed);
    from.fail(bad_value(from.at(name), parsed.status().message(), "invalid_schema"));
  }

  void read_text(Fields& from, std::string_view name, Kind kind, int64_t max_bytes) {
    if (auto text = from.text(name, max_bytes)) set(from, name, kind, std::move(*text));
  }

  void read_choice(Fields& from, std::string_view name) {
    const Json* words = from.array(name, kMaxWords);
    if (words == nullptr) return;
    std::vector<std::string> choices;
    for (const Json& word : words->items()) {
      if (word.is_string()) choices.push_back(word.as_string());
    }
    if (choices.empty() || choices.size() != words->items().size()) {
      from.fail(bad_value(from.at(name), str_cat(from.at(name), ": expected one or more strings")));
      return;
    }
    set(from, name, Kind::kChoice, {});
    if (shape_) shape_->choices = std::move(choices);
  }

  void read_response_format(ResponseFormat* for_prompt);
  void read_structured_outputs();

  std::optional<ContentShape> take() {
    return fields_.ok() ? std::move(shape_) : std::optional<ContentShape>{};
  }

 private:
  Fields& fields_;
  std::optional<ContentShape> shape_;
};

void ShapeReader::read_response_format(ResponseFormat* for_prompt) {
  const Json* json = fields_.value("response_format");
  if (json == nullptr) return;
  const Json* type = json->find("type");
  if (type != nullptr && type->is_string() && type->as_string() == "structural_tag") {
    return set(fields_, "response_format", Kind::kStructuralTag, dump_json(*json));
  }
  Result<ResponseFormat> format = parse_response_format(json);
  if (!format.ok()) {
    fields_.fail(api_error(format.status()));
    return;
  }
  switch (format->kind) {
    case ResponseFormat::Kind::kText:
      return;
    case ResponseFormat::Kind::kJsonObject:
      set(fields_, "response_format", Kind::kJson, {});
      break;
    case ResponseFormat::Kind::kJsonSchema:
      schema(fields_, "response_format", format->schema);
      break;
  }
  if (for_prompt != nullptr) *for_prompt = std::move(*format);
}

void ShapeReader::read_structured_outputs() {
  const Json* json = fields_.object("structured_outputs");
  if (json == nullptr) return;
  Fields inner(*json, fields_.at("structured_outputs"));
  const GrammarLimits limits;
  read_json(inner, "json");
  read_text(inner, "regex", Kind::kRegex, limits.max_pattern_bytes);
  read_choice(inner, "choice");
  read_text(inner, "grammar", Kind::kEbnf, limits.max_schema_bytes);
  read_text(inner, "structural_tag", Kind::kStructuralTag, limits.max_schema_bytes);
  if (inner.boolean("json_object").value_or(false)) set(inner, "json_object", Kind::kJson, {});
  if (inner.error()) fields_.fail(*inner.error());
}

bool is_strict(const ToolDefinition& tool) {
  const Json* function = tool.definition.find("function");
  for (const Json* place : {&tool.definition, function}) {
    const Json* strict = place == nullptr ? nullptr : place->find("strict");
    if (strict != nullptr && strict->is_bool() && strict->as_bool()) return true;
  }
  return false;
}

// "invalid_schema: text" to "invalid_schema: field: text"; what is said of a tool is of the tools.
Status with_field(const Status& status, std::string_view field) {
  std::string message = status.message();
  const size_t end = message.find(": ");
  const std::string_view code = std::string_view(message).substr(0, end);
  if (code == "invalid_schema" || code == "grammar_too_complex") {
    const bool is_of_tool = std::string_view(message).substr(end + 2).starts_with("tool '");
    message.insert(end + 2, str_cat(is_of_tool ? "tools" : field, ": "));
  }
  return Status::error(status.code(), std::move(message));
}

Status no_grammars(std::string_view field) {
  return unsupported(str_cat("unsupported_parameter: ", field,
                             ": this server has no constrained decoding (it was built without "
                             "FATHOM_GRAMMAR)"));
}

// The specification of the calls; `kOff` in its level where nothing is prescribed.
Result<GrammarSpec> spec_of_tools(const ServedModel& model,
                                  const std::vector<ToolDefinition>& tools,
                                  const ToolUse& use) {
  GrammarSpec spec;
  spec.kind = Kind::kTools;
  spec.tools = tools;
  spec.level = model.grammars == nullptr ? ToolGrammar::kOff : model.tool_grammar;
  spec.parallel_calls = use.parallel;
  using Choice = ToolChoice::Kind;
  if (use.choice.kind == Choice::kRequired || use.choice.kind == Choice::kNamed) {
    spec.level = ToolGrammar::kFull;
    spec.must_call = true;
    if (use.choice.kind == Choice::kNamed) {
      std::erase_if(spec.tools, [&](const auto& tool) { return tool.name != use.choice.name; });
    }
    if (spec.tools.empty()) {
      return invalid_argument(use.choice.kind == Choice::kNamed
                                  ? str_cat("tool_choice: found \"", use.choice.name.substr(0, 64),
                                            "\", expected the name of one of the tools")
                                  : "tool_choice: found \"required\", expected tools with it");
    }
  } else if (spec.level != ToolGrammar::kFull && std::ranges::any_of(tools, is_strict)) {
    spec.level = ToolGrammar::kFull;
    for (ToolDefinition& tool : spec.tools) {
      if (!is_strict(tool)) tool.parameters = Json();  // any arguments
    }
  }
  return spec;
}

}  // namespace

Status check_schema(const Json& schema, std::string_view field) {
  const GrammarLimits limits;
  if (!schema.is_object() && !schema.is_bool()) {
    return invalid_argument(str_cat("invalid_schema: ", field, ": found ", schema.kind_name(),
                                    ", expected a JSON schema (an object)"));
  }
  if (const int64_t depth = schema_depth(schema); depth > limits.max_schema_depth) {
    return invalid_argument(str_cat("grammar_too_complex: ", field, ": ", depth,
                                    " schemas within each other, expected at most ",
                                    limits.max_schema_depth));
  }
  if (const int64_t depth = depth_of(schema); depth > limits.max_json_depth) {
    return invalid_argument(str_cat("grammar_too_complex: ", field, ": ", depth,
                                    " levels of JSON, expected at most ", limits.max_json_depth));
  }
  if (const auto size = static_cast<int64_t>(dump_json(schema).size());
      size > limits.max_schema_bytes) {
    return invalid_argument(str_cat("grammar_too_complex: ", field, ": ", size,
                                    " bytes, expected at most ", limits.max_schema_bytes));
  }
  return {};
}

std::optional<ContentShape> read_content_shape(Fields& fields, ResponseFormat* for_prompt) {
  const GrammarLimits limits;
  ShapeReader reader(fields);
  reader.read_response_format(for_prompt);
  reader.read_structured_outputs();
  reader.read_json(fields, "guided_json");
  reader.read_text(fields, "guided_regex", Kind::kRegex, limits.max_pattern_bytes);
  reader.read_choice(fields, "guided_choice");
  reader.read_text(fields, "guided_grammar", Kind::kEbnf, limits.max_schema_bytes);
  return reader.take();
}

std::optional<ContentShape> read_schema_shape(Fields& fields,
                                              std::string_view name,
                                              ResponseFormat* for_prompt) {
  const Json* schema = fields.object(name);
  const std::string where = fields.at(name);
  if (!fields.ok()) return {};
  if (schema == nullptr) {
    fields.fail(
        bad_value(where, str_cat(where, ": missing, expected a JSON schema"), "invalid_schema"));
    return {};
  }
  if (const Status status = check_schema(*schema, where); !status.ok()) {
    fields.fail(api_error(status));
    return {};
  }
  if (for_prompt != nullptr) {
    *for_prompt = {.kind = ResponseFormat::Kind::kJsonSchema, .schema = *schema};
  }
  return ContentShape{.kind = Kind::kJsonSchema, .text = dump_json(*schema), .field = where};
}

ToolUse read_tool_use(Fields& fields) {
  ToolUse use;
  if (const auto parallel = fields.boolean("parallel_tool_calls")) use.parallel = *parallel;
  const Json* choice = fields.value("tool_choice");
  if (choice == nullptr) return use;
  if (!choice->is_object()) {
    const auto word = fields.word("tool_choice", {"none", "auto", "required"});
    if (word == 0u) use.choice.kind = ToolChoice::Kind::kNone;
    if (word == 2u) use.choice.kind = ToolChoice::Kind::kRequired;
    return use;
  }
  Fields inner(*choice, fields.at("tool_choice"));
  if (!inner.word("type", {"function"}) && inner.ok()) {
    inner.fail(
        bad_value(inner.at("type"), str_cat(inner.at("type"), ": missing, expected function")));
  }
  // The name stands in `function`; the Responses API has it beside the type.
  const Json* function = inner.object("function");
  Fields named(function != nullptr ? *function : *choice,
               function != nullptr ? inner.at("function") : fields.at("tool_choice"));
  const std::string where = named.at("name");
  const auto name = named.text("name", kMaxToolNameBytes);
  if (named.error()) inner.fail(*named.error());
  if (inner.ok() && !name)
    inner.fail(bad_value(where, str_cat(where, ": missing, expected a string")));
  if (inner.error()) fields.fail(*inner.error());
  use.choice = {.kind = ToolChoice::Kind::kNamed, .name = name.value_or("")};
  return use;
}

Result<std::shared_ptr<const CompiledGrammar>> compile_answer(
    const ServedModel& model,
    const std::optional<ContentShape>& shape,
    const std::vector<ToolDefinition>& tools,
    const ToolUse& use,
    const AnswerGrammar& answer) {
  std::shared_ptr<const CompiledGrammar> nothing;
  const bool may_call = !tools.empty() && use.choice.kind != ToolChoice::Kind::kNone;
  const bool must_call =
      use.choice.kind == ToolChoice::Kind::kRequired || use.choice.kind == ToolChoice::Kind::kNamed;
  std::string field = "tools";
  GrammarSpec spec;
  if (may_call || must_call) {
    FATHOM_ASSIGN(spec, spec_of_tools(model, tools, use));
  }
  // A call that must come leaves no content to have a shape.
  if (shape && !must_call) {
    if (may_call && answer.tool_calls == AnswerGrammar::ToolCalls::kNone) {
      return unsupported(str_cat("unsupported_parameter: ", shape->field,
                                 ": not together with tools that may be called, as calls have no "
                                 "form in this chat format; send tool_choice none, or no tools"));
    }
    field = shape->field;
    spec.kind = shape->kind;
    spec.text = shape->text;
    spec.choices = shape->choices;
    // Beside a shape calls need a form, or none could come.
    if (spec.level == ToolGrammar::kOff) spec.level = ToolGrammar::kLight;
  } else if (!spec.has_calls() || spec.level == ToolGrammar::kOff) {
    return nothing;
  } else if (must_call) {
    field = "tool_choice";
  }
  if (model.grammars == nullptr) return no_grammars(field);
  spec.answer = answer;
  if (answer.starts_in_reasoning) {
    spec.free_until = model.tokenizer->token_to_id(control::kEndThink);
    if (!spec.free_until) {
      return unsupported(str_cat("unsupported_parameter: ", field,
                                 ": the vocabulary has no token for the end of reasoning, so an "
                                 "answer with reasoning cannot be constrained"));
    }
  }
  auto compiled = model.grammars->compile(spec);
  // A light grammar is a help and nobody's wish: without it calls are parsed as they come.
  if (!compiled.ok() && spec.kind == GrammarSpec::Kind::kTools &&
      spec.level == ToolGrammar::kLight) {
    log_warn("tools of a request have no grammar: ", compiled.status().message());
    return nothing;
  }
  if (!compiled.ok()) return with_field(compiled.status(), field);
  return std::move(compiled).value();
}

}  // namespace fathom::serve
