#include "fathom/serve/anthropic/messages_request.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "fathom/base/log.h"
#include "fathom/tokenizer/chat/chat_json.h"
#include "tests/support/read_requests.h"
#include "tests/support/test_server.h"

namespace fathom::serve {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

const ThinkingSigner& signer() {
  static const ThinkingSigner made("key");
  return made;
}

constexpr std::string_view kMessages = R"("messages":[{"role":"user","content":"hi"}])";

std::string body_with(std::string_view fields) {
  std::string body = "{";
  if (fields.find("\"messages\"") == fields.npos) body += str_cat(kMessages, ",");
  if (fields.find("\"max_tokens\"") == fields.npos) body += "\"max_tokens\":8,";
  body += fields;
  if (body.ends_with(",")) body.pop_back();
  return body + "}";
}

Parsed<MessagesRequest> parsed(std::string_view fields) {
  return parse_messages_request(post_of(body_with(fields)), roomy_server().model, "", signer());
}

std::string refused(std::string_view fields) {
  return refused_field(parsed(fields), fields);
}

AnswerSpec answer(std::string_view fields) {
  return taken(parsed(fields), fields).answer;
}

ChatAsk ask(std::string_view fields) {
  const Json body = *parse_json(body_with(fields), {}, "body");
  auto result = read_messages(body, roomy_server().model, "", signer(), MessagesPurpose::kAnswer);
  return taken(std::move(result), fields).ask;
}

std::vector<std::string> list(size_t count, std::string_view item) {
  return std::vector<std::string>(count, std::string(item));
}

std::string array_of(const std::vector<std::string>& items) {
  std::string text;
  for (const std::string& item : items)
    text += str_cat(text.empty() ? "" : ",", item);
  return str_cat("[", text, "]");
}

struct Range {
  std::string field;
  std::vector<std::string> good;
  std::vector<std::string> bad;
};

const std::vector<Range>& ranges() {
  static const std::vector<Range> all = {
      {"temperature", {"0", "0.5", "1"}, {"-0.001", "1.001", "2"}},
      {"top_p", {"0.001", "1"}, {"0", "1.001", "-1"}},
      {"top_k", {"0", "1", "4130"}, {"-1", "4131", "1.5"}},
      {"max_tokens", {"1", "8", "9223372036854775807"}, {"0", "-1", "9223372036854775808", "1.5"}},
  };
  return all;
}

TEST(MessagesRequest, NumbersAreTakenUpToTheirBorders) {
  for (const Range& range : ranges()) {
    for (const std::string& value : range.good)
      EXPECT_EQ(refused(str_cat("\"", range.field, "\":", value)), "") << value;
    for (const std::string& value : range.bad)
      EXPECT_EQ(refused(str_cat("\"", range.field, "\":", value)), range.field) << value;
    for (const std::string_view value : {"\"1\"", "true", "[]", "{}"})
      EXPECT_EQ(refused(str_cat("\"", range.field, "\":", value)), range.field) << value;
    const bool is_required = range.field == "max_tokens";
    EXPECT_EQ(refused(str_cat("\"", range.field, "\":null")), is_required ? range.field : "");
  }
  const auto missing = parse_messages_request(post_of(str_cat("{", kMessages, "}")),
                                              roomy_server().model, "", signer());
  EXPECT_EQ(std::get<ApiError>(missing).param, "max_tokens");
}

TEST(MessagesRequest, OtherFieldsAreOfTheirKinds) {
  struct Case {
    std::string field;
    std::vector<std::string> good;
    std::vector<std::pair<std::string, std::string>> bad;  // value, where
  };

  const std::string longest(1024, 'x');
  const std::vector<Case> cases = {
      {"stream", {"true", "false", "null"}, {{"0", "stream"}, {"\"true\"", "stream"}}},
      {"stop_sequences",
       {"[]", "null", "[\"x\"]", array_of(list(16, "\"x\"")), str_cat("[\"", longest, "\"]")},
       {{"\"x\"", "stop_sequences"},
        {"[\"\"]", "stop_sequences[0]"},
        {"[\"a\",1]", "stop_sequences[1]"},
        {str_cat("[\"", longest, "x\"]"), "stop_sequences[0]"},
        {array_of(list(17, "\"x\"")), "stop_sequences"}}},
      {"thinking",
       {R"({"type":"enabled","budget_tokens":1024})", R"({"type":"disabled"})",
        R"({"type":"adaptive"})", R"({"type":"enabled"})", "null",
        R"({"type":"enabled","budget_tokens":1,"display":"summarized"})"},
       {{R"({})", "thinking.type"},
        {R"({"type":"on"})", "thinking.type"},
        {R"({"type":"enabled","budget_tokens":0})", "thinking.budget_tokens"},
        {R"({"type":"enabled","budget_tokens":"1"})", "thinking.budget_tokens"},
        {"true", "thinking"}}},
      {"output_config",
       {R"({})", R"({"effort":"low"})", R"({"effort":"max"})", R"({"effort":null})",
        R"({"format":{"type":"json_schema","schema":{"type":"object"}}})"},
       {{R"({"effort":"huge"})", "output_config.effort"},
        {R"({"effort":1})", "output_config.effort"},
        {R"({"format":{"type":"json_object"}})", "output_config.format.type"},
        {R"({"format":{}})", "output_config.format.type"},
        {R"({"format":{"type":"json_schema"}})", "output_config.format.schema"},
        {R"({"format":{"type":"json_schema","schema":[]}})", "output_config.format.schema"},
        {"[]", "output_config"}}},
      {"tool_choice",
       {R"({"type":"auto"})", R"({"type":"none"})", "null",
        R"({"type":"auto","disable_parallel_tool_use":true})"},
       {{R"({})", "tool_choice.type"},
        {R"({"type":"required"})", "tool_choice.type"},
        {R"({"type":"tool"})", "tool_choice.name"},
        {R"({"type":"tool","name":"f"})", "tool_choice"},
        {R"({"type":"any"})", "tool_choice"},
        {R"({"type":"auto","disable_parallel_tool_use":1})",
         "tool_choice.disable_parallel_tool_use"},
        {"\"auto\"", "tool_choice"}}},
      {"tools",
       {"[]", "null", R"([{"name":"f","input_schema":{"type":"object"}}])",
        R"([{"type":"custom","name":"f","description":"d","input_schema":{},)"
        R"("cache_control":{"type":"ephemeral"},"strict":true}])",
        array_of(list(128, R"({"name":"f","input_schema":{}})"))},
       {{R"([{"name":"f"}])", "tools[0].input_schema"},
        {R"([{"input_schema":{}}])", "tools[0].name"},
        {R"([{"name":1,"input_schema":{}}])", "tools[0].name"},
        {R"([{"name":"f","input_schema":[]}])", "tools[0].input_schema"},
        {R"([{"name":"f","input_schema":{},"strict":1}])", "tools[0].strict"},
        {str_cat(R"([{"name":")", std::string(257, 'x'), R"(","input_schema":{}}])"),
         "tools[0].name"},
        {"[1]", "tools[0]"},
        {"{}", "tools"},
        {array_of(list(129, R"({"name":"f","input_schema":{}})")), "tools"}}},
      {"metadata",
       {"{}", R"({"user_id":null})", str_cat(R"({"user_id":")", std::string(256, 'x'), "\"}")},
       {{str_cat(R"({"user_id":")", std::string(257, 'x'), "\"}"), "metadata.user_id"},
        {R"({"user_id":1})", "metadata.user_id"},
        {"[]", "metadata"}}},
      {"model", {"\"deep\"", "\"alias\"", "null"}, {{"1", "model"}}},
      {"mcp_servers", {"[]", "null"}, {{"[{}]", "mcp_servers"}}},
      {"system",
       {"\"s\"", "\"\"", "[]", "null", R"([{"type":"text","text":"s","cache_control":{}}])"},
       {{"1", "system"},
        {R"([{"type":"image"}])", "system[0].type"},
        {R"([{"type":"text"}])", "system[0].text"},
        {R"(["s"])", "system[0]"}}},
      {"cache_control", {R"({"type":"ephemeral"})"}, {}},
      {"container", {"\"c\""}, {}},
      {"service_tier", {"\"auto\""}, {}},
  };
  for (const Case& c : cases) {
    for (const std::string& value : c.good)
      EXPECT_EQ(refused(str_cat("\"", c.field, "\":", value)), "")
          << c.field << value.substr(0, 100);
    for (const auto& [value, where] : c.bad)
      EXPECT_EQ(refused(str_cat("\"", c.field, "\":", value)), where)
          << c.field << value.substr(0, 100);
  }
}

TEST(MessagesRequest, AnotherModelIsNotFound) {
  const auto result = parsed(R"("model":"other")");

  EXPECT_EQ(std::get<ApiError>(result).status, 404);
  EXPECT_EQ(std::get<ApiError>(result).anthropic_type(), "not_found_error");
}

TEST(MessagesRequest, UnknownFieldsAreRefusedOnlyWhereAskedFor) {
  EXPECT_EQ(refused(R"("unheard_of":1)"), "");
  ServedModel strict = roomy_server().model;
  strict.strict_api = true;
  const auto all = body_with(
      R"("model":"deep","system":"s","temperature":1,"top_p":1,"top_k":1,"stop_sequences":[],)"
      R"("stream":true,"tools":[],"thinking":{"type":"adaptive"},"output_config":{},)"
      R"("metadata":{},"cache_control":{},"service_tier":"auto","container":"c")");
  const auto known = parse_messages_request(post_of(all), strict, "", signer());
  const auto unknown =
      parse_messages_request(post_of(body_with(R"("unheard_of":1)")), strict, "", signer());

  EXPECT_EQ(std::get_if<ApiError>(&known), nullptr);
  EXPECT_EQ(std::get<ApiError>(unknown).param, "unheard_of");
}

TEST(MessagesRequest, FieldsDecideWhatIsComputed) {
  const AnswerSpec spec =
      answer(R"("temperature":0.5,"top_p":0.25,"top_k":7,"stop_sequences":["a","b"])");

  EXPECT_EQ(spec.request.sampling.temperature, 0.5f);
  EXPECT_EQ(spec.request.sampling.top_p, 0.25f);
  EXPECT_EQ(spec.request.sampling.top_k, 7);
  EXPECT_EQ(*spec.request.sampling.max_tokens, 8);
  EXPECT_THAT(spec.request.sampling.stop, ElementsAre("a", "b"));
  EXPECT_EQ(spec.num_choices, 1);
  EXPECT_TRUE(spec.grammar.has_value());
}

TEST(MessagesRequest, AnAnswerEndsWithTheContext) {
  const AnswerSpec spec = answer(R"("max_tokens":1000000)");

  EXPECT_EQ(*spec.request.sampling.max_tokens,
            roomy_server().model.max_model_len - static_cast<int64_t>(spec.request.prompt.size()));
}

TEST(MessagesRequest, APromptThatIsTooLongIsSaidInTheWordsOfClients) {
  const auto result = parsed(
      str_cat(R"("messages":[{"role":"user","content":")", std::string(80'000, 'x'), R"("}])"));

  const auto& error = std::get<ApiError>(result);
  EXPECT_EQ(error.status, 400);
  EXPECT_EQ(error.code, "context_length_exceeded");
  EXPECT_TRUE(error.message.starts_with("prompt is too long: ")) << error.message;
}

TEST(MessagesRequest, ThinkingAndEffortReachThePrompt) {
  EXPECT_EQ(ask("").thinking.thinking, std::nullopt);
  EXPECT_EQ(ask(R"("thinking":{"type":"enabled"})").thinking.thinking, Thinking::kOn);
  EXPECT_EQ(ask(R"("thinking":{"type":"disabled"})").thinking.thinking, Thinking::kOff);
  EXPECT_EQ(ask(R"("thinking":{"type":"adaptive"})").thinking.thinking, std::nullopt);
  EXPECT_EQ(ask(R"("output_config":{"effort":"max"})").thinking.effort, ReasoningEffort::kMax);
  EXPECT_TRUE(answer(R"("thinking":{"type":"enabled"})").grammar->starts_in_reasoning);
  EXPECT_FALSE(answer(R"("thinking":{"type":"disabled"})").grammar->starts_in_reasoning);
}

TEST(MessagesRequest, ToolsAreGivenInTheFormOfChatCompletions) {
  const ChatAsk read =
      ask(R"("tools":[{"input_schema":{"type":"object"},"description":"d","name":"f",)"
          R"("cache_control":{"type":"ephemeral"},"type":"custom"}])");

  const ToolDefinition& tool = read.conversation.tools.at(0);
  EXPECT_EQ(tool.name, "f");
  EXPECT_EQ(tool.description, "d");
  EXPECT_EQ(dump_json(tool.parameters), R"({"type":"object"})");
  EXPECT_EQ(dump_json(tool.definition),
            R"({"type":"function","function":{"parameters":{"type":"object"},)"
            R"("description":"d","name":"f"}})");
}

std::vector<std::string>& log_lines() {
  static std::vector<std::string> lines;
  return lines;
}

TEST(MessagesRequest, ToolsOfServersAreLeftOutWithOneLine) {
  log_lines().clear();
  set_log_sink([](LogLevel, std::string_view line) { log_lines().emplace_back(line); });
  const ChatAsk read =
      ask(R"("tools":[{"type":"web_search_20250305","name":"web_search"},)"
          R"({"name":"f","input_schema":{}},{"type":"bash_20250124","name":"bash"},)"
          R"({"type":"a\nb"}])");
  set_log_sink(nullptr);

  ASSERT_EQ(read.conversation.tools.size(), 1u);
  EXPECT_EQ(read.conversation.tools[0].name, "f");
  EXPECT_THAT(log_lines(),
              ElementsAre("messages: tools of these types are not supported and left out: "
                          R"("a\nb", "bash_20250124", "web_search_20250305")"));
}

TEST(MessagesRequest, ToolChoiceDecidesHowToolsAreCalled) {
  using Kind = ToolChoice::Kind;
  constexpr std::string_view kTools = R"("tools":[{"name":"f","input_schema":{}}],"tool_choice":)";
  const auto use = [&](std::string_view choice) { return ask(str_cat(kTools, choice)).tool_use; };

  EXPECT_EQ(use(R"({"type":"auto"})").choice.kind, Kind::kAuto);
  EXPECT_EQ(use(R"({"type":"any"})").choice.kind, Kind::kRequired);
  EXPECT_EQ(use(R"({"type":"none"})").choice.kind, Kind::kNone);
  EXPECT_EQ(use(R"({"type":"tool","name":"f"})").choice.kind, Kind::kNamed);
  EXPECT_EQ(use(R"({"type":"tool","name":"f"})").choice.name, "f");
  EXPECT_TRUE(use(R"({"type":"any"})").parallel);
  EXPECT_FALSE(use(R"({"type":"any","disable_parallel_tool_use":true})").parallel);
  EXPECT_TRUE(answer(str_cat(kTools, R"({"type":"none"})")).tools.empty());
}

TEST(MessagesRequest, AFormatBecomesAGrammar) {
  roomy_server().grammars.specs.clear();
  const AnswerSpec spec =
      answer(R"("output_config":{"format":{"type":"json_schema","schema":{"type":"object"}}})");

  EXPECT_NE(spec.constraint, nullptr);
  ASSERT_EQ(roomy_server().grammars.specs.size(), 1u);
  EXPECT_EQ(roomy_server().grammars.specs[0].kind, GrammarSpec::Kind::kJsonSchema);
  EXPECT_EQ(roomy_server().grammars.specs[0].text, R"({"type":"object"})");
}

TEST(MessagesRequest, CountsThePromptThatWouldRun) {
  const std::string fields = R"("system":"s","tools":[{"name":"f","input_schema":{}}])";
  const AnswerSpec spec = answer(fields);
  const HttpReply reply = count_message_tokens(post_of(str_cat("{", kMessages, ",", fields, "}")),
                                               roomy_server().model, signer(), "req-1");

  EXPECT_EQ(reply.status, 200);
  EXPECT_EQ(reply.body, str_cat("{\"input_tokens\":", spec.request.prompt.size(), "}"));
}

TEST(MessagesRequest, CountingRefusesInTheSameShape) {
  const HttpReply reply =
      count_message_tokens(post_of("{\"messages\":1}"), roomy_server().model, signer(), "req-1");

  EXPECT_EQ(reply.status, 400);
  EXPECT_EQ(reply.body,
            R"({"type":"error","error":{"type":"invalid_request_error","message":)"
            R"("messages: found an integer, expected an array"},"request_id":"req-1"})");
}

TEST(MessagesRequest, WithoutAChatFormatItIsRefused) {
  ServedModel model = roomy_server().model;
  model.chat_format = nullptr;
  const auto result = parse_messages_request(post_of(body_with("")), model, "", signer());

  EXPECT_THAT(std::get<ApiError>(result).message, HasSubstr("--chat-format"));
}

TEST(MessagesRequest, TheKeyIsTheSalt) {
  const auto one =
      parse_messages_request(post_of(body_with("")), roomy_server().model, "digest", signer());

  EXPECT_FALSE(std::get<MessagesRequest>(one).answer.request.cache_salt.empty());
  EXPECT_TRUE(answer("").request.cache_salt.empty());
}

}  // namespace
}  // namespace fathom::serve
