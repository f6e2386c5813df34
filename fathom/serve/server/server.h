// The server without its sockets: routes, who may use them, states, drain. serve/http gives it
// requests; cmd_serve puts it together.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "fathom/serve/access.h"
#include "fathom/serve/answer/answer_run.h"
#include "fathom/serve/anthropic/thinking_signer.h"
#include "fathom/serve/served_model.h"
#include "fathom/serve/server/life_cycle.h"
#include "fathom/serve/server/router.h"
#include "fathom/serve/server/workers.h"
#include "fathom/serve/service/engine_service.h"

namespace fathom::serve {

struct ServerSettings {
  Access access;
  bool metrics = true;
  bool metrics_without_key = false;
  bool shared_prefix_cache = false;  ///< between keys
  bool admin = false;
  double stall_timeout_s = 600;
  int num_workers = 2;
  int64_t max_waiting_tasks = 4096;
};

/// Records steps of the engine and writes what they did. Called on the engine thread.
class StepProfiler {
 public:
  virtual ~StepProfiler() = default;

  /// Begins a recording as the body of /start_profile says. The reply's JSON.
  virtual Result<std::string> start(Engine& engine, const Json& request) = 0;

  /// Ends it and writes its files. The reply's JSON.
  virtual Result<std::string> stop(Engine& engine) = 0;
};

/// What the program gives the server besides; set before the first request.
struct ServerParts {
  Post post;
  EngineService* service = nullptr;
  LifeCycle* life = nullptr;
  std::function<std::string()> metrics_text;  ///< Prometheus text; null: no metrics
  std::function<void(int64_t num_choices)> count_answer;
  std::function<void(const ApiError&)> count_error;
  std::function<void(const AnswerRepairs&)> count_repairs;
  std::string version_json;  ///< of GET /version
  /// The op table of one step, {"phase":..,"ops":[..]}, measured on the engine thread.
  std::function<Result<std::string>(Engine&, std::string_view phase)> measure_step;
  RequestTrace* trace = nullptr;     ///< of --trace-requests; null: off
  StepProfiler* profiler = nullptr;  ///< of /start_profile
};

class Server {
 public:
  Server(ServerSettings settings, ServerParts parts);
  ~Server();
  Server(const Server&) = delete;
  Server& operator=(const Server&) = delete;

  /// Before the engine is loaded and set_ready() is called.
  void set_service(EngineService& service) { parts_.service = &service; }

  /// Judges a request by its head, before its body is read: 401 without a key where one is needed,
  /// 403 for admin routes that are off. Counts the error that it gives. On the event loop.
  std::optional<ApiError> refuse_head(const HttpRequest& head) const;

  /// Gets a request, on the event loop. Those that no refuse_head() went before are judged too.
  void handle(const ExchangePtr& exchange);

  /// The model is loaded: what routes know of it, and what /server_info says ("{...}").
  void set_ready(ServedModel model, std::string info_json);

  /// Waits until running requests have ended, at most `timeout_s`; then ends those that are left.
  /// New ones are refused from now on. The state is stopped once none is left.
  void drain(double timeout_s);

  /// Forgets requests that wait to be read and waits for those that are. Before the service ends.
  void stop_workers() { workers_.stop(); }

  const Router& router() const { return router_; }

  const ServedModel& model() const { return *model_; }

  const ServerParts& parts() const { return parts_; }

  LifeCycle& life() { return *parts_.life; }

  const ServerSettings& settings() const { return settings_; }

  /// {"status":..} of the health routes, 200 or 503.
  HttpReply health() const;

  /// Answers with an error and counts it. `allow`: the header of that name, with 405.
  void fail(const ExchangePtr& exchange, const ApiError& error, const std::string& allow = {});

  /// What run_answer needs.
  AnswerHost answer_host();

  /// Held by who measures a step; fails where somebody else does.
  std::unique_lock<std::mutex> measure_alone() {
    return std::unique_lock(measuring_, std::try_to_lock);
  }

  /// Of thinking blocks, by a key of this process.
  const ThinkingSigner& signer() const { return signer_; }

  /// Ends the answers with that X-Request-Id; how many. On the event loop.
  int64_t abort_request(const std::string& id) { return open_answers_.abort(id); }

  const std::string& info_json() const { return info_json_; }

 private:
  std::variant<Caller, ApiError> admit(const HttpRequest& request, const Route* route) const;
  std::optional<ApiError> refuse(const Route& route) const;
  void run(const Route& route, const ExchangePtr& exchange, const Caller& caller);

  ServerSettings settings_;
  ServerParts parts_;
  Router router_;
  std::optional<ServedModel> model_;
  std::string info_json_;
  std::atomic<bool> has_model_{false};
  OpenAnswers open_answers_;
  ThinkingSigner signer_;
  std::mutex measuring_;
  Workers workers_;
};

}  // namespace fathom::serve
