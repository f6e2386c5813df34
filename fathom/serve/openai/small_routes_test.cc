#include "fathom/serve/openai/small_routes.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "fathom/serve/openai/chat/chat_request.h"
#include "fathom/serve/openai/completions/completion_request.h"
#include "tests/support/test_server.h"

namespace fathom::serve {
namespace {

using testing::HasSubstr;

TestServer& server() {
  static TestServer* const made = new TestServer;
  return *made;
}

constexpr std::string_view kChat =
    R"({"messages":[{"role":"system","content":"s"},{"role":"user","content":"hi"}],)"
    R"("tools":[{"type":"function","function":{"name":"f"}}],"thinking":{"type":"disabled"}})";

std::string ids_json(const std::vector<int32_t>& ids) {
  std::string list;
  for (const int32_t id : ids)
    list += str_cat(list.empty() ? "" : ",", id);
  return str_cat("[", list, "]");
}

std::vector<int32_t> chat_ids(std::string_view body) {
  const auto parsed = parse_chat_request(post_of(std::string(body)), server().model, "");
  return std::get<ChatRequest>(parsed).answer.request.prompt;
}

TEST(SmallRoutes, ListsModelsByteForByte) {
  ServedModel model = server().model;
  model.names = {"deep"};
  model.num_params = 5;
  model.weight_bytes = 6;
  model.formats = {"nvfp4", "bf16"};

  const std::string entry =
      R"({"id":"deep","object":"model","created":1700000000,"owned_by":"fathom","root":"deep",)"
      R"("parent":null,"max_model_len":4000,"meta":{"params":5,"bytes":6,)"
      R"("formats":["nvfp4","bf16"],"vocab":4130}})";
  EXPECT_EQ(
      list_models(model).body,
      str_cat(R"({"object":"list","data":[)", entry, R"(],"models":[{"name":"deep",)",
              R"("model":"deep","capabilities":["completion","chat","tools","thinking"]}]})"));
  EXPECT_EQ(show_model(model, "deep").body, entry);
}

TEST(SmallRoutes, EveryNameIsAModel) {
  EXPECT_EQ(show_model(server().model, "alias").status, 200);
  EXPECT_THAT(show_model(server().model, "alias").body, HasSubstr(R"("id":"alias")"));
  EXPECT_THAT(list_models(server().model).body, HasSubstr(R"("id":"alias")"));
  EXPECT_EQ(show_model(server().model, "other").status, 404);
  EXPECT_THAT(show_model(server().model, "other").body, HasSubstr("model_not_found"));
}

TEST(SmallRoutes, CapabilitiesFollowTheFormat) {
  ServedModel model = server().model;
  model.chat_format = &chat_v2();
  EXPECT_THAT(list_models(model).body, HasSubstr(R"("capabilities":["completion","chat"])"));
  model.chat_format = nullptr;
  EXPECT_THAT(list_models(model).body, HasSubstr(R"("capabilities":["completion"])"));
}

TEST(SmallRoutes, TokenizesTexts) {
  const auto ids = server().tokenizer.encode("Once upon", {.add_bos = AddBos::kYes});

  EXPECT_EQ(tokenize(post_of(R"({"prompt":"Once upon"})"), server().model).body,
            str_cat(R"({"count":)", ids.size(), R"(,"max_model_len":4000,"tokens":)", ids_json(ids),
                    "}"));
  const auto with =
      tokenize(post_of(R"({"prompt":"a","add_special_tokens":false,"return_token_strs":true})"),
               server().model);
  EXPECT_THAT(with.body, HasSubstr(R"("count":1,)"));
  EXPECT_THAT(with.body, HasSubstr(R"("token_strs":["a"]})"));
}

TEST(SmallRoutes, TokenizesChatsAsTheRealRouteDoes) {
  const auto ids = chat_ids(kChat);

  EXPECT_EQ(tokenize(post_of(std::string(kChat)), server().model).body,
            str_cat(R"({"count":)", ids.size(), R"(,"max_model_len":4000,"tokens":)", ids_json(ids),
                    "}"));
}

TEST(SmallRoutes, StrictServersKnowTheFieldsOfTokenizing) {
  ServedModel strict = server().model;
  strict.strict_api = true;
  const std::string chat(kChat.substr(0, kChat.size() - 1));
  const auto body_of = [&](std::string_view begin, std::string_view more) {
    return tokenize(post_of(str_cat(begin, ",", more, "}")), strict).body;
  };
  const std::string_view known =
      R"("model":"deep","return_token_strs":true,"add_special_tokens":false)";

  for (const std::string_view begin :
       {std::string_view(chat), std::string_view(R"({"prompt":"a")")}) {
    EXPECT_THAT(body_of(begin, known), HasSubstr(R"("token_strs":[)")) << begin;
    EXPECT_THAT(body_of(begin, R"("unheard_of":1)"), HasSubstr(R"("param":"unheard_of")"));
    EXPECT_THAT(body_of(begin, R"("add_special_tokens":1)"),
                HasSubstr(R"("param":"add_special_tokens")"));
  }
  EXPECT_THAT(body_of(chat, R"("chat_template_kwargs":{},"add_generation_prompt":true)"),
              HasSubstr(R"("tokens":[)"));
  EXPECT_THAT(detokenize(post_of(R"({"model":"deep","tokens":[5],"unheard_of":1})"), strict).body,
              HasSubstr(R"("param":"unheard_of")"));
}

TEST(SmallRoutes, DetokenizesWhatItTokenized) {
  const auto ids = server().tokenizer.encode("Once upon a time, ö");

  EXPECT_EQ(detokenize(post_of(str_cat(R"({"tokens":)", ids_json(ids), "}")), server().model).body,
            R"({"prompt":"Once upon a time, ö"})");
  EXPECT_EQ(detokenize(post_of(R"({"tokens":[]})"), server().model).body, R"({"prompt":""})");
}

TEST(SmallRoutes, WithoutATokenizerThereAreIdsAlone) {
  ServedModel model = server().model;
  model.tokenizer = nullptr;
  const auto render = [&](const char* body) { return render_completion(post_of(body), model); };

  EXPECT_EQ(render(R"({"prompt":[1,2]})").body, R"([{"token_ids":[1,2]}])");
  EXPECT_EQ(tokenize(post_of(R"({"prompt":[7]})"), model).status, 200);
  for (const HttpReply& refused :
       {render(R"({"prompt":"x"})"), render(R"({"prompt":[1],"suffix":"x"})"),
        render(R"({"prompt":[1],"logprobs":1})"), render(R"({"prompt":[1],"prompt_logprobs":1})"),
        tokenize(post_of(R"({"prompt":[1],"return_token_strs":true})"), model),
        detokenize(post_of(R"({"tokens":[1]})"), model)}) {
    EXPECT_EQ(refused.status, 400);
    EXPECT_THAT(refused.body, HasSubstr("the model has no tokenizer"));
  }
}

TEST(SmallRoutes, RendersWhatTheRealRoutesRun) {
  EXPECT_EQ(render_chat(post_of(std::string(kChat)), server().model).body,
            str_cat(R"({"token_ids":)", ids_json(chat_ids(kChat)), "}"));
  const std::string body = R"({"prompt":["a","Once upon"],"max_tokens":1})";
  const auto parsed = parse_completion_request(post_of(body), server().model, "");
  const auto& answers = std::get<CompletionRequest>(parsed).answers;
  EXPECT_EQ(render_completion(post_of(body), server().model).body,
            str_cat(R"([{"token_ids":)", ids_json(answers[0].request.prompt), R"(},{"token_ids":)",
                    ids_json(answers[1].request.prompt), "}]"));
}

TEST(SmallRoutes, CountsWhatTheRealRouteCounts) {
  EXPECT_EQ(count_chat_tokens(post_of(std::string(kChat)), server().model).body,
            str_cat(R"({"object":"chat.completion.input_tokens","input_tokens":)",
                    chat_ids(kChat).size(), "}"));
}

TEST(SmallRoutes, MistakesAreNamed) {
  const ServedModel& model = server().model;
  EXPECT_THAT(detokenize(post_of("{}"), model).body, HasSubstr(R"("param":"tokens")"));
  EXPECT_THAT(detokenize(post_of(R"({"tokens":[0,4130]})"), model).body,
              HasSubstr("tokens[1]: found 4130, expected a token id from 0 to 4129"));
  EXPECT_THAT(detokenize(post_of(R"({"tokens":"a"})"), model).body, HasSubstr("found a string"));
  EXPECT_THAT(tokenize(post_of("{}"), model).body, HasSubstr(R"("param":"prompt")"));
  EXPECT_THAT(tokenize(post_of(R"({"prompt":["a","b"]})"), model).body,
              HasSubstr("found 2 prompts"));
  EXPECT_THAT(tokenize(post_of(R"({"prompt":"a","model":"x"})"), model).body,
              HasSubstr("model_not_found"));
  EXPECT_THAT(render_chat(post_of("{}"), model).body, HasSubstr(R"("param":"messages")"));
  EXPECT_THAT(count_chat_tokens(post_of("["), model).body, HasSubstr("invalid_json"));
  for (const HttpReply& reply :
       {detokenize(post_of("{}"), model), tokenize(post_of("{}"), model),
        render_chat(post_of("{}"), model), render_completion(post_of("{}"), model)}) {
    EXPECT_EQ(reply.status, 400);
  }
}

}  // namespace
}  // namespace fathom::serve
