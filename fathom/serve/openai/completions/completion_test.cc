#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "fathom/base/rng.h"
#include "fathom/serve/answer/reply_form.h"
#include "fathom/serve/openai/completions/completion_request.h"
#include "fathom/serve/openai/completions/completion_writer.h"
#include "tests/support/fake_exchange.h"
#include "tests/support/test_server.h"

namespace fathom::serve {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

const TestServer& server() {
  static const TestServer* const made = new TestServer;
  return *made;
}

CompletionRequest parse(std::string_view body) {
  auto parsed = parse_completion_request(post_of(std::string(body)), server().model, "key");
  if (const auto* error = std::get_if<ApiError>(&parsed)) {
    ADD_FAILURE() << error->message;
    return {};
  }
  return std::move(std::get<CompletionRequest>(parsed));
}

ApiError refusal(std::string_view body, const ServedModel& model = server().model) {
  auto parsed = parse_completion_request(post_of(std::string(body)), model, "key");
  const auto* error = std::get_if<ApiError>(&parsed);
  return error != nullptr ? *error
                          : ApiError{.status = 200, .code = {}, .message = {}, .param = {}};
}

std::vector<int32_t> ids_of(std::string_view text) {
  return server().tokenizer.encode(text);
}

std::vector<int32_t> joined(std::initializer_list<std::vector<int32_t>> parts) {
  std::vector<int32_t> all;
  for (const auto& part : parts)
    all.insert(all.end(), part.begin(), part.end());
  return all;
}

TEST(CompletionRequest, EachFormOfAPromptBecomesIds) {
  const std::vector<int32_t> bos = {*server().tokenizer.bos_id()};
  const auto text = joined({bos, ids_of("Once upon")});

  EXPECT_EQ(parse(R"({"prompt":"Once upon"})").answers[0].request.prompt, text);
  EXPECT_EQ(parse(R"({"prompt":"Once upon","add_special_tokens":false})").answers[0].request.prompt,
            ids_of("Once upon"));
  const CompletionRequest two = parse(R"({"prompt":["Once upon","a"],"n":2})");
  ASSERT_EQ(two.answers.size(), 2u);
  EXPECT_EQ(two.answers[0].request.prompt, text);
  EXPECT_EQ(two.answers[1].request.prompt, joined({bos, ids_of("a")}));
  EXPECT_EQ(two.answers[1].num_choices, 2);
  EXPECT_EQ(two.style.num_prompts, 2);
  EXPECT_THAT(parse(R"({"prompt":[5,6]})").answers[0].request.prompt, ElementsAre(5, 6));
  const CompletionRequest lists = parse(R"({"prompt":[[5,6],[7]]})");
  EXPECT_THAT(lists.answers[0].request.prompt, ElementsAre(5, 6));
  EXPECT_THAT(lists.answers[1].request.prompt, ElementsAre(7));
  EXPECT_EQ(parse(R"({"prompt":""})").answers[0].request.prompt, bos);
}

TEST(CompletionRequest, TextNeverBecomesAControlToken) {
  const auto prompt = parse(R"({"prompt":"<｜User｜></think>"})").answers[0].request.prompt;

  for (size_t i = 1; i < prompt.size(); ++i)
    EXPECT_FALSE(server().tokenizer.is_added(prompt[i]));
}

TEST(CompletionRequest, ASuffixFillsInTheMiddle) {
  const auto prompt =
      parse(R"({"prompt":"a<｜fim▁hole｜>","suffix":"b"})").answers[0].request.prompt;

  EXPECT_EQ(prompt, joined({{*server().tokenizer.bos_id(), server().id("<｜fim▁begin｜>")},
                            ids_of("a<｜fim▁hole｜>"),
                            {server().id("<｜fim▁hole｜>")},
                            ids_of("b"),
                            {server().id("<｜fim▁end｜>")}}));
  EXPECT_EQ(refusal(R"({"prompt":[1],"suffix":"b"})").param, "suffix");
}

TEST(CompletionRequest, ASuffixNeedsTheTokens) {
  const auto plain = Tokenizer::load(FATHOM_SOURCE_DIR "/tests/golden/tokenizer/tiny-v3");
  ServedModel model = server().model;
  model.tokenizer = &*plain;

  const ApiError error = refusal(R"({"prompt":"a","suffix":"b"})", model);

  EXPECT_EQ(error.code, "unsupported_parameter");
  EXPECT_EQ(error.param, "suffix");
}

TEST(CompletionRequest, EchoAsksForThePromptsLogprobs) {
  const auto asked = [](std::string_view fields) {
    return parse(str_cat(R"({"prompt":"a",)", fields, "}")).answers[0].request.prompt_logprobs;
  };
  EXPECT_EQ(asked(R"("logprobs":2)"), -1);
  EXPECT_EQ(asked(R"("echo":true)"), -1);
  EXPECT_EQ(asked(R"("echo":true,"logprobs":0)"), 0);
  EXPECT_EQ(asked(R"("echo":true,"logprobs":2)"), 2);
  EXPECT_EQ(asked(R"("prompt_logprobs":5,"echo":true,"logprobs":2)"), 5);
}

TEST(CompletionRequest, TheRestIsRead) {
  const CompletionRequest request = parse(
      R"({"prompt":"a","model":"alias","max_tokens":3,"temperature":0.5,"logprobs":4,"stream":true,)"
      R"("stream_options":{"include_usage":true,"continuous_usage_stats":true},"cache_salt":"s",)"
      R"("guided_regex":"a+"})");

  const AnswerSpec& spec = request.answers[0];
  EXPECT_EQ(spec.request.sampling.max_tokens, 3);
  EXPECT_EQ(spec.request.sampling.temperature, 0.5f);
  EXPECT_EQ(spec.request.sampling.top_logprobs, 4);
  EXPECT_EQ(spec.request.cache_salt, "3:key1:s0:");
  EXPECT_NE(spec.constraint, nullptr);
  EXPECT_FALSE(spec.grammar.has_value());
  EXPECT_TRUE(request.style.reply.stream);
  EXPECT_TRUE(request.style.reply.include_usage);
  EXPECT_TRUE(request.style.reply.continuous_usage);
  EXPECT_EQ(request.style.reply.model, "alias");
  EXPECT_THAT(request.style.reply.id, testing::MatchesRegex("cmpl-[0-9a-f]+"));
  EXPECT_EQ(request.style.reply.id.size(), 5u + 24u);
}

CompletionStyle style_of(bool stream) {
  CompletionStyle style;
  style.reply = {.id = "cmpl-1",
                 .model = "deep",
                 .system_fingerprint = "fp_1",
                 .created_s = 7,
                 .tokenizer = &server().tokenizer,
                 .stream = stream};
  return style;
}

struct Bench {
  explicit Bench(CompletionStyle style)
      : exchange(FakeExchange::post("/v1/completions", "{}")), writer(exchange, std::move(style)) {}

  std::shared_ptr<FakeExchange> exchange;
  CompletionWriter writer;
};

ChoiceDelta text(std::string content, int choice = 0) {
  ChoiceDelta delta{.choice = choice};
  delta.parts.content = std::move(content);
  return delta;
}

constexpr AnswerUsage kUsage{.prompt_tokens = 3, .completion_tokens = 2};
constexpr std::string_view kUsageJson =
    R"({"prompt_tokens":3,"completion_tokens":2,"total_tokens":5,)"
    R"("prompt_tokens_details":{"cached_tokens":0,"cache_write_tokens":3},)"
    R"("completion_tokens_details":{"reasoning_tokens":0,"accepted_prediction_tokens":0},)"
    R"("prompt_cache_hit_tokens":0,"prompt_cache_miss_tokens":3})";
constexpr std::string_view kHead =
    R"({"id":"cmpl-1","object":"text_completion","created":7,"model":"deep",)"
    R"("system_fingerprint":"fp_1","choices":[)";

TEST(CompletionWriter, RepliesWholeByteForByte) {
  CompletionStyle style = style_of(false);
  style.num_prompts = 2;
  Bench bench(style);

  bench.writer.begin(kUsage, nullptr);
  bench.writer.delta(text("y", 1));
  bench.writer.delta(text("x", 0));
  bench.writer.finish({.choice = 1, .finish = FinishReason::kLength});
  bench.writer.finish({.choice = 0, .stop_text = "."});
  bench.writer.end(kUsage, {});

  EXPECT_EQ(bench.exchange->body,
            str_cat(kHead,
                    R"({"index":0,"text":"x","logprobs":null,"finish_reason":"stop",)"
                    R"("stop_reason":"."},)",
                    R"({"index":1,"text":"y","logprobs":null,"finish_reason":"length"}],"usage":)",
                    kUsageJson, "}"));
}

TEST(CompletionWriter, StreamsByteForByte) {
  CompletionStyle style = style_of(true);
  style.reply.include_usage = true;
  Bench bench(style);

  bench.writer.begin(kUsage, nullptr);
  bench.writer.delta(text("x"));
  bench.writer.delta(text(""));
  bench.writer.delta(text("y"));
  bench.writer.finish({});
  bench.writer.end(kUsage, {});

  const auto chunk = [](std::string_view of_text, std::string_view reason) {
    return str_cat("data: ", kHead, R"({"index":0,"text":")", of_text,
                   R"(","logprobs":null,"finish_reason":)", reason, "}]}\n\n");
  };
  EXPECT_THAT(bench.exchange->pieces,
              ElementsAre(chunk("x", "null"), chunk("y", "null"), chunk("", "\"stop\""),
                          str_cat("data: ", kHead, R"(],"usage":)", kUsageJson, "}\n\n"),
                          "data: [DONE]\n\n"));
}

TEST(CompletionWriter, ErrorsAreRepliesOrEvents) {
  Bench early(style_of(true));
  early.writer.fail(bad_value("n", "n: bad"));
  EXPECT_EQ(early.exchange->head.status, 400);
  EXPECT_FALSE(early.exchange->streamed);

  Bench late(style_of(true));
  late.writer.begin(kUsage, nullptr);
  late.writer.fail(api_error(FinishReason::kRequestTimeout));
  EXPECT_THAT(late.exchange->pieces,
              ElementsAre(HasSubstr("data: {\"error\":{\"message\":"), "data: [DONE]\n\n"));
  EXPECT_TRUE(late.exchange->ended());
}

int32_t id_of(std::string_view token) {
  return server().tokenizer.token_to_id(token).value_or(-1);
}

TEST(CompletionWriter, LogprobsStandSideBySideWithOffsets) {
  CompletionStyle style = style_of(false);
  style.reply.logprobs = true;
  style.top_logprobs = 1;
  style.prompts = {
      {.text = "a", .tokens = {*server().tokenizer.bos_id(), id_of("a")}, .hidden_bos = true}};
  Bench bench(style);
  const std::vector<PromptLogprobs> prompt = {
      {.token = {id_of("a"), -2.0f}, .rank = 2, .top = {{id_of("b"), -0.5f}, {id_of("c"), -1.0f}}}};

  bench.writer.begin(kUsage, &prompt);
  ChoiceDelta delta = text("bc");
  delta.tokens = {{.token = id_of("b"), .logprob = -0.25f, .top_logprobs = {{id_of("b"), -0.25f}}},
                  {.token = id_of("c"), .logprob = -3.0f, .top_logprobs = {{id_of("a"), -0.1f}}}};
  bench.writer.delta(delta);
  bench.writer.finish({});
  bench.writer.end(kUsage, {});

  EXPECT_THAT(
      bench.exchange->body,
      HasSubstr(R"("text":"abc","logprobs":{"tokens":["<｜begin▁of▁sentence｜>","a","b","c"],)"
                R"("token_logprobs":[null,-2.0,-0.25,-3.0],)"
                R"("top_logprobs":[null,{"b":-0.5,"a":-2.0},{"b":-0.25},)"
                R"({"a":-0.10000000149011612,"c":-3.0}],"text_offset":[0,0,1,2]})"));
}

TEST(CompletionWriter, OffsetsCountCharacters) {
  CompletionStyle style = style_of(false);
  style.reply.logprobs = true;
  Bench bench(style);
  ChoiceDelta delta = text("ö深b");
  for (const int32_t id : ids_of("ö深b"))
    delta.tokens.push_back({.token = id, .logprob = -1.0f, .top_logprobs = {}});

  bench.writer.begin(kUsage, nullptr);
  bench.writer.delta(delta);
  bench.writer.finish({});
  bench.writer.end(kUsage, {});

  const Json reply = *parse_json(bench.exchange->body, {}, "reply");
  const Json& logprobs = *reply.find("choices")->items()[0].find("logprobs");
  const auto& offsets = logprobs.find("text_offset")->items();
  ASSERT_GE(offsets.size(), 3u);
  EXPECT_EQ(offsets.front().as_int(), 0);
  EXPECT_EQ(offsets.back().as_int(), 2);
  for (size_t i = 1; i < offsets.size(); ++i)
    EXPECT_LE(offsets[i - 1].as_int(), offsets[i].as_int());
}

TEST(CompletionWriter, EachPromptIsEchoedBeforeItsChoices) {
  CompletionStyle style = style_of(false);
  style.num_prompts = 2;
  style.num_choices = 2;
  style.reply.logprobs = true;
  style.prompts = {{.text = "a", .tokens = {5, 6}}, {.text = "b", .tokens = {7, 8}}};
  Bench bench(style);
  const std::vector<PromptLogprobs> first = {{.token = {6, -1.0f}, .rank = 1, .top = {}}};
  const std::vector<PromptLogprobs> second = {{.token = {8, -2.0f}, .rank = 1, .top = {}}};

  bench.writer.begin(kUsage, nullptr);
  for (int c = 0; c < 4; ++c) {
    ChoiceDelta delta = text(str_cat(c), c);
    delta.prompt_logprobs = c < 2 ? &first : &second;
    bench.writer.delta(delta);
    bench.writer.finish({.choice = c});
  }
  bench.writer.end(kUsage, {});

  const Json reply = *parse_json(bench.exchange->body, {}, "reply");
  const std::vector<std::string> texts = {"a0", "a1", "b2", "b3"};
  for (size_t c = 0; c < 4; ++c) {
    const Json& choice = reply.find("choices")->items()[c];
    EXPECT_EQ(choice.find("text")->as_string(), texts[c]);
    EXPECT_EQ(choice.find("logprobs")->find("token_logprobs")->items()[1].as_double(),
              c < 2 ? -1.0 : -2.0);
  }
}

TEST(CompletionWriter, ChoicesOfAPromptShareWhatIsKnownOfIt) {
  CompletionStyle style = style_of(false);
  style.num_choices = 2;
  style.reply.logprobs = style.reply.prompt_logprobs = true;
  style.prompts = {{.text = "a", .tokens = {5, 6}}};
  Bench bench(style);
  const std::vector<PromptLogprobs> known = {{.token = {6, -1.0f}, .rank = 1, .top = {}}};

  bench.writer.begin(kUsage, nullptr);
  ChoiceDelta first = text("0", 0);
  first.prompt_logprobs = &known;
  bench.writer.delta(first);
  bench.writer.delta(text("1", 1));
  bench.writer.finish({.choice = 0});
  bench.writer.finish({.choice = 1});
  bench.writer.end(kUsage, {});

  const Json reply = *parse_json(bench.exchange->body, {}, "reply");
  for (const Json& choice : reply.find("choices")->items()) {
    EXPECT_EQ(choice.find("logprobs")->find("token_logprobs")->items()[1].as_double(), -1.0);
    EXPECT_EQ(choice.find("prompt_logprobs")->items().size(), 2u);
  }
}

TEST(CompletionWriter, AStreamAddsUpToTheWholeHoweverItIsCut) {
  for (uint64_t seed = 0; seed < 200; ++seed) {
    std::string texts[2];
    const std::string whole_text = "Once upon a time, ö 深度 求索 \"quoted\"\n";
    std::string lists[2];
    for (const bool stream : {false, true}) {
      CompletionStyle style = style_of(stream);
      style.reply.logprobs = true;
      style.prompts = {{.text = "p", .tokens = {id_of("p")}}};
      Bench bench(style);
      Rng rng(2 * seed + (stream ? 1 : 0));
      bench.writer.begin(kUsage, nullptr);
      size_t token = 0;
      const auto ids = ids_of(whole_text);
      for (size_t at = 0; at < whole_text.size();) {
        size_t end = std::min<size_t>(at + 1 + rng.next_below(6), whole_text.size());
        while (end < whole_text.size() && (whole_text[end] & 0xC0) == 0x80)
          ++end;
        ChoiceDelta delta = text(whole_text.substr(at, end - at));
        for (uint32_t i = rng.next_below(3); i > 0 && token < ids.size(); --i)
          delta.tokens.push_back({.token = ids[token++], .logprob = -1.0f, .top_logprobs = {}});
        bench.writer.delta(delta);
        at = end;
      }
      ChoiceDelta rest = text("");
      while (token < ids.size())
        rest.tokens.push_back({.token = ids[token++], .logprob = -1.0f, .top_logprobs = {}});
      bench.writer.delta(rest);
      bench.writer.finish({});
      bench.writer.end(kUsage, {});

      std::vector<std::string> documents = {bench.exchange->body};
      if (stream) documents = bench.exchange->pieces;
      for (std::string_view document : documents) {
        if (document == kDoneEvent) break;
        if (stream) document.remove_prefix(6);
        const Json json = *parse_json(document, {}, "reply");
        const Json& choice = json.find("choices")->items()[0];
        texts[stream] += choice.find("text")->as_string();
        for (const char* list : {"tokens", "text_offset"}) {
          for (const Json& item : choice.find("logprobs")->find(list)->items())
            lists[stream] += list[1] == 'o' ? dump_json(item) : str_cat("@", item.as_int());
        }
      }
    }

    EXPECT_EQ(texts[0], "p" + whole_text);
    EXPECT_EQ(texts[1], texts[0]) << "seed " << seed;
    EXPECT_EQ(std::ranges::count(lists[1], '@'), std::ranges::count(lists[0], '@'));
  }
}

}  // namespace
}  // namespace fathom::serve
