#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "fathom/os/file.h"
#include "fathom/tokenizer/chat/chat_formats.h"
#include "fathom/tokenizer/chat/chat_json.h"
#include "fathom/tokenizer/chat/dsml/effort.h"

namespace fathom {
namespace {

using ::testing::HasSubstr;

constexpr ChatOptions kChat{.thinking = Thinking::kOff};
constexpr ChatOptions kThinking{.thinking = Thinking::kOn};
constexpr ChatOptions kKept{.thinking = Thinking::kOn, .past_reasoning = PastReasoning::kKeep};

Json parse(std::string_view text) {
  auto json = parse_json(text, {}, "test");
  EXPECT_TRUE(json.ok()) << json.status().message();
  return *std::move(json);
}

ChatConversation conversation(const ChatFormat& format,
                              const Json& messages,
                              std::string_view tools = "null") {
  const Json tools_json = parse(tools);
  ChatReading reading = format.reading();
  reading.author = ChatReading::Author::kService;
  auto result = parse_chat(messages, &tools_json, reading);
  EXPECT_TRUE(result.ok()) << result.status().message();
  return *std::move(result);
}

// Control tokens that end a line of a table, short.
std::string shortened(std::string text) {
  for (const auto& [token, name] :
       std::initializer_list<std::pair<std::string_view, std::string_view>>{
           {"<｜begin▁of▁sentence｜>", "<B>"},
           {"<｜end▁of▁sentence｜>", "<E>"},
           {"<｜User｜>", "<U>"},
           {"<｜Assistant｜>", "<A>"}}) {
    for (size_t at = 0; (at = text.find(token)) != text.npos;)
      text.replace(at, token.size(), name);
  }
  return text;
}

std::string prompt(const ChatFormat& format,
                   std::string_view messages,
                   const ChatOptions& options = {},
                   std::string_view tools = "null") {
  const auto result = format.format(conversation(format, parse(messages), tools), options);
  return result.ok() ? shortened(result->str()) : "error: " + result.status().message();
}

TEST(ChatDsmlGolden, PromptsEqualThoseOfThePublishedEncoders) {
  const auto text = read_file(FATHOM_UNPACKED_TOKENIZERS "/chat_dsml.json", 4 << 20);
  ASSERT_TRUE(text.ok()) << text.status().message();
  const Json golden = parse(*text);
  ASSERT_EQ(golden.find("cases")->items().size(), 106u);
  for (const Json& test_case : golden.find("cases")->items()) {
    SCOPED_TRACE(test_case.find("name")->as_string());
    const ChatFormat& format = **find_chat_format(test_case.find("format")->as_string());
    ChatOptions options{.tool_schema = ToolSchema::kRaw};
    options.thinking = test_case.find("thinking")->as_bool() ? Thinking::kOn : Thinking::kOff;
    options.past_reasoning =
        test_case.find("keep_reasoning")->as_bool() ? PastReasoning::kKeep : PastReasoning::kDrop;
    if (const Json* effort = test_case.find("effort"); effort->is_string()) {
      options.effort = *parse_reasoning_effort(effort->as_string());
    }

    const auto result = format.format(conversation(format, *test_case.find("messages")), options);

    ASSERT_TRUE(result.ok()) << result.status().message();
    EXPECT_EQ(result->str(), test_case.find("expected")->as_string());
  }
}

// Renderings that the publisher of V4 gives.
TEST(ChatV4, ReferenceRenderings) {
  const char* turns = R"([{"role":"user","content":"u1"},
      {"role":"assistant","reasoning_content":"r1","content":"a1"},{"role":"user","content":"u2"}])";
  const char* hi = R"([{"role":"user","content":"hi"}])";

  EXPECT_EQ(prompt(chat_v4(), R"([{"role":"system","content":"S"},{"role":"user","content":"hi"}])",
                   kChat),
            "<B>S<U>hi<A></think>");
  EXPECT_EQ(prompt(chat_v4(), hi, kThinking), "<B><U>hi<A><think>");
  EXPECT_EQ(prompt(chat_v4(), turns, kThinking), "<B><U>u1<A></think>a1<E><U>u2<A><think>");
  EXPECT_EQ(prompt(chat_v4(), turns, kKept), "<B><U>u1<A><think>r1</think>a1<E><U>u2<A><think>");
  EXPECT_THAT(prompt(chat_v4(), R"([{"role":"user","content":"u"},
      {"role":"assistant","content":"","tool_calls":[{"id":"1","function":{"name":"f","arguments":"{}"}}]},
      {"role":"tool","tool_call_id":"1","content":"R"},{"role":"user","content":"u2"}])",
                     kChat),
              ::testing::EndsWith("<E><U><tool_result>R</tool_result>\n\nu2<A></think>"));
  EXPECT_EQ(prompt(chat_v4(), R"([{"role":"user","content":"hi","task":"title"}])", kChat),
            "<B><U>hi<｜title｜>");
  EXPECT_EQ(prompt(chat_v4(), R"([{"role":"user","content":"hi","task":"action"}])", kChat),
            "<B><U>hi<A></think><｜action｜>");
  EXPECT_EQ(
      prompt(chat_v4(),
             R"([{"role":"latest_reminder","content":"L"},{"role":"user","content":"hi"}])", kChat),
      "<B><｜latest_reminder｜>L<U>hi<A></think>");
}

TEST(ChatV32, ReferenceRendering) {
  EXPECT_EQ(
      prompt(chat_v32(), R"([{"role":"system","content":"S"},{"role":"user","content":"u1"},
      {"role":"assistant","reasoning_content":"r1","content":"a1"},{"role":"user","content":"u2"},
      {"role":"assistant","reasoning_content":"r2","content":"","tool_calls":[{"id":"1",
       "function":{"name":"f","arguments":"{\"x\": 1, \"s\": \"hi\"}"}}]},
      {"role":"tool","tool_call_id":"1","content":"T1"}])",
             kThinking),
      "<B>S<U>u1<A></think>a1<E><U>u2<A><think>r2</think>\n\n<｜DSML｜function_calls>\n"
      "<｜DSML｜invoke name=\"f\">\n"
      "<｜DSML｜parameter name=\"x\" string=\"false\">1</｜DSML｜parameter>\n"
      "<｜DSML｜parameter name=\"s\" string=\"true\">hi</｜DSML｜parameter>\n"
      "</｜DSML｜invoke>\n</｜DSML｜function_calls><E>\n\n<function_results>\n<result>T1</result>\n"
      "</function_results>\n\n<think>");
}

TEST(ChatV4, PrintsTheNormalFormOfASchemaUnlessToldNotTo) {
  const char* hi = R"([{"role":"user","content":"hi"}])";
  const char* tools = R"([{"type":"function","function":{"parameters":{"b":1,"a":2.0},"strict":true,
      "name":"f"}},{"type":"function","function":{"name":"g","description":"d"}}])";
  ChatOptions raw = kChat;
  raw.tool_schema = ToolSchema::kRaw;

  EXPECT_THAT(prompt(chat_v4(), hi, kChat, tools),
              HasSubstr("Schemas\n\n"
                        R"({"name": "f", "description": "", "parameters": {"b": 1, "a": 2.0}})"
                        "\n"
                        R"({"name": "g", "description": "d", "parameters": {}})"
                        "\n\nYou MUST"));
  EXPECT_THAT(prompt(chat_v4(), hi, raw, tools),
              HasSubstr("Schemas\n\n"
                        R"({"parameters": {"b": 1, "a": 2.0}, "strict": true, "name": "f"})"
                        "\n"
                        R"({"name": "g", "description": "d"})"
                        "\n\nYou MUST"));
}

TEST(ChatV4, ToolsKeepThePastReasoning) {
  EXPECT_THAT(prompt(chat_v4(), R"([{"role":"user","content":"u"},
      {"role":"assistant","reasoning_content":"r","content":"a"},{"role":"user","content":"v"}])",
                     kThinking, R"([{"type":"function","function":{"name":"f"}}])"),
              ::testing::EndsWith("calls.\n<U>u<A><think>r</think>a<E><U>v<A><think>"));
}

TEST(ChatV4, PlacesTheResponseFormatOfTheConversation) {
  const auto with_format = [](std::string_view format) {
    ChatConversation chat = conversation(chat_v4(), parse(R"([{"role":"user","content":"u"}])"));
    const Json json = parse(format);
    chat.response_format = *parse_response_format(&json);
    return shortened(chat_v4().format(chat, kChat)->str());
  };

  EXPECT_EQ(with_format(R"({"type":"text"})"), "<B><U>u<A></think>");
  EXPECT_EQ(with_format(R"({"type":"json_object"})"),
            "<B>\n\nYou are a helpful assistant designed to output JSON.\n## Response Format:\n\n"
            "Reply with JSON object ONLY.<U>u<A></think>");
  EXPECT_EQ(with_format(R"({"type":"json_schema","json_schema":{"schema":{"b":1,"a":"é"}}})"),
            "<B>\n\n## Response Format:\n\nYou MUST strictly adhere to the following schema to "
            "reply:\n{\"b\": 1, \"a\": \"é\"}<U>u<A></think>");
}

TEST(ChatV4, ContinuesAnOpenTurn) {
  const char* content = R"([{"role":"user","content":"u"},
      {"role":"assistant","reasoning_content":"r","content":"a","prefix":true}])";
  const char* reasoning = R"([{"role":"user","content":"u"},
      {"role":"assistant","reasoning_content":"r","content":"","prefix":true}])";

  EXPECT_EQ(prompt(chat_v4(), content, kThinking), "<B><U>u<A><think>r</think>a");
  EXPECT_EQ(prompt(chat_v4(), content, kChat), "<B><U>u<A></think>a");
  EXPECT_EQ(prompt(chat_v4(), reasoning, kThinking), "<B><U>u<A><think>r");
  EXPECT_EQ(prompt(chat_v32(), content, kThinking), "<B><U>u<A><think>r</think>a");
  EXPECT_EQ(prompt(chat_v32(), reasoning, kThinking), "<B><U>u<A><think>r");
}

TEST(ChatDsml, AnAnswerBeginsWhereThePromptEnds) {
  const auto begin = [](const ChatFormat& format, std::string_view messages,
                        const ChatOptions& options) {
    const AnswerGrammar grammar =
        format.answer_grammar_after(conversation(format, parse(messages)), options);
    EXPECT_EQ(grammar.tool_calls, AnswerGrammar::ToolCalls::kDsml);
    return str_cat(grammar.continues_turn ? "within " : "",
                   grammar.starts_in_reasoning ? "reasoning" : "content");
  };
  const char* user = R"([{"role":"user","content":"u"}])";
  const char* content = R"([{"role":"user","content":"u"},
      {"role":"assistant","content":"a","prefix":true}])";
  const char* reasoning = R"([{"role":"user","content":"u"},
      {"role":"assistant","reasoning_content":"r","content":"","prefix":true}])";

  for (const ChatFormat* format : {&chat_v32(), &chat_v4(), &chat_v4_0731()}) {
    EXPECT_EQ(begin(*format, user, kThinking), "reasoning");
    EXPECT_EQ(begin(*format, user, kChat), "content");
    EXPECT_EQ(begin(*format, content, kThinking), "within content");
    EXPECT_EQ(begin(*format, reasoning, kThinking), "within reasoning");
    EXPECT_EQ(begin(*format, reasoning, kChat), "within content");
  }
  EXPECT_EQ(begin(chat_v4(), user, {}), "reasoning");
  EXPECT_EQ(begin(chat_v32(), user, {}), "content");
  EXPECT_EQ(begin(chat_v4(), R"([{"role":"user","content":"u","task":"title"}])", kThinking),
            "content");
  EXPECT_EQ(begin(chat_v4(), R"([{"role":"user","content":"u","task":"action"}])", kThinking),
            "reasoning");
}

TEST(ChatDsml, AnAnswerGetsItsHeaderBehindAnyMessage) {
  const char* assistant = R"([{"role":"user","content":"u"},{"role":"assistant","content":"a"}])";
  const char* system = R"([{"role":"user","content":"u"},{"role":"system","content":"s"}])";
  const char* reminder =
      R"([{"role":"user","content":"u"},{"role":"latest_reminder","content":"l"}])";
  ChatOptions none = kChat;
  none.generation_prompt = GenerationPrompt::kNone;

  EXPECT_EQ(prompt(chat_v4(), assistant, kChat), "<B><U>u<A></think>a<E><A></think>");
  EXPECT_EQ(prompt(chat_v4(), system, kChat), "<B><U>us<A></think>");
  EXPECT_EQ(prompt(chat_v4(), reminder, kChat), "<B><U>u<A></think><｜latest_reminder｜>l");
  EXPECT_EQ(prompt(chat_v4(), assistant, none), "<B><U>u<A></think>a<E>");
  EXPECT_EQ(prompt(chat_v4(), R"([{"role":"user","content":"u"}])", none), "<B><U>u");
  EXPECT_EQ(prompt(chat_v32(), assistant, kChat), "<B><U>u<A></think>a<E><A></think>");
  EXPECT_EQ(prompt(chat_v32(), system, kChat), "<B><U>u<A></think>s");
  EXPECT_EQ(prompt(chat_v32(), R"([{"role":"user","content":"u"}])", none), "<B><U>u");
}

TEST(ChatV32, AFinishedTurnMayBeWithoutReasoning) {
  EXPECT_EQ(prompt(chat_v32(), R"([{"role":"user","content":"u"},
      {"role":"assistant","content":"a"},{"role":"system","content":"s"}])",
                   kThinking),
            "<B><U>u<A><think></think>a<E>s<A><think>");
}

TEST(Effort, OfV4IsWhatTheTableSays) {
  using E = ReasoningEffort;
  using T = EffortText;

  struct Row {
    E effort;
    T preview;
    T release_0731;
  };

  for (const Row& row :
       {Row{E::kFormatDefault, T::kNothing, T::kAbsoluteMaximum},
        Row{E::kNone, T::kNothing, T::kAbsoluteMaximum}, Row{E::kMinimal, T::kNothing, T::kNothing},
        Row{E::kLow, T::kNothing, T::kNothing}, Row{E::kMedium, T::kNothing, T::kAbsoluteMaximum},
        Row{E::kHigh, T::kNothing, T::kAbsoluteMaximum},
        Row{E::kXhigh, T::kNothing, T::kAbsoluteMaximum},
        Row{E::kMax, T::kAbsoluteMaximum, T::kBeyondMaximum}}) {
    EXPECT_EQ(effort_text(V4Release::kPreview, row.effort), row.preview);
    EXPECT_EQ(effort_text(V4Release::k0731, row.effort), row.release_0731);
  }
}

TEST(Effort, DecidesAboutThinkingWhereNothingElseDoes) {
  using E = ReasoningEffort;

  EXPECT_TRUE(thinks({}, Thinking::kOn));
  EXPECT_FALSE(thinks({}, Thinking::kOff));
  EXPECT_FALSE(thinks({.effort = E::kNone}, Thinking::kOn));
  EXPECT_TRUE(thinks({.effort = E::kLow}, Thinking::kOff));
  EXPECT_TRUE(thinks({.thinking = Thinking::kOn, .effort = E::kNone}, Thinking::kOff));
  EXPECT_FALSE(thinks({.thinking = Thinking::kOff, .effort = E::kMax}, Thinking::kOn));
}

TEST(Effort, StandsRightBehindTheBeginningWhenTheModelThinks) {
  const char* hi = R"([{"role":"user","content":"hi"}])";
  ChatOptions most = kThinking;
  most.effort = ReasoningEffort::kMax;
  ChatOptions off = kChat;
  off.effort = ReasoningEffort::kMax;

  EXPECT_THAT(prompt(chat_v4(), hi, most),
              ::testing::StartsWith("<B>Reasoning Effort: Absolute maximum with no shortcuts"));
  EXPECT_THAT(prompt(chat_v4_0731(), hi, most),
              ::testing::StartsWith("<B>Reasoning Effort: Beyond maximum — exhaustive"));
  EXPECT_EQ(prompt(chat_v4_0731(), hi, off), "<B><U>hi<A></think>");
  EXPECT_EQ(prompt(chat_v4(), hi), "<B><U>hi<A><think>");
  EXPECT_THAT(prompt(chat_v4_0731(), hi), ::testing::EndsWith("unchecked.\n\n<U>hi<A><think>"));
}

TEST(ChatDsml, RefusesWhatAFormatCannotExpress) {
  EXPECT_EQ(prompt(chat_v32(), R"([{"role":"latest_reminder","content":"l"}])"),
            "error: messages[0].role is latest_reminder, which the chat format v3.2 does not have");
  EXPECT_EQ(prompt(chat_v32(), R"([{"role":"user","content":"u","task":"title"}])"),
            "error: messages[0].task is set, which the chat format v3.2 does not have");
  EXPECT_EQ(prompt(chat_v31(), R"([{"role":"system","content":"u","response_format":{}}])"),
            "error: messages[0].response_format is set for one message, which the chat format v3.1 "
            "does not have");
  EXPECT_EQ(prompt(chat_v4(), R"([{"role":"user","content":"u",
                "tools":[{"type":"function","function":{"name":"f"}}]}])"),
            "error: messages[0].tools is set, expected it only in system and developer messages");
  EXPECT_THAT(
      prompt(chat_v32(), R"([{"role":"user","content":"u"},{"role":"tool","content":"r"}])"),
      HasSubstr("messages[1] is result 1 of a tool after 0 tool_calls"));
  EXPECT_THAT(prompt(chat_v32(), R"([{"role":"tool","content":"r"}])"),
              HasSubstr("messages[0] is result 1 of a tool after 0 tool_calls"));
}

TEST(ChatJson, ReadsWhatTheServiceMayWrite) {
  const char* messages = R"([{"role":"developer","content":"d","task":"query"}])";
  ChatReading service;
  service.author = ChatReading::Author::kService;

  const auto of_client = parse_chat(parse(messages), nullptr);
  const auto of_service = parse_chat(parse(messages), nullptr, service);

  EXPECT_EQ(of_client->messages[0].role, ChatRole::kSystem);
  EXPECT_EQ(of_client->messages[0].task, ChatTask::kNone);
  EXPECT_EQ(of_service->messages[0].role, ChatRole::kDeveloper);
  EXPECT_EQ(of_service->messages[0].task, ChatTask::kQuery);
  EXPECT_THAT(parse_chat(parse(R"([{"role":"user","content":"","task":"x"}])"), nullptr, service)
                  .status()
                  .message(),
              HasSubstr("messages[0].task is \"x\", expected one of action, query, authority"));
}

TEST(ChatJson, JoinsPartsAsTheFormatSays) {
  const Json messages = parse(R"([{"role":"user","content":[{"type":"text","text":"a"},
      {"type":"text","text":"b"}]},{"role":"tool","content":[{"type":"text","text":"c"},
      {"type":"image_url"}]}])");

  EXPECT_EQ(prompt(chat_v4(), R"([{"role":"user","content":[{"type":"text","text":"a"},
      {"type":"text","text":"b"}]}])",
                   kChat),
            "<B><U>a\n\nb<A></think>");
  EXPECT_EQ(parse_chat(messages, nullptr, chat_v4().reading())->messages[1].content,
            "c\n\n[Unsupported image_url]");
  EXPECT_THAT(parse_chat(messages, nullptr, chat_v32().reading()).status().message(),
              HasSubstr("messages[1].content[1].type is \"image_url\", expected text"));
}

TEST(ChatJson, NamesTheFaultOfAResponseFormatAndAnEffort) {
  const auto error = [](std::string_view text) {
    const Json json = parse(text);
    const auto result = parse_response_format(&json);
    return result.ok() ? "accepted" : result.status().message();
  };

  EXPECT_EQ(error("1"), "response_format is an integer, expected an object");
  EXPECT_EQ(error(R"({"type":"xml"})"),
            "response_format.type is \"xml\", expected text, json_object or json_schema");
  EXPECT_EQ(error(R"({"type":"json_schema"})"),
            "response_format.json_schema is missing, expected an object");
  EXPECT_EQ(error(R"({"type":"json_schema","json_schema":{"schema":1}})"),
            "response_format.json_schema.schema is an integer, expected an object");
  EXPECT_EQ(error("null"), "accepted");
  EXPECT_EQ(parse_reasoning_effort("ultra").status().message(),
            "reasoning_effort is \"ultra\", expected one of none, minimal, low, medium, high, "
            "xhigh, max");
}

}  // namespace
}  // namespace fathom
