#include "fathom/serve/responses/response_tools.h"

#include "fathom/serve/prompt/chat_prompt.h"
#include "fathom/serve/prompt/turn_reader.h"
#include "fathom/serve/responses/custom_input.h"
#include "fathom/tokenizer/chat/chat_json.h"

namespace fathom::serve {
namespace {

using Kind = ToolChoice::Kind;

ToolDefinition read_custom_tool(Fields& tool) {
  ToolDefinition read;
  read.name = tool.required_text("name", kMaxIdBytes);
  read.description = tool.text("description", kMaxTextBytes).value_or("");
  read.parameters = custom_parameters(tool.object("format"));
  const Status status = check_schema(read.parameters, tool.at("format"));
  if (!status.ok()) tool.fail(api_error(status));
  read.definition = Json::object({{"type", Json::string("function")},
                                  {"function", Json::object({
                                                   {"name", Json::string(read.name)},
                                                   {"description", Json::string(read.description)},
                                                   {"parameters", read.parameters},
                                               })}});
  return read;
}

void read_tools(Fields& fields, ResponseTools& out) {
  const Json* array = fields.array("tools", kMaxChatTools);
  if (array == nullptr) return;
  std::set<std::string> skipped;
  for (size_t i = 0; i < array->items().size() && fields.ok(); ++i) {
    const Json& json = array->items()[i];
    const std::string place = str_cat("tools[", i, "]");
    if (!json.is_object()) {
      fields.fail(
          bad_value(place, str_cat(place, ": found ", json.kind_name(), ", expected an object")));
      return;
    }
    Fields tool(json, place);
    const std::string type = tool.required_text("type", kMaxTextBytes);
    if (type == "function") {
      out.tools.push_back(read_flat_tool(tool, json, "parameters"));
    } else if (type == "custom") {
      out.tools.push_back(read_custom_tool(tool));
      out.custom.insert(out.tools.back().name);
    } else {
      skipped.insert(type);
    }
    if (tool.error()) fields.fail(*tool.error());
  }
  if (fields.ok()) log_skipped_tools("responses", skipped);
}

// {"type":"allowed_tools","mode","tools":[{"type","name"}]}: the others are left out of the prompt.
void read_allowed(Fields& choice, ResponseTools& out) {
  const auto mode = choice.word("mode", {"auto", "required"});
  const Json* allowed = choice.array("tools", kMaxChatTools);
  std::set<std::string> names;
  for (size_t i = 0; allowed != nullptr && i < allowed->items().size(); ++i) {
    const std::string place = str_cat(choice.at("tools"), "[", i, "]");
    if (!allowed->items()[i].is_object()) {
      return choice.fail(bad_value(place, str_cat(place, ": expected an object")));
    }
    Fields tool(allowed->items()[i], place);
    // Tools without a name are of the types that are left out.
    if (const auto name = tool.text("name", kMaxIdBytes)) names.insert(*name);
    if (tool.error()) return choice.fail(*tool.error());
  }
  std::erase_if(out.tools, [&](const ToolDefinition& tool) { return !names.contains(tool.name); });
  if (mode == 1u) out.use.choice.kind = Kind::kRequired;
}

void read_choice(Fields& fields, ResponseTools& out) {
  out.use.parallel = fields.boolean("parallel_tool_calls").value_or(true);
  const Json* json = fields.value("tool_choice");
  if (json == nullptr) return;
  if (!json->is_object()) {
    const auto word = fields.word("tool_choice", {"none", "auto", "required"});
    if (word == 0u) out.use.choice.kind = Kind::kNone;
    if (word == 2u) out.use.choice.kind = Kind::kRequired;
    return;
  }
  Fields choice(*json, fields.at("tool_choice"));
  const auto type = choice.word("type", {"function", "custom", "allowed_tools"});
  if (!type && choice.ok()) {
    const std::string where = choice.at("type");
    choice.fail(
        bad_value(where, str_cat(where, ": missing, expected function, custom or allowed_tools")));
  }
  if (type == 0u || type == 1u) {
    out.use.choice = {Kind::kNamed, choice.required_text("name", kMaxIdBytes)};
  } else if (type == 2u) {
    read_allowed(choice, out);
  }
  if (choice.error()) fields.fail(*choice.error());
}

}  // namespace

ResponseTools read_response_tools(Fields& fields) {
  ResponseTools out;
  read_tools(fields, out);
  read_choice(fields, out);
  return out;
}

}  // namespace fathom::serve
