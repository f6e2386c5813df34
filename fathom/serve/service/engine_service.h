// The engine as a service: one thread owns an Engine and steps it; any thread hands in requests.
//
//   submit() --queue--> engine thread: EngineCore::submit, step, step, ...
//                              |  events of a step, together
//                              v
//                       Post (the event loop): each request's sink
//
// Nothing here knows HTTP. The engine thread never waits for a client: events are posted and
// forgotten.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "fathom/api/engine.h"
#include "fathom/serve/exchange.h"
#include "fathom/serve/service/service_observer.h"

namespace fathom::serve {

/// Counts up from 1 over all requests of a service.
using Ticket = uint64_t;

/// One event of a request. The last one has a finish reason.
struct ServiceEvent {
  int32_t token = -1;  ///< -1: an end without a token
  std::string text;    ///< what became certain with it
  float logprob = 0.0f;
  std::vector<TokenLogprob> top_logprobs;
  FinishReason finish = FinishReason::kNone;
  std::string stop_text;
  int64_t cached_tokens = 0;
  /// With the first event, if they were asked for: of each token of the prompt but the first.
  std::shared_ptr<const std::vector<PromptLogprobs>> prompt_logprobs;
  RequestTimes times;  ///< so far
};

using ServiceSink = std::function<void(const ServiceEvent&)>;

struct ServiceSettings {
  Post post;                            ///< where sinks are called
  ServiceObserver* observer = nullptr;  ///< outlives the service; may be null
};

class EngineService {
 public:
  /// Takes the engine and starts its thread.
  EngineService(std::unique_ptr<Engine> engine, ServiceSettings settings);

  /// Ends all requests and the thread.
  ~EngineService();
  EngineService(const EngineService&) = delete;
  EngineService& operator=(const EngineService&) = delete;

  /// Hands a request in; `sink` gets its events in order, the last with a finish reason. Errors,
  /// after which no event comes: InvalidArgument for what the engine refuses; Overloaded for a full
  /// queue; Unavailable `draining`; DeviceLost after a fault. Request::on_token is not used.
  Result<Ticket> submit(Request request, ServiceSink sink);

  /// Ends a request at the next step. Its sink still gets the end. An unknown ticket is ignored.
  void cancel(Ticket ticket, FinishReason reason = FinishReason::kAborted);

  /// Runs a function with the engine on its thread, between two steps, and waits for it.
  void with_engine(const std::function<void(Engine&)>& action);

  /// What the engine is, for those who only read: model, tokenizer, options, plan. Not its core.
  const Engine& engine() const { return *engine_; }

  /// A copy that was made after the last step.
  ServiceStats stats() const;

  /// No request is taken from now on.
  void drain();

  /// Whether no request is known.
  bool idle() const;

  /// Ends all requests that are left with a reason.
  void end_all(FinishReason reason);

 private:
  struct Entry;
  struct Command;

  std::unique_ptr<Engine> engine_;
};

}  // namespace fathom::serve
