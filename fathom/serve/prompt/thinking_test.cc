#include "fathom/serve/prompt/thinking.h"

#include <gtest/gtest.h>

#include "tests/support/test_server.h"

namespace fathom::serve {
namespace {

struct ThinkingCase {
  std::string fields;
  // Whether the answer begins with reasoning: V4, V3.1, R1.
  bool v4;
  bool v31;
  bool r1;
};

ThinkingAsk read(std::string_view text, std::optional<ApiError>* error = nullptr) {
  const Json body = *parse_json(text, {}, "body");
  Fields fields(body);
  const ThinkingAsk ask = read_thinking(fields);
  if (error != nullptr) {
    *error = fields.error();
  } else {
    EXPECT_TRUE(fields.ok()) << fields.error()->message;
  }
  return ask;
}

bool reasons(const ChatFormat& format, std::string_view fields, Thinking by_default) {
  ServedModel model;
  model.chat_options.thinking = by_default;
  return format.answer_grammar(chat_options(model, read(fields))).starts_in_reasoning;
}

// R1 reasons whatever it is told.
const std::vector<ThinkingCase>& cases() {
  static const std::vector<ThinkingCase> all = {
      {R"({})", true, false, true},
      {R"({"thinking":{"type":"enabled"}})", true, true, true},
      {R"({"thinking":{"type":"enabled","budget_tokens":5}})", true, true, true},
      {R"({"thinking":{"type":"disabled"}})", false, false, true},
      {R"({"thinking":{"type":"adaptive"}})", true, false, true},
      {R"({"thinking":null})", true, false, true},
      {R"({"reasoning_effort":"none"})", false, false, true},
      {R"({"reasoning_effort":"minimal"})", true, false, true},
      {R"({"reasoning_effort":"low"})", true, false, true},
      {R"({"reasoning_effort":"medium"})", true, false, true},
      {R"({"reasoning_effort":"high"})", true, false, true},
      {R"({"reasoning_effort":"xhigh"})", true, false, true},
      {R"({"reasoning_effort":"max"})", true, false, true},
      {R"({"chat_template_kwargs":{"thinking":true}})", true, true, true},
      {R"({"chat_template_kwargs":{"thinking":false}})", false, false, true},
      {R"({"chat_template_kwargs":{"enable_thinking":true}})", true, true, true},
      {R"({"chat_template_kwargs":{"enable_thinking":false}})", false, false, true},
      {R"({"chat_template_kwargs":{"thinking":true,"enable_thinking":false}})", true, true, true},
      {R"({"chat_template_kwargs":{"reasoning_effort":"none"}})", false, false, true},
      {R"({"thinking":{"type":"disabled"},"chat_template_kwargs":{"thinking":true}})", false, false,
       true},
      {R"({"thinking":{"type":"disabled"},"reasoning_effort":"max"})", false, false, true},
      {R"({"thinking":{"type":"enabled"},"reasoning_effort":"none"})", true, true, true},
  };
  return all;
}

TEST(Thinking, EachSwitchWorksInEachFormat) {
  for (const ThinkingCase& c : cases()) {
    const Thinking silent = Thinking::kFormatDefault;
    EXPECT_EQ(reasons(chat_v4(), c.fields, silent), c.v4) << c.fields;
    EXPECT_EQ(reasons(chat_v31(), c.fields, silent), c.v31) << c.fields;
    EXPECT_EQ(reasons(chat_r1(), c.fields, silent), c.r1) << c.fields;
  }
}

TEST(Thinking, TheServersDefaultHoldsWhereARequestIsSilent) {
  EXPECT_FALSE(reasons(chat_v4(), "{}", Thinking::kOff));
  EXPECT_TRUE(reasons(chat_v31(), "{}", Thinking::kOn));
  EXPECT_TRUE(reasons(chat_v4(), R"({"reasoning_effort":"high"})", Thinking::kOff));
  EXPECT_TRUE(reasons(chat_v31(), R"({"reasoning_effort":"high"})", Thinking::kOn));
  EXPECT_FALSE(reasons(chat_v31(), R"({"reasoning_effort":"none"})", Thinking::kOn));
  EXPECT_TRUE(reasons(chat_v4(), R"({"thinking":{"type":"enabled"}})", Thinking::kOff));
}

TEST(Thinking, EffortOfTheFieldWinsOverTheKwargs) {
  const ThinkingAsk ask =
      read(R"({"reasoning_effort":"low","chat_template_kwargs":{"reasoning_effort":"max"}})");

  EXPECT_EQ(ask.effort, ReasoningEffort::kLow);
}

TEST(Thinking, TheRecipeHasHighEffortWhereARequestIsSilent) {
  ServedModel model;
  model.recipe_defaults = true;

  EXPECT_EQ(chat_options(model, {}).effort, ReasoningEffort::kHigh);
  EXPECT_EQ(chat_options(model, read(R"({"reasoning_effort":"low"})")).effort,
            ReasoningEffort::kLow);
  model.chat_options.effort = ReasoningEffort::kMax;
  EXPECT_EQ(chat_options(model, {}).effort, ReasoningEffort::kMax);
  EXPECT_EQ(chat_options(ServedModel{}, {}).effort, ReasoningEffort::kFormatDefault);
}

TEST(Thinking, PastReasoningIsKeptOnRequest) {
  const auto past = [](std::string_view fields) {
    return chat_options(ServedModel{}, read(fields)).past_reasoning;
  };
  EXPECT_EQ(past("{}"), PastReasoning::kDrop);
  EXPECT_EQ(past(R"({"chat_template_kwargs":{"drop_thinking":false}})"), PastReasoning::kKeep);
  EXPECT_EQ(past(R"({"chat_template_kwargs":{"drop_thinking":true}})"), PastReasoning::kDrop);
}

TEST(Thinking, MistakesAreNamed) {
  const std::vector<std::pair<std::string, std::string>> wrong = {
      {R"({"thinking":true})", "thinking"},
      {R"({"thinking":{}})", "thinking.type"},
      {R"({"thinking":{"type":"on"}})", "thinking.type"},
      {R"({"reasoning_effort":"huge"})", "reasoning_effort"},
      {R"({"reasoning_effort":3})", "reasoning_effort"},
      {R"({"chat_template_kwargs":[]})", "chat_template_kwargs"},
      {R"({"chat_template_kwargs":{"thinking":1}})", "chat_template_kwargs.thinking"},
      {R"({"chat_template_kwargs":{"reasoning_effort":"huge"}})",
       "chat_template_kwargs.reasoning_effort"},
      {R"({"chat_template_kwargs":{"drop_thinking":"no"}})", "chat_template_kwargs.drop_thinking"},
      {R"({"chat_template_kwargs":{"bos_token":"x"}})", "chat_template_kwargs.bos_token"},
  };
  for (const auto& [fields, param] : wrong) {
    std::optional<ApiError> error;
    read(fields, &error);
    ASSERT_TRUE(error.has_value()) << fields;
    EXPECT_EQ(error->param, param);
    EXPECT_TRUE(error->message.starts_with(param)) << error->message;
  }
}

}  // namespace
}  // namespace fathom::serve
