// Every limit of a request's fields: at 0, 1, the largest, one more, absent, null and of the wrong
// kind. A refusal names the field.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "fathom/serve/openai/chat/chat_request.h"
#include "fathom/serve/openai/completions/completion_request.h"
#include "fathom/tokenizer/chat/chat_json.h"
#include "tests/support/test_server.h"

namespace fathom::serve {
namespace {

using testing::HasSubstr;
using testing::StartsWith;

const TestServer& server() {
  static const TestServer* const made = new TestServer;
  return *made;
}

constexpr std::string_view kMessages = R"("messages":[{"role":"user","content":"hi"}])";

// The field that a chat request with these fields is refused for; empty: it is taken.
std::string refused(std::string_view fields, const ServedModel& model = server().model) {
  const bool has_messages = fields.find("\"messages\"") != fields.npos;
  const std::string body = str_cat("{", has_messages ? "" : kMessages,
                                   has_messages || fields.empty() ? "" : ",", fields, "}");
  const auto parsed = parse_chat_request(post_of(body), model, "");
  const auto* error = std::get_if<ApiError>(&parsed);
  if (error == nullptr) return "";
  EXPECT_EQ(error->status, 400) << body;
  EXPECT_FALSE(error->message.empty());
  return error->param.empty() ? error->message : error->param;
}

std::string refused_completion(std::string_view fields) {
  const auto parsed =
      parse_completion_request(post_of(str_cat("{", fields, "}")), server().model, "");
  const auto* error = std::get_if<ApiError>(&parsed);
  if (error == nullptr) return "";
  EXPECT_EQ(error->status, 400) << fields;
  return error->param.empty() ? error->message : error->param;
}

struct Range {
  std::string field;
  std::vector<std::string> good;
  std::vector<std::string> bad;
};

const std::vector<Range>& number_ranges() {
  static const std::vector<Range> ranges = {
      {"temperature", {"0", "1", "2", "0.5"}, {"-0.001", "2.001", "1e999"}},
      {"top_p", {"0.001", "1"}, {"0", "1.001", "-1"}},
      {"min_p", {"0", "1"}, {"-0.1", "1.1"}},
      {"top_k", {"-1", "0", "1", "4130"}, {"-2", "4131", "1.5"}},
      {"presence_penalty", {"-2", "0", "1", "2"}, {"-2.1", "2.1"}},
      {"frequency_penalty", {"-2", "0", "1", "2"}, {"-2.1", "2.1"}},
      {"repetition_penalty", {"0.1", "1", "10"}, {"0", "10.1", "-1"}},
      {"max_tokens", {"1", "2", "100"}, {"0", "-1", "2147483648", "9223372036854775808"}},
      {"max_completion_tokens", {"1", "100"}, {"0", "-1", "4000"}},
      {"min_tokens", {"0", "1", "100"}, {"-1", "4001"}},
      {"n", {"1", "2", "16", "1.0"}, {"0", "17", "-1", "2147483648", "1.5"}},
      {"best_of", {"1"}, {"0", "2", "17"}},
      {"prompt_logprobs", {"0", "1", "20"}, {"-1", "21", "-2"}},
      {"seed", {"0", "1", "-1", "9223372036854775807"}, {"9223372036854775808", "0.5"}},
  };
  return ranges;
}

TEST(RequestLimits, NumbersAreTakenUpToTheirBorders) {
  for (const Range& range : number_ranges()) {
    for (const std::string& value : range.good)
      EXPECT_EQ(refused(str_cat("\"", range.field, "\":", value)), "")
          << range.field << " = " << value;
  }
}

TEST(RequestLimits, NumbersBeyondAreRefusedByName) {
  for (const Range& range : number_ranges()) {
    for (const std::string& value : range.bad) {
      const std::string why = refused(str_cat("\"", range.field, "\":", value));
      // Numbers that no JSON reader takes are refused with the body.
      const bool is_number = value != "1e999";
      EXPECT_TRUE(is_number ? why == range.field : why.starts_with("request body"))
          << range.field << " = " << value << ": " << why;
    }
  }
}

TEST(RequestLimits, NullIsAbsentAndOtherKindsAreRefused) {
  for (const Range& range : number_ranges()) {
    EXPECT_EQ(refused(str_cat("\"", range.field, "\":null")), "") << range.field;
    for (const std::string_view value : {"\"1\"", "true", "[]", "{}"})
      EXPECT_EQ(refused(str_cat("\"", range.field, "\":", value)), range.field) << value;
  }
}

TEST(RequestLimits, SwitchesAreBooleans) {
  for (const std::string_view field : {"stream", "logprobs", "ignore_eos", "timings",
                                       "parallel_tool_calls", "echo", "add_generation_prompt"}) {
    for (const std::string_view value : {"true", "false", "null"})
      EXPECT_EQ(refused(str_cat("\"", field, "\":", value)), "") << field << value;
    for (const std::string_view value : {"0", "\"true\"", "[]", "{}"})
      EXPECT_EQ(refused(str_cat("\"", field, "\":", value)), field) << value;
  }
}

TEST(RequestLimits, TopLogprobsNeedLogprobs) {
  for (const std::string_view value : {"0", "1", "20"})
    EXPECT_EQ(refused(str_cat(R"("logprobs":true,"top_logprobs":)", value)), "");
  EXPECT_EQ(refused(R"("logprobs":true,"top_logprobs":21)"), "top_logprobs");
  EXPECT_EQ(refused(R"("logprobs":true,"top_logprobs":-1)"), "top_logprobs");
  EXPECT_EQ(refused(R"("top_logprobs":0)"), "");
  EXPECT_EQ(refused(R"("top_logprobs":1)"), "top_logprobs");
  EXPECT_EQ(refused(R"("prompt_logprobs":1,"stream":true)"), "prompt_logprobs");
}

std::string texts(size_t count, size_t bytes) {
  std::string list;
  for (size_t i = 0; i < count; ++i)
    list += str_cat(i == 0 ? "\"" : ",\"", std::string(bytes, 'x'), "\"");
  return str_cat("[", list, "]");
}

std::string numbers(size_t count, int64_t first) {
  std::string list;
  for (size_t i = 0; i < count; ++i)
    list += str_cat(i == 0 ? "" : ",", first + static_cast<int64_t>(i));
  return str_cat("[", list, "]");
}

TEST(RequestLimits, StopStringsAreFewAndShort) {
  EXPECT_EQ(refused(R"("stop":"x")"), "");
  EXPECT_EQ(refused(R"("stop":[])"), "");
  EXPECT_EQ(refused(R"("stop":null)"), "");
  EXPECT_EQ(refused(str_cat("\"stop\":", texts(16, 1024))), "");
  EXPECT_EQ(refused(str_cat("\"stop\":", texts(17, 1))), "stop");
  EXPECT_EQ(refused(str_cat("\"stop\":", texts(1, 1025))), "stop[0]");
  EXPECT_EQ(refused(R"("stop":"")"), "stop");
  EXPECT_EQ(refused(R"("stop":["a",1])"), "stop[1]");
  EXPECT_EQ(refused(R"("stop":1)"), "stop");
}

TEST(RequestLimits, StopIdsAreInTheVocabulary) {
  EXPECT_EQ(refused(R"("stop_token_ids":[])"), "");
  EXPECT_EQ(refused(R"("stop_token_ids":[0,4129])"), "");
  EXPECT_EQ(refused(str_cat("\"stop_token_ids\":", numbers(64, 0))), "");
  EXPECT_EQ(refused(str_cat("\"stop_token_ids\":", numbers(65, 0))), "stop_token_ids");
  EXPECT_EQ(refused(R"("stop_token_ids":[0,4130])"), "stop_token_ids[1]");
  EXPECT_EQ(refused(R"("stop_token_ids":[-1])"), "stop_token_ids[0]");
  EXPECT_EQ(refused(R"("stop_token_ids":5)"), "stop_token_ids");
}

TEST(RequestLimits, LogitBiasIsBounded) {
  const auto bias = [](size_t count) {
    std::string list;
    for (size_t i = 0; i < count; ++i)
      list += str_cat(i == 0 ? "\"" : ",\"", i, "\":1");
    return str_cat("\"logit_bias\":{", list, "}");
  };
  EXPECT_EQ(refused(bias(0)), "");
  EXPECT_EQ(refused(bias(1024)), "");
  EXPECT_EQ(refused(bias(1025)), "logit_bias");
  EXPECT_EQ(refused(R"("logit_bias":{"4129":100,"0":-100})"), "");
  EXPECT_EQ(refused(R"("logit_bias":{"4130":1})"), "logit_bias.4130");
  EXPECT_EQ(refused(R"("logit_bias":{"x":1})"), "logit_bias.x");
  EXPECT_EQ(refused(R"("logit_bias":{"1":100.5})"), "logit_bias.1");
  EXPECT_EQ(refused(R"("logit_bias":{"1":1,"01":1})"), "logit_bias.01");
  EXPECT_EQ(refused(R"("logit_bias":[])"), "logit_bias");
}

TEST(RequestLimits, IdsAreShort) {
  for (const std::string_view field :
       {"user", "cache_salt", "prompt_cache_key", "safety_identifier"}) {
    EXPECT_EQ(refused(str_cat("\"", field, "\":\"\"")), "");
    EXPECT_EQ(refused(str_cat("\"", field, "\":\"", std::string(256, 'x'), "\"")), "");
    EXPECT_EQ(refused(str_cat("\"", field, "\":\"", std::string(257, 'x'), "\"")), field);
    EXPECT_EQ(refused(str_cat("\"", field, "\":null")), "");
    EXPECT_EQ(refused(str_cat("\"", field, "\":1")), field);
  }
  EXPECT_EQ(refused(str_cat(R"("metadata":{"a":")", std::string(256, 'x'), "\"}")), "");
  EXPECT_EQ(refused(str_cat(R"("metadata":{"a":")", std::string(257, 'x'), "\"}")), "metadata.a");
  EXPECT_EQ(refused(R"("metadata":[])"), "metadata");
}

std::string messages(size_t count, std::string_view content = "\"a\"") {
  std::string list;
  for (size_t i = 0; i < count; ++i)
    list += str_cat(i == 0 ? "" : ",", R"({"role":"user","content":)", content, "}");
  return str_cat("\"messages\":[", list, "]");
}

// A server whose context is no limit.
ServedModel wide_model() {
  ServedModel model = server().model;
  model.max_model_len = 1'000'000;
  return model;
}

TEST(RequestLimits, MessagesAreCounted) {
  const ServedModel model = wide_model();

  EXPECT_THAT(refused("\"messages\":[]"), StartsWith("messages"));
  EXPECT_EQ(refused(messages(1)), "");
  EXPECT_EQ(refused(messages(kMaxChatMessages), model), "");
  EXPECT_THAT(refused(messages(kMaxChatMessages + 1), model), HasSubstr("4097 entries"));
  EXPECT_EQ(refused("\"messages\":null"), "messages");
  EXPECT_EQ(refused("\"messages\":\"hi\""), "messages");
  EXPECT_EQ(refused(R"("messages":[{"role":"user"}])"), "messages[0].content");
  EXPECT_EQ(refused(R"("messages":[{"role":"cook","content":"a"}])"), "messages[0].role");
}

TEST(RequestLimits, PartsAreCountedOverAllMessages) {
  const ServedModel model = wide_model();
  const auto parts = [](size_t count) {
    std::string list;
    for (size_t i = 0; i < count; ++i)
      list += str_cat(i == 0 ? "" : ",", R"({"type":"text","text":"a"})");
    return str_cat("[", list, "]");
  };

  EXPECT_EQ(refused(messages(2, parts(kMaxContentParts / 2)), model), "");
  EXPECT_EQ(refused(messages(2, parts(kMaxContentParts / 2 + 1)), model), "messages[1].content");
  EXPECT_EQ(refused(messages(1, "[]")), "");
}

TEST(RequestLimits, OtherPartsAreNotSupported) {
  for (const std::string_view type : {"image_url", "input_audio", "file"}) {
    const auto parsed = parse_chat_request(
        post_of(str_cat(R"({"messages":[{"role":"user","content":[{"type":")", type, R"("}]}]})")),
        server().model, "");

    const ApiError& error = std::get<ApiError>(parsed);
    EXPECT_EQ(error.code, "unsupported_parameter");
    EXPECT_EQ(error.param, "messages[0].content[0].type");
  }
}

std::string tools(size_t count, std::string_view parameters = "{}") {
  std::string list;
  for (size_t i = 0; i < count; ++i)
    list += str_cat(i == 0 ? "" : ",", R"({"type":"function","function":{"name":"f)", i,
                    R"(","parameters":)", parameters, "}}");
  return str_cat("\"tools\":[", list, "]");
}

std::string deep_schema(int levels) {
  std::string schema = "{}";
  for (int i = 1; i < levels; ++i)
    schema = str_cat("{\"items\":", schema, "}");
  return schema;
}

// Objects in objects, each closed: two levels of JSON for each.
std::string deep_objects(int levels) {
  std::string schema = R"({"type":"object","additionalProperties":false})";
  for (int i = 1; i < levels; ++i) {
    schema = str_cat(R"({"type":"object","properties":{"a":)", schema,
                     R"(},"required":["a"],"additionalProperties":false})");
  }
  return schema;
}

// One schema whose example is so many lists in each other.
std::string deep_example(int levels) {
  return str_cat(R"({"default":)", std::string(static_cast<size_t>(levels), '['),
                 std::string(static_cast<size_t>(levels), ']'), "}");
}

std::string long_schema(size_t bytes) {  // printed without blanks
  return str_cat(R"({"title":")", std::string(bytes - 12, 'x'), "\"}");
}

TEST(RequestLimits, ToolsAndTheirSchemasAreBounded) {
  const ServedModel model = wide_model();

  EXPECT_EQ(refused("\"tools\":[]"), "");
  EXPECT_EQ(refused("\"tools\":null"), "");
  EXPECT_EQ(refused(tools(1)), "");
  EXPECT_EQ(refused(tools(kMaxChatTools), model), "");
  EXPECT_THAT(refused(tools(kMaxChatTools + 1), model), StartsWith("tools"));
  EXPECT_EQ(refused(tools(2, deep_schema(32)), model), "");
  EXPECT_EQ(refused(tools(2, deep_schema(33)), model), "tools[0].function.parameters");
  EXPECT_EQ(refused(tools(2, deep_objects(32)), model), "");
  EXPECT_EQ(refused(tools(2, deep_objects(33)), model), "tools[0].function.parameters");
  EXPECT_EQ(refused(tools(1, deep_example(95)), model), "");
  EXPECT_EQ(refused(tools(1, deep_example(96)), model), "tools[0].function.parameters");
  EXPECT_THAT(refused(tools(1, deep_example(128)), model), StartsWith("request body"));
  EXPECT_EQ(refused(tools(1, long_schema(65'536)), model), "");
  EXPECT_EQ(refused(tools(1, long_schema(65'537)), model), "tools[0].function.parameters");
  const auto named = [](size_t bytes) {
    return str_cat(R"("tools":[{"type":"function","function":{"name":")", std::string(bytes, 'f'),
                   R"("}}])");
  };
  EXPECT_EQ(refused(named(256)), "");
  EXPECT_EQ(refused(named(257)), "tools[0].function.name");
  EXPECT_EQ(refused("\"tools\":{}"), "tools");
  EXPECT_EQ(refused(R"("tools":[{"type":"web_search"}])"), "tools[0].type");
}

TEST(RequestLimits, ShapesAreBounded) {
  const ServedModel model = wide_model();
  const auto format = [](std::string_view schema) {
    return str_cat(R"("response_format":{"type":"json_schema","json_schema":{"schema":)", schema,
                   "}}");
  };
  EXPECT_EQ(refused(format("{}")), "");
  EXPECT_EQ(refused(format(deep_schema(32)), model), "");
  EXPECT_EQ(refused(format(deep_schema(33)), model), "response_format");
  EXPECT_EQ(refused(format(deep_objects(32)), model), "");
  EXPECT_EQ(refused(format(deep_objects(33)), model), "response_format");
  EXPECT_EQ(refused(format(deep_example(96)), model), "response_format");
  const auto as_text = [](const std::string& schema) {
    return str_cat("\"guided_json\":", dump_json(Json::string(schema)));
  };
  EXPECT_EQ(refused(as_text(deep_objects(32)), model), "");
  EXPECT_EQ(refused(as_text(deep_objects(33)), model), "guided_json");
  EXPECT_EQ(refused(format(long_schema(65'536)), model), "");
  EXPECT_EQ(refused(format(long_schema(65'537)), model), "response_format");
  const auto regex = [](size_t bytes) {
    return str_cat("\"guided_regex\":\"", std::string(bytes, 'x'), "\"");
  };
  EXPECT_EQ(refused(regex(1)), "");
  EXPECT_EQ(refused(regex(4'096)), "");
  EXPECT_EQ(refused(regex(4'097)), "guided_regex");
  EXPECT_EQ(refused(str_cat("\"guided_choice\":", texts(1'024, 1))), "");
  EXPECT_EQ(refused(str_cat("\"guided_choice\":", texts(1'025, 1))), "guided_choice");
  EXPECT_EQ(refused("\"guided_choice\":[]"), "guided_choice");
}

TEST(RequestLimits, IdsOfCallsAreShort) {
  const auto with_id = [](size_t bytes) {
    return str_cat(R"("messages":[{"role":"user","content":"a"},{"role":"assistant","tool_calls":)",
                   R"([{"id":")", std::string(bytes, 'x'),
                   R"(","type":"function","function":{"name":"f","arguments":"{}"}}]},)",
                   R"({"role":"tool","content":"r"}])");
  };
  EXPECT_EQ(refused(with_id(256)), "");
  EXPECT_EQ(refused(with_id(257)), "messages[1].tool_calls[0].id");
}

TEST(RequestLimits, TheContextHoldsPromptAndAnswer) {
  const auto parsed = parse_chat_request(post_of(str_cat("{", kMessages, "}")), server().model, "");
  const auto& spec = std::get<ChatRequest>(parsed).answer;
  const auto prompt = static_cast<int64_t>(spec.request.prompt.size());
  const int64_t rest = server().model.max_model_len - prompt;

  EXPECT_EQ(refused(str_cat("\"max_tokens\":", rest)), "");
  EXPECT_EQ(refused(str_cat("\"max_tokens\":", rest + 1)), "max_tokens");
  const auto beyond = parse_chat_request(
      post_of(str_cat("{", kMessages, R"(,"max_completion_tokens":)", rest + 1, "}")),
      server().model, "");
  EXPECT_EQ(std::get<ApiError>(beyond).code, "context_length_exceeded");
  EXPECT_EQ(std::get<ApiError>(beyond).message,
            str_cat("max_completion_tokens: ", rest + 1, " + prompt ", prompt,
                    " tokens exceeds max_model_len 4000"));
}

TEST(RequestLimits, PromptsOfCompletions) {
  EXPECT_EQ(refused_completion(R"("prompt":"a")"), "");
  EXPECT_EQ(refused_completion(""), "prompt");
  EXPECT_EQ(refused_completion(R"("prompt":null)"), "prompt");
  EXPECT_EQ(refused_completion(R"("prompt":5)"), "prompt");
  EXPECT_EQ(refused_completion(R"("prompt":[])"), "prompt");
  EXPECT_EQ(refused_completion(R"("prompt":[[]])"), "prompt[0]");
  EXPECT_EQ(refused_completion(R"("prompt":["a",[1]])"), "prompt[1]");
  EXPECT_EQ(refused_completion(R"("prompt":[true])"), "prompt[0]");
  EXPECT_EQ(refused_completion(R"("prompt":[0,4129])"), "");
  EXPECT_EQ(refused_completion(R"("prompt":[0,4130])"), "prompt[1]");
  EXPECT_EQ(refused_completion(R"("prompt":[-1])"), "prompt[0]");
  EXPECT_EQ(refused_completion(R"("prompt":[[1],[2,4130]])"), "prompt[1][1]");
  EXPECT_EQ(refused_completion(R"("prompt":[1.5])"), "prompt[0]");
  EXPECT_EQ(refused_completion(R"("prompt":"","add_special_tokens":false)"), "prompt");
  EXPECT_EQ(refused_completion(str_cat("\"prompt\":", texts(64, 1))), "");
  EXPECT_EQ(refused_completion(str_cat("\"prompt\":", texts(65, 1))), "prompt");
}

TEST(RequestLimits, LogprobsOfPromptsAreBoundedInAll) {
  // 64 prompts with 1,024 places each, in 16 choices: the most.
  std::string prompts;
  for (int i = 0; i < 64; ++i)
    prompts += str_cat(i == 0 ? "" : ",", numbers(1'025, 0));
  const auto with = [&](std::string_view fields) {
    return refused_completion(str_cat("\"prompt\":[", prompts, "],\"max_tokens\":1,", fields));
  };
  EXPECT_EQ(with(R"("n":16,"prompt_logprobs":0)"), "");
  EXPECT_EQ(with(R"("n":16,"prompt_logprobs":1)"), "prompt_logprobs");
  EXPECT_EQ(with(R"("n":8,"prompt_logprobs":1)"), "");
  EXPECT_EQ(with(R"("n":16,"echo":true,"logprobs":0)"), "");
  EXPECT_EQ(with(R"("n":16,"echo":true,"logprobs":1)"), "logprobs");
  EXPECT_EQ(with(R"("n":16,"logprobs":20)"), "");
  EXPECT_EQ(limit_prompt_logprobs(65'536, 1, 16).message(),
            "prompt_logprobs: found 1, for 65536 tokens of prompts in 16 choices these are 2097152 "
            "log-probabilities, expected at most 1048576");

  // The reply of a chat has them once.
  std::string words;
  for (int i = 0; i < 60'000; ++i)
    words += "a b ";
  const std::string chat = messages(1, str_cat("\"", words, "\""));
  EXPECT_EQ(refused(str_cat(chat, R"(,"n":16,"prompt_logprobs":1)"), wide_model()), "");
  EXPECT_EQ(refused(str_cat(chat, R"(,"prompt_logprobs":20)"), wide_model()), "prompt_logprobs");
}

TEST(RequestLimits, FieldsOfCompletions) {
  const auto with = [](std::string_view fields) {
    return refused_completion(str_cat(R"("prompt":"a",)", fields));
  };
  for (const std::string_view value : {"0", "1", "20", "null"})
    EXPECT_EQ(with(str_cat("\"logprobs\":", value)), "");
  for (const std::string_view value : {"-1", "21", "true"})
    EXPECT_EQ(with(str_cat("\"logprobs\":", value)), "logprobs");
  EXPECT_EQ(with(R"("n":16,"best_of":16)"), "");
  EXPECT_EQ(with(R"("n":2,"best_of":3)"), "best_of");
  EXPECT_EQ(with(R"("n":17)"), "n");
  EXPECT_EQ(with(R"("max_tokens":0)"), "max_tokens");
  EXPECT_EQ(with(R"("max_tokens":4000)"), "max_tokens");
  EXPECT_EQ(with(R"("min_tokens":2,"max_tokens":1)"), "min_tokens");
  EXPECT_EQ(with(R"("use_beam_search":true)"), "use_beam_search");
  EXPECT_EQ(with(R"("use_beam_search":false)"), "");
  EXPECT_EQ(with(R"("suffix":"b","echo":true)"), "echo");
  EXPECT_EQ(with(R"("suffix":"","echo":true)"), "");
}

TEST(RequestLimits, WhatIsKnownAndNotSupportedIsRefused) {
  for (const std::string_view field :
       {R"("use_beam_search":true)", R"("functions":[])", R"("function_call":"auto")",
        R"("audio":{})", R"("modalities":["audio"])", R"("chat_template":"x")",
        R"("web_search_options":{})", R"("kv_transfer_params":{})", R"("priority":1)",
        R"("cache_hit_threshold":0.5)", R"("truncate_prompt_tokens":5)",
        R"("allowed_token_ids":[1])", R"("skip_special_tokens":false)",
        R"("chat_template_kwargs":{"tools":[]})"}) {
    const auto parsed =
        parse_chat_request(post_of(str_cat("{", kMessages, ",", field, "}")), server().model, "");
    ASSERT_TRUE(std::holds_alternative<ApiError>(parsed)) << field;
    EXPECT_EQ(std::get<ApiError>(parsed).code, "unsupported_parameter") << field;
    EXPECT_FALSE(std::get<ApiError>(parsed).param.empty()) << field;
  }
}

TEST(RequestLimits, WhatDoesNothingIsAccepted) {
  EXPECT_EQ(refused(R"("user":"u","metadata":{"a":"b"},"store":true,"service_tier":"auto",)"
                    R"("prompt_cache_retention":"24h","verbosity":"low","modalities":["text"],)"
                    R"("priority":0,"use_beam_search":false,"unheard_of":[1])"),
            "");
}

TEST(RequestLimits, StrictServersRefuseUnknownFields) {
  ServedModel model = server().model;
  model.strict_api = true;

  EXPECT_EQ(refused(R"("unheard_of":1)", model), "unheard_of");
  EXPECT_EQ(refused(R"("model":"deep","user":"u","metadata":{},"store":true,"service_tier":"a",)"
                    R"("verbosity":"low","prompt_cache_retention":"24h","timings":true,)"
                    R"("stream":false,"stream_options":{},"logit_bias":{},"stop":[],"n":1,)"
                    R"("response_format":{"type":"text"},"tools":[],"tool_choice":"auto",)"
                    R"("thinking":{"type":"enabled"},"reasoning_effort":"low","seed":1,)"
                    R"("chat_template_kwargs":{},"cache_salt":"","prompt_cache_key":"",)"
                    R"("echo":false,"continue_final_message":false,"best_of":1)",
                    model),
            "");
}

TEST(RequestLimits, BodiesAreObjectsOfTheServedModel) {
  for (const std::string_view body : {"", "[]", "{", "{\"a\":1,\"a\":2}", "\xff", "1"}) {
    const auto parsed = parse_chat_request(post_of(std::string(body)), server().model, "");
    EXPECT_EQ(std::get<ApiError>(parsed).code, "invalid_json") << body;
    EXPECT_EQ(std::get<ApiError>(parsed).status, 400);
  }
  const auto other = parse_chat_request(post_of(R"({"model":"gpt"})"), server().model, "");
  EXPECT_EQ(std::get<ApiError>(other).status, 404);
  EXPECT_EQ(std::get<ApiError>(other).code, "model_not_found");
  EXPECT_EQ(std::get<ApiError>(other).param, "model");
}

}  // namespace
}  // namespace fathom::serve
