#include "fathom/serve/service/engine_service.h"

#include <algorithm>
#include <chrono>
#include <exception>
#include <iterator>
#include <utility>

#include "fathom/base/fail_point.h"
#include "fathom/base/log.h"

namespace fathom::serve {
namespace {

// A step that never ends, for tests of the watchdog.
[[noreturn]] void stall() {
  for (;;)
    std::this_thread::sleep_for(std::chrono::hours(1));
}

}  // namespace

// A request from submit() to its last event.
struct EngineService::Entry {
  Ticket ticket = 0;
  RequestId id = 0;
  ServiceSink sink;
  std::string client;
  RequestRecord record;
  bool waits = true;  // it counts among the waiting ones
};

EngineService::EngineService(EngineLoader load, ServiceSettings settings)
    : settings_(std::move(settings)), thread_([this, load = std::move(load)] { run(load); }) {}

EngineService::~EngineService() {
  {
    const std::lock_guard lock(inbox_mutex_);
    stopping_ = true;
  }
  inbox_filled_.notify_all();
  thread_.join();
}

Status EngineService::wait_until_loaded() {
  std::unique_lock lock(load_mutex_);
  load_ended_.wait(lock, [this] { return load_done_; });
  return std::move(load_status_);
}

void EngineService::push(Command command) {
  {
    const std::lock_guard lock(inbox_mutex_);
    if (!closed_) {
      inbox_.push_back(std::move(command));
      inbox_filled_.notify_one();
      return;
    }
  }
  if (command.called) command.called(false);
}

// What came too late: callers of with_engine() hear that nothing ran.
void EngineService::close_inbox() {
  std::vector<Command> late;
  {
    const std::lock_guard lock(inbox_mutex_);
    closed_ = true;
    late.swap(inbox_);
  }
  for (const Command& c : late) {
    if (c.called) c.called(false);
  }
}

Status EngineService::reserve_place(const std::string& client) {
  const EngineOptions& options = engine_->options();
  const std::lock_guard lock(waiting_mutex_);
  // Those whose prompts are being computed wait for their first token, but not in the queue.
  if (num_waiting_ >= options.max_queue + options.max_num_seqs) {
    return overloaded(str_cat("queue_full: ", num_waiting_, " requests are waiting, at most ",
                              options.max_queue, " may (--max-queue)"));
  }
  if (!client.empty()) {
    int64_t& count = waiting_of_[client];
    if (count >= settings_.max_waiting_per_client) {
      return overloaded(str_cat("rate_limit_exceeded: ", count,
                                " requests of this key are waiting, at most ",
                                settings_.max_waiting_per_client, " may"));
    }
    ++count;
  }
  ++num_waiting_;
  return {};
}

void EngineService::leave_place(Entry& entry) {
  if (!std::exchange(entry.waits, false)) return;
  const std::lock_guard lock(waiting_mutex_);
  --num_waiting_;
  if (entry.client.empty()) return;
  const auto found = waiting_of_.find(entry.client);
  if (found != waiting_of_.end() && --found->second == 0) waiting_of_.erase(found);
}

Result<Ticket> EngineService::submit(Request request, ServiceSink sink, const std::string& client) {
  if (!loaded()) return unavailable("loading: the model is not loaded yet");
  if (faulted_.load()) return device_lost("the engine had a fault and takes no more requests");
  if (draining_.load()) return unavailable("draining: the server shuts down");
  FATHOM_TRY(engine_->core().admissible(request));
  FATHOM_TRY(reserve_place(client));
  auto entry = std::make_shared<Entry>();
  entry->ticket = next_ticket_.fetch_add(1);
  entry->sink = std::move(sink);
  entry->client = client;
  const auto length = static_cast<int64_t>(request.prompt.size());
  entry->record.prompt_tokens = length;
  entry->record.max_tokens =
      request.sampling.max_tokens.value_or(engine_->core().default_max_tokens(length));
  entry->record.times.submitted_ns = clock_.now_ns();
  num_open_.fetch_add(1);
  const Ticket ticket = entry->ticket;
  push({.kind = Command::Kind::kSubmit,
        .ticket = ticket,
        .request = std::move(request),
        .entry = std::move(entry)});
  return ticket;
}

void EngineService::cancel(Ticket ticket, FinishReason reason) {
  push({.kind = Command::Kind::kCancel, .ticket = ticket, .reason = reason});
}

void EngineService::end_all(FinishReason reason) {
  push({.kind = Command::Kind::kEndAll, .reason = reason});
}

bool EngineService::with_engine(const std::function<void(Engine&)>& action) {
  if (!loaded()) return false;
  std::mutex mutex;
  std::condition_variable ended;
  bool done = false;
  bool ran = false;
  push({.kind = Command::Kind::kCall, .call = action, .called = [&](bool it_ran) {
          const std::lock_guard lock(mutex);
          done = true;
          ran = it_ran;
          ended.notify_one();
        }});
  std::unique_lock lock(mutex);
  ended.wait(lock, [&] { return done; });
  return ran;
}

ServiceStats EngineService::stats() const {
  const std::lock_guard lock(stats_mutex_);
  ServiceStats out = stats_;
  out.faulted = faulted_.load();
  out.draining = draining_.load();
  return out;
}

void EngineService::run(const EngineLoader& load) {
  Result<std::unique_ptr<Engine>> engine = load();
  {
    const std::lock_guard lock(load_mutex_);
    if (engine.ok()) {
      engine_ = std::move(engine).value();
      publish_stats(false);
      loaded_.store(true, std::memory_order_release);
    } else {
      load_status_ = std::move(engine).status();
    }
    load_done_ = true;
  }
  load_ended_.notify_all();
  for (;;) {
    wait_for_work();
    obey(true);
    deliver();
    {
      const std::lock_guard lock(inbox_mutex_);
      if (stopping_ && inbox_.empty()) break;
    }
    if (engine_ && !engine_->idle() && !faulted_.load()) {
      step();
      deliver();
    }
  }
  close_inbox();
  if (engine_) {
    end_all_now(FinishReason::kAborted);
    deliver();
  }
  engine_.reset();  // where it was made: its threads give their CPUs back
}

void EngineService::wait_for_work() {
  std::unique_lock lock(inbox_mutex_);
  const bool busy = engine_ && !engine_->idle() && !faulted_.load();
  if (!busy && commands_.empty()) {
    inbox_filled_.wait(lock, [this] { return stopping_ || !inbox_.empty(); });
  }
  take_commands();
}

void EngineService::take_commands() {
  std::ranges::move(inbox_, std::back_inserter(commands_));
  inbox_.clear();
}

// Within a step only requests come and go; what else is wanted waits for its end, and all behind
// it.
void EngineService::obey(bool between_steps) {
  size_t done = 0;
  for (; done < commands_.size(); ++done) {
    Command& c = commands_[done];
    if (c.kind == Command::Kind::kCall && !between_steps) break;
    switch (c.kind) {
      case Command::Kind::kSubmit:
        take_in(c);
        break;
      case Command::Kind::kCancel:
        if (const auto found = entries_.find(c.ticket); found != entries_.end()) {
          engine_->core().cancel(found->second->id, c.reason);
        }
        break;
      case Command::Kind::kEndAll:
        end_all_now(c.reason);
        break;
      case Command::Kind::kCall:
        if (engine_) {
          publish_stats(true);  // the watchdog looks at it as at a step
          c.call(*engine_);
          publish_stats(false);
        }
        c.called(engine_ != nullptr);
        break;
    }
  }
  if (done > 0 && engine_ && between_steps) publish_stats(false);
  commands_.erase(commands_.begin(), commands_.begin() + static_cast<ptrdiff_t>(done));
}

void EngineService::take_in(Command& c) {
  const std::shared_ptr<Entry>& entry = c.entry;
  c.request.on_token = [this, entry](const TokenEvent& e) { on_token(entry, e); };
  Result<RequestId> id = engine_->submit(std::move(c.request));
  if (id.ok()) {
    entry->id = *id;
    entries_.emplace(entry->ticket, entry);
    return;
  }
  ServiceEvent event;
  event.finish = FinishReason::kAborted;
  event.times = entry->record.times;
  event.refusal = std::make_shared<const Status>(std::move(id).status());
  forget(*entry);  // an error of the client's request, no answer that ended
  events_.emplace_back(entry, std::move(event));
}

void EngineService::end_all_now(FinishReason reason) {
  std::vector<RequestId> ids;
  ids.reserve(entries_.size());
  for (const auto& [ticket, entry] : entries_)
    ids.push_back(entry->id);
  for (const RequestId id : ids)
    engine_->core().cancel(id, reason);
}

void EngineService::step() {
  const int64_t begin = clock_.now_ns();
  const CoreStats before = publish_stats(true);
  if (FATHOM_FAIL_POINT("serve.stall")) stall();
  Status status = engine_->core().start_step();
  if (status.ok()) {
    deliver();
    {
      const std::lock_guard lock(inbox_mutex_);
      take_commands();
    }
    obey(false);
    status = engine_->core().finish_step();
  }
  if (FATHOM_FAIL_POINT("serve.fault")) {
    status = device_lost("a fault was asked for");
    end_all_now(FinishReason::kEngineFault);
  }
  if (!status.ok()) {
    log_error("the engine stopped: ", status.message());
    faulted_.store(true);
  }
  if (settings_.after_step) settings_.after_step(*engine_);
  const CoreStats after = publish_stats(false);
  if (settings_.observer == nullptr) return;
  settings_.observer->on_step({.prompt_tokens = after.prompt_tokens - before.prompt_tokens,
                               .generated_tokens = after.generated_tokens - before.generated_tokens,
                               .running = before.scheduler.num_running,
                               .seconds = static_cast<double>(clock_.now_ns() - begin) * 1e-9});
}

void EngineService::on_token(const std::shared_ptr<Entry>& entry, const TokenEvent& e) {
  ServiceEvent event;
  RequestTimes& times = entry->record.times;
  times.started_ns = e.started_ns;
  if (e.token >= 0) {
    const int64_t now = clock_.now_ns();
    ServiceObserver* const observer = settings_.observer;
    if (times.first_token_ns == 0) {
      times.first_token_ns = now;
      if (observer != nullptr) {
        observer->on_first_token(static_cast<double>(now - times.submitted_ns) * 1e-9);
      }
      leave_place(*entry);
    } else if (observer != nullptr) {
      observer->on_token(static_cast<double>(now - times.last_token_ns) * 1e-9);
    }
    times.last_token_ns = now;
    ++entry->record.generated_tokens;
  }
  entry->record.cached_tokens = e.cached_tokens;
  event.token = e.token;
  event.text = e.text;
  event.logprob = e.logprob;
  event.top_logprobs.assign(e.top_logprobs.begin(), e.top_logprobs.end());
  event.finish = e.finish;
  event.stop_text = e.stop_text;
  event.cached_tokens = e.cached_tokens;
  event.drafted_tokens = e.drafted_tokens;
  event.accepted_tokens = e.accepted_tokens;
  if (e.prompt_logprobs != nullptr) {
    event.prompt_logprobs = std::make_shared<const std::vector<PromptLogprobs>>(*e.prompt_logprobs);
  }
  event.times = times;
  if (event.finish != FinishReason::kNone) close(*entry, event);
  events_.emplace_back(entry, std::move(event));
}

void EngineService::close(Entry& entry, const ServiceEvent& event) {
  entry.record.finish = event.finish;
  entry.record.ended_ns = clock_.now_ns();
  if (settings_.observer != nullptr) settings_.observer->on_end(entry.record);
  forget(entry);
}

void EngineService::forget(Entry& entry) {
  leave_place(entry);
  entries_.erase(entry.ticket);
  num_open_.fetch_sub(1);
}

void EngineService::deliver() {
  if (events_.empty()) return;
  settings_.post([events = std::exchange(events_, {})] {
    for (const auto& [entry, event] : events) {
      // Memory that is not there for one answer: the others still get theirs.
      try {
        entry->sink(event);
      } catch (const std::exception& e) {
        log_error("an answer was lost: ", e.what());
      }
    }
  });
}

CoreStats EngineService::publish_stats(bool in_step) {
  const CoreStats core = engine_->stats();
  const int64_t now = clock_.now_ns();
  const std::lock_guard lock(stats_mutex_);
  stats_.core = core;
  if (in_step) {
    stats_.busy_since_ns = now;
    return core;
  }
  if (stats_.busy_since_ns != 0) stats_.last_step_ns = now;
  stats_.busy_since_ns = 0;
  return core;
}

}  // namespace fathom::serve
