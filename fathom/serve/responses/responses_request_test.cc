#include "fathom/serve/responses/responses_request.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "fathom/base/log.h"
#include "fathom/serve/responses/sealed_reasoning.h"
#include "fathom/tokenizer/chat/chat_json.h"
#include "tests/support/read_requests.h"
#include "tests/support/test_server.h"

namespace fathom::serve {
namespace {

using testing::ElementsAre;

std::string body_with(std::string_view fields) {
  std::string body = "{";
  if (fields.find("\"input\"") == fields.npos) body += "\"input\":\"hi\",";
  body += fields;
  if (body.ends_with(",")) body.pop_back();
  return body + "}";
}

Parsed<ResponsesRequest> parsed(std::string_view fields) {
  return parse_responses_request(post_of(body_with(fields)), roomy_server().model, "");
}

std::string refused(std::string_view fields) {
  return refused_field(parsed(fields), fields);
}

AnswerSpec answer(std::string_view fields) {
  return taken(parsed(fields), fields).answer;
}

ResponsesFields read(std::string_view fields) {
  const Json body = *parse_json(body_with(fields), {.max_bytes = 64 << 20}, "body");
  auto result = read_responses(body, roomy_server().model, "");
  return taken(std::move(result), fields);
}

std::string turns(std::string_view fields) {
  std::string all;
  for (const ChatMessage& message : read(fields).ask.conversation.messages) {
    str_append(all, str_cat(chat_role_name(message.role), ": ", message.content));
    if (!message.reasoning_content.empty()) {
      str_append(all, str_cat(" <", message.reasoning_content, ">"));
    }
    for (const ToolCall& call : message.tool_calls)
      str_append(all, str_cat(" ", call.name, "#", call.id, call.arguments));
    if (!message.tool_call_id.empty()) str_append(all, str_cat(" #", message.tool_call_id));
    str_append(all, "|");
  }
  return all;
}

std::string many(size_t count, std::string_view one) {
  std::string all;
  for (size_t i = 0; i < count; ++i)
    str_append(all, str_cat(i == 0 ? "[" : ",", one));
  return all + "]";
}

TEST(ResponsesRequest, FieldsAreTakenUpToTheirBorders) {
  struct Case {
    std::string field;
    std::vector<std::string> good;
    std::vector<std::pair<std::string, std::string>> bad;  // value, where
  };

  const std::vector<Case> cases = {
      {"max_output_tokens",
       {"1", "16", "100", "null"},
       {{"0", "max_output_tokens"},
        {"-1", "max_output_tokens"},
        {"9223372036854775808", "max_output_tokens"},
        {"1.5", "max_output_tokens"},
        {"\"1\"", "max_output_tokens"}}},
      {"temperature", {"0", "1", "2", "null"}, {{"2.1", "temperature"}, {"-1", "temperature"}}},
      {"top_p", {"0.1", "1", "null"}, {{"0", "top_p"}, {"1.1", "top_p"}, {"true", "top_p"}}},
      {"stream", {"true", "false", "null"}, {{"1", "stream"}}},
      {"store", {"true", "false", "null"}, {{"1", "store"}}},
      {"parallel_tool_calls", {"true", "false", "null"}, {{"1", "parallel_tool_calls"}}},
      {"truncation", {"\"auto\"", "\"disabled\"", "null"}, {{"\"x\"", "truncation"}}},
      {"instructions", {"\"s\"", "\"\"", "null"}, {{"1", "instructions"}, {"[]", "instructions"}}},
      {"previous_response_id", {"null"}, {{"\"resp_1\"", "previous_response_id"}}},
      {"conversation", {"null"}, {{"\"c\"", "conversation"}}},
      {"background", {"false", "null"}, {{"true", "background"}}},
      {"top_logprobs", {"0", "null"}, {{"1", "top_logprobs"}}},
      {"include",
       {"[]", "null", R"(["reasoning.encrypted_content","other"])"},
       {{R"(["message.output_text.logprobs"])", "include[0]"},
        {"[1]", "include[0]"},
        {"\"x\"", "include"},
        {many(65, "\"x\""), "include"}}},
      {"reasoning",
       {"{}", R"({"effort":"none"})", R"({"effort":"xhigh","summary":"auto"})",
        R"({"effort":null})", "null"},
       {{R"({"effort":"huge"})", "reasoning.effort"},
        {R"({"effort":1})", "reasoning.effort"},
        {"\"low\"", "reasoning"}}},
      {"text",
       {"{}", R"({"format":{"type":"text"},"verbosity":"low"})",
        R"({"format":{"type":"json_object"}})", "null",
        R"({"format":{"type":"json_schema","name":"n","schema":{},"strict":true}})"},
       {{R"({"format":{}})", "text.format.type"},
        {R"({"format":{"type":"xml"}})", "text.format.type"},
        {R"({"format":{"type":"json_schema"}})", "text.format.schema"},
        {R"({"format":{"type":"json_schema","schema":1}})", "text.format.schema"},
        {R"({"format":"text"})", "text.format"},
        {"[]", "text"}}},
      {"tools",
       {"[]", "null", R"([{"type":"function","name":"f"}])",
        R"([{"type":"function","name":"f","description":null,"parameters":null,"strict":null}])",
        R"([{"type":"custom","name":"f"}])", R"([{"type":"web_search"}])",
        many(128, R"({"type":"function","name":"f"})")},
       {{"[{}]", "tools[0].type"},
        {"[1]", "tools[0]"},
        {R"([{"type":"function"}])", "tools[0].name"},
        {R"([{"type":"custom"}])", "tools[0].name"},
        {R"([{"type":"function","name":"f","parameters":[]}])", "tools[0].parameters"},
        {R"([{"type":"custom","name":"f","format":1}])", "tools[0].format"},
        {many(129, R"({"type":"function","name":"f"})"), "tools"}}},
      {"tool_choice",
       {"\"auto\"", "\"none\"", "null", R"({"type":"allowed_tools","mode":"auto","tools":[]})"},
       {{"\"required\"", "tool_choice"},
        {"\"any\"", "tool_choice"},
        {"1", "tool_choice"},
        {"{}", "tool_choice.type"},
        {R"({"type":"web_search"})", "tool_choice.type"},
        {R"({"type":"function"})", "tool_choice.name"},
        {R"({"type":"function","name":"f"})", "tool_choice"},
        {R"({"type":"allowed_tools","mode":"x"})", "tool_choice.mode"},
        {R"({"type":"allowed_tools","tools":[1]})", "tool_choice.tools[0]"}}},
      {"prompt_cache_key",
       {str_cat("\"", std::string(256, 'x'), "\""), "null"},
       {{str_cat("\"", std::string(257, 'x'), "\""), "prompt_cache_key"}}},
      {"user", {"\"u\"", "null"}, {{"1", "user"}}},
      {"metadata", {"{}", R"({"a":"b"})", "null"}, {{"[]", "metadata"}}},
      {"client_metadata", {R"({"a":1})"}, {}},
      {"service_tier", {"\"auto\""}, {}},
      {"unheard_of", {"1"}, {}},
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

TEST(ResponsesRequest, WhatIsWrongInTheInputIsNamedByItsPath) {
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"null", "input"},
      {"1", "input"},
      {"{}", "input"},
      {"[1]", "input[0]"},
      {"[{}]", "input[0].role"},
      {R"([{"role":"tool","content":"a"}])", "input[0].role"},
      {R"([{"role":"user"}])", "input[0].content"},
      {R"([{"role":"user","content":1}])", "input[0].content"},
      {R"([{"role":"user","content":[{"text":"a"}]}])", "input[0].content[0].type"},
      {R"([{"role":"user","content":[{"type":"input_text"}]}])", "input[0].content[0].text"},
      {R"([{"role":"user","content":[{"type":"input_image"}]}])", "input[0].content[0].type"},
      {R"([{"role":"user","content":[{"type":"input_file"}]}])", "input[0].content[0].type"},
      {R"([{"type":"function_call","name":"f","arguments":""}])", "input[0].call_id"},
      {R"([{"type":"function_call","call_id":"c","arguments":""}])", "input[0].name"},
      {R"([{"type":"function_call","call_id":"c","name":"f"}])", "input[0].arguments"},
      {R"([{"type":"custom_tool_call","call_id":"c","name":"f"}])", "input[0].input"},
      {R"([{"type":"function_call_output","call_id":"c"}])", "input[0].output"},
      {R"([{"type":"function_call_output","output":"r"}])", "input[0].call_id"},
      {R"([{"type":"item_reference","id":"x"}])", "input[0].type"},
      {R"([{"type":"reasoning","content":1}])", "input[0].content"},
      {many(4'097, R"({"role":"user","content":""})"), "input"},
      {str_cat(R"([{"role":"user","content":)", many(8'193, R"({"type":"text","text":""})"), "}]"),
       "input[0].content"},
  };
  for (const auto& [input, where] : cases)
    EXPECT_EQ(refused(str_cat("\"input\":", input)), where) << input.substr(0, 100);
  EXPECT_EQ(turns(str_cat("\"input\":", many(4'096, R"({"role":"user","content":""})"))).size(),
            4'096u * std::string_view("user: |").size());
}

TEST(ResponsesRequest, TextsBecomeTurns) {
  EXPECT_EQ(turns(R"("input":"hi")"), "user: hi|");
  EXPECT_EQ(turns(R"("input":"hi","instructions":"s")"), "system: s|user: hi|");
  EXPECT_EQ(turns(R"("input":[{"role":"developer","content":"d"},{"type":"message",)"
                  R"("role":"user","content":[{"type":"input_text","text":"a"},)"
                  R"({"type":"input_text","text":"b"}]},{"role":"assistant","content":)"
                  R"([{"type":"output_text","text":"c","annotations":[]},)"
                  R"({"type":"refusal","refusal":"no"}]}])"),
            "system: d|user: a\n\nb|assistant: c\n\nno|");
}

TEST(ResponsesRequest, TheItemsOfAnAnswerAreOneTurn) {
  EXPECT_EQ(turns(R"("input":[{"role":"user","content":"a"},)"
                  R"({"type":"reasoning","id":"rs","summary":[{"type":"summary_text","text":"x"}],)"
                  R"("content":[{"type":"reasoning_text","text":"hm"}]},)"
                  R"({"role":"assistant","content":"b"},)"
                  R"({"type":"function_call","call_id":"c1","name":"f","arguments":"{\"x\":1}"},)"
                  R"({"type":"custom_tool_call","call_id":"c2","name":"p","input":"é\n"},)"
                  R"({"type":"function_call_output","call_id":"c1","output":"r"},)"
                  R"({"type":"custom_tool_call_output","call_id":"c2","output":)"
                  R"([{"type":"input_text","text":"q"},{"type":"input_image"}]},)"
                  R"({"role":"assistant","content":"d"}])"),
            "user: a|assistant: b <hm> f#c1{\"x\":1} p#c2{\"input\": \"é\\n\"}|tool: r #c1|"
            "tool: q\n\n[Unsupported input_image] #c2|assistant: d|");
}

TEST(ResponsesRequest, ReasoningBeginsATurnAndNeedsAnAnswer) {
  constexpr std::string_view kThought =
      R"({"type":"reasoning","summary":[],"content":[{"type":"reasoning_text","text":"t"}]})";
  constexpr std::string_view kSaid = R"({"role":"assistant","content":"a"})";
  const auto of = [](std::initializer_list<std::string_view> items) {
    std::string all;
    for (const std::string_view item : items)
      str_append(all, str_cat(all.empty() ? "" : ",", item));
    return turns(str_cat("\"input\":[", all, "]"));
  };

  EXPECT_EQ(of({kThought, kSaid, kThought, kSaid}), "assistant: a <t>|assistant: a <t>|");
  EXPECT_EQ(of({kSaid, kSaid}), "assistant: a|assistant: a|");
  EXPECT_EQ(of({kSaid, kThought}), "assistant: a|");
  EXPECT_EQ(of({kThought, kThought, kSaid}), "assistant: a <tt>|");
  EXPECT_EQ(of({R"({"type":"reasoning","summary":[{"type":"summary_text","text":"x"}]})", kSaid}),
            "assistant: a|");
}

TEST(ResponsesRequest, SealedReasoningIsOpened) {
  const auto with = [](std::string_view sealed) {
    return turns(str_cat(R"("input":[{"type":"reasoning","summary":[],"encrypted_content":")",
                         sealed, R"("},{"role":"assistant","content":"a"}])"));
  };

  EXPECT_EQ(with(seal_reasoning("hm")), "assistant: a <hm>|");
  EXPECT_EQ(with("gAAAA"), "assistant: a|");
}

TEST(ResponsesRequest, AProbeWithNothingIsAnswered) {
  EXPECT_EQ(*answer(R"("input":[],"max_output_tokens":1)").request.sampling.max_tokens, 1);
  EXPECT_EQ(*answer(R"("input":"","max_output_tokens":1)").request.sampling.max_tokens, 1);
}

TEST(ResponsesRequest, TheLimitIsNamedAsInTheApi) {
  const auto result = parsed(R"("max_output_tokens":8000)");

  EXPECT_EQ(std::get<ApiError>(result).code, "context_length_exceeded");
  EXPECT_TRUE(std::get<ApiError>(result).message.starts_with("max_output_tokens: 8000 + prompt"));
}

std::vector<std::string>& log_lines() {
  static std::vector<std::string> lines;
  return lines;
}

TEST(ResponsesRequest, ToolsOfOtherTypesAreLeftOutWithOneLine) {
  log_lines().clear();
  set_log_sink([](LogLevel, std::string_view line) { log_lines().emplace_back(line); });
  const ResponsesFields fields =
      read(R"("tools":[{"type":"web_search"},{"type":"function","name":"f","strict":false,)"
           R"("parameters":{"type":"object"}},{"type":"namespace","name":"n","tools":[]},)"
           R"({"type":"web_search"}])");
  set_log_sink(nullptr);

  ASSERT_EQ(fields.ask.conversation.tools.size(), 1u);
  EXPECT_EQ(dump_json(fields.ask.conversation.tools[0].definition),
            R"({"type":"function","function":{"name":"f","strict":false,)"
            R"("parameters":{"type":"object"}}})");
  EXPECT_THAT(log_lines(),
              ElementsAre("responses: tools of these types are not supported and left out: "
                          R"("namespace", "web_search")"));
}

TEST(ResponsesRequest, CustomToolsAreFunctionsOfOneText) {
  const ResponsesFields fields =
      read(R"("tools":[{"type":"custom","name":"p","description":"d","format":)"
           R"({"type":"grammar","syntax":"lark","definition":"start: x"}}])");

  const ToolDefinition& tool = fields.ask.conversation.tools.at(0);
  EXPECT_EQ(tool.name, "p");
  EXPECT_EQ(tool.description, "d");
  EXPECT_EQ(dump_json(tool.parameters),
            R"({"type":"object","properties":{"input":{"type":"string","description":)"
            R"("The whole input, as this grammar has it (lark):\nstart: x"}},)"
            R"("required":["input"]})");
  EXPECT_THAT(fields.style.custom_tools, ElementsAre("p"));
}

TEST(ResponsesRequest, ToolChoiceDecidesHowToolsAreCalled) {
  using Kind = ToolChoice::Kind;
  constexpr std::string_view kTools =
      R"("tools":[{"type":"function","name":"f"},{"type":"custom","name":"p"}],)"
      R"("parallel_tool_calls":false,"tool_choice":)";
  const auto ask = [&](std::string_view choice) { return read(str_cat(kTools, choice)).ask; };

  EXPECT_EQ(ask("\"auto\"").tool_use.choice.kind, Kind::kAuto);
  EXPECT_FALSE(ask("\"auto\"").tool_use.parallel);
  EXPECT_EQ(ask("\"none\"").tool_use.choice.kind, Kind::kNone);
  EXPECT_EQ(ask("\"required\"").tool_use.choice.kind, Kind::kRequired);
  EXPECT_EQ(ask(R"({"type":"function","name":"f"})").tool_use.choice.name, "f");
  EXPECT_EQ(ask(R"({"type":"custom","name":"p"})").tool_use.choice.kind, Kind::kNamed);
  const ChatAsk allowed =
      ask(R"({"type":"allowed_tools","mode":"required","tools":[{"type":"custom","name":"p"}]})");
  EXPECT_EQ(allowed.tool_use.choice.kind, Kind::kRequired);
  ASSERT_EQ(allowed.conversation.tools.size(), 1u);
  EXPECT_EQ(allowed.conversation.tools[0].name, "p");
}

TEST(ResponsesRequest, FormatsBecomeGrammars) {
  roomy_server().grammars.specs.clear();
  answer(R"("text":{"format":{"type":"json_object"}})");
  answer(R"("text":{"format":{"type":"json_schema","name":"n","schema":{"type":"object"}}})");

  ASSERT_EQ(roomy_server().grammars.specs.size(), 2u);
  EXPECT_EQ(roomy_server().grammars.specs[0].kind, GrammarSpec::Kind::kJson);
  EXPECT_EQ(roomy_server().grammars.specs[1].kind, GrammarSpec::Kind::kJsonSchema);
  EXPECT_EQ(roomy_server().grammars.specs[1].text, R"({"type":"object"})");
}

TEST(ResponsesRequest, EffortReachesThePrompt) {
  EXPECT_EQ(read(R"("reasoning":{"effort":"low"})").ask.thinking.effort, ReasoningEffort::kLow);
  EXPECT_FALSE(answer(R"("reasoning":{"effort":"none"})").grammar->starts_in_reasoning);
  EXPECT_TRUE(answer(R"("reasoning":{"effort":"high"})").grammar->starts_in_reasoning);
}

TEST(ResponsesRequest, TheKeyOfACacheJoinsTheSalt) {
  EXPECT_TRUE(answer("").request.cache_salt.empty());
  EXPECT_NE(answer(R"("prompt_cache_key":"a")").request.cache_salt,
            answer(R"("prompt_cache_key":"b")").request.cache_salt);
}

TEST(ResponsesRequest, TheReplyRepeatsTheRequest) {
  EXPECT_EQ(
      dump_json(read(R"("instructions":"s","max_output_tokens":9,"metadata":{"a":"b"},)"
                     R"("reasoning":{"effort":"low"},"temperature":0.7,"tool_choice":"none",)"
                     R"("tools":[{"type":"web_search"}],"text":{"verbosity":"low"},"store":true,)"
                     R"("user":"u","parallel_tool_calls":false)")
                    .style.echo),
      R"({"background":false,"instructions":"s","max_output_tokens":9,"max_tool_calls":null,)"
      R"("metadata":{"a":"b"},"parallel_tool_calls":false,"previous_response_id":null,)"
      R"("prompt_cache_key":null,"reasoning":{"effort":"low","summary":null},)"
      R"("safety_identifier":null,"service_tier":"default","store":false,"temperature":0.7,)"
      R"("text":{"format":{"type":"text"},"verbosity":"low"},"tool_choice":"none",)"
      R"("tools":[{"type":"web_search"}],"top_logprobs":0,"top_p":1.0,"truncation":"disabled",)"
      R"("user":"u"})");
}

TEST(ResponsesRequest, CountsThePromptThatWouldRun) {
  const std::string fields = R"("instructions":"s","tools":[{"type":"function","name":"f"}])";
  const HttpReply reply = count_response_tokens(post_of(body_with(fields)), roomy_server().model);

  EXPECT_EQ(reply.status, 200);
  EXPECT_EQ(reply.body, str_cat(R"({"object":"response.input_tokens","input_tokens":)",
                                answer(fields).request.prompt.size(), "}"));
  EXPECT_EQ(count_response_tokens(post_of("{}"), roomy_server().model).status, 400);
}

}  // namespace
}  // namespace fathom::serve
