#include "fathom/serve/openai/openapi.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <set>

#include "fathom/serve/openai/chat/chat_request.h"
#include "fathom/serve/openai/completions/completion_request.h"
#include "tests/support/test_server.h"

namespace fathom::serve {
namespace {

const Json& document() {
  static const Json* const json =
      new Json(*parse_json(openapi_document("1.2.3"), {}, "the OpenAPI document"));
  return *json;
}

TEST(OpenApi, NamesItselfAndItsVersion) {
  EXPECT_EQ(document().find("openapi")->as_string(), "3.1.0");
  EXPECT_EQ(document().find("info")->find("version")->as_string(), "1.2.3");
}

TEST(OpenApi, DescribesEachRouteOnce) {
  const auto& paths = document().find("paths")->members();
  EXPECT_EQ(paths.size(), api_routes().size());
  for (const ApiRoute& route : api_routes()) {
    const Json* path = document().find("paths")->find(route.path);
    ASSERT_NE(path, nullptr) << route.path;
    EXPECT_NE(path->find(route.method == "GET" ? "get" : "post"), nullptr) << route.path;
  }
}

TEST(OpenApi, HasTheRoutesOfTheInterface) {
  std::set<std::string, std::less<>> known;
  for (const ApiRoute& route : api_routes())
    known.insert(str_cat(route.method, " ", route.path));
  for (const std::string_view route : {"POST /v1/chat/completions",
                                       "POST /v1/completions",
                                       "POST /v1/messages",
                                       "POST /v1/messages/count_tokens",
                                       "POST /v1/responses",
                                       "POST /v1/responses/input_tokens",
                                       "GET /v1/models",
                                       "GET /v1/models/{id}",
                                       "GET /health",
                                       "GET /health/live",
                                       "GET /live",
                                       "GET /health/ready",
                                       "GET /ready",
                                       "GET /ping",
                                       "GET /health_generate",
                                       "GET /version",
                                       "GET /load",
                                       "GET /metrics",
                                       "GET /server_info",
                                       "GET /get_server_info",
                                       "GET /get_model_info",
                                       "POST /tokenize",
                                       "POST /detokenize",
                                       "POST /v1/completions/render",
                                       "POST /v1/chat/completions/render",
                                       "POST /v1/chat/completions/input_tokens",
                                       "POST /v1/embeddings",
                                       "GET /",
                                       "POST /start_profile",
                                       "POST /stop_profile",
                                       "POST /reset_prefix_cache",
                                       "POST /flush_cache",
                                       "POST /abort_request",
                                       "POST /log_level"}) {
    EXPECT_TRUE(known.contains(route)) << route;
  }
}

// Every "$ref" of a value.
void collect_references(const Json& json, std::vector<std::string>& out) {
  if (json.is_array()) {
    for (const Json& item : json.items())
      collect_references(item, out);
  }
  if (!json.is_object()) return;
  for (const auto& [key, value] : json.members()) {
    if (key == "$ref") out.push_back(value.as_string());
    collect_references(value, out);
  }
}

TEST(OpenApi, ReferencesLeadSomewhere) {
  const Json& schemas = *document().find("components")->find("schemas");
  constexpr std::string_view kPrefix = "#/components/schemas/";
  std::vector<std::string> references;
  collect_references(document(), references);

  EXPECT_GE(references.size(), api_routes().size());  // each route may fail
  for (const std::string& reference : references) {
    ASSERT_TRUE(reference.starts_with(kPrefix)) << reference;
    EXPECT_NE(schemas.find(reference.substr(kPrefix.size())), nullptr) << reference;
  }
}

TEST(OpenApi, OnlyProbesAndThePageAreOpen) {
  for (const ApiRoute& route : api_routes()) {
    const Json& path = *document().find("paths")->find(route.path);
    const Json& operation = path.members().front().second;
    const bool is_probe = route.path.starts_with("/health") || route.path == "/live" ||
                          route.path == "/ready" || route.path == "/ping" ||
                          route.path == "/";  // the page holds nothing but itself
    const bool open = is_probe && route.path != "/health_generate";
    EXPECT_EQ(operation.find("security") != nullptr, open) << route.path;
  }
}

TestServer& server() {
  static TestServer* const made = new TestServer;
  return *made;
}

// Whether the field may have this value, by the code.
bool is_taken(std::string_view schema, std::string_view name, const std::string& value) {
  ServedModel model = server().model;
  model.max_model_len = 1'000'000;
  model.strict_api = true;
  const bool is_chat = schema == "ChatRequest";
  const std::string base =
      is_chat ? R"("messages":[{"role":"user","content":"a"}])" : R"("prompt":"a")";
  std::string more;
  if (name == "top_logprobs") more = R"(,"logprobs":true)";
  if (name == "best_of") more = str_cat(R"(,"n":)", value);
  const HttpRequest request = post_of(str_cat("{", base, more, ",\"", name, "\":", value, "}"));
  return is_chat ? parse_chat_request(request, model, "").index() == 0
                 : parse_completion_request(request, model, "").index() == 0;
}

TEST(OpenApi, RangesAreThoseOfTheCode) {
  int num_checked = 0;
  for (const std::string_view name : {"ChatRequest", "CompletionRequest"}) {
    const Json& schema = *document().find("components")->find("schemas")->find(name);
    for (const auto& [field, about] : schema.find("properties")->members()) {
      const Json* type = about.find("type");
      const bool is_integer = type != nullptr && *type == Json::string("integer");
      const double step = is_integer ? 1.0 : 0.001;
      if (const Json* low = about.find("minimum")) {
        EXPECT_TRUE(is_taken(name, field, dump_json(*low))) << field;
        EXPECT_FALSE(is_taken(name, field, str_cat(low->as_double() - step))) << field;
        ++num_checked;
      }
      if (const Json* low = about.find("exclusiveMinimum")) {
        EXPECT_FALSE(is_taken(name, field, dump_json(*low))) << field;
        EXPECT_TRUE(is_taken(name, field, str_cat(low->as_double() + step))) << field;
        ++num_checked;
      }
      if (const Json* high = about.find("maximum")) {
        EXPECT_TRUE(is_taken(name, field, dump_json(*high))) << field;
        EXPECT_FALSE(is_taken(name, field, str_cat(high->as_double() + step))) << field;
        ++num_checked;
      }
      if (const Json* size = about.find("maxLength")) {
        if (field == "model") continue;  // of names, the served ones
        const auto most = static_cast<size_t>(size->as_int());
        EXPECT_TRUE(is_taken(name, field, str_cat("\"", std::string(most, 'x'), "\""))) << field;
        EXPECT_FALSE(is_taken(name, field, str_cat("\"", std::string(most + 1, 'x'), "\"")))
            << field;
        ++num_checked;
      }
    }
  }
  EXPECT_GE(num_checked, 40);
}

TEST(OpenApi, TheCodeKnowsEachField) {
  for (const std::string_view name : {"ChatRequest", "CompletionRequest"}) {
    const Json& schema = *document().find("components")->find("schemas")->find(name);
    for (const auto& [field, about] : schema.find("properties")->members()) {
      if (field == "messages" || field == "prompt") continue;
      EXPECT_TRUE(is_taken(name, field, "null")) << name << "." << field;  // strict: else refused
    }
  }
}

TEST(OpenApi, CountsOfItemsAreThoseOfTheCode) {
  const Json& fields =
      *document().find("components")->find("schemas")->find("ChatRequest")->find("properties");
  const auto items = [&](const char* name) {
    return fields.find(name)->find("maxItems")->as_int();
  };
  const auto list = [](int64_t count, std::string_view item) {
    std::string all;
    for (int64_t i = 0; i < count; ++i)
      all += str_cat(i == 0 ? "" : ",", item);
    return str_cat("[", all, "]");
  };
  constexpr std::string_view kTool = R"({"type":"function","function":{"name":"f"}})";
  for (const auto& [name, item] : std::vector<std::pair<const char*, std::string_view>>{
           {"stop", "\"a\""}, {"stop_token_ids", "1"}, {"tools", kTool}}) {
    EXPECT_TRUE(is_taken("ChatRequest", name, list(items(name), item))) << name;
    EXPECT_FALSE(is_taken("ChatRequest", name, list(items(name) + 1, item))) << name;
  }
}

}  // namespace
}  // namespace fathom::serve
