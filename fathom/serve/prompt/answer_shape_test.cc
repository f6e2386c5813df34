#include "fathom/serve/prompt/answer_shape.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <tuple>

#include "tests/support/test_server.h"

namespace fathom::serve {
namespace {

using Kind = GrammarSpec::Kind;
using testing::ElementsAre;
using testing::HasSubstr;

std::optional<ContentShape> read_shape(std::string_view text,
                                       ResponseFormat* for_prompt = nullptr,
                                       std::optional<ApiError>* error = nullptr) {
  const Json body = *parse_json(text, {}, "body");
  Fields fields(body);
  auto shape = read_content_shape(fields, for_prompt);
  if (error != nullptr) *error = fields.error();
  return shape;
}

struct ShapeCase {
  std::string body;
  Kind kind;
  std::string text;
  std::string field;
};

TEST(ContentShape, EachFieldHasItsKind) {
  const std::vector<ShapeCase> cases = {
      {R"({"response_format":{"type":"json_object"}})", Kind::kJson, "", "response_format"},
      {R"({"response_format":{"type":"json_schema","json_schema":{"schema":{"type": "object"}}}})",
       Kind::kJsonSchema, R"({"type":"object"})", "response_format"},
      {R"({"response_format":{"type":"structural_tag","format":{"a": 1}}})", Kind::kStructuralTag,
       R"({"type":"structural_tag","format":{"a":1}})", "response_format"},
      {R"({"structured_outputs":{"json":{"a":1}}})", Kind::kJsonSchema, R"({"a":1})",
       "structured_outputs.json"},
      {R"({"structured_outputs":{"json":"{\"a\": 1}"}})", Kind::kJsonSchema, R"({"a":1})",
       "structured_outputs.json"},
      {R"({"structured_outputs":{"regex":"a+"}})", Kind::kRegex, "a+", "structured_outputs.regex"},
      {R"({"structured_outputs":{"grammar":"root ::= x"}})", Kind::kEbnf, "root ::= x",
       "structured_outputs.grammar"},
      {R"({"structured_outputs":{"json_object":true}})", Kind::kJson, "",
       "structured_outputs.json_object"},
      {R"({"structured_outputs":{"structural_tag":"{}"}})", Kind::kStructuralTag, "{}",
       "structured_outputs.structural_tag"},
      {R"({"guided_json":{"a":1}})", Kind::kJsonSchema, R"({"a":1})", "guided_json"},
      {R"({"guided_regex":"a+"})", Kind::kRegex, "a+", "guided_regex"},
      {R"({"guided_grammar":"root ::= x"})", Kind::kEbnf, "root ::= x", "guided_grammar"},
  };
  for (const ShapeCase& c : cases) {
    const auto shape = read_shape(c.body);
    ASSERT_TRUE(shape.has_value()) << c.body;
    EXPECT_EQ(shape->kind, c.kind) << c.body;
    EXPECT_EQ(shape->text, c.text) << c.body;
    EXPECT_EQ(shape->field, c.field) << c.body;
  }
}

TEST(ContentShape, ChoicesAreKept) {
  EXPECT_THAT(read_shape(R"({"guided_choice":["a","b"]})")->choices, ElementsAre("a", "b"));
  EXPECT_THAT(read_shape(R"({"structured_outputs":{"choice":["a"]}})")->choices, ElementsAre("a"));
  EXPECT_EQ(read_shape(R"({"guided_choice":["a"]})")->kind, Kind::kChoice);
}

TEST(ContentShape, SilentRequestsHaveNone) {
  for (const std::string_view body :
       {R"({})", R"({"response_format":{"type":"text"}})", R"({"response_format":null})",
        R"({"structured_outputs":{}})", R"({"structured_outputs":{"json_object":false}})"}) {
    std::optional<ApiError> error;
    EXPECT_FALSE(read_shape(body, nullptr, &error).has_value()) << body;
    EXPECT_FALSE(error.has_value()) << body;
  }
}

TEST(ContentShape, ThePromptIsToldOfResponseFormats) {
  ResponseFormat format;
  read_shape(R"({"response_format":{"type":"json_object"}})", &format);
  EXPECT_EQ(format.kind, ResponseFormat::Kind::kJsonObject);
  read_shape(R"({"response_format":{"type":"json_schema","json_schema":{"schema":{}}}})", &format);
  EXPECT_EQ(format.kind, ResponseFormat::Kind::kJsonSchema);
}

TEST(ContentShape, MistakesAreNamed) {
  const std::vector<std::pair<std::string, std::string>> wrong = {
      {R"({"response_format":"json"})", "response_format"},
      {R"({"response_format":{"type":"xml"}})", "response_format.type"},
      {R"({"response_format":{"type":"json_schema"}})", "response_format.json_schema"},
      {R"({"guided_json":"{"})", "guided_json"},
      {R"({"guided_json":[1]})", "guided_json"},
      {R"({"guided_regex":1})", "guided_regex"},
      {R"({"guided_choice":["a",1]})", "guided_choice"},
      {R"({"guided_regex":"a","guided_grammar":"b"})", "guided_grammar"},
      {R"({"response_format":{"type":"json_object"},"structured_outputs":{"regex":"a"}})",
       "structured_outputs.regex"},
  };
  for (const auto& [body, param] : wrong) {
    std::optional<ApiError> error;
    read_shape(body, nullptr, &error);
    ASSERT_TRUE(error.has_value()) << body;
    EXPECT_EQ(error->param, param) << error->message;
  }
}

ToolUse read_use(std::string_view text, std::optional<ApiError>* error = nullptr) {
  const Json body = *parse_json(text, {}, "body");
  Fields fields(body);
  ToolUse use = read_tool_use(fields);
  if (error != nullptr) *error = fields.error();
  return use;
}

TEST(ToolUse, ReadsChoices) {
  using Choice = ToolChoice::Kind;
  EXPECT_EQ(read_use("{}").choice.kind, Choice::kAuto);
  EXPECT_TRUE(read_use("{}").parallel);
  EXPECT_EQ(read_use(R"({"tool_choice":"auto"})").choice.kind, Choice::kAuto);
  EXPECT_EQ(read_use(R"({"tool_choice":"none"})").choice.kind, Choice::kNone);
  EXPECT_EQ(read_use(R"({"tool_choice":"required"})").choice.kind, Choice::kRequired);
  EXPECT_FALSE(read_use(R"({"parallel_tool_calls":false})").parallel);
  for (const std::string_view body :
       {R"({"tool_choice":{"type":"function","function":{"name":"f"}}})",
        R"({"tool_choice":{"type":"function","name":"f"}})"}) {
    EXPECT_EQ(read_use(body).choice.kind, Choice::kNamed);
    EXPECT_EQ(read_use(body).choice.name, "f");
  }
}

TEST(ToolUse, MistakesAreNamed) {
  const std::vector<std::pair<std::string, std::string>> wrong = {
      {R"({"tool_choice":"maybe"})", "tool_choice"},
      {R"({"tool_choice":1})", "tool_choice"},
      {R"({"tool_choice":{}})", "tool_choice.type"},
      {R"({"tool_choice":{"type":"allowed_tools"}})", "tool_choice.type"},
      {R"({"tool_choice":{"type":"function"}})", "tool_choice.name"},
      {R"({"tool_choice":{"type":"function","function":{}}})", "tool_choice.function.name"},
      {R"({"tool_choice":{"type":"function","function":{"name":1}}})", "tool_choice.function.name"},
      {R"({"parallel_tool_calls":1})", "parallel_tool_calls"},
  };
  for (const auto& [body, param] : wrong) {
    std::optional<ApiError> error;
    read_use(body, &error);
    ASSERT_TRUE(error.has_value()) << body;
    EXPECT_EQ(error->param, param) << error->message;
  }
}

ToolDefinition tool_of(std::string name, bool strict) {
  ToolDefinition tool{.name = std::move(name)};
  tool.parameters = *parse_json(R"({"type":"object"})", {}, "tool");
  tool.definition =
      *parse_json(strict ? R"({"function":{"strict":true}})" : R"({"function":{}})", {}, "tool");
  return tool;
}

struct Compiling : testing::Test {
  auto compile(const std::optional<ContentShape>& shape,
               const std::vector<ToolDefinition>& tools,
               const ToolUse& use,
               bool reasoning = false) {
    const AnswerGrammar answer{.tool_calls = AnswerGrammar::ToolCalls::kDsml,
                               .knows_thinking = true,
                               .starts_in_reasoning = reasoning,
                               .section = "tool_calls"};
    return compile_answer(server.model, shape, tools, use, answer);
  }

  ApiError error_of(const std::optional<ContentShape>& shape,
                    const std::vector<ToolDefinition>& tools,
                    const ToolUse& use) {
    const auto compiled = compile(shape, tools, use);
    EXPECT_FALSE(compiled.ok());
    return compiled.ok() ? ApiError{} : api_error(compiled.status());
  }

  TestServer server;
  const ToolUse automatic;
  const ToolUse required{.choice = {.kind = ToolChoice::Kind::kRequired, .name = {}}};
  const ToolUse named_g{.choice = {.kind = ToolChoice::Kind::kNamed, .name = "g"}};
  const ContentShape json{.kind = Kind::kJson, .text = {}, .choices = {}, .field = "guided_json"};
};

TEST_F(Compiling, NothingAskedForIsNoGrammar) {
  const auto compiled = compile({}, {}, automatic);

  ASSERT_TRUE(compiled.ok());
  EXPECT_EQ(*compiled, nullptr);
  EXPECT_TRUE(server.grammars.specs.empty());
}

TEST_F(Compiling, ReasoningIsFree) {
  ASSERT_TRUE(compile(json, {}, automatic, true).ok());
  ASSERT_TRUE(compile(json, {}, automatic, false).ok());

  EXPECT_EQ(server.grammars.specs[0].free_until, server.id("</think>"));
  EXPECT_FALSE(server.grammars.specs[1].free_until.has_value());
}

TEST_F(Compiling, ToolsHaveTheServersLevel) {
  for (const ToolGrammar level : {ToolGrammar::kLight, ToolGrammar::kFull}) {
    server.model.tool_grammar = level;
    ASSERT_TRUE(compile({}, {tool_of("f", false)}, automatic).ok());
    const GrammarSpec& spec = server.grammars.specs.back();
    EXPECT_EQ(spec.kind, Kind::kTools);
    EXPECT_EQ(spec.level, level);
    EXPECT_FALSE(spec.must_call);
    EXPECT_TRUE(spec.parallel_calls);
    EXPECT_EQ(spec.answer.section, "tool_calls");
  }
  server.grammars.specs.clear();
  server.model.tool_grammar = ToolGrammar::kOff;
  EXPECT_EQ(*compile({}, {tool_of("f", false)}, automatic), nullptr);
  EXPECT_TRUE(server.grammars.specs.empty());
}

TEST_F(Compiling, StrictToolsAreFollowedAndOthersAreFree) {
  ASSERT_TRUE(compile({}, {tool_of("f", true), tool_of("g", false)}, automatic).ok());

  const GrammarSpec& spec = server.grammars.specs.back();
  EXPECT_EQ(spec.level, ToolGrammar::kFull);
  EXPECT_TRUE(spec.tools[0].parameters.is_object());
  EXPECT_TRUE(spec.tools[1].parameters.is_null());
}

TEST_F(Compiling, ACallThatMustComeIsFull) {
  ToolUse one = named_g;
  one.parallel = false;
  ASSERT_TRUE(compile({}, {tool_of("f", false), tool_of("g", false)}, required).ok());
  ASSERT_TRUE(compile({}, {tool_of("f", false), tool_of("g", false)}, one).ok());

  const auto& specs = server.grammars.specs;
  EXPECT_TRUE(specs[0].must_call);
  EXPECT_EQ(specs[0].level, ToolGrammar::kFull);
  EXPECT_EQ(specs[0].tools.size(), 2u);
  ASSERT_EQ(specs[1].tools.size(), 1u);
  EXPECT_EQ(specs[1].tools[0].name, "g");
  EXPECT_TRUE(specs[1].tools[0].parameters.is_object());
  EXPECT_FALSE(specs[1].parallel_calls);
}

TEST_F(Compiling, ACallWithoutItsToolIsRefused) {
  EXPECT_EQ(error_of({}, {}, required).param, "tool_choice");
  EXPECT_THAT(error_of({}, {tool_of("f", false)}, named_g).message, HasSubstr("found \"g\""));
}

TEST_F(Compiling, AShapeBesideToolsIsForAnswersWithoutCalls) {
  using Level = ToolGrammar;
  for (const auto& [strict, level, expected] : {std::tuple{false, Level::kLight, Level::kLight},
                                                std::tuple{false, Level::kOff, Level::kLight},
                                                std::tuple{false, Level::kFull, Level::kFull},
                                                std::tuple{true, Level::kOff, Level::kFull}}) {
    server.model.tool_grammar = level;
    ASSERT_TRUE(compile(json, {tool_of("f", strict)}, automatic).ok());
    const GrammarSpec& spec = server.grammars.specs.back();
    EXPECT_EQ(spec.kind, Kind::kJson);
    ASSERT_EQ(spec.tools.size(), 1u);
    EXPECT_EQ(spec.level, expected);
    EXPECT_FALSE(spec.must_call);
    EXPECT_EQ(spec.answer.section, "tool_calls");
  }
  const ToolUse none{.choice = {.kind = ToolChoice::Kind::kNone, .name = {}}};
  ASSERT_TRUE(compile(json, {tool_of("f", false)}, none).ok());
  EXPECT_TRUE(server.grammars.specs.back().tools.empty());
}

TEST_F(Compiling, AShapeBesideACallThatMustComeDoesNothing) {
  for (const ToolUse& use : {required, named_g}) {
    ASSERT_TRUE(compile(json, {tool_of("g", false)}, use).ok());
    EXPECT_EQ(server.grammars.specs.back().kind, Kind::kTools);
    EXPECT_TRUE(server.grammars.specs.back().must_call);
  }
}

TEST_F(Compiling, AShapeBesideCallsWithoutAFormIsRefused) {
  const auto compiled = compile_answer(server.model, json, {tool_of("f", false)}, automatic, {});

  ASSERT_FALSE(compiled.ok());
  EXPECT_EQ(api_error(compiled.status()).code, "unsupported_parameter");
  EXPECT_EQ(api_error(compiled.status()).param, "guided_json");
}

TEST_F(Compiling, ErrorsOfTheCompilerNameTheField) {
  ContentShape bad = json;
  bad.text = "bad";
  ContentShape huge = json;
  huge.text = "huge";

  EXPECT_EQ(error_of(bad, {}, automatic).code, "invalid_schema");
  EXPECT_EQ(error_of(bad, {}, automatic).param, "guided_json");
  EXPECT_EQ(error_of(bad, {}, automatic).message, "guided_json: it is bad");
  EXPECT_EQ(error_of(huge, {}, automatic).code, "grammar_too_complex");
  EXPECT_EQ(error_of(huge, {}, automatic).status, 400);
  EXPECT_EQ(error_of(json, {tool_of("bad", false)}, automatic).param, "tools");
  EXPECT_EQ(error_of(json, {tool_of("bad", false)}, automatic).message,
            "tools: tool 'bad': it is bad");
}

TEST_F(Compiling, WithoutGrammarsConstraintsAreRefusedAndToolsAreFree) {
  server.model.grammars = nullptr;

  EXPECT_EQ(error_of(json, {}, automatic).code, "unsupported_parameter");
  EXPECT_EQ(error_of({}, {tool_of("f", false)}, required).code, "unsupported_parameter");
  EXPECT_EQ(error_of({}, {tool_of("f", true)}, automatic).code, "unsupported_parameter");
  EXPECT_EQ(*compile({}, {tool_of("f", false)}, automatic), nullptr);
}

}  // namespace
}  // namespace fathom::serve
