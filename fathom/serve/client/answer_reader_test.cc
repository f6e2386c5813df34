#include "fathom/serve/client/answer_reader.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace fathom::serve {
namespace {

using Kind = AnswerPiece::Kind;
using testing::HasSubstr;

std::vector<Kind> read_all(AnswerReader& reader, const std::vector<std::string>& data) {
  std::vector<Kind> kinds;
  for (const std::string& text : data) {
    const auto piece = reader.read({"message", text});
    EXPECT_TRUE(piece.ok()) << text << ": " << piece.status().message();
    if (piece.ok()) kinds.push_back(piece->kind);
  }
  return kinds;
}

TEST(AnswerReader, ReadsChatWithReasoningAndUsage) {
  AnswerReader reader(TextRoute::kChat);

  const auto kinds = read_all(
      reader,
      {R"({"choices":[{"index":0,"delta":{"role":"assistant","content":""}}]})",
       R"({"choices":[{"index":0,"delta":{"reasoning_content":"hm"}}]})",
       R"({"choices":[{"index":0,"delta":{"reasoning":"m"}}]})",
       R"({"choices":[{"index":0,"delta":{"content":"Hi"}}]})",
       R"({"choices":[{"index":0,"delta":{},"finish_reason":"stop"}]})",
       R"({"choices":[],"usage":{"prompt_tokens":9,"completion_tokens":4,)"
       R"("prompt_tokens_details":{"cached_tokens":5},)"
       R"("completion_tokens_details":{"reasoning_tokens":2,"accepted_prediction_tokens":1}},)"
       R"("timings":{"draft_n":3,"draft_accepted_n":1}})",
       "[DONE]"});

  EXPECT_EQ(kinds, (std::vector<Kind>{Kind::kOpening, Kind::kTokens, Kind::kTokens, Kind::kTokens,
                                      Kind::kClosing, Kind::kNothing, Kind::kNothing}));
  const ReceivedAnswer& a = reader.answer();
  EXPECT_EQ(a.content, "Hi");
  EXPECT_EQ(a.reasoning, "hmm");
  EXPECT_EQ(a.finish_reason, "stop");
  EXPECT_EQ(a.counted.prompt, 9);
  EXPECT_EQ(a.counted.completion, 4);
  EXPECT_EQ(a.counted.cached, 5);
  EXPECT_EQ(a.counted.reasoning, 2);
  EXPECT_EQ(a.counted.drafted, 3);
  EXPECT_EQ(a.counted.accepted, 1);
  EXPECT_TRUE(reader.ended());
}

TEST(AnswerReader, JoinsCallsOfToolsByTheirIndex) {
  AnswerReader reader(TextRoute::kChat);

  const auto kinds = read_all(
      reader,
      {R"({"choices":[{"delta":{"tool_calls":[{"index":0,"id":"a","function":{"name":"f","arguments":""}}]}}]})",
       R"({"choices":[{"delta":{"tool_calls":[{"index":1,"id":"b","function":{"name":"g","arguments":"{}"}}]}}]})",
       R"({"choices":[{"delta":{"tool_calls":[{"index":0,"function":{"arguments":"{\"x\":"}}]}}]})",
       R"({"choices":[{"delta":{"tool_calls":[{"index":0,"function":{"arguments":"1}"}}]}}]})",
       R"({"choices":[{"delta":{"tool_calls":[{"index":-1,"function":{"arguments":"no"}}]}}]})"});

  EXPECT_EQ(kinds, std::vector<Kind>(5, Kind::kTokens));
  const auto& calls = reader.answer().tool_calls;
  ASSERT_EQ(calls.size(), 2u);
  EXPECT_EQ(calls[0].id + calls[0].name + calls[0].arguments, R"(af{"x":1})");
  EXPECT_EQ(calls[1].id + calls[1].name + calls[1].arguments, "bg{}");
}

TEST(AnswerReader, CompletionsCountEmptyTextAsTokens) {
  AnswerReader reader(TextRoute::kCompletions);

  const auto kinds =
      read_all(reader, {R"({"choices":[{"text":"a"}]})", R"({"choices":[{"text":""}]})",
                        R"({"choices":[{"text":"b","finish_reason":"length"}]})",
                        R"({"choices":[{"text":"","finish_reason":"length"}],"usage":null})"});

  EXPECT_EQ(kinds,
            (std::vector<Kind>{Kind::kTokens, Kind::kTokens, Kind::kTokens, Kind::kClosing}));
  EXPECT_EQ(reader.answer().content, "ab");
  EXPECT_FALSE(reader.ended());
}

TEST(AnswerReader, ReadsMessagesOfAnthropic) {
  AnswerReader reader(TextRoute::kMessages);

  const auto kinds = read_all(
      reader,
      {R"({"type":"message_start","message":{"usage":{"input_tokens":3,"cache_read_input_tokens":7,"cache_creation_input_tokens":2}}})",
       R"({"type":"content_block_start","index":0,"content_block":{"type":"thinking","thinking":""}})",
       R"({"type":"content_block_delta","index":0,"delta":{"type":"thinking_delta","thinking":"so"}})",
       R"({"type":"ping"})",
       R"({"type":"content_block_delta","index":1,"delta":{"type":"text_delta","text":"Hi"}})",
       R"({"type":"content_block_start","index":2,"content_block":{"type":"tool_use","id":"t","name":"f"}})",
       R"({"type":"content_block_delta","index":2,"delta":{"type":"input_json_delta","partial_json":"{}"}})",
       R"({"type":"message_delta","delta":{"stop_reason":"tool_use"},"usage":{"output_tokens":5}})",
       R"({"type":"message_stop"})"});

  EXPECT_EQ(kinds, (std::vector<Kind>{Kind::kOpening, Kind::kNothing, Kind::kTokens, Kind::kNothing,
                                      Kind::kTokens, Kind::kNothing, Kind::kTokens, Kind::kClosing,
                                      Kind::kNothing}));
  const ReceivedAnswer& a = reader.answer();
  EXPECT_EQ(a.reasoning + "|" + a.content, "so|Hi");
  ASSERT_EQ(a.tool_calls.size(), 1u);
  EXPECT_EQ(a.tool_calls[0].arguments, "{}");
  EXPECT_EQ(a.finish_reason, "tool_use");
  EXPECT_EQ(a.counted.prompt, 12);
  EXPECT_EQ(a.counted.cached, 7);
  EXPECT_EQ(a.counted.completion, 5);
  EXPECT_TRUE(reader.ended());
}

TEST(AnswerReader, ErrorsWithinAStreamKeepTheirCode) {
  AnswerReader openai(TextRoute::kChat), anthropic(TextRoute::kMessages);

  const auto a = openai.read(
      {"message",
       R"({"error":{"message":"too late","type":"timeout_error","code":"request_timeout"}})"});
  const auto b = anthropic.read(
      {"error", R"({"type":"error","error":{"type":"overloaded_error","message":"full"}})"});

  ASSERT_FALSE(a.ok() || b.ok());
  EXPECT_EQ(openai.error_code(), "request_timeout");
  EXPECT_THAT(a.status().message(), HasSubstr("request_timeout: too late"));
  EXPECT_EQ(anthropic.error_code(), "overloaded_error");
}

TEST(AnswerReader, DataThatIsNoJsonIsRefused) {
  AnswerReader reader(TextRoute::kChat);

  const auto piece = reader.read({"message", "{\"choices\":["});

  ASSERT_FALSE(piece.ok());
  EXPECT_EQ(piece.status().code(), StatusCode::kCorrupt);
  EXPECT_THAT(piece.status().message(), HasSubstr("an event of the stream"));
}

TEST(AnswerReader, OtherShapesOfJsonGiveNothing) {
  for (const char* text :
       {"null", "[]", "{}", R"({"choices":7})", R"({"choices":[]})", R"({"usage":[1]})",
        R"({"choices":null,"usage":{"prompt_tokens":"x"}})"}) {
    AnswerReader reader(TextRoute::kChat);
    const auto piece = reader.read({"message", text});
    ASSERT_TRUE(piece.ok()) << text;
    EXPECT_EQ(piece->kind, Kind::kNothing) << text;
    EXPECT_FALSE(reader.answer().counted.prompt) << text;
  }
}

TEST(SentErrors, AreReadInBothShapesAndAsText) {
  EXPECT_EQ(read_error_body(R"({"error":{"message":"m","type":"t","code":"c"}})").code, "c");
  EXPECT_EQ(read_error_body(R"({"error":{"message":"m","type":"t","code":null}})").code, "t");
  EXPECT_EQ(read_error_body(R"({"type":"error","error":{"type":"t","message":"m"}})").message, "m");
  EXPECT_EQ(read_error_body(R"({"object":"error","message":"m","code":404})").code, "404");
  EXPECT_EQ(read_error_body("<html>no").message, "<html>no");
  EXPECT_EQ(read_error_body(std::string(1000, 'x')).message.size(), 300u);
}

TEST(TextRoutes, AreNamedByTheirPaths) {
  for (const TextRoute route : {TextRoute::kCompletions, TextRoute::kChat, TextRoute::kMessages})
    EXPECT_EQ(*parse_text_route(text_route_path(route)), route);
  EXPECT_THAT(parse_text_route("/v1/embeddings").status().message(),
              HasSubstr("--endpoint is '/v1/embeddings', expected /v1/completions"));
}

}  // namespace
}  // namespace fathom::serve
