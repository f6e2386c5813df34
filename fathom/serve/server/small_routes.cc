// Routes that are not about answers.
#include <mutex>

#include "fathom/base/log.h"
#include "fathom/runtime/request.h"
#include "fathom/serve/fields.h"
#include "fathom/serve/openai/openapi.h"
#include "fathom/serve/page/page.h"
#include "fathom/serve/server/routes.h"
#include "fathom/serve/server/server.h"
#include "fathom/text/json_writer.h"

namespace fathom::serve {
namespace {

using enum Route::Needs;
using enum Route::Thread;

// A route that answers at once, from the request alone.
RouteHandler answers(std::function<HttpReply(const ExchangePtr&)> f) {
  return [f = std::move(f)](const ExchangePtr& exchange, const Caller&) {
    exchange->reply(f(exchange));
  };
}

// The body of a POST that may be empty.
Result<Json> optional_body(const HttpRequest& request) {
  if (request.body.empty()) return Json::object();
  ParsedBody body = parse_body(request.body);
  if (body.error) return invalid_argument(body.error->message);
  return std::move(body.json);
}

void add_health(Server& server, Router& router) {
  for (const std::string_view path : {"/health/live", "/live"}) {
    router.add({.method = "GET",
                .path = path,
                .needs = kNothing,
                .thread = kLoop,
                .handler = answers(
                    [](const ExchangePtr&) { return json_reply("{\"status\":\"live\"}"); })});
  }
  for (const std::string_view path : {"/health/ready", "/ready", "/health", "/ping"}) {
    router.add({.method = "GET",
                .path = path,
                .needs = kNothing,
                .thread = kLoop,
                .handler = answers([&server](const ExchangePtr&) { return server.health(); })});
  }
  // One token through the whole engine.
  router.add({.method = "GET",
              .path = "/health_generate",
              .handler = [&server](const ExchangePtr& exchange, const Caller& caller) {
                Request request;
                request.prompt = {0};
                request.sampling = greedy_sampling();
                request.sampling.max_tokens = 1;
                const auto end = [exchange](const ServiceEvent& e) {
                  if (e.finish == FinishReason::kNone) return;
                  if (const Status s = finish_status(e.finish); s.ok()) {
                    exchange->reply(json_reply("{\"status\":\"ok\"}"));
                  } else {
                    exchange->reply(openai_error_reply(e.refusal ? api_error(*e.refusal)
                                                                 : api_error(e.finish)));
                  }
                };
                const auto ticket =
                    server.parts().service->submit(std::move(request), end, caller.key);
                if (!ticket.ok()) exchange->reply(openai_error_reply(api_error(ticket.status())));
              }});
}

void add_figures(Server& server, Router& router) {
  router.add({.method = "GET",
              .path = "/version",
              .needs = kNothing,
              .thread = kLoop,
              .handler = answers([&server](const ExchangePtr&) {
                return json_reply(server.parts().version_json);
              })});
  router.add({.method = "GET",
              .path = "/load",
              .needs = kModel,
              .thread = kLoop,
              .handler = answers([&server](const ExchangePtr&) {
                const SchedulerStats s = server.parts().service->stats().core.scheduler;
                return json_reply(str_cat("{\"server_load\":", s.num_running + s.num_waiting, "}"));
              })});
  for (const std::string_view path : {"/server_info", "/get_server_info", "/get_model_info"}) {
    router.add({.method = "GET",
                .path = path,
                .needs = kModel,
                .thread = kLoop,
                .handler = answers(
                    [&server](const ExchangePtr&) { return json_reply(server.info_json()); })});
  }
  router.add({.method = "GET",
              .path = "/server_info/step",
              .handler = [&server](const ExchangePtr& exchange, const Caller&) {
                // A page of somebody else could ask by an image.
                if (exchange->request().header("sec-fetch-site") == "cross-site") {
                  exchange->reply(openai_error_reply({.status = 403,
                                                      .code = "host_not_allowed",
                                                      .message = "a step is not measured for pages "
                                                                 "of other sites",
                                                      .param = {}}));
                  return;
                }
                const auto measuring = server.measure_alone();
                if (!measuring) {
                  exchange->reply(openai_error_reply({.status = 503,
                                                      .code = "overloaded",
                                                      .message = "a step is being measured",
                                                      .param = {},
                                                      .retry_after_s = 1}));
                  return;
                }
                std::string phase = exchange->request().query_value("phase");
                if (phase.empty()) phase = "decode";
                if (phase != "decode" && phase != "prefill") {
                  exchange->reply(openai_error_reply(
                      bad_value("phase", str_cat("phase: found \"", phase.substr(0, 32),
                                                 "\", expected decode or prefill"))));
                  return;
                }
                Result<std::string> table = internal_error("the engine ended");
                server.parts().service->with_engine(
                    [&](Engine& engine) { table = server.parts().measure_step(engine, phase); });
                exchange->reply(table.ok() ? json_reply(std::move(table).value())
                                           : openai_error_reply(api_error(table.status())));
              }});
  if (!server.settings().metrics) return;
  router.add({.method = "GET",
              .path = "/metrics",
              .needs = kModel,
              .thread = kLoop,
              .handler = answers([&server](const ExchangePtr&) {
                HttpReply reply;
                reply.content_type = "text/plain; version=0.0.4; charset=utf-8";
                reply.body = server.parts().metrics_text();
                return reply;
              })});
}

void add_admin(Server& server, Router& router) {
  for (const std::string_view path : {"/reset_prefix_cache", "/flush_cache"}) {
    router.add({.method = "POST", .path = path, .handler = answers([&server](const ExchangePtr&) {
                                                  server.parts().service->with_engine(
                                                      [](Engine& engine) {
                                                        engine.core().drop_prefix_cache();
                                                      });
                                                  return json_reply("{}");
                                                })});
  }
  router.add(
      {.method = "POST",
       .path = "/log_level",
       .handler = answers([](const ExchangePtr& exchange) {
         const ParsedBody body = parse_body(exchange->request().body);
         if (body.error) return openai_error_reply(*body.error);
         Fields fields(body.json);
         constexpr LogLevel kLevels[] = {LogLevel::kError, LogLevel::kWarn, LogLevel::kInfo,
                                         LogLevel::kDebug, LogLevel::kTrace};
         const auto level = fields.word("level", {"error", "warn", "info", "debug", "trace"});
         if (fields.ok() && !level) {
           fields.fail(bad_value("level",
                                 "level: is absent, expected one of error, warn, "
                                 "info, debug, trace"));
         }
         if (!fields.ok()) return openai_error_reply(*fields.error());
         set_log_level(kLevels[*level]);
         return json_reply("{}");
       })});
  router.add({.method = "POST",
              .path = "/abort_request",
              .thread = kLoop,
              .handler = answers([&server](const ExchangePtr& exchange) {
                const ParsedBody body = parse_body(exchange->request().body);
                if (body.error) return openai_error_reply(*body.error);
                Fields fields(body.json);
                const auto id = fields.text("request_id", 256);
                if (!fields.ok()) return openai_error_reply(*fields.error());
                const int64_t ended = id ? server.abort_request(*id) : 0;
                return json_reply(str_cat("{\"aborted\":", ended, "}"));
              })});
  for (const std::string_view path : {"/start_profile", "/stop_profile"}) {
    router.add({.method = "POST",
                .path = path,
                .handler = answers([&server, path](const ExchangePtr& exchange) {
                  Result<Json> body = optional_body(exchange->request());
                  if (!body.ok()) return openai_error_reply(api_error(body.status()));
                  Result<std::string> done = internal_error("the engine ended");
                  server.parts().service->with_engine([&](Engine& engine) {
                    done = path == "/start_profile" ? server.parts().profiler->start(engine, *body)
                                                    : server.parts().profiler->stop(engine);
                  });
                  return done.ok() ? json_reply(std::move(done).value())
                                   : openai_error_reply(api_error(done.status()));
                })});
  }
}

}  // namespace

void add_small_routes(Server& server, Router& router) {
  add_health(server, router);
  add_figures(server, router);
  add_admin(server, router);
  router.add({.method = "GET",
              .path = "/openapi.json",
              .needs = kNothing,
              .thread = kLoop,
              .handler = answers([](const ExchangePtr&) {
                return json_reply(openapi_document(FATHOM_VERSION));
              })});
  router.add({.method = "GET",
              .path = "/",
              .needs = kNothing,
              .thread = kLoop,
              .handler = answers(
                  [](const ExchangePtr& exchange) { return page_reply(exchange->request()); })});
}

}  // namespace fathom::serve
