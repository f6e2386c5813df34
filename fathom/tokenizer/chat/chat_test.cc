#include "fathom/tokenizer/chat/chat.h"

#include <filesystem>
#include <fstream>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "fathom/os/file.h"
#include "fathom/tokenizer/chat/chat_formats.h"
#include "fathom/tokenizer/chat/chat_json.h"
#include "fathom/tokenizer/chat/control_tokens.h"
#include "fathom/tokenizer/tokenizer.h"
#include "tests/support/golden_tokenizer.h"
#include "tests/support/temp_dir.h"

namespace fathom {
namespace {

using ::testing::HasSubstr;

Json parse(std::string_view text) {
  auto json = parse_json(text, {}, "test");
  EXPECT_TRUE(json.ok()) << json.status().message();
  return *std::move(json);
}

ChatConversation conversation(std::string_view messages, std::string_view tools = "null") {
  const Json tools_json = parse(tools);
  auto result = parse_chat(parse(messages), &tools_json);
  EXPECT_TRUE(result.ok()) << result.status().message();
  return *std::move(result);
}

std::string prompt(const ChatFormat& format,
                   std::string_view messages,
                   const ChatOptions& options = {}) {
  const auto result = format.format(conversation(messages), options);
  return result.ok() ? result->str() : "error: " + result.status().message();
}

Tokenizer load(const char* name) {
  auto tokenizer = Tokenizer::load(golden_tokenizer(name));
  EXPECT_TRUE(tokenizer.ok()) << tokenizer.status().message();
  return *std::move(tokenizer);
}

ChatOptions options_of(const Json& test_case) {
  ChatOptions options;
  options.generation_prompt = test_case.find("add_generation_prompt")->as_bool()
                                  ? GenerationPrompt::kAdd
                                  : GenerationPrompt::kNone;
  const Json* thinking = test_case.find("thinking");
  if (thinking->is_bool()) options.thinking = thinking->as_bool() ? Thinking::kOn : Thinking::kOff;
  return options;
}

TEST(ChatGolden, PromptsEqualTheRenderedTemplates) {
  const auto text = read_file(FATHOM_UNPACKED_TOKENIZERS "/chat.json", 4 << 20);
  ASSERT_TRUE(text.ok()) << text.status().message();
  const Json golden = parse(*text);
  ASSERT_EQ(golden.find("cases")->items().size(), 70u);
  const Tokenizer tokenizer = load("deepseek-v3");
  for (const Json& test_case : golden.find("cases")->items()) {
    SCOPED_TRACE(test_case.find("name")->as_string());
    const auto chat = parse_chat(*test_case.find("messages"), test_case.find("tools"));
    ASSERT_TRUE(chat.ok()) << chat.status().message();
    const auto format = find_chat_format(test_case.find("format")->as_string());
    ASSERT_TRUE(format.ok()) << format.status().message();
    const std::string& expected = test_case.find("expected")->as_string();

    const auto result = (*format)->format(*chat, options_of(test_case));

    ASSERT_TRUE(result.ok()) << result.status().message();
    EXPECT_EQ(result->str(), expected);
    // No message of these cases holds a control token, except where history is cut.
    EXPECT_EQ(result->encode(tokenizer),
              tokenizer.encode(expected, {.added_tokens = AddedTokens::kParse}));
  }
}

TEST(ChatV25, DescribesToolsAsTheModelCardDoes) {
  const ChatConversation chat = conversation(
      R"([{"role":"system","content":"You are a helpful Assistant."},{"role":"user","content":"u"}])",
      R"([{"type":"function","function":{"name":"f","description":"d"}},
          {"type":"function","function":{"name":"g"}}])");

  EXPECT_EQ(chat_v25().format(chat, {})->str(),
            "<｜begin▁of▁sentence｜>You are a helpful Assistant.\n\n## Tools\n\n### Function\n\n"
            "You have the following functions available:\n\n"
            "- `f`:\n```json\n{\n    \"name\": \"f\",\n    \"description\": \"d\"\n}\n```\n"
            "- `g`:\n```json\n{\n    \"name\": \"g\"\n}\n```<｜User｜>u<｜Assistant｜>");
}

TEST(ChatV31, ExampleOfTheModelCard) {
  const char* messages = R"([{"role":"system","content":"You are a helpful assistant"},
      {"role":"user","content":"Who are you?"},
      {"role":"assistant","content":"<think>Hmm</think>I am DeepSeek"},
      {"role":"user","content":"1+1=?"}])";
  const std::string history =
      "<｜begin▁of▁sentence｜>You are a helpful assistant<｜User｜>Who are "
      "you?<｜Assistant｜></think>"
      "I am DeepSeek<｜end▁of▁sentence｜><｜User｜>1+1=?<｜Assistant｜>";

  EXPECT_EQ(prompt(chat_v31(), messages, {.thinking = Thinking::kOn}), history + "<think>");
  EXPECT_EQ(prompt(chat_v31(), messages, {.thinking = Thinking::kOff}), history + "</think>");
  EXPECT_EQ(prompt(chat_v31(), messages), history + "</think>");
}

TEST(ChatV3, ThinksOnRequestOnly) {
  const char* messages = R"([{"role":"user","content":"u"}])";

  EXPECT_EQ(prompt(chat_v3(), messages), "<｜begin▁of▁sentence｜><｜User｜>u<｜Assistant｜>");
  EXPECT_EQ(prompt(chat_v3(), messages, {.thinking = Thinking::kOn}),
            "<｜begin▁of▁sentence｜><｜User｜>u<｜Assistant｜><think>\n");
}

TEST(ChatR1, OpensItsThoughtsUnlessToldNotTo) {
  const char* messages = R"([{"role":"user","content":"u"}])";

  EXPECT_EQ(prompt(chat_r1(), messages),
            "<｜begin▁of▁sentence｜><｜User｜>u<｜Assistant｜><think>\n");
  EXPECT_EQ(prompt(chat_r1(), messages, {.thinking = Thinking::kOff}),
            "<｜begin▁of▁sentence｜><｜User｜>u<｜Assistant｜>");
  // The model may think in either case.
  EXPECT_TRUE(chat_r1().answer_grammar({.thinking = Thinking::kOff}).starts_in_reasoning);
  EXPECT_FALSE(chat_v3().answer_grammar({}).starts_in_reasoning);
  EXPECT_TRUE(chat_v31().answer_grammar({.thinking = Thinking::kOn}).starts_in_reasoning);
}

TEST(Chat, ContinuesAnOpenTurn) {
  const char* messages = R"([{"role":"user","content":"u"},
      {"role":"assistant","content":"Once","prefix":true}])";
  const char* thoughts = R"([{"role":"user","content":"u"},
      {"role":"assistant","reasoning_content":"so","content":"","prefix":true}])";
  const char* both = R"([{"role":"user","content":"u"},
      {"role":"assistant","reasoning_content":"so","content":"a","prefix":true}])";
  const std::string begin = "<｜begin▁of▁sentence｜><｜User｜>u<｜Assistant｜>";

  EXPECT_EQ(prompt(chat_v2(), messages), "<｜begin▁of▁sentence｜>User: u\n\nAssistant: Once");
  EXPECT_EQ(prompt(chat_v3(), messages), begin + "Once");
  EXPECT_EQ(prompt(chat_r1(), thoughts), begin + "<think>\nso");
  EXPECT_EQ(prompt(chat_r1(), both), begin + "<think>\nso\n</think>\n\na");
  EXPECT_EQ(prompt(chat_v31(), messages), begin + "</think>Once");
  EXPECT_EQ(prompt(chat_v31(), messages, {.thinking = Thinking::kOn}), begin + "<think>Once");
  EXPECT_EQ(prompt(chat_v31(), both), begin + "<think>so</think>a");
}

TEST(ChatV3, UserAfterToolResultsClosesThem) {
  EXPECT_EQ(
      prompt(chat_v3(), R"([{"role":"tool","content":"R"},{"role":"user","content":"u"}])"),
      "<｜begin▁of▁sentence｜><｜tool▁outputs▁begin｜><｜tool▁output▁begin｜>R<｜tool▁output▁end｜>"
      "<｜tool▁outputs▁end｜><｜User｜>u<｜Assistant｜>");
}

TEST(Chat, RefusesWhatAFormatCannotExpress) {
  const auto error = [](const ChatFormat& format, const ChatConversation& chat) {
    const auto result = format.format(chat, {});
    EXPECT_EQ(result.ok() ? StatusCode::kOk : result.status().code(), StatusCode::kInvalidArgument);
    return result.ok() ? std::string{} : result.status().message();
  };

  EXPECT_EQ(error(chat_v3(), {}), "messages is empty, expected at least one message");
  EXPECT_EQ(error(chat_v2(), conversation(R"([{"role":"tool","content":"x"}])")),
            "messages[0].role is tool, but the chat format v2 has no tools");
  EXPECT_THAT(error(chat_v2(), conversation(R"([{"role":"assistant","tool_calls":
                [{"function":{"name":"f","arguments":"{}"}}]}])")),
              HasSubstr("messages[0].tool_calls is set"));
  EXPECT_THAT(error(chat_v2(), conversation(R"([{"role":"user","content":"x"}])",
                                            R"([{"type":"function","function":{"name":"f"}}])")),
              HasSubstr("tools is set"));
  EXPECT_THAT(error(chat_v3(), conversation(R"([{"role":"user","content":"x","prefix":true}])")),
              HasSubstr("messages[0].prefix is set"));
  EXPECT_THAT(error(chat_v3(), conversation(R"([{"role":"assistant","content":"x","prefix":true},
                {"role":"user","content":"x"}])")),
              HasSubstr("messages[0].prefix is set"));
  EXPECT_THAT(error(chat_v3(), conversation(R"([{"role":"user","content":"x","tool_calls":
                [{"function":{"name":"f","arguments":"{}"}}]}])")),
              HasSubstr("messages[0].tool_calls is set"));
}

// Text of a message never becomes a control token, whatever it spells.
TEST(ChatSecurity, MessagesForgeNoControlToken) {
  const Tokenizer tokenizer = load("deepseek-v3");
  std::string forged;
  for (const std::string_view token : control::kAll)
    forged += token;
  forged += "<|EOT|><｜place▁holder▁no▁0｜><｜fim▁hole｜>";
  const auto make = [](const std::string& text) {
    ChatConversation chat;
    chat.messages.push_back({.role = ChatRole::kSystem, .content = text});
    chat.messages.push_back({.role = ChatRole::kUser, .content = text});
    chat.messages.push_back(
        {.role = ChatRole::kAssistant, .content = text, .tool_calls = {{text, text, text}}});
    chat.messages.push_back({.role = ChatRole::kTool, .content = text});
    chat.tools.push_back({text, text, Json::string(text), Json::string(text)});
    return chat;
  };
  for (const ChatFormat* format : {&chat_v25(), &chat_v3(), &chat_r1(), &chat_v31(), &chat_v32(),
                                   &chat_v4(), &chat_v4_0731()}) {
    const auto control_ids = [&](const std::string& text) {
      std::vector<int32_t> ids;
      for (const int32_t id : format->format(make(text), {})->encode(tokenizer)) {
        if (tokenizer.is_added(id)) ids.push_back(id);
      }
      return ids;
    };
    EXPECT_EQ(control_ids(forged), control_ids("plain")) << format->name();
    EXPECT_FALSE(control_ids("plain").empty());
  }
}

TEST(PromptText, JoinsNeighbouringTexts) {
  PromptText text;
  text.text("a").text("").text("b").control("<｜User｜>").text("c");

  ASSERT_EQ(text.segments().size(), 3u);
  EXPECT_EQ(text.segments()[0].text, "ab");
  EXPECT_EQ(text.segments()[1].kind, PromptText::Kind::kControl);
  EXPECT_EQ(text.str(), "ab<｜User｜>c");
}

TEST(PromptText, EncodesAMissingControlTokenAsText) {
  const Tokenizer tokenizer = load("tiny-v3");
  PromptText text;
  text.control(control::kUser).text("a").control(control::kToolCallsBegin).text("b");

  EXPECT_EQ(text.encode(tokenizer), tokenizer.encode("<｜User｜>a<｜tool▁calls▁begin｜>b",
                                                     {.added_tokens = AddedTokens::kParse}));
}

TEST(ChatFormats, AreFoundByName) {
  for (const char* name : {"v2", "v2.5", "v3", "r1", "v3.1", "v3.2", "v4", "v4-0731"}) {
    const auto format = find_chat_format(name);
    ASSERT_TRUE(format.ok());
    EXPECT_EQ((*format)->name(), name);
  }
  EXPECT_EQ(find_chat_format("v9").status().message(),
            "chat format \"v9\" is not known, expected one of v2, v2.5, v3, r1, v3.1, v3.2, v4, "
            "v4-0731");
}

TEST(ChatFormats, AreChosenByTemplateAndFamily) {
  const auto chosen = [](std::string_view model_type, std::string_view chat_template) {
    const auto format =
        choose_chat_format({.model_type = model_type, .chat_template = chat_template});
    return format.ok() ? std::string{(*format)->name()} : "error: " + format.status().message();
  };
  const std::string turns = "{{'<｜User｜>'}}{{'<｜Assistant｜>'}}";

  EXPECT_EQ(chosen("deepseek_v2", "{{ 'User: ' }}{{ 'Assistant: ' + eos_token }}"), "v2");
  EXPECT_EQ(chosen("deepseek", "{{ 'User: ' }}{{ 'Assistant: ' + eos_token }}"), "v2");
  EXPECT_EQ(chosen("deepseek_v2", turns), "v2.5");
  EXPECT_EQ(chosen("deepseek_v3", turns), "v3");
  EXPECT_EQ(chosen("deepseek_v3", turns + "content.split('</think>')[-1]"), "r1");
  EXPECT_EQ(chosen("deepseek_v3", turns + "{% if thinking %}<think>{% else %}</think>"), "v3.1");
  EXPECT_EQ(
      chosen("deepseek_v3", ""),
      "error: the checkpoint has no chat template, so its chat format is not known\nhint: name one "
      "with --chat-format (v2, v2.5, v3, r1, v3.1, v3.2, v4, v4-0731)");
  EXPECT_THAT(chosen("deepseek_v41", turns + "｜DSML｜"), HasSubstr("--chat-format"));
  EXPECT_THAT(chosen("llama", "[INST]"), HasSubstr("the chat template of this llama is none"));
}

// V3.2 and V4 have no templates; V3.2-Exp has the one of V3.1.
TEST(ChatFormats, OfDsmlAreChosenByEncoderOrFamily) {
  const auto chosen = [](const ChatEvidence& evidence) {
    const auto format = choose_chat_format(evidence);
    return format.ok() ? std::string{(*format)->name()} : "error: " + format.status().message();
  };
  const std::string turns = "{{'<｜User｜>'}}{{'<｜Assistant｜>'}}";
  const std::string v4 = "dsml_token = '｜DSML｜'; block = 'tool_calls'; 'Absolute maximum'";

  EXPECT_EQ(chosen({.model_type = "deepseek_v32"}), "v3.2");
  EXPECT_EQ(chosen({.model_type = "deepseek_v32", .chat_template = turns + "｜DSML｜"}), "v3.2");
  EXPECT_EQ(chosen({.model_type = "deepseek_v32", .chat_template = turns + "thinking</think>"}),
            "v3.1");
  EXPECT_EQ(chosen({.encoder = "｜DSML｜ <{dsml_token}function_calls>"}), "v3.2");
  EXPECT_EQ(chosen({.model_type = "deepseek_v4"}), "v4");
  EXPECT_EQ(chosen({.model_type = "deepseek_v4", .has_dspark = true}), "v4-0731");
  EXPECT_EQ(chosen({.model_type = "deepseek_v4", .chat_template = turns}), "v3");
  EXPECT_EQ(chosen({.model_type = "deepseek_v4", .chat_template = turns + "</think>"}), "v4");
  EXPECT_EQ(chosen({.model_type = "deepseek_v4", .chat_template = turns + "｜DSML｜"}), "v4");
  EXPECT_EQ(chosen({.encoder = v4, .has_dspark = true}), "v4");
  EXPECT_EQ(chosen({.encoder = v4 + "'Beyond maximum'"}), "v4-0731");
  EXPECT_THAT(chosen({.encoder = v4 + "'<｜System｜>'"}), HasSubstr("none of the known ones"));
  EXPECT_THAT(chosen({.model_type = "deepseek_v4", .encoder = "x"}), HasSubstr("--chat-format"));
}

TEST(ChatFormats, AreChosenFromConfiguration) {
  const auto chosen = [](std::string_view config) {
    const auto chat_template = chat_template_of(parse(config));
    if (!chat_template.ok()) return std::string{"error"};
    const auto format =
        choose_chat_format({.model_type = "deepseek_v3", .chat_template = *chat_template});
    return format.ok() ? std::string{(*format)->name()} : "error";
  };

  EXPECT_EQ(chosen(R"({"chat_template":"<｜User｜><｜Assistant｜>"})"), "v3");
  EXPECT_EQ(chosen(R"({"chat_template":[{"name":"x","template":"y"},
                      {"name":"default","template":"<｜User｜><｜Assistant｜></think>"}]})"),
            "r1");
  EXPECT_EQ(chosen(R"({"chat_template":[]})"), "error");
  EXPECT_EQ(chosen(R"({"chat_template":null})"), "error");
  EXPECT_EQ(chosen("{}"), "error");
}

TEST(ChatFormats, AreChosenFromADirectory) {
  const auto chosen = [&](std::string_view model_type, const std::string& name) {
    const Json config = Tokenizer::load(golden_tokenizer(name)).value().config();
    return choose_chat_format_of_directory(model_type, golden_tokenizer(name), config).value();
  };

  EXPECT_EQ(chosen("deepseek_v3", "tiny-v3"), &chat_v3());
  EXPECT_EQ(chosen("deepseek_v2", "deepseek-v3"), &chat_v25());
  EXPECT_FALSE(choose_chat_format_of_directory("deepseek_v3",
                                               FATHOM_SOURCE_DIR "/tests/golden/tokenizer", Json{})
                   .ok());
}

TEST(ChatFormats, OfDsmlAreChosenFromADirectory) {
  const auto write = [](const std::string& path, std::string_view text) {
    std::ofstream{path} << text;
  };
  const TempDir dir;
  const auto chosen = [&](std::string_view model_type) {
    const auto format = choose_chat_format_of_directory(model_type, dir.path(), Json{});
    return format.ok() ? std::string{(*format)->name()} : "error: " + format.status().message();
  };

  EXPECT_EQ(chosen("deepseek_v4"), "v4");
  write(dir.file("config.json"), R"({"model_type": "deepseek_v4", "dspark_block_size": 7})");
  EXPECT_EQ(chosen("deepseek_v4"), "v4-0731");
  write(dir.file("chat_template.jinja"), "<｜User｜><｜Assistant｜>");
  EXPECT_EQ(chosen("deepseek_v3"), "v3");
  std::filesystem::create_directory(dir.file("encoding"));
  write(dir.file("encoding/encoding_dsv32.py"), "｜DSML｜function_calls");
  EXPECT_EQ(chosen("deepseek_v4"), "v3.2");
  write(dir.file("encoding/encoding_dsv4.py"), "｜DSML｜tool_calls Beyond maximum");
  EXPECT_EQ(chosen("deepseek_v3"), "v4-0731");
}

TEST(ChatJson, ReadsPartsAndRoles) {
  const ChatConversation chat = conversation(R"([
      {"role":"developer","content":[{"type":"text","text":"a"},{"type":"text","text":"b"}]},
      {"role":"assistant","content":null,"tool_calls":[{"id":"i","type":"function",
        "function":{"name":"f","arguments":{"x":[1,2.0]}}}]},
      {"role":"tool","content":"r","tool_call_id":"i"}])");

  ASSERT_EQ(chat.messages.size(), 3u);
  EXPECT_EQ(chat.messages[0].role, ChatRole::kSystem);
  EXPECT_EQ(chat.messages[0].content, "ab");
  EXPECT_EQ(chat.messages[1].content, "");
  EXPECT_EQ(chat.messages[1].tool_calls[0].arguments, R"({"x": [1, 2.0]})");
  EXPECT_EQ(chat.messages[2].tool_call_id, "i");
}

TEST(ChatJson, NamesThePlaceOfAnError) {
  const auto error = [](std::string_view messages, std::string_view tools = "null") {
    const Json tools_json = parse(tools);
    const auto result = parse_chat(parse(messages), &tools_json);
    return result.ok() ? "accepted" : result.status().message();
  };

  EXPECT_EQ(error("{}"), "messages is an object, expected an array");
  EXPECT_EQ(error("[1]"), "messages[0] is an integer, expected an object");
  EXPECT_EQ(error("[{}]"), "messages[0].role is missing, expected a string");
  EXPECT_THAT(error(R"([{"role":"boss"}])"), HasSubstr("messages[0].role is \"boss\""));
  EXPECT_THAT(error(R"([{"role":"user"}])"), HasSubstr("messages[0].content is missing"));
  EXPECT_THAT(error(R"([{"role":"user","content":[{"type":"image_url"}]}])"),
              HasSubstr("messages[0].content[0].type is \"image_url\", expected text"));
  EXPECT_THAT(error(R"([{"role":"assistant","tool_calls":[{"function":{"name":1}}]}])"),
              HasSubstr("messages[0].tool_calls[0].function.name is an integer"));
  EXPECT_THAT(error(R"([{"role":"assistant","tool_calls":[{"function":{"name":"f"}}]}])"),
              HasSubstr("messages[0].tool_calls[0].function.arguments is missing"));
  EXPECT_THAT(error(R"([{"role":"assistant","content":"","prefix":1}])"),
              HasSubstr("messages[0].prefix is an integer"));
  EXPECT_EQ(error("[]", "{}"), "tools is an object, expected an array");
  EXPECT_THAT(error("[]", R"([{"type":"web"}])"), HasSubstr("tools[0].type is \"web\""));
  EXPECT_THAT(error("[]", R"([{"type":"function","function":{"name":"f","parameters":[]}}])"),
              HasSubstr("tools[0].function.parameters is an array"));
}

TEST(ChatJson, LimitsCounts) {
  const auto list = [](int count, std::string_view item) {
    std::string text = "[";
    for (int i = 0; i < count; ++i)
      text += str_cat(i == 0 ? "" : ",", item);
    return text + "]";
  };
  const std::string message = R"({"role":"user","content":""})";
  const std::string tool = R"({"type":"function","function":{"name":"f"}})";
  const auto accepts = [](const std::string& messages, const std::string& tools) {
    const Json tools_json = parse(tools);
    return parse_chat(parse(messages), &tools_json).ok();
  };

  EXPECT_TRUE(accepts(list(4096, message), "null"));
  EXPECT_FALSE(accepts(list(4097, message), "null"));
  EXPECT_TRUE(accepts("[]", list(128, tool)));
  EXPECT_FALSE(accepts("[]", list(129, tool)));
}

}  // namespace
}  // namespace fathom
