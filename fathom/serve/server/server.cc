#include "fathom/serve/server/server.h"

#include <chrono>
#include <thread>

#include "fathom/base/log.h"
#include "fathom/os/clock.h"
#include "fathom/serve/server/routes.h"

namespace fathom::serve {

Server::Server(ServerSettings settings, ServerParts parts)
    : settings_(std::move(settings)),
      parts_(std::move(parts)),
      workers_(settings_.num_workers, settings_.max_waiting_tasks) {
  add_small_routes(*this, router_);
  add_model_routes(*this, router_);
}

Server::~Server() = default;

void Server::set_ready(ServedModel model, std::string info_json) {
  model_ = std::move(model);
  info_json_ = std::move(info_json);
  has_model_.store(true, std::memory_order_release);
  life().advance(ServerState::kReady);
}

AnswerHost Server::answer_host() {
  return {.service = parts_.service,
          .post = parts_.post,
          .on_answer = parts_.count_answer,
          .on_repairs = parts_.count_repairs,
          .on_error = parts_.count_error,
          .open = &open_answers_,
          .trace = parts_.trace};
}

void Server::fail(const ExchangePtr& exchange, const ApiError& error, const std::string& allow) {
  if (parts_.count_error) parts_.count_error(error);
  HttpReply reply = error_reply(error, exchange->request().path, exchange->id());
  if (!allow.empty()) reply.headers.emplace_back("Allow", allow);
  exchange->reply(std::move(reply));
}

// Whether the state of the server lets a route be used.
std::optional<ApiError> Server::refuse(const Route& route) const {
  if (route.needs == Route::Needs::kNothing) return {};
  const auto unavailable = [](std::string code, std::string message) {
    return ApiError{.status = 503,
                    .code = std::move(code),
                    .message = std::move(message),
                    .param = {},
                    .retry_after_s = 1};
  };
  if (!has_model_.load(std::memory_order_acquire)) {
    return unavailable("loading", "the model is being loaded");
  }
  if (route.needs == Route::Needs::kModel) return {};
  switch (parts_.life->state()) {
    case ServerState::kReady:
      return {};
    case ServerState::kFaulted:
      return unavailable("engine_stalled", "the engine does not answer; the server goes down");
    default:
      return unavailable("draining", "the server shuts down");
  }
}

// Who asks, where they may use the route. Of the head alone. `route` null: there is none, which is
// told only to those who have a key.
std::variant<Caller, ApiError> Server::admit(const HttpRequest& request, const Route* route) const {
  const RouteAccess access = route != nullptr ? route->access : RouteAccess::kKeyed;
  const bool open = access == RouteAccess::kOpen ||
                    (access == RouteAccess::kMetrics && settings_.metrics_without_key);
  const std::optional<std::string> key = settings_.access.check(request);
  if (!key && !open) return settings_.access.refusal(request);
  if (access == RouteAccess::kAdmin && (!settings_.admin || settings_.access.open())) {
    return ApiError{.status = 403,
                    .code = "admin_disabled",
                    .message = "admin routes are off; start the server with --admin and an API key",
                    .param = {}};
  }
  return Caller{.key = key.value_or("")};
}

std::optional<ApiError> Server::refuse_head(const HttpRequest& head) const {
  const auto admitted = admit(head, router_.find(head.method, head.path).route);
  const auto* const error = std::get_if<ApiError>(&admitted);
  return error == nullptr ? std::optional<ApiError>() : *error;
}

void Server::handle(const ExchangePtr& exchange) {
  const HttpRequest& request = exchange->request();
  const Router::Found found = router_.find(request.method, request.path);
  const auto admitted = admit(request, found.route);
  if (const auto* error = std::get_if<ApiError>(&admitted)) {
    fail(exchange, *error);
    return;
  }
  if (found.route == nullptr) {
    fail(exchange, *found.error, found.allow);
    return;
  }
  if (const auto error = refuse(*found.route)) {
    fail(exchange, *error);
    return;
  }
  run(*found.route, exchange, std::get<Caller>(admitted));
}

void Server::run(const Route& route, const ExchangePtr& exchange, const Caller& caller) {
  if (route.thread == Route::Thread::kLoop) {
    route.handler(exchange, caller);
    return;
  }
  const bool taken = workers_.run([&route, exchange, caller] { route.handler(exchange, caller); });
  if (!taken) {
    fail(exchange, {.status = 503,
                    .code = "overloaded",
                    .message = "too many requests wait to be read",
                    .param = {},
                    .retry_after_s = 1});
  }
}

HttpReply Server::health() const {
  HttpReply reply;
  const ServerState state = parts_.life->state();
  std::string_view word = server_state_name(state);
  if (state == ServerState::kStarting) word = "loading";
  if (state == ServerState::kReady) {
    const auto stall_ns = static_cast<int64_t>(settings_.stall_timeout_s * 1e9);
    const Progress progress = progress_of(parts_.service->stats(), monotonic_ns(), stall_ns);
    word = progress == Progress::kGoing ? "ready" : "stalled";
  }
  reply.status = word == "ready" ? 200 : 503;
  if (reply.status == 503) reply.headers.emplace_back("Retry-After", "1");
  reply.body = str_cat("{\"status\":\"", word, "\"}");
  return reply;
}

void Server::drain(double timeout_s) {
  life().advance(ServerState::kDraining);
  EngineService& service = *parts_.service;
  service.drain();
  const auto wait_until = [&](std::chrono::steady_clock::time_point end) {
    while (!service.idle() && std::chrono::steady_clock::now() < end)
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    return service.idle();
  };
  const auto seconds = [](double s) {
    return std::chrono::duration_cast<std::chrono::steady_clock::duration>(
        std::chrono::duration<double>(s));
  };
  bool ended = wait_until(std::chrono::steady_clock::now() + seconds(timeout_s));
  if (!ended) {
    log_warn("--drain-timeout of ", timeout_s, " s is over; what still runs is ended");
    service.end_all(FinishReason::kAborted);
    constexpr double kEndS = 2;  // a step may be running
    ended = wait_until(std::chrono::steady_clock::now() + seconds(kEndS));
  }
  if (ended) life().advance(ServerState::kStopped);
}

}  // namespace fathom::serve
