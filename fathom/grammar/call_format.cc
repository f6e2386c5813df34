#include "fathom/grammar/call_format.h"

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "fathom/base/str_cat.h"
#include "fathom/grammar/dsml_parameters.h"
#include "fathom/grammar/format_parts.h"

namespace fathom {
namespace {

using Form = AnswerGrammar::ToolCalls;

Status invalid_tool(std::string_view name, std::string_view what) {
  return invalid_argument(str_cat("invalid_schema: tool '", name, "': ", what));
}

Status check_tools(const GrammarSpec& spec) {
  if (spec.tools.empty()) return invalid_argument("invalid_schema: no tool is declared");
  if (spec.answer.tool_calls == Form::kNone)
    return invalid_argument("invalid_schema: this prompt format has no tool calls");
  for (const ToolDefinition& tool : spec.tools) {
    if (!is_plain_name(tool.name)) {
      return invalid_tool(tool.name,
                          "a name needs 1 to 256 bytes without blanks, quotes and < > { } `");
    }
  }
  return {};
}

// The schema of arguments as JSON: always one of objects.
Result<Json> arguments_schema(const ToolDefinition& tool,
                              ToolGrammar level,
                              const SchemaLimits& limits) {
  const Json any_object = Json::object(
      {{"type", Json::string("object")}, {"additionalProperties", Json::boolean(true)}});
  if (level != ToolGrammar::kFull || tool.parameters.is_null()) return any_object;
  auto schema = checked_schema(tool.parameters, limits, str_cat("tool '", tool.name, "'"));
  if (!schema.ok()) return std::move(schema).status();
  if (schema->is_bool() || schema->members().empty()) return any_object;
  const Json* type = schema->find("type");
  if (type != nullptr && !(*type == Json::string("object")))
    return invalid_tool(tool.name, "'type' of the parameters is not 'object'");
  return schema;
}

class CallFormatter {
 public:
  CallFormatter(const GrammarSpec& spec, const CallMarkers& markers, const SchemaLimits& limits)
      : spec_(spec), markers_(markers), limits_(limits) {}

  Result<Json> section(SectionStart start) {
    auto call = one_call();
    if (!call.ok()) return std::move(call).status();
    return is_dsml() ? dsml_section(start, *std::move(call))
                     : marked_section(start, *std::move(call));
  }

 private:
  bool is_dsml() const { return spec_.answer.tool_calls == Form::kDsml; }

  Json marker(AnswerMarker which) const {
    const auto id = markers_.id(which);
    return id ? format::token(*id) : format::text(answer_marker_text(which));
  }

  Result<Json> one_call() {
    std::vector<Json> tools;
    for (const ToolDefinition& tool : spec_.tools) {
      auto call = is_dsml() ? dsml_call(tool) : json_call(tool);
      if (!call.ok()) return std::move(call).status();
      tools.push_back(*std::move(call));
    }
    std::vector<Json> parts;
    if (is_dsml()) {
      parts = {format::text("<"),
               marker(AnswerMarker::kDsml),
               format::text("invoke name=\""),
               format::one_of(std::move(tools)),
               format::text("</"),
               marker(AnswerMarker::kDsml),
               format::text("invoke>\n")};
    } else if (spec_.answer.tool_calls == Form::kFencedJson) {
      parts = {marker(AnswerMarker::kCallBegin), format::text("function"),
               marker(AnswerMarker::kSep), format::one_of(std::move(tools)),
               marker(AnswerMarker::kCallEnd)};
    } else {
      parts = {marker(AnswerMarker::kCallBegin), format::one_of(std::move(tools)),
               marker(AnswerMarker::kCallEnd)};
    }
    return format::sequence(std::move(parts));
  }

  Result<Json> json_call(const ToolDefinition& tool) {
    auto schema = arguments_schema(tool, spec_.level, limits_);
    if (!schema.ok()) return std::move(schema).status();
    Json arguments = format::json_of(*std::move(schema));
    if (spec_.answer.tool_calls == Form::kFencedJson) {
      return format::sequence({format::text(str_cat(tool.name, "\n```json\n")),
                               std::move(arguments), format::text("\n```")});
    }
    return format::sequence(
        {format::text(tool.name), marker(AnswerMarker::kSep), std::move(arguments)});
  }

  Result<Json> dsml_call(const ToolDefinition& tool) {
    auto parameters =
        dsml_parameters_format(tool, spec_.level, limits_, markers_.id(AnswerMarker::kDsml));
    if (!parameters.ok()) return std::move(parameters).status();
    return format::sequence({format::text(str_cat(tool.name, "\">\n")), *std::move(parameters)});
  }

  Json dsml_section(SectionStart start, Json call) const {
    std::vector<Json> parts;
    if (start == SectionStart::kWhole) {
      parts.push_back(format::optional(format::text("\n\n")));
      parts.push_back(format::text("<"));
      parts.push_back(marker(AnswerMarker::kDsml));
    }
    parts.push_back(format::text(str_cat(spec_.answer.section, ">\n")));
    parts.push_back(call);
    if (spec_.parallel_calls) parts.push_back(format::star(std::move(call)));
    parts.push_back(format::text("</"));
    parts.push_back(marker(AnswerMarker::kDsml));
    parts.push_back(format::text(str_cat(spec_.answer.section, ">")));
    return format::sequence(std::move(parts));
  }

  Json marked_section(SectionStart start, Json call) const {
    std::vector<Json> parts;
    if (start == SectionStart::kWhole) {
      if (spec_.free_until) parts.push_back(format::optional(format::text("\n\n")));
      parts.push_back(marker(AnswerMarker::kCallsBegin));
    }
    parts.push_back(call);
    if (spec_.parallel_calls) {
      const bool is_fenced = spec_.answer.tool_calls == Form::kFencedJson;
      Json next = is_fenced ? format::sequence({format::optional(format::text("\n")), call}) : call;
      parts.push_back(format::star(std::move(next)));
    }
    parts.push_back(marker(AnswerMarker::kCallsEnd));
    return format::sequence(std::move(parts));
  }

  const GrammarSpec& spec_;
  const CallMarkers& markers_;
  const SchemaLimits& limits_;
};

}  // namespace

Result<Json> call_section_format(const GrammarSpec& spec,
                                 const CallMarkers& markers,
                                 const SchemaLimits& limits,
                                 SectionStart start) {
  FATHOM_TRY(check_tools(spec));
  return CallFormatter{spec, markers, limits}.section(start);
}

}  // namespace fathom
