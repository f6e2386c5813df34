#include "fathom/serve/client/request_body.h"

#include <gtest/gtest.h>

#include "fathom/text/json_writer.h"

namespace fathom::serve {
namespace {

TEST(RequestBody, CompletionsTakeIdsOrText) {
  TextRequest r{.model = "m", .ids = {1, 2, 300}, .max_tokens = 5, .ignore_eos = true};

  EXPECT_EQ(request_body(TextRoute::kCompletions, r),
            R"({"model":"m","prompt":[1,2,300],"max_tokens":5,"ignore_eos":true,"stream":true,)"
            R"("stream_options":{"include_usage":true}})");
  r.ids.clear();
  r.text = "a \"b\"";
  EXPECT_EQ(request_body(TextRoute::kCompletions, r),
            R"({"model":"m","prompt":"a \"b\"","max_tokens":5,"ignore_eos":true,"stream":true,)"
            R"("stream_options":{"include_usage":true}})");
}

TEST(RequestBody, ChatMakesAMessageOfText) {
  EXPECT_EQ(request_body(TextRoute::kChat, {.model = "m", .text = "hi", .max_tokens = 5}),
            R"({"model":"m","messages":[{"role":"user","content":"hi"}],)"
            R"("max_completion_tokens":5,"stream":true,"stream_options":{"include_usage":true}})");
}

TEST(RequestBody, MessagesHaveTheSystemBesideThem) {
  const TextRequest r{.model = "m",
                      .messages = {chat_message("system", "s"), chat_message("user", "u")},
                      .max_tokens = 5};

  EXPECT_EQ(request_body(TextRoute::kMessages, r),
            R"({"model":"m","system":"s","messages":[{"role":"user","content":"u"}],)"
            R"("max_tokens":5,"stream":true})");
}

TEST(RequestBody, ExtraMembersTakeThePlaceOfOurs) {
  const TextRequest r{.model = "m",
                      .text = "t",
                      .max_tokens = 5,
                      .extra = Json::object(
                          {{"max_tokens", Json::integer(9)}, {"temperature", Json::number(0.5)}})};

  EXPECT_EQ(request_body(TextRoute::kCompletions, r),
            R"({"model":"m","prompt":"t","stream":true,"stream_options":{"include_usage":true},)"
            R"("max_tokens":9,"temperature":0.5})");
}

TEST(AssistantMessage, KeepsReasoningAndWholeCalls) {
  ReceivedAnswer answer;
  answer.content = "c";
  answer.reasoning = "r";
  answer.tool_calls = {{"1", "f", "{}"}, {"2", "g", "{\"cut"}, {"3", "", "{}"}};

  EXPECT_EQ(dump_json(assistant_message(answer)),
            R"({"role":"assistant","content":"c","reasoning_content":"r","tool_calls":[)"
            R"({"id":"1","type":"function","function":{"name":"f","arguments":"{}"}}]})");
  EXPECT_EQ(dump_json(assistant_message({})), R"({"role":"assistant","content":""})");
}

}  // namespace
}  // namespace fathom::serve
