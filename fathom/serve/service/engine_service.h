// The engine as a service: one thread loads an Engine, owns it and steps it; any thread hands in
// requests.
//
//   submit() --queue--> engine thread: Engine::submit, step, step, ...
//                              |  events of a step, together
//                              v
//                       Post (the event loop): each request's sink
//
// While a GPU computes a step, the thread takes in what was submitted and cancelled meanwhile.
//
// Nothing here knows HTTP. The engine thread never waits for a client: events are posted and
// forgotten. It loads the engine itself, since threads inherit the CPUs that a loaded engine is
// bound to, and a GPU's context belongs to a thread.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <unordered_map>
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
  int64_t drafted_tokens = 0;   ///< so far
  int64_t accepted_tokens = 0;  ///< of them, those that were right
  /// With the first event, if they were asked for: of each token of the prompt but the first.
  std::shared_ptr<const std::vector<PromptLogprobs>> prompt_logprobs;
  RequestTimes times;  ///< so far
  /// Why the engine did not take it (finish is kAborted then); null else.
  std::shared_ptr<const Status> refusal;
};

using ServiceSink = std::function<void(const ServiceEvent&)>;

using EngineLoader = std::function<Result<std::unique_ptr<Engine>>()>;

struct ServiceSettings {
  Post post;                            ///< where sinks are called
  ServiceObserver* observer = nullptr;  ///< outlives the service; may be null
  int64_t max_waiting_per_client = 256;
  std::function<void(Engine&)> after_step{};  ///< on the engine thread; may be empty
};

class EngineService {
 public:
  /// Starts the thread, which calls `load` first.
  EngineService(EngineLoader load, ServiceSettings settings);

  /// Ends all requests and the thread.
  ~EngineService();
  EngineService(const EngineService&) = delete;
  EngineService& operator=(const EngineService&) = delete;

  /// Waits until the engine is loaded. Errors: those of the loader.
  Status wait_until_loaded();

  bool loaded() const { return loaded_.load(std::memory_order_acquire); }

  /// Hands a request in; `sink` gets its events in order, the last with a finish reason. `client`
  /// names who asks, for its limit of waiting requests; "" has none. Thread-safe. Errors, after
  /// which no event comes: InvalidArgument for what the engine refuses; Overloaded `queue_full` and
  /// `rate_limit_exceeded`; Unavailable `loading` and `draining`; DeviceLost after a fault.
  /// Request::on_token is not used.
  Result<Ticket> submit(Request request, ServiceSink sink, const std::string& client = {});

  /// Ends a request at the next step. Its sink still gets the end. An unknown ticket is ignored.
  /// Thread-safe.
  void cancel(Ticket ticket, FinishReason reason = FinishReason::kAborted);

  /// Runs a function with the engine on its thread, between two steps, and waits for it. False if
  /// the service ends before. Not from the event loop, nor from the engine thread.
  bool with_engine(const std::function<void(Engine&)>& action);

  /// What the engine is, for those who only read: model, tokenizer, options, plan. Not its core.
  /// Once it is loaded.
  const Engine& engine() const { return *engine_; }

  /// A copy that was made after the last step.
  ServiceStats stats() const;

  /// No request is taken from now on.
  void drain() { draining_.store(true); }

  /// Whether no request is known.
  bool idle() const { return num_open_.load() == 0; }

  /// Ends all requests that are left with a reason.
  void end_all(FinishReason reason);

 private:
  struct Entry;

  struct Command {
    enum class Kind : uint8_t { kSubmit, kCancel, kEndAll, kCall };
    Kind kind = Kind::kCall;
    Ticket ticket = 0;
    FinishReason reason = FinishReason::kNone;
    Request request{};
    std::shared_ptr<Entry> entry{};
    std::function<void(Engine&)> call{};
    std::function<void(bool done)> called{};
  };

  void run(const EngineLoader& load);
  void wait_for_work();
  void take_commands();
  void obey(bool between_steps);
  void take_in(Command& command);
  void end_all_now(FinishReason reason);
  void step();
  void on_token(const std::shared_ptr<Entry>& entry, const TokenEvent& event);
  void close(Entry& entry, const ServiceEvent& event);
  void forget(Entry& entry);
  void deliver();
  CoreStats publish_stats(bool in_step);
  void push(Command command);
  void close_inbox();
  Status reserve_place(const std::string& client);
  void leave_place(Entry& entry);

  ServiceSettings settings_;
  MonotonicClock clock_;
  std::unique_ptr<Engine> engine_;

  // Handed in, not yet seen.
  std::mutex inbox_mutex_;
  std::condition_variable inbox_filled_;
  std::vector<Command> inbox_;
  bool stopping_ = false;
  bool closed_ = false;  // nobody looks into it any more

  std::mutex load_mutex_;
  std::condition_variable load_ended_;
  bool load_done_ = false;
  Status load_status_;
  std::atomic<bool> loaded_{false};
  std::atomic<bool> draining_{false};
  std::atomic<bool> faulted_{false};
  std::atomic<uint64_t> next_ticket_{1};
  std::atomic<int64_t> num_open_{0};

  // Requests without a first token, in all and of each client.
  std::mutex waiting_mutex_;
  int64_t num_waiting_ = 0;
  std::unordered_map<std::string, int64_t> waiting_of_;

  mutable std::mutex stats_mutex_;
  ServiceStats stats_;

  // Of the engine thread.
  std::vector<Command> commands_;
  std::unordered_map<Ticket, std::shared_ptr<Entry>> entries_;
  std::vector<std::pair<std::shared_ptr<Entry>, ServiceEvent>> events_;

  std::thread thread_;
};

}  // namespace fathom::serve
