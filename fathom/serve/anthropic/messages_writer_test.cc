#include "fathom/serve/anthropic/messages_writer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "fathom/serve/replay/replay_store.h"
#include "tests/support/answer_events.h"
#include "tests/support/fake_exchange.h"
#include "tests/support/test_server.h"

namespace fathom::serve {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

const ThinkingSigner& signer() {
  static const ThinkingSigner made("key");
  return made;
}

struct Bench {
  explicit Bench(bool stream, ReplayStore* replay = nullptr)
      : exchange(FakeExchange::post("/v1/messages", "{}")),
        writer(exchange, style(stream, replay)) {}

  static MessagesStyle style(bool stream, ReplayStore* replay) {
    MessagesStyle style{
        .id = "msg_1", .model = "deep", .stream = stream, .replay = replay, .signer = &signer()};
    style.new_call_id = [n = 0]() mutable { return str_cat("toolu_", ++n); };
    return style;
  }

  void run(const std::vector<ChoiceDelta>& deltas, const ChoiceEnd& end) {
    write_answer(writer, deltas, end);
  }

  std::shared_ptr<FakeExchange> exchange;
  MessagesWriter writer;
};

constexpr std::string_view kStart =
    "event: message_start\n"
    R"(data: {"type":"message_start","message":{"id":"msg_1","type":"message","role":"assistant",)"
    R"("model":"deep","content":[],"stop_reason":null,"stop_sequence":null,)"
    R"("usage":{"input_tokens":6,"cache_creation_input_tokens":0,"cache_read_input_tokens":4,)"
    R"("output_tokens":0,"output_tokens_details":{"thinking_tokens":0}}}})"
    "\n\n";
constexpr std::string_view kUsage =
    R"("usage":{"input_tokens":6,"cache_creation_input_tokens":0,"cache_read_input_tokens":4,)"
    R"("output_tokens":5,"output_tokens_details":{"thinking_tokens":2}})";
constexpr std::string_view kStop = "event: message_stop\ndata: {\"type\":\"message_stop\"}\n\n";

std::string block_start(int index, std::string_view block) {
  return str_cat("event: content_block_start\ndata: {\"type\":\"content_block_start\",\"index\":",
                 index, ",\"content_block\":", block, "}\n\n");
}

std::string block_delta(int index, std::string_view delta) {
  return str_cat("event: content_block_delta\ndata: {\"type\":\"content_block_delta\",\"index\":",
                 index, ",\"delta\":", delta, "}\n\n");
}

std::string block_stop(int index) {
  return str_cat("event: content_block_stop\ndata: {\"type\":\"content_block_stop\",\"index\":",
                 index, "}\n\n");
}

std::string message_delta(std::string_view reason, std::string_view sequence) {
  return str_cat(
      "event: message_delta\ndata: {\"type\":\"message_delta\",\"delta\":", "{\"stop_reason\":\"",
      reason, "\",\"stop_sequence\":", sequence, "},", kUsage, "}\n\n");
}

std::string whole(std::string_view content, std::string_view reason, std::string_view sequence) {
  return str_cat(R"({"id":"msg_1","type":"message","role":"assistant","model":"deep","content":[)",
                 content, R"(],"stop_reason":")", reason, R"(","stop_sequence":)", sequence, ",",
                 kUsage, "}");
}

constexpr std::string_view kTextStart = R"({"type":"text","text":""})";

TEST(MessagesWriter, StreamsTextByteForByte) {
  Bench bench(true);

  bench.run({content_delta("Hi \"you\""), content_delta("\n")}, {});

  EXPECT_EQ(bench.exchange->head.content_type, "text/event-stream; charset=utf-8");
  EXPECT_THAT(bench.exchange->head.headers,
              testing::Contains(HttpHeader("request-id", "req-test")));
  EXPECT_EQ(bench.exchange->rules.keep_alive, "event: ping\ndata: {\"type\": \"ping\"}\n\n");
  EXPECT_THAT(bench.exchange->pieces,
              ElementsAre(kStart, block_start(0, kTextStart),
                          block_delta(0, R"({"type":"text_delta","text":"Hi \"you\""})"),
                          block_delta(0, R"({"type":"text_delta","text":"\n"})"), block_stop(0),
                          message_delta("end_turn", "null"), kStop));
  EXPECT_TRUE(bench.exchange->ended());
}

TEST(MessagesWriter, RepliesTextByteForByte) {
  Bench bench(false);

  bench.run({content_delta("Hi \"you\""), content_delta("\n")}, {});

  EXPECT_FALSE(bench.exchange->streamed);
  EXPECT_EQ(bench.exchange->head.status, 200);
  EXPECT_EQ(bench.exchange->head.content_type, "application/json");
  EXPECT_THAT(bench.exchange->head.headers, ElementsAre(HttpHeader("request-id", "req-test")));
  EXPECT_EQ(bench.exchange->body,
            whole(R"({"type":"text","text":"Hi \"you\"\n"})", "end_turn", "null"));
}

TEST(MessagesWriter, StreamsThinkingWithItsSignature) {
  Bench bench(true);

  bench.run({reasoning_delta("h"), reasoning_delta("m"), content_delta("Hi")}, {});

  EXPECT_THAT(
      bench.exchange->pieces,
      ElementsAre(kStart, block_start(0, R"({"type":"thinking","thinking":"","signature":""})"),
                  block_delta(0, R"({"type":"thinking_delta","thinking":"h"})"),
                  block_delta(0, R"({"type":"thinking_delta","thinking":"m"})"),
                  block_delta(0, str_cat(R"({"type":"signature_delta","signature":")",
                                         signer().sign("hm"), "\"}")),
                  block_stop(0), block_start(1, kTextStart),
                  block_delta(1, R"({"type":"text_delta","text":"Hi"})"), block_stop(1),
                  message_delta("end_turn", "null"), kStop));
}

TEST(MessagesWriter, RepliesThinkingWithItsSignature) {
  Bench bench(false);

  bench.run({reasoning_delta("hm"), content_delta("Hi")}, {});

  EXPECT_EQ(bench.exchange->body,
            whole(str_cat(R"({"type":"thinking","thinking":"hm","signature":")",
                          signer().sign("hm"), R"("},{"type":"text","text":"Hi"})"),
                  "end_turn", "null"));
}

TEST(MessagesWriter, StreamsCallsOfTools) {
  Bench bench(true);

  bench.run({call_delta(0, "f", "{\"x\":"), call_delta(0, "", "1}"), call_delta(1, "g", "")},
            {.called_tools = true});

  EXPECT_THAT(
      bench.exchange->pieces,
      ElementsAre(
          kStart, block_start(0, R"({"type":"tool_use","id":"toolu_1","name":"f","input":{}})"),
          block_delta(0, R"({"type":"input_json_delta","partial_json":"{\"x\":"})"),
          block_delta(0, R"({"type":"input_json_delta","partial_json":"1}"})"), block_stop(0),
          block_start(1, R"({"type":"tool_use","id":"toolu_2","name":"g","input":{}})"),
          block_stop(1), message_delta("tool_use", "null"), kStop));
}

TEST(MessagesWriter, RepliesCallsWithTheirInput) {
  Bench bench(false);

  bench.run(
      {content_delta("I look"), call_delta(0, "f", "{\"x\": [1, 2.50]}"), call_delta(1, "g", "")},
      {.called_tools = true});

  EXPECT_EQ(bench.exchange->body,
            whole(R"({"type":"text","text":"I look"},)"
                  R"({"type":"tool_use","id":"toolu_1","name":"f","input":{"x":[1,2.5]}},)"
                  R"({"type":"tool_use","id":"toolu_2","name":"g","input":{}})",
                  "tool_use", "null"));
}

TEST(MessagesWriter, TextBehindACallIsABlockOfItsOwn) {
  Bench bench(false);

  bench.run({call_delta(0, "f", "{}"), content_delta("done")}, {.called_tools = true});

  EXPECT_THAT(bench.exchange->body, HasSubstr(R"("input":{}},{"type":"text","text":"done"}])"));
}

TEST(MessagesWriter, NamesTheStopSequence) {
  Bench stream(true);
  Bench reply(false);

  stream.run({content_delta("a")}, {.stop_text = "EN\"D"});
  reply.run({content_delta("a")}, {.stop_text = "EN\"D"});

  EXPECT_EQ(stream.exchange->pieces[4], message_delta("stop_sequence", R"("EN\"D")"));
  EXPECT_EQ(reply.exchange->body,
            whole(R"({"type":"text","text":"a"})", "stop_sequence", R"("EN\"D")"));
}

TEST(MessagesWriter, SaysWhatLimitEndedTheAnswer) {
  Bench tokens(true);
  Bench context(true);

  tokens.run({content_delta("a")}, {.finish = FinishReason::kLength});
  context.run({content_delta("a")}, {.finish = FinishReason::kLength, .context_full = true});

  EXPECT_EQ(tokens.exchange->pieces[4], message_delta("max_tokens", "null"));
  EXPECT_EQ(context.exchange->pieces[4], message_delta("model_context_window_exceeded", "null"));
}

TEST(MessagesWriter, ACallThatWasCutHasWhatIsWholeOfItsInput) {
  Bench bench(false);

  bench.run({call_delta(0, "f", R"({"a":1,"b":"tex)")},
            {.finish = FinishReason::kLength, .called_tools = true});

  EXPECT_EQ(bench.exchange->body,
            whole(R"({"type":"tool_use","id":"toolu_1","name":"f","input":{"a":1}})", "max_tokens",
                  "null"));
}

TEST(MessagesWriter, AnEmptyAnswerHasNoBlocks) {
  Bench stream(true);
  Bench reply(false);

  stream.run({}, {});
  reply.run({}, {});

  EXPECT_THAT(stream.exchange->pieces,
              ElementsAre(kStart, message_delta("end_turn", "null"), kStop));
  EXPECT_EQ(reply.exchange->body, whole("", "end_turn", "null"));
}

TEST(MessagesWriter, ErrorsBeforeTheAnswerAreReplies) {
  for (const bool stream : {false, true}) {
    Bench bench(stream);

    bench.writer.fail(bad_value("top_k", "top_k: found -1"));

    EXPECT_EQ(bench.exchange->head.status, 400);
    EXPECT_FALSE(bench.exchange->streamed);
    EXPECT_EQ(bench.exchange->body, R"({"type":"error","error":{"type":"invalid_request_error",)"
                                    R"("message":"top_k: found -1"},"request_id":"req-test"})");
  }
}

TEST(MessagesWriter, ErrorsWithinAStreamAreAnEvent) {
  Bench bench(true);

  bench.writer.begin({.prompt_tokens = 10, .cached_tokens = 4}, nullptr);
  bench.writer.delta(content_delta("Hi"));
  bench.writer.fail(api_error(FinishReason::kAborted));

  EXPECT_THAT(bench.exchange->pieces,
              ElementsAre(kStart, block_start(0, kTextStart),
                          block_delta(0, R"({"type":"text_delta","text":"Hi"})"),
                          "event: error\n"
                          R"(data: {"type":"error","error":{"type":"overloaded_error","message":)"
                          R"("the server ended the request because it shuts down"},)"
                          R"("request_id":"req-test"})"
                          "\n\n"));
  EXPECT_TRUE(bench.exchange->ended());
}

TEST(MessagesWriter, AWholeReplyThatFailsIsAnErrorAlone) {
  Bench bench(false);

  bench.writer.begin({}, nullptr);
  bench.writer.delta(content_delta("Hi"));
  bench.writer.fail(api_error(FinishReason::kRequestTimeout));

  EXPECT_EQ(bench.exchange->head.status, 504);
  EXPECT_THAT(bench.exchange->body, HasSubstr(R"("type":"timeout_error")"));
}

TEST(MessagesWriter, IdsCannotBeGuessed) {
  const auto exchange = FakeExchange::post("/v1/messages", "{}");
  MessagesWriter writer(exchange, {.id = "msg_1", .model = "deep", .signer = &signer()});

  writer.begin({}, nullptr);
  writer.delta(call_delta(0, "f", "{}"));
  writer.delta(call_delta(1, "f", "{}"));
  writer.finish({.called_tools = true});
  writer.end({}, {});

  const Json reply = *parse_json(exchange->body, {}, "reply");
  const auto& blocks = reply.find("content")->items();
  const std::string& first = blocks[0].find("id")->as_string();
  EXPECT_TRUE(first.starts_with("toolu_"));
  EXPECT_EQ(first.size(), 6u + 24u);
  EXPECT_NE(first, blocks[1].find("id")->as_string());
}

// The blocks of a stream, as a client gathers them, in the form of a whole reply.
std::string gather(const FakeExchange& exchange) {
  std::vector<std::vector<JsonMember>> blocks;
  std::vector<std::string> inputs;
  Json stop;
  for (const std::string& piece : exchange.pieces) {
    const Json event = *parse_json(piece.substr(piece.find("data: ") + 6), {}, "event");
    const std::string& type = event.find("type")->as_string();
    EXPECT_TRUE(piece.starts_with(str_cat("event: ", type, "\n")));
    if (type == "content_block_start") {
      EXPECT_EQ(event.find("index")->as_int(), static_cast<int64_t>(blocks.size()));
      blocks.push_back(event.find("content_block")->members());
      inputs.emplace_back();
    } else if (type == "content_block_delta") {
      EXPECT_EQ(event.find("index")->as_int(), static_cast<int64_t>(blocks.size()) - 1);
      for (const auto& [name, value] : event.find("delta")->members()) {
        if (name == "partial_json") inputs.back() += value.as_string();
        for (auto& [field, text] : blocks.back()) {
          if (field == name && name != "type") {
            text = Json::string(text.as_string() + value.as_string());
          }
        }
      }
    } else if (type == "message_delta") {
      stop = *event.find("delta");
    }
  }
  std::vector<Json> content;
  for (size_t i = 0; i < blocks.size(); ++i) {
    for (auto& [field, value] : blocks[i]) {
      if (field == "input" && !inputs[i].empty()) value = *parse_json(inputs[i], {}, "input");
    }
    content.push_back(Json::object(blocks[i]));
  }
  return dump_json(Json::array(std::move(content))) + dump_json(stop);
}

TEST(MessagesWriter, AStreamAddsUpToTheWholeHoweverItIsCut) {
  for (uint64_t seed = 0; seed < 300; ++seed) {
    Rng rng(seed);
    const TestAnswer answer = random_answer(rng);
    const ChoiceEnd end{.finish = seed % 3 == 0 ? FinishReason::kLength : FinishReason::kStop,
                        .called_tools = !answer.calls.empty(),
                        .stop_text = seed % 5 == 0 ? "END" : ""};
    Bench stream(true);
    Bench reply(false);

    stream.run(cut_answer(answer, rng), end);
    reply.run(cut_answer(answer, rng), end);

    const Json json = *parse_json(reply.exchange->body, {}, "reply");
    EXPECT_EQ(gather(*stream.exchange),
              dump_json(*json.find("content")) +
                  dump_json(Json::object({{"stop_reason", *json.find("stop_reason")},
                                          {"stop_sequence", *json.find("stop_sequence")}})))
        << "seed " << seed;
  }
}

TEST(MessagesWriter, CallsAreKeptForReplay) {
  TestServer server(chat_v31());
  ReplayStore replay(server.tokenizer, chat_v31().answer_grammar({}));
  std::vector<int32_t> ids = {server.id("<｜tool▁calls▁begin｜>"),
                              server.id("<｜tool▁call▁begin｜>")};
  const auto put = [&](std::string_view text) {
    for (const int32_t id : server.tokenizer.encode(text))
      ids.push_back(id);
  };
  put("f");
  ids.push_back(server.id("<｜tool▁sep｜>"));
  put("{\"x\": 1}");
  ids.push_back(server.id("<｜tool▁call▁end｜>"));
  ids.push_back(server.id("<｜tool▁calls▁end｜>"));
  Bench bench(false, &replay);

  bench.run({call_delta(0, "f", "{\"x\": 1}")}, {.called_tools = true, .call_tokens = ids});

  EXPECT_EQ(replay.stats().blocks, 1);
  ChatConversation history;
  history.messages = {{.role = ChatRole::kAssistant,
                       .tool_calls = {{.id = "toolu_1", .name = "f", .arguments = "{\"x\": 1}"}}}};
  replay.recall(history);
  EXPECT_EQ(history.messages[0].sampled_calls.ids, ids);
}

}  // namespace
}  // namespace fathom::serve
