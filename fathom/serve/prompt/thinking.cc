#include "fathom/serve/prompt/thinking.h"

#include "fathom/tokenizer/chat/chat_json.h"

namespace fathom::serve {
namespace {

constexpr int64_t kMaxEffortBytes = 64;

std::optional<Thinking> read_switch(Fields& fields) {
  const Json* thinking = fields.object("thinking");
  if (thinking == nullptr) return {};
  Fields inner(*thinking, fields.at("thinking"));
  const auto type = inner.word("type", {"enabled", "disabled", "adaptive"});
  if (inner.error()) fields.fail(*inner.error());
  if (fields.ok() && !type) {
    fields.fail(bad_value("thinking.type", "thinking.type: missing, expected enabled or disabled"));
  }
  if (!type || *type == 2) return {};
  return *type == 0 ? Thinking::kOn : Thinking::kOff;
}

// What a template would be given. Only what some format knows is taken.
void read_kwargs(Fields& fields, ThinkingAsk& ask) {
  const Json* json = fields.object("chat_template_kwargs");
  if (json == nullptr) return;
  Fields kwargs(*json, fields.at("chat_template_kwargs"));
  std::optional<bool> on = kwargs.boolean("enable_thinking");
  if (const auto thinking = kwargs.boolean("thinking")) on = thinking;
  const auto effort = read_effort(kwargs, "reasoning_effort");
  const auto drops = kwargs.boolean("drop_thinking");
  for (const auto& [name, value] : json->members()) {
    if (name == "thinking" || name == "enable_thinking" || name == "reasoning_effort" ||
        name == "drop_thinking") {
      continue;
    }
    const std::string where = kwargs.at(name.substr(0, 64));
    kwargs.fail(bad_value(where,
                          str_cat(where,
                                  ": not known, expected thinking, enable_thinking, "
                                  "reasoning_effort or drop_thinking"),
                          "unsupported_parameter"));
  }
  if (kwargs.error()) fields.fail(*kwargs.error());
  if (on && !ask.thinking) ask.thinking = *on ? Thinking::kOn : Thinking::kOff;
  if (effort && !ask.effort) ask.effort = effort;
  if (drops) ask.past = *drops ? PastReasoning::kDrop : PastReasoning::kKeep;
}

}  // namespace

ThinkingAsk read_thinking(Fields& fields) {
  ThinkingAsk ask;
  ask.thinking = read_switch(fields);
  ask.effort = read_effort(fields, "reasoning_effort");
  read_kwargs(fields, ask);
  return ask;
}

std::optional<ReasoningEffort> read_effort(Fields& fields, std::string_view name) {
  const auto word = fields.text(name, kMaxEffortBytes);
  if (!word) return {};
  const Result<ReasoningEffort> effort = parse_reasoning_effort(*word);
  if (effort.ok()) return *effort;
  const std::string where = fields.at(name);
  const std::string message = effort.status().message();
  fields.fail(bad_value(
      where, str_cat(where, message.substr(std::string_view("reasoning_effort").size()))));
  return {};
}

ChatOptions chat_options(const ServedModel& model, const ThinkingAsk& ask) {
  ChatOptions options = model.chat_options;
  if (ask.past) options.past_reasoning = *ask.past;
  if (ask.effort) {
    options.effort = *ask.effort;
  } else if (model.recipe_defaults && options.effort == ReasoningEffort::kFormatDefault) {
    options.effort = ReasoningEffort::kHigh;
  }
  if (ask.thinking) {
    options.thinking = *ask.thinking;
  } else if (ask.effort == ReasoningEffort::kNone) {
    options.thinking = Thinking::kOff;
  } else if (ask.effort && options.thinking == Thinking::kOff) {
    options.thinking =
        Thinking::kFormatDefault;  // where the format has a choice, the effort makes it
  }
  return options;
}

}  // namespace fathom::serve
