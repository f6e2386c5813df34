#include "fathom/serve/responses/responses_writer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "fathom/serve/responses/sealed_reasoning.h"
#include "tests/support/answer_events.h"
#include "tests/support/fake_exchange.h"

namespace fathom::serve {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

struct Bench {
  explicit Bench(bool stream)
      : exchange(FakeExchange::post("/v1/responses", "{}")), writer(exchange, style(stream)) {}

  static ResponsesStyle style(bool stream) {
    ResponsesStyle style{.id = "resp_1", .model = "deep", .created_s = 7, .stream = stream};
    style.custom_tools = {"patch"};
    style.echo = Json::object({{"store", Json::boolean(false)}});
    style.new_id = [n = 0](std::string_view prefix) mutable { return str_cat(prefix, ++n); };
    return style;
  }

  void run(const std::vector<ChoiceDelta>& deltas, const ChoiceEnd& end) {
    write_answer(writer, deltas, end);
  }

  std::shared_ptr<FakeExchange> exchange;
  ResponsesWriter writer;
};

constexpr std::string_view kUsage =
    R"({"input_tokens":10,"input_tokens_details":{"cached_tokens":4,"cache_write_tokens":6},)"
    R"("output_tokens":5,"output_tokens_details":{"reasoning_tokens":2},"total_tokens":15})";

std::string response(std::string_view status,
                     std::string_view output,
                     std::string_view usage = kUsage,
                     std::string_view error = "null",
                     std::string_view incomplete = "null") {
  return str_cat(R"({"id":"resp_1","object":"response","created_at":7,"status":")", status,
                 R"(","error":)", error, R"(,"incomplete_details":)", incomplete,
                 R"(,"model":"deep","output":[)", output, R"(],"store":false,"usage":)", usage,
                 "}");
}

// Events with the numbers of their order.
std::vector<std::string> events(const std::vector<std::pair<std::string, std::string>>& list) {
  std::vector<std::string> all;
  int number = 0;
  for (const auto& [type, rest] : list) {
    all.push_back(str_cat("event: ", type, "\ndata: {\"type\":\"", type,
                          "\",\"sequence_number\":", number, ",", rest, "}\n\n"));
    ++number;
  }
  return all;
}

const std::string kInProgress = str_cat("\"response\":", response("in_progress", "", "null"));

constexpr std::string_view kAt0 = R"("item_id":"msg_1","output_index":0,"content_index":0,)";

std::string message(int id, std::string_view text, std::string_view status) {
  return str_cat(R"({"id":"msg_)", id, R"(","type":"message","role":"assistant","content":[)", text,
                 R"(],"status":")", status, R"("})");
}

std::string part(std::string_view text) {
  return str_cat(R"({"type":"output_text","text":")", text, R"(","annotations":[],"logprobs":[]})");
}

TEST(ResponsesWriter, StreamsTextByteForByte) {
  Bench bench(true);

  bench.run({content_delta("Hi "), content_delta("\\n")}, {});

  EXPECT_EQ(bench.exchange->head.content_type, "text/event-stream; charset=utf-8");
  const std::string done = message(1, part(R"(Hi \\n)"), "completed");
  EXPECT_EQ(bench.exchange->pieces,
            events({
                {"response.created", kInProgress},
                {"response.in_progress", kInProgress},
                {"response.output_item.added",
                 str_cat(R"("output_index":0,"item":)", message(1, "", "in_progress"))},
                {"response.content_part.added", str_cat(kAt0, R"("part":)", part(""))},
                {"response.output_text.delta", str_cat(kAt0, R"("delta":"Hi ","logprobs":[])")},
                {"response.output_text.delta", str_cat(kAt0, R"("delta":"\\n","logprobs":[])")},
                {"response.output_text.done", str_cat(kAt0, R"("text":"Hi \\n","logprobs":[])")},
                {"response.content_part.done", str_cat(kAt0, R"("part":)", part(R"(Hi \\n)"))},
                {"response.output_item.done", str_cat(R"("output_index":0,"item":)", done)},
                {"response.completed", str_cat("\"response\":", response("completed", done))},
            }));
  EXPECT_TRUE(bench.exchange->ended());
}

TEST(ResponsesWriter, RepliesTextByteForByte) {
  Bench bench(false);

  bench.run({content_delta("Hi "), content_delta("\\n")}, {});

  EXPECT_FALSE(bench.exchange->streamed);
  EXPECT_EQ(bench.exchange->head.status, 200);
  EXPECT_EQ(bench.exchange->body,
            response("completed", message(1, part(R"(Hi \\n)"), "completed")));
}

TEST(ResponsesWriter, StreamsReasoningAsAnItemOfItsOwn) {
  Bench bench(true);

  bench.run({reasoning_delta("hm"), content_delta("Hi")}, {});

  constexpr std::string_view kAt = R"("item_id":"rs_1","output_index":0,"content_index":0,)";
  constexpr std::string_view kAtText = R"("item_id":"msg_2","output_index":1,"content_index":0,)";
  const std::string thought =
      R"({"id":"rs_1","type":"reasoning","summary":[],)"
      R"("content":[{"type":"reasoning_text","text":"hm"}],"status":"completed"})";
  const std::string said = message(2, part("Hi"), "completed");
  EXPECT_EQ(
      bench.exchange->pieces,
      events({
          {"response.created", kInProgress},
          {"response.in_progress", kInProgress},
          {"response.output_item.added",
           R"("output_index":0,"item":{"id":"rs_1","type":"reasoning","summary":[],"content":[],)"
           R"("status":"in_progress"})"},
          {"response.content_part.added",
           str_cat(kAt, R"("part":{"type":"reasoning_text","text":""})")},
          {"response.reasoning_text.delta", str_cat(kAt, R"("delta":"hm")")},
          {"response.reasoning_text.done", str_cat(kAt, R"("text":"hm")")},
          {"response.content_part.done",
           str_cat(kAt, R"("part":{"type":"reasoning_text","text":"hm"})")},
          {"response.output_item.done", str_cat(R"("output_index":0,"item":)", thought)},
          {"response.output_item.added",
           str_cat(R"("output_index":1,"item":)", message(2, "", "in_progress"))},
          {"response.content_part.added", str_cat(kAtText, R"("part":)", part(""))},
          {"response.output_text.delta", str_cat(kAtText, R"("delta":"Hi","logprobs":[])")},
          {"response.output_text.done", str_cat(kAtText, R"("text":"Hi","logprobs":[])")},
          {"response.content_part.done", str_cat(kAtText, R"("part":)", part("Hi"))},
          {"response.output_item.done", str_cat(R"("output_index":1,"item":)", said)},
          {"response.completed",
           str_cat("\"response\":", response("completed", str_cat(thought, ",", said)))},
      }));
}

TEST(ResponsesWriter, StreamsCallsOfFunctions) {
  Bench bench(true);

  bench.run({call_delta(0, "f", "{\"x\":"), call_delta(0, "", "1}"), call_delta(1, "g", "")},
            {.called_tools = true});

  const auto call = [](int id, int call_id, std::string_view name, std::string_view arguments,
                       std::string_view status) {
    return str_cat(R"({"id":"fc_)", id, R"(","type":"function_call","call_id":"call_)", call_id,
                   R"(","name":")", name, R"(","arguments":")", arguments, R"(","status":")",
                   status, R"("})");
  };
  const std::string f = call(1, 2, "f", R"({\"x\":1})", "completed");
  const std::string g = call(3, 4, "g", "", "completed");
  constexpr std::string_view kF = R"("item_id":"fc_1","output_index":0,)";
  EXPECT_EQ(bench.exchange->pieces,
            events({
                {"response.created", kInProgress},
                {"response.in_progress", kInProgress},
                {"response.output_item.added",
                 str_cat(R"("output_index":0,"item":)", call(1, 2, "f", "", "in_progress"))},
                {"response.function_call_arguments.delta", str_cat(kF, R"("delta":"{\"x\":")")},
                {"response.function_call_arguments.delta", str_cat(kF, R"("delta":"1}")")},
                {"response.function_call_arguments.done",
                 str_cat(kF, R"("arguments":"{\"x\":1}","name":"f")")},
                {"response.output_item.done", str_cat(R"("output_index":0,"item":)", f)},
                {"response.output_item.added",
                 str_cat(R"("output_index":1,"item":)", call(3, 4, "g", "", "in_progress"))},
                {"response.function_call_arguments.done",
                 R"("item_id":"fc_3","output_index":1,"arguments":"","name":"g")"},
                {"response.output_item.done", str_cat(R"("output_index":1,"item":)", g)},
                {"response.completed",
                 str_cat("\"response\":", response("completed", str_cat(f, ",", g)))},
            }));
}

TEST(ResponsesWriter, CallsOfCustomToolsHaveTheirInputAsText) {
  Bench bench(true);

  bench.run({call_delta(0, "patch", "{\"input\": \"*** \\"), call_delta(0, "", "nB\"}")},
            {.called_tools = true});

  const auto call = [](std::string_view input, std::string_view status) {
    return str_cat(R"({"id":"ctc_1","type":"custom_tool_call","call_id":"call_2","name":"patch",)"
                   R"("input":")",
                   input, R"(","status":")", status, R"("})");
  };
  const std::string done = call(R"(*** \nB)", "completed");
  constexpr std::string_view kAt = R"("item_id":"ctc_1","output_index":0,)";
  EXPECT_EQ(bench.exchange->pieces,
            events({
                {"response.created", kInProgress},
                {"response.in_progress", kInProgress},
                {"response.output_item.added",
                 str_cat(R"("output_index":0,"item":)", call("", "in_progress"))},
                {"response.custom_tool_call_input.delta", str_cat(kAt, R"("delta":"*** ")")},
                {"response.custom_tool_call_input.delta", str_cat(kAt, R"("delta":"\nB")")},
                {"response.custom_tool_call_input.done", str_cat(kAt, R"("input":"*** \nB")")},
                {"response.output_item.done", str_cat(R"("output_index":0,"item":)", done)},
                {"response.completed", str_cat("\"response\":", response("completed", done))},
            }));
}

TEST(ResponsesWriter, AnAnswerThatWasCutIsIncomplete) {
  Bench stream(true);
  Bench reply(false);

  stream.run({content_delta("a")}, {.finish = FinishReason::kLength});
  reply.run({content_delta("a")}, {.finish = FinishReason::kLength});

  const std::string cut = response("incomplete", message(1, part("a"), "incomplete"), kUsage,
                                   "null", R"({"reason":"max_output_tokens"})");
  EXPECT_EQ(stream.exchange->pieces.back(),
            str_cat("event: response.incomplete\ndata: {\"type\":\"response.incomplete\",",
                    "\"sequence_number\":8,\"response\":", cut, "}\n\n"));
  EXPECT_EQ(reply.exchange->body, cut);
}

TEST(ResponsesWriter, AStopStringIsACompletedAnswer) {
  Bench bench(false);

  bench.run({content_delta("a")}, {.stop_text = "END"});

  EXPECT_EQ(bench.exchange->body, response("completed", message(1, part("a"), "completed")));
}

TEST(ResponsesWriter, AnEmptyAnswerHasNoItems) {
  Bench bench(false);

  bench.run({}, {});

  EXPECT_EQ(bench.exchange->body, response("completed", ""));
}

TEST(ResponsesWriter, ErrorsWithinAStreamAreAFailedResponse) {
  Bench bench(true);

  bench.writer.begin({}, nullptr);
  bench.writer.delta(content_delta("Hi"));
  bench.writer.fail(api_error(FinishReason::kNumericalError));

  ASSERT_EQ(bench.exchange->pieces.size(), 6u);
  EXPECT_EQ(bench.exchange->pieces[5],
            str_cat("event: response.failed\ndata: {\"type\":\"response.failed\",",
                    "\"sequence_number\":5,\"response\":",
                    response("failed", message(1, part("Hi"), "incomplete"), "null",
                             R"({"code":"server_error","message":"the model's logits were not )"
                             R"(finite; the request was ended"})"),
                    "}\n\n"));
  EXPECT_TRUE(bench.exchange->ended());
}

TEST(ResponsesWriter, ErrorsBeforeTheAnswerAreReplies) {
  for (const bool stream : {false, true}) {
    Bench bench(stream);

    bench.writer.fail(bad_value("input", "input: missing"));

    EXPECT_EQ(bench.exchange->head.status, 400);
    EXPECT_FALSE(bench.exchange->streamed);
    EXPECT_EQ(bench.exchange->body,
              R"({"error":{"message":"input: missing","type":"invalid_request_error",)"
              R"("param":"input","code":"invalid_value"}})");
  }
}

TEST(ResponsesWriter, AWholeReplyThatFailsIsAnErrorAlone) {
  Bench bench(false);

  bench.writer.begin({}, nullptr);
  bench.writer.delta(content_delta("Hi"));
  bench.writer.fail(api_error(FinishReason::kRequestTimeout));

  EXPECT_EQ(bench.exchange->head.status, 504);
  EXPECT_THAT(bench.exchange->body, HasSubstr("request_timeout"));
}

TEST(ResponsesWriter, ReasoningIsSealedWhereAskedFor) {
  ResponsesStyle style = Bench::style(false);
  style.seal_reasoning = true;
  const auto exchange = FakeExchange::post("/v1/responses", "{}");
  ResponsesWriter writer(exchange, style);

  writer.begin({}, nullptr);
  writer.delta(reasoning_delta("hm"));
  writer.finish({});
  writer.end({}, {});

  EXPECT_THAT(exchange->body, HasSubstr(R"("encrypted_content":"fathom1:aG0=")"));
  EXPECT_EQ(open_reasoning("fathom1:aG0="), "hm");
  EXPECT_EQ(open_reasoning(seal_reasoning("\u00e9\n")), "\u00e9\n");
  EXPECT_EQ(open_reasoning("fathom1:aG0"), std::nullopt);
  EXPECT_EQ(open_reasoning("fathom1:/w=="), std::nullopt);
  EXPECT_EQ(open_reasoning("gAAAAABo"), std::nullopt);
}

// What a client gathers from the events between the first two and the last.
std::string gather(const FakeExchange& exchange) {
  std::vector<std::string> texts;
  std::vector<Json> items;
  Json last;
  int64_t number = 0;
  for (const std::string& piece : exchange.pieces) {
    const Json event = *parse_json(piece.substr(piece.find("data: ") + 6), {}, "event");
    const std::string& type = event.find("type")->as_string();
    EXPECT_TRUE(piece.starts_with(str_cat("event: ", type, "\n")));
    EXPECT_EQ(event.find("sequence_number")->as_int(), number++);
    if (const Json* index = event.find("output_index")) {
      const bool is_new = type == "response.output_item.added";
      if (is_new) texts.emplace_back();
      EXPECT_EQ(index->as_int(), static_cast<int64_t>(texts.size()) - 1);
    }
    if (const Json* delta = event.find("delta")) texts.back() += delta->as_string();
    for (const std::string_view field : {"text", "arguments", "input"}) {
      if (const Json* whole = event.find(field)) {
        EXPECT_EQ(whole->as_string(), texts.back());
      }
    }
    if (type == "response.output_item.done") items.push_back(*event.find("item"));
    if (const Json* response = event.find("response")) last = *response;
  }
  EXPECT_EQ(dump_json(*last.find("output")), dump_json(Json::array(items)));
  return dump_json(last);
}

TEST(ResponsesWriter, AStreamAddsUpToTheWholeHoweverItIsCut) {
  for (uint64_t seed = 0; seed < 300; ++seed) {
    Rng rng(seed);
    TestAnswer answer = random_answer(rng);
    for (auto& [name, arguments] : answer.calls) {
      if (name == "f1") name = "patch";
    }
    const ChoiceEnd end{.finish = seed % 3 == 0 ? FinishReason::kLength : FinishReason::kStop,
                        .called_tools = !answer.calls.empty()};
    Bench stream(true);
    Bench reply(false);

    stream.run(cut_answer(answer, rng), end);
    reply.run(cut_answer(answer, rng), end);

    EXPECT_EQ(gather(*stream.exchange), reply.exchange->body) << "seed " << seed;
  }
}

TEST(CustomInput, IsReadHoweverTheArgumentsAreCut) {
  const std::vector<std::pair<std::string, std::string>> cases = {
      {R"({"input":"a"})", "a"},
      {"{ \"input\" :\n\"a b\" }", "a b"},
      {R"({"input":""})", ""},
      {R"({"input":"\"\\\/\b\f\n\r\t"})", "\"\\/\b\f\n\r\t"},
      {R"({"input":"\u00e9\u20AC"})", "\u00e9\u20ac"},
      {R"({"input":"\ud83d\ude00!"})", "\U0001F600!"},
      {R"({"input":"\ud83dx\ude00"})", "\uFFFDx\uFFFD"},
      {R"({"input":"\ud83d\n"})", "\uFFFD\n"},
      {R"({"input":"cut \u00)", "cut "},
      {R"({"input":"é"})", "é"},
      {"", ""},
      {R"({"inp)", ""},
      {R"({"other":"a"})", R"({"other":"a"})"},
      {"*** Begin", "*** Begin"},
      {R"({"input":{"a":1}})", R"({"input":{"a":1}})"},
      {R"({"in put":"a"})", R"({"in put":"a"})"},
  };
  for (const auto& [arguments, expected] : cases) {
    for (size_t cut = 0; cut <= arguments.size(); ++cut) {
      CustomInput input;
      const std::string first = input.push(arguments.substr(0, cut));
      EXPECT_EQ(first + input.push(arguments.substr(cut)), expected) << arguments << " " << cut;
    }
    CustomInput input;
    std::string all;
    for (const char c : arguments)
      all += input.push({&c, 1});
    EXPECT_EQ(all, expected) << arguments;
  }
}

TEST(CustomInput, ArgumentsOfAnInputReadBack) {
  const std::string text = "a\"\\\n\u00e9\U0001F600";
  CustomInput input;

  EXPECT_EQ(input.push(custom_arguments(text)), text);
}

}  // namespace
}  // namespace fathom::serve
