#include "fathom/serve/server/server.h"

#include <gtest/gtest.h>
#include <set>

#include "fathom/serve/openai/openapi.h"
#include "fathom/text/json.h"
#include "tests/support/served_engine.h"

namespace fathom::serve {
namespace {

// A server of the small model, without sockets.
class ServerTest : public testing::Test {
 protected:
  void start(ServerSettings settings = {}, bool ready = true) {
    ServerParts parts;
    parts.post = engine.loop.post();
    parts.service = &engine.service;
    parts.life = &life;
    parts.version_json = "{\"version\":\"test\"}";
    parts.metrics_text = [] { return std::string("# metrics\n"); };
    parts.count_error = [this](const ApiError& error) { errors.push_back(error.code); };
    parts.measure_step = [](Engine&, std::string_view phase) -> Result<std::string> {
      return str_cat("{\"phase\":\"", phase, "\"}");
    };
    server = std::make_unique<Server>(std::move(settings), std::move(parts));
    if (!ready) return;
    ServedModel model;
    model.names = {"tiny"};
    model.tokenizer = engine.service.engine().tokenizer();
    model.chat_format = &chat_v3();
    model.sampling = greedy_sampling();
    model.max_model_len = 2048;
    model.vocab_size = 4096;
    server->set_ready(std::move(model), "{\"info\":1}");
  }

  // What a request is answered.
  std::shared_ptr<FakeExchange> ask(std::shared_ptr<FakeExchange> exchange) {
    server->handle(exchange);
    EXPECT_TRUE(engine.turn_until([&] { return exchange->ended() || exchange->gone(); }));
    return exchange;
  }

  std::shared_ptr<FakeExchange> with_key(std::shared_ptr<FakeExchange> exchange,
                                         const std::string& key) {
    HttpRequest request = exchange->request();
    request.headers.emplace_back("Authorization", "Bearer " + key);
    return std::make_shared<FakeExchange>(std::move(request));
  }

  static ServerSettings keyed(bool admin = false, bool open_metrics = false) {
    ServerSettings settings;
    settings.access = *Access::load({.file = {}, .argument = {}, .environment = "secret"});
    settings.admin = admin;
    settings.metrics_without_key = open_metrics;
    return settings;
  }

  ServedEngine engine;
  LifeCycle life;
  std::vector<std::string> errors;
  std::unique_ptr<Server> server;
};

TEST_F(ServerTest, AnswersChatsAndCompletions) {
  start();
  auto chat = ask(FakeExchange::post(
      "/v1/chat/completions",
      R"({"model":"tiny","messages":[{"role":"user","content":"Hi"}],"max_tokens":4})"));
  EXPECT_EQ(chat->head.status, 200) << chat->body;
  const Result<Json> json = parse_json(chat->body, {}, "reply");
  ASSERT_TRUE(json.ok());
  EXPECT_EQ(json->find("object")->as_string(), "chat.completion");
  auto stream = ask(FakeExchange::post("/v1/completions",
                                       R"({"prompt":"Once upon","max_tokens":4,"stream":true})"));
  EXPECT_TRUE(stream->streamed);
  EXPECT_TRUE(stream->body.ends_with("data: [DONE]\n\n")) << stream->body;
}

// A stream of each API, and what it shows before its first token.
struct StreamOfApi {
  const char* path;
  const char* body;
  const char* opening;
  const char* keep_alive;
  const char* end;      // of the whole
  const char* failure;  // of one that ends with an error
};

constexpr StreamOfApi kStreams[] = {
    {"/v1/chat/completions",
     R"({"messages":[{"role":"user","content":"Hi"}],"max_tokens":4,"stream":true})", "",
     ": ping\n\n", "data: [DONE]\n\n", "data: {\"error\":"},
    {"/v1/completions", R"({"prompt":"Once upon","max_tokens":4,"stream":true})", "", ": ping\n\n",
     "data: [DONE]\n\n", "data: {\"error\":"},
    {"/v1/messages",
     R"({"messages":[{"role":"user","content":"Hi"}],"max_tokens":4,"stream":true})", "",
     "event: ping\ndata: {\"type\": \"ping\"}\n\n",
     R"({"type":"message_stop"})"
     "\n\n",
     "event: error\n"},
    {"/v1/responses", R"({"input":"Hi","max_output_tokens":4,"stream":true})",
     "event: response.created\n", ": ping\n\n", "", "event: response.failed\n"},
};

TEST_F(ServerTest, StreamsBeginBeforeTheirFirstTokenIfThatIsLongInComing) {
  start();
  for (const StreamOfApi& api : kStreams) {
    const auto quick = ask(FakeExchange::post(api.path, api.body));
    const auto slow = FakeExchange::post(api.path, api.body);
    server->handle(slow);
    ASSERT_TRUE(engine.turn_until([&] { return slow->awaits_silence(); })) << api.path;
    EXPECT_FALSE(slow->streamed) << api.path;

    slow->stay_silent();

    EXPECT_TRUE(slow->streamed) << api.path;
    EXPECT_EQ(slow->head.content_type, "text/event-stream; charset=utf-8");
    EXPECT_TRUE(slow->body.starts_with(api.opening)) << slow->body;
    EXPECT_EQ(slow->body.empty(), *api.opening == 0) << slow->body;
    EXPECT_EQ(slow->rules.keep_alive, api.keep_alive);
    ASSERT_TRUE(engine.turn_until([&] { return slow->ended(); })) << api.path;
    EXPECT_TRUE(slow->body.ends_with(api.end)) << slow->body;
    // Nothing comes twice for it, and nothing is left out.
    const auto num_events = [](const FakeExchange& x) {
      return std::ranges::count(x.pieces, true,
                                [](const std::string& piece) { return piece.ends_with("\n\n"); });
    };
    EXPECT_EQ(num_events(*slow), num_events(*quick)) << slow->body << quick->body;
  }
}

TEST_F(ServerTest, ErrorsBehindTheBeginningOfAStreamAreEvents) {
  start();
  for (const StreamOfApi& api : kStreams) {
    const auto exchange = FakeExchange::post(api.path, api.body);
    server->handle(exchange);
    ASSERT_TRUE(engine.turn_until([&] { return exchange->awaits_silence(); })) << api.path;
    exchange->stay_silent();

    EXPECT_EQ(server->abort_request(exchange->id()), 1);

    EXPECT_EQ(exchange->head.status, 200) << api.path;
    EXPECT_TRUE(exchange->ended()) << api.path;
    EXPECT_NE(exchange->body.find(api.failure), std::string::npos) << exchange->body;
    // Errors before keep their status.
    const auto early = FakeExchange::post(api.path, api.body);
    server->handle(early);
    ASSERT_TRUE(engine.turn_until([&] { return early->awaits_silence(); })) << api.path;
    EXPECT_EQ(server->abort_request(early->id()), 1);
    EXPECT_EQ(early->head.status, 503) << api.path;
    EXPECT_FALSE(early->streamed) << api.path;
  }
}

TEST_F(ServerTest, AnswersThatDoNotStreamStaySilent) {
  start();
  const auto exchange = FakeExchange::post("/v1/completions", R"({"prompt":"x","max_tokens":4})");
  server->handle(exchange);
  ASSERT_TRUE(engine.turn_until([&] { return exchange->awaits_silence(); }));
  exchange->stay_silent();
  EXPECT_FALSE(exchange->streamed);
  ASSERT_TRUE(engine.turn_until([&] { return exchange->ended(); }));
  EXPECT_EQ(exchange->head.status, 200);
}

TEST_F(ServerTest, BodiesGoOnceTheyWereRead) {
  start();
  for (const StreamOfApi& api : kStreams) {
    const auto exchange = FakeExchange::post(api.path, api.body);
    server->handle(exchange);
    ASSERT_TRUE(engine.turn_until([&] { return exchange->awaits_silence(); })) << api.path;
    EXPECT_EQ(exchange->request().body, "") << api.path;
    ASSERT_TRUE(engine.turn_until([&] { return exchange->ended(); })) << api.path;
  }
}

TEST_F(ServerTest, RefusesBeforeTheModelIsThere) {
  start({}, false);
  EXPECT_EQ(ask(FakeExchange::get("/health/live"))->head.status, 200);
  EXPECT_EQ(ask(FakeExchange::get("/health"))->body, R"({"status":"loading"})");
  const auto reply = ask(FakeExchange::get("/v1/models"));
  EXPECT_EQ(reply->head.status, 503);
  EXPECT_NE(reply->body.find("\"loading\""), std::string::npos);
}

TEST_F(ServerTest, TheKeyGuardsAllButHealthAndThePage) {
  start(keyed());
  for (const char* open : {"/health", "/health/live", "/live", "/ready", "/ping", "/"})
    EXPECT_EQ(ask(FakeExchange::get(open))->head.status, 200) << open;
  for (const Route& route : server->router().routes()) {
    if (route.access == RouteAccess::kOpen) continue;
    auto exchange = std::make_shared<FakeExchange>([&] {
      HttpRequest r;
      r.method = route.method;
      r.path = std::string(route.path.substr(0, route.path.find('{'))) +
               (route.path.ends_with('}') ? "x" : "");
      return r;
    }());
    EXPECT_EQ(ask(exchange)->head.status, 401) << route.path;
  }
  EXPECT_EQ(ask(FakeExchange::get("/nothing"))->head.status, 401);  // says nothing of routes
  EXPECT_EQ(ask(with_key(FakeExchange::get("/nothing"), "secret"))->head.status, 404);
  EXPECT_EQ(ask(with_key(FakeExchange::get("/v1/models"), "secret"))->head.status, 200);
  EXPECT_EQ(ask(with_key(FakeExchange::get("/v1/models"), "secre"))->head.status, 401);
}

TEST_F(ServerTest, HeadsAreJudgedAsRequestsAre) {
  start(keyed(false, true));
  const auto judged = [&](const std::shared_ptr<FakeExchange>& exchange) {
    const auto error = server->refuse_head(exchange->request());
    return error ? error->status : 0;
  };
  for (const char* open : {"/health", "/health/live", "/live", "/ready", "/ping", "/", "/metrics"})
    EXPECT_EQ(judged(FakeExchange::get(open)), 0) << open;
  EXPECT_EQ(judged(FakeExchange::get("/nothing")), 401);
  for (const Route& route : server->router().routes()) {
    if (route.method != "POST") continue;
    const auto exchange = FakeExchange::post(std::string(route.path), {});
    EXPECT_EQ(judged(exchange), 401) << route.path;
    EXPECT_EQ(judged(with_key(exchange, "secret")), route.access == RouteAccess::kAdmin ? 403 : 0)
        << route.path;
  }
  EXPECT_EQ(judged(with_key(FakeExchange::get("/nothing"), "secret")), 0) << "404 can wait";
  EXPECT_TRUE(errors.empty());  // the HTTP server tells of them
}

TEST_F(ServerTest, MetricsMayBeOpen) {
  start(keyed(false, true));
  EXPECT_EQ(ask(FakeExchange::get("/metrics"))->body, "# metrics\n");
}

TEST_F(ServerTest, AdminRoutesNeedTheFlag) {
  start(keyed());
  auto reply = ask(with_key(FakeExchange::post("/reset_prefix_cache", ""), "secret"));
  EXPECT_EQ(reply->head.status, 403);
  EXPECT_NE(reply->body.find("admin_disabled"), std::string::npos);
}

TEST_F(ServerTest, AdminRoutesWork) {
  start(keyed(true));
  std::string text;
  for (int i = 0; i < 40; ++i)
    text += "once upon a time ";
  const std::string body = str_cat(R"({"prompt":")", text, R"(","max_tokens":1})");
  ask(with_key(FakeExchange::post("/v1/completions", body), "secret"));
  EXPECT_GT(engine.service.stats().core.cached_pages, 0);
  EXPECT_EQ(ask(with_key(FakeExchange::post("/reset_prefix_cache", ""), "secret"))->head.status,
            200);
  EXPECT_EQ(engine.service.stats().core.cached_pages, 0);
  auto level = ask(with_key(FakeExchange::post("/log_level", R"({"level":"loud"})"), "secret"));
  EXPECT_EQ(level->head.status, 400);
  EXPECT_EQ(
      ask(with_key(FakeExchange::post("/log_level", R"({"level":"info"})"), "secret"))->head.status,
      200);
  auto none =
      ask(with_key(FakeExchange::post("/abort_request", R"({"request_id":"x"})"), "secret"));
  EXPECT_EQ(none->body, R"({"aborted":0})");
}

TEST_F(ServerTest, PrefixesAreOfTheirKey) {
  ServerSettings settings;
  settings.access = *Access::load({.file = {}, .argument = "one", .environment = "two"});
  start(std::move(settings));
  std::string text;
  for (int i = 0; i < 60; ++i)
    text += "once upon a time ";
  const std::string body = str_cat(R"({"prompt":")", text, R"(","max_tokens":1})");
  const auto cached = [&](const std::string& key) {
    const auto reply = ask(with_key(FakeExchange::post("/v1/completions", body), key));
    const Result<Json> json = parse_json(reply->body, {}, "reply");
    return json->find("usage")->find("prompt_tokens_details")->find("cached_tokens")->as_int();
  };
  EXPECT_EQ(cached("one"), 0);
  EXPECT_GT(cached("one"), 0);
  EXPECT_EQ(cached("two"), 0);
}

TEST_F(ServerTest, DrainsAndEndsWhatIsLeft) {
  start();
  auto running = FakeExchange::post(
      "/v1/completions", R"({"prompt":"x","max_tokens":1800,"ignore_eos":true,"stream":true})");
  server->handle(running);
  ASSERT_TRUE(engine.turn_until([&] { return running->pieces.size() > 2; }));
  std::thread drain([&] { server->drain(0.05); });
  ASSERT_TRUE(engine.turn_until([&] { return running->ended(); }));
  drain.join();
  EXPECT_NE(running->body.find("\"draining\""), std::string::npos);
  EXPECT_EQ(life.state(), ServerState::kStopped);
  const auto health = ask(FakeExchange::get("/health"));
  EXPECT_EQ(health->head.status, 503);
  EXPECT_EQ(health->body, R"({"status":"stopped"})");
  EXPECT_EQ(ask(FakeExchange::post("/v1/completions", "{}"))->head.status, 503);
  EXPECT_EQ(ask(FakeExchange::get("/health/live"))->head.status, 200);
}

TEST_F(ServerTest, ErrorsAreCountedByCode) {
  start();
  ask(FakeExchange::post("/v1/completions", "{\"prompt\":5}"));
  ask(FakeExchange::post("/v1/completions", "no json"));
  ask(FakeExchange::post("/v1/completions", R"({"prompt":"x","max_tokens":99999})"));
  EXPECT_EQ(errors,
            (std::vector<std::string>{"invalid_value", "invalid_json", "context_length_exceeded"}));
}

TEST_F(ServerTest, EveryRouteIsDescribedAndNoOther) {
  start();
  std::set<std::string> routes;
  for (const Route& route : server->router().routes())
    routes.insert(str_cat(route.method, " ", route.path));
  std::set<std::string> described;
  for (const ApiRoute& route : api_routes())
    described.insert(str_cat(route.method, " ", route.path));
  std::vector<std::string> different;
  std::ranges::set_symmetric_difference(routes, described, std::back_inserter(different));
  EXPECT_EQ(different, std::vector<std::string>{});
}

TEST_F(ServerTest, AStepIsMeasured) {
  start();
  EXPECT_EQ(ask(FakeExchange::get("/server_info/step"))->body, R"({"phase":"decode"})");
  EXPECT_EQ(ask(FakeExchange::get("/server_info"))->body, R"({"info":1})");
  EXPECT_EQ(ask(FakeExchange::get("/health_generate"))->body, R"({"status":"ok"})");
}

}  // namespace
}  // namespace fathom::serve
