// What a request says of thinking, and what the prompt is told of it.
#pragma once

#include <optional>
#include <string_view>

#include "fathom/serve/fields.h"
#include "fathom/serve/served_model.h"
#include "fathom/tokenizer/chat/chat.h"

namespace fathom::serve {

/// What a request asks for; what it does not say is absent and follows the server.
struct ThinkingAsk {
  std::optional<Thinking> thinking{};
  std::optional<ReasoningEffort> effort{};
  std::optional<PastReasoning> past{};
};

/// Reads `thinking` {"type": "enabled"|"disabled"|"adaptive"}, `reasoning_effort` and
/// `chat_template_kwargs` {thinking, enable_thinking, reasoning_effort, drop_thinking}. The fields
/// win over those of the kwargs; other kwargs are refused with `unsupported_parameter`.
ThinkingAsk read_thinking(Fields& fields);

/// Reads an effort by its name, "low", from a field.
std::optional<ReasoningEffort> read_effort(Fields& fields, std::string_view name);

/// The server's options changed by what is asked for. An effort alone decides whether the model
/// thinks: none turns it off; any other undoes a server's --default-thinking off and turns it on
/// where the format goes by efforts (V3.2, V4). With recipe_defaults a silent request has high
/// effort.
ChatOptions chat_options(const ServedModel& model, const ThinkingAsk& ask);

}  // namespace fathom::serve
