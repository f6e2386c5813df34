// What an answer may look like, by a request's fields, and the grammar that says so to the engine.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "fathom/grammar/grammar.h"
#include "fathom/serve/fields.h"
#include "fathom/serve/served_model.h"
#include "fathom/tokenizer/chat/chat.h"

namespace fathom::serve {

/// What the content of an answer must be.
struct ContentShape {
  GrammarSpec::Kind kind = GrammarSpec::Kind::kJson;  ///< not kTools
  std::string text{};                                 ///< as in GrammarSpec
  std::vector<std::string> choices{};
  std::string field = "response_format";  ///< that asked for it; messages of errors begin with it
};

/// Whether the answer may, must or must not call tools.
struct ToolChoice {
  enum class Kind { kAuto, kNone, kRequired, kNamed };
  Kind kind = Kind::kAuto;
  std::string name;  ///< of kNamed
};

/// The tools of an answer and how they may be called.
struct ToolUse {
  ToolChoice choice;
  bool parallel = true;  ///< more than one call
};

/// Checks size and depth of a schema, of a shape or of a tool. Errors: InvalidArgument
/// `invalid_schema: FIELD: ...`, `grammar_too_complex: FIELD: ...`.
Status check_schema(const Json& schema, std::string_view field);

/// Reads `response_format` (text, json_object, json_schema, structural_tag), `structured_outputs`
/// {json | regex | choice | grammar | structural_tag} and guided_json, guided_regex, guided_choice,
/// guided_grammar; at most one of them. `for_prompt`, if not null, gets what the prompt says of it.
std::optional<ContentShape> read_content_shape(Fields& fields, ResponseFormat* for_prompt);

/// The shape that the JSON schema in `name` asks for, which must be there.
std::optional<ContentShape> read_schema_shape(Fields& fields,
                                              std::string_view name,
                                              ResponseFormat* for_prompt);

/// Reads `tool_choice` (none, auto, required, {"type":"function","function":{"name"}}) and
/// `parallel_tool_calls`.
ToolUse read_tool_use(Fields& fields);

/// Compiles what an answer must keep to: a call that must come, `shape` or calls of tools that may
/// be called in its place, tools that are strict, or the server's light frame of calls. Null where
/// nothing is prescribed. `tools` are those of the prompt. Runs on a worker. Errors:
/// InvalidArgument `invalid_schema`, `grammar_too_complex`, a choice without such a tool;
/// Unsupported where the server has no grammars, or for a shape beside calls that have no form.
Result<std::shared_ptr<const CompiledGrammar>> compile_answer(
    const ServedModel& model,
    const std::optional<ContentShape>& shape,
    const std::vector<ToolDefinition>& tools,
    const ToolUse& use,
    const AnswerGrammar& answer);

}  // namespace fathom::serve
