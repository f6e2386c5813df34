#include "fathom/serve/openai/chat/chat_writer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "fathom/base/rng.h"
#include "fathom/serve/replay/replay_store.h"
#include "fathom/text/json.h"
#include "tests/support/answer_events.h"
#include "tests/support/fake_exchange.h"
#include "tests/support/test_server.h"

namespace fathom::serve {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

const Tokenizer& tokenizer() {
  static const Tokenizer loaded = tokenizer_with_markers();
  return loaded;
}

ChatStyle style_of(bool stream) {
  ChatStyle style;
  style.reply = {.id = "chatcmpl-1",
                 .model = "deep",
                 .system_fingerprint = "fp_1",
                 .created_s = 7,
                 .tokenizer = &tokenizer(),
                 .stream = stream};
  style.new_call_id = [n = 0]() mutable { return str_cat("call_", ++n); };
  return style;
}

struct Bench {
  explicit Bench(ChatStyle style)
      : exchange(FakeExchange::post("/v1/chat/completions", "{}")), writer(exchange, style) {}

  std::shared_ptr<FakeExchange> exchange;
  ChatWriter writer;
};

constexpr std::string_view kUsageJson =
    R"({"prompt_tokens":10,"completion_tokens":5,"total_tokens":15,)"
    R"("prompt_tokens_details":{"cached_tokens":4,"cache_write_tokens":6},)"
    R"("completion_tokens_details":{"reasoning_tokens":2,"accepted_prediction_tokens":1},)"
    R"("prompt_cache_hit_tokens":4,"prompt_cache_miss_tokens":6})";

TEST(ChatWriter, RepliesWholeByteForByte) {
  Bench bench(style_of(false));

  bench.writer.begin(kTestUsage, nullptr);
  bench.writer.delta(reasoning_delta("hm"));
  bench.writer.delta(reasoning_delta("m"));
  bench.writer.delta(content_delta("Hi \"you\"\n"));
  bench.writer.finish({});
  bench.writer.end(kTestUsage, {});

  EXPECT_EQ(bench.exchange->head.status, 200);
  EXPECT_EQ(bench.exchange->head.content_type, "application/json");
  EXPECT_FALSE(bench.exchange->streamed);
  EXPECT_EQ(bench.exchange->body,
            str_cat(R"({"id":"chatcmpl-1","object":"chat.completion","created":7,"model":"deep",)",
                    R"("system_fingerprint":"fp_1","choices":[{"index":0,"message":)",
                    R"({"role":"assistant","content":"Hi \"you\"\n","reasoning_content":"hmm"},)",
                    R"("finish_reason":"stop"}],"usage":)", kUsageJson, "}"));
}

TEST(ChatWriter, StreamsByteForByte) {
  ChatStyle style = style_of(true);
  style.reply.include_usage = true;
  Bench bench(style);

  bench.writer.begin(kTestUsage, nullptr);
  bench.writer.delta(reasoning_delta("hmm"));
  bench.writer.delta(content_delta("Hi"));
  bench.writer.delta(call_delta(0, "f", "{\"x\":"));
  bench.writer.delta(call_delta(0, "", "1}"));
  bench.writer.finish({.called_tools = true});
  bench.writer.end(kTestUsage, {});

  EXPECT_EQ(bench.exchange->head.content_type, "text/event-stream; charset=utf-8");
  EXPECT_THAT(bench.exchange->head.headers, ElementsAre(HttpHeader("Cache-Control", "no-cache"),
                                                        HttpHeader("X-Accel-Buffering", "no")));
  EXPECT_EQ(bench.exchange->rules.keep_alive, ": ping\n\n");
  const std::string head =
      R"(data: {"id":"chatcmpl-1","object":"chat.completion.chunk","created":7,"model":"deep",)"
      R"("system_fingerprint":"fp_1","choices":[)";
  const auto chunk = [&](std::string_view delta) {
    return str_cat(head, R"({"index":0,"delta":)", delta, R"(,"finish_reason":null}]})", "\n\n");
  };
  EXPECT_THAT(
      bench.exchange->pieces,
      ElementsAre(chunk(R"({"role":"assistant","content":""})"),
                  chunk(R"({"reasoning_content":"hmm"})"), chunk(R"({"content":"Hi"})"),
                  chunk(R"({"tool_calls":[{"index":0,"id":"call_1","type":"function",)"
                        R"("function":{"name":"f","arguments":"{\"x\":"}}]})"),
                  chunk(R"({"tool_calls":[{"index":0,"function":{"arguments":"1}"}}]})"),
                  str_cat(head, R"({"index":0,"delta":{},"finish_reason":"tool_calls"}]})", "\n\n"),
                  str_cat(head, R"(],"usage":)", kUsageJson, "}\n\n"), "data: [DONE]\n\n"));
  EXPECT_TRUE(bench.exchange->ended());
}

TEST(ChatWriter, ContentIsNullBesideCallsAlone) {
  Bench bench(style_of(false));

  bench.writer.begin(kTestUsage, nullptr);
  bench.writer.delta(call_delta(0, "f", "{}"));
  bench.writer.delta(call_delta(1, "g", "[]"));
  bench.writer.finish({.called_tools = true});
  bench.writer.end(kTestUsage, {});

  EXPECT_THAT(bench.exchange->body,
              HasSubstr(R"("message":{"role":"assistant","content":null,"tool_calls":[)"
                        R"({"id":"call_1","type":"function","function":{"name":"f",)"
                        R"("arguments":"{}"}},{"id":"call_2","type":"function","function":)"
                        R"({"name":"g","arguments":"[]"}}]},"finish_reason":"tool_calls")"));
}

TEST(ChatWriter, AnEmptyAnswerIsAnEmptyText) {
  Bench bench(style_of(false));

  bench.writer.begin(kTestUsage, nullptr);
  bench.writer.finish({.finish = FinishReason::kLength});
  bench.writer.end(kTestUsage, {});

  EXPECT_THAT(bench.exchange->body, HasSubstr(R"("content":""},"finish_reason":"length"})"));
}

TEST(ChatWriter, MapsEndsToWords) {
  EXPECT_EQ(finish_word({.finish = FinishReason::kStop}), "stop");
  EXPECT_EQ(finish_word({.finish = FinishReason::kLength}), "length");
  EXPECT_EQ(finish_word({.finish = FinishReason::kStop, .called_tools = true}), "tool_calls");
  EXPECT_EQ(finish_word({.finish = FinishReason::kLength, .called_tools = true}), "length");
}

TEST(ChatWriter, NamesTheStopString) {
  for (const bool stream : {false, true}) {
    Bench bench(style_of(stream));

    bench.writer.begin(kTestUsage, nullptr);
    bench.writer.finish({.stop_text = "END"});
    bench.writer.end(kTestUsage, {});

    EXPECT_THAT(bench.exchange->body, HasSubstr(R"("finish_reason":"stop","stop_reason":"END")"));
  }
}

TEST(ChatWriter, PutsReasoningWhereTheServerSays) {
  for (const bool stream : {false, true}) {
    ChatStyle style = style_of(stream);
    style.reasoning_field = ReasoningField::kBoth;
    Bench both(style);
    style.reasoning_field = ReasoningField::kReasoning;
    Bench other(style);

    for (Bench* bench : {&both, &other}) {
      bench->writer.begin(kTestUsage, nullptr);
      bench->writer.delta(reasoning_delta("hm"));
      bench->writer.finish({});
      bench->writer.end(kTestUsage, {});
    }

    EXPECT_THAT(both.exchange->body, HasSubstr(R"("reasoning_content":"hm","reasoning":"hm")"));
    EXPECT_THAT(other.exchange->body, HasSubstr(R"("reasoning":"hm")"));
    EXPECT_THAT(other.exchange->body, testing::Not(HasSubstr("reasoning_content")));
  }
}

TEST(ChatWriter, ErrorsBeforeTheAnswerAreReplies) {
  for (const bool stream : {false, true}) {
    Bench bench(style_of(stream));

    bench.writer.fail(bad_value("n", "n: found 0"));

    EXPECT_EQ(bench.exchange->head.status, 400);
    EXPECT_FALSE(bench.exchange->streamed);
    EXPECT_EQ(bench.exchange->body,
              R"({"error":{"message":"n: found 0","type":"invalid_request_error","param":"n",)"
              R"("code":"invalid_value"}})");
  }
}

TEST(ChatWriter, ErrorsWithinAStreamAreEvents) {
  Bench bench(style_of(true));

  bench.writer.begin(kTestUsage, nullptr);
  bench.writer.delta(content_delta("Hi"));
  bench.writer.fail(api_error(FinishReason::kNumericalError));

  ASSERT_EQ(bench.exchange->pieces.size(), 4u);
  EXPECT_EQ(bench.exchange->pieces[2],
            "data: {\"error\":{\"message\":\"the model's logits were not finite; the request was "
            "ended\",\"type\":\"server_error\",\"param\":null,\"code\":\"numerical_error\"}}\n\n");
  EXPECT_EQ(bench.exchange->pieces[3], "data: [DONE]\n\n");
  EXPECT_TRUE(bench.exchange->ended());
}

TEST(ChatWriter, AWholeReplyThatFailsIsAnErrorAlone) {
  Bench bench(style_of(false));

  bench.writer.begin(kTestUsage, nullptr);
  bench.writer.delta(content_delta("Hi"));
  bench.writer.fail(api_error(FinishReason::kRequestTimeout));

  EXPECT_EQ(bench.exchange->head.status, 504);
  EXPECT_THAT(bench.exchange->body, HasSubstr("request_timeout"));
}

TEST(ChatWriter, ChoicesAreInOrderHoweverTheyCome) {
  ChatStyle style = style_of(false);
  style.num_choices = 3;
  Bench bench(style);

  bench.writer.begin(kTestUsage, nullptr);
  bench.writer.delta(content_delta("c", 2));
  bench.writer.delta(content_delta("a", 0));
  bench.writer.finish({.choice = 2});
  bench.writer.delta(content_delta("b", 1));
  bench.writer.finish({.choice = 1, .finish = FinishReason::kLength});
  bench.writer.finish({.choice = 0});
  bench.writer.end(kTestUsage, {});

  const std::string& body = bench.exchange->body;
  const size_t a = body.find(R"({"index":0,"message":{"role":"assistant","content":"a"})");
  const size_t b = body.find(
      R"({"index":1,"message":{"role":"assistant","content":"b"},"finish_reason":"length"})");
  const size_t c = body.find(R"({"index":2,"message":{"role":"assistant","content":"c"})");
  ASSERT_NE(c, body.npos);
  EXPECT_LT(a, b);
  EXPECT_LT(b, c);
}

TEST(ChatWriter, EachChoiceOfAStreamHasItsRole) {
  ChatStyle style = style_of(true);
  style.num_choices = 2;
  Bench bench(style);

  bench.writer.begin(kTestUsage, nullptr);

  ASSERT_EQ(bench.exchange->pieces.size(), 2u);
  EXPECT_THAT(bench.exchange->pieces[1],
              HasSubstr(R"({"index":1,"delta":{"role":"assistant","content":""})"));
}

TEST(ChatWriter, EchoStandsBeforeTheContent) {
  for (const bool stream : {false, true}) {
    ChatStyle style = style_of(stream);
    style.echo = "Once ";
    Bench bench(style);

    bench.writer.begin(kTestUsage, nullptr);
    bench.writer.delta(content_delta("upon"));
    bench.writer.finish({});
    bench.writer.end(kTestUsage, {});

    EXPECT_THAT(bench.exchange->body,
                HasSubstr(stream ? R"("delta":{"content":"Once "})" : R"("content":"Once upon")"));
  }
}

TEST(ChatWriter, ContinuousUsageIsInEachChunk) {
  ChatStyle style = style_of(true);
  style.reply.continuous_usage = true;
  Bench bench(style);

  bench.writer.begin(kTestUsage, nullptr);
  ChoiceDelta delta = content_delta("Hi");
  delta.completion_tokens = 2;
  bench.writer.delta(delta);

  EXPECT_THAT(bench.exchange->pieces[0],
              HasSubstr(R"("usage":{"prompt_tokens":10,"completion_tokens":0,"total_tokens":10})"));
  EXPECT_THAT(bench.exchange->pieces[1],
              HasSubstr(R"("usage":{"prompt_tokens":10,"completion_tokens":2,"total_tokens":12})"));
}

TEST(ChatWriter, TimingsComeWhenAskedFor) {
  constexpr std::string_view kTimings =
      R"("timings":{"queue_ms":250.0,"prompt_ms":500.0,"prompt_per_second":12.0,)"
      R"("predicted_ms":2000.0,"predicted_per_second":2.5,"cache_n":4,"draft_n":3,)"
      R"("draft_accepted_n":1})";
  for (const bool stream : {false, true}) {
    ChatStyle style = style_of(stream);
    style.reply.timings = true;
    Bench bench(style);

    bench.writer.begin(kTestUsage, nullptr);
    bench.writer.finish({});
    bench.writer.end(kTestUsage, {.queue_s = 0.25, .prompt_s = 0.5, .predicted_s = 2.0});

    EXPECT_THAT(bench.exchange->body, HasSubstr(kTimings));
  }
}

TEST(ChatWriter, LogprobsNameTokensAndBytes) {
  ChatStyle style = style_of(false);
  style.reply.logprobs = true;
  Bench bench(style);
  const int32_t a = tokenizer().encode("a").front();
  const int32_t b = tokenizer().encode("b").front();

  bench.writer.begin(kTestUsage, nullptr);
  ChoiceDelta delta = content_delta("a");
  delta.tokens = {{.token = a, .logprob = -0.5f, .top_logprobs = {{a, -0.5f}, {b, -INFINITY}}}};
  bench.writer.delta(delta);
  bench.writer.finish({});
  bench.writer.end(kTestUsage, {});

  EXPECT_THAT(bench.exchange->body,
              HasSubstr(R"("logprobs":{"content":[{"token":"a","logprob":-0.5,"bytes":[97],)"
                        R"("top_logprobs":[{"token":"a","logprob":-0.5,"bytes":[97]},)"
                        R"({"token":"b","logprob":-9999.0,"bytes":[98]}]}],"refusal":null})"));
}

TEST(ChatWriter, PromptLogprobsStandInTheReply) {
  ChatStyle style = style_of(false);
  style.reply.prompt_logprobs = true;
  Bench bench(style);
  const int32_t a = tokenizer().encode("a").front();
  const int32_t b = tokenizer().encode("b").front();
  const std::vector<PromptLogprobs> prompt = {
      {.token = {a, -2.0f}, .rank = 3, .top = {{b, -0.5f}, {a, -2.0f}}}};

  bench.writer.begin(kTestUsage, &prompt);
  bench.writer.finish({});
  bench.writer.end(kTestUsage, {});

  EXPECT_THAT(bench.exchange->body,
              HasSubstr(str_cat(R"("prompt_logprobs":[null,{")", a,
                                R"(":{"logprob":-2.0,"rank":3,"decoded_token":"a"},")", b,
                                R"(":{"logprob":-0.5,"rank":1,"decoded_token":"b"}}])")));
}

TEST(ChatWriter, IdsOfCallsCannotBeGuessed) {
  ChatStyle style = style_of(false);
  style.new_call_id = nullptr;
  std::vector<std::string> ids;
  for (int i = 0; i < 2; ++i) {
    Bench bench(style);
    bench.writer.begin(kTestUsage, nullptr);
    bench.writer.delta(call_delta(0, "f", "{}"));
    bench.writer.finish({.called_tools = true});
    bench.writer.end(kTestUsage, {});
    const size_t at = bench.exchange->body.find("call_");
    ids.push_back(bench.exchange->body.substr(at, 29));
  }

  EXPECT_THAT(ids[0], testing::MatchesRegex("call_[0-9a-f]+"));
  EXPECT_NE(ids[0], ids[1]);
}

// What a client gathers from the chunks of a stream.
struct Gathered {
  std::string reasoning;
  std::string content;
  std::vector<ToolCall> calls;
  std::string logprobs;  // of all chunks, the items in a row
  std::string finish;
};

std::string items_of(const Json& logprobs) {
  std::string all;
  for (const Json& item : logprobs.find("content")->items())
    all += dump_json(item);
  return all;
}

std::vector<Gathered> gather(const FakeExchange& exchange, int num_choices) {
  std::vector<Gathered> all(static_cast<size_t>(num_choices));
  for (const std::string& piece : exchange.pieces) {
    if (piece == "data: [DONE]\n\n") break;
    const Json json = *parse_json(std::string_view(piece).substr(6), {}, "chunk");
    for (const Json& choice : json.find("choices")->items()) {
      Gathered& out = all[static_cast<size_t>(choice.find("index")->as_int())];
      const Json& delta = *choice.find("delta");
      if (const Json* text = delta.find("reasoning_content")) out.reasoning += text->as_string();
      if (const Json* text = delta.find("content")) out.content += text->as_string();
      if (const Json* calls = delta.find("tool_calls")) {
        for (const Json& news : calls->items()) {
          const auto index = static_cast<size_t>(news.find("index")->as_int());
          if (index >= out.calls.size()) out.calls.resize(index + 1);
          const Json& function = *news.find("function");
          if (const Json* id = news.find("id")) out.calls[index].id += id->as_string();
          if (const Json* name = function.find("name")) out.calls[index].name += name->as_string();
          out.calls[index].arguments += function.find("arguments")->as_string();
        }
      }
      if (const Json* logprobs = choice.find("logprobs")) out.logprobs += items_of(*logprobs);
      if (const Json* reason = choice.find("finish_reason"); !reason->is_null()) {
        out.finish += reason->as_string();
      }
    }
  }
  return all;
}

// The events of an answer, cut at random; the same seed and another cut say the same.
std::vector<ChoiceDelta> random_deltas(uint64_t seed, uint64_t cut, int num_choices) {
  Rng text_rng(seed);
  Rng cut_rng(cut);
  std::vector<std::vector<ChoiceDelta>> of_choice(static_cast<size_t>(num_choices));
  const auto pieces = [&](const std::string& whole, const auto& put) {
    size_t at = 0;
    while (at < whole.size()) {
      const size_t size = std::min<size_t>(1 + cut_rng.next_below(4), whole.size() - at);
      put(whole.substr(at, size));
      at += size;
    }
  };
  const auto random_text = [&] {
    std::string text;
    for (uint32_t i = text_rng.next_below(12); i > 0; --i)
      text += static_cast<char>('"' + text_rng.next_below(90));
    return text;
  };
  for (int c = 0; c < num_choices; ++c) {
    auto& out = of_choice[static_cast<size_t>(c)];
    const std::string thought = random_text();
    const std::string said = random_text();
    pieces(thought, [&](std::string piece) {
      out.push_back(reasoning_delta(std::move(piece)));
      out.back().choice = c;
    });
    pieces(said, [&](std::string piece) { out.push_back(content_delta(std::move(piece), c)); });
    const auto num_calls = static_cast<int>(text_rng.next_below(3));
    for (int i = 0; i < num_calls; ++i) {
      out.push_back(call_delta(i, str_cat("f", i), ""));
      out.back().choice = c;
      pieces(random_text(), [&](std::string piece) {
        out.push_back(call_delta(i, "", std::move(piece)));
        out.back().choice = c;
      });
    }
    // Tokens come with any piece, in order.
    for (int t = 0; t < 5 && !out.empty(); ++t)
      out[out.size() * static_cast<size_t>(t) / 5].tokens.push_back(
          {.token = 100 + t, .logprob = -1.0f, .top_logprobs = {}});
  }
  std::vector<ChoiceDelta> mixed;
  std::vector<size_t> next(of_choice.size());
  const auto left = [&](size_t c) { return next[c] < of_choice[c].size(); };
  for (;;) {
    std::vector<size_t> open;
    for (size_t c = 0; c < next.size(); ++c) {
      if (left(c)) open.push_back(c);
    }
    if (open.empty()) return mixed;
    const size_t c = open[cut_rng.next_below(static_cast<uint32_t>(open.size()))];
    mixed.push_back(of_choice[c][next[c]++]);
  }
}

TEST(ChatWriter, AStreamAddsUpToTheWholeHoweverItIsCut) {
  constexpr int kChoices = 2;
  for (uint64_t seed = 0; seed < 300; ++seed) {
    ChatStyle style = style_of(false);
    style.num_choices = kChoices;
    style.reply.logprobs = true;
    Bench whole(style);
    style.reply.stream = true;
    Bench stream(style);
    const auto run = [&](Bench& r, uint64_t cut) {
      r.writer.begin(kTestUsage, nullptr);
      for (const ChoiceDelta& delta : random_deltas(seed, cut, kChoices))
        r.writer.delta(delta);
      for (int c = 0; c < kChoices; ++c)
        r.writer.finish({.choice = c, .finish = FinishReason::kLength});
      r.writer.end(kTestUsage, {});
    };
    run(whole, 2 * seed);
    run(stream, 2 * seed + 1);

    const std::vector<Gathered> gathered = gather(*stream.exchange, kChoices);
    const Json reply = *parse_json(whole.exchange->body, {}, "reply");
    for (size_t c = 0; c < kChoices; ++c) {
      const Json& choice = reply.find("choices")->items()[c];
      const Json& message = *choice.find("message");
      const Json* thought = message.find("reasoning_content");
      const Json* calls = message.find("tool_calls");
      const Json& said = *message.find("content");
      EXPECT_EQ(gathered[c].reasoning, thought == nullptr ? "" : thought->as_string())
          << "seed " << seed;
      EXPECT_EQ(gathered[c].content, said.is_null() ? "" : said.as_string()) << "seed " << seed;
      EXPECT_EQ(gathered[c].logprobs, items_of(*choice.find("logprobs"))) << "seed " << seed;
      EXPECT_EQ(gathered[c].finish, "length") << "seed " << seed;
      ASSERT_EQ(gathered[c].calls.size(), calls == nullptr ? 0 : calls->items().size());
      for (size_t i = 0; i < gathered[c].calls.size(); ++i) {
        const Json& function = *calls->items()[i].find("function");
        EXPECT_EQ(gathered[c].calls[i].name, function.find("name")->as_string());
        EXPECT_EQ(gathered[c].calls[i].arguments, function.find("arguments")->as_string());
        EXPECT_TRUE(gathered[c].calls[i].id.starts_with("call_"));
      }
    }
  }
}

}  // namespace
}  // namespace fathom::serve
