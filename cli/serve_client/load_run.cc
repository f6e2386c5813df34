#include "cli/serve_client/load_run.h"

#include <algorithm>

#include "cli/engine/text_engine.h"
#include "cli/io/interrupt.h"
#include "cli/serve_client/server_facts.h"
#include "fathom/os/clock.h"
#include "fathom/serve/sse.h"

namespace fathom::cli {

using serve::CallFault;

namespace {

constexpr int64_t kTickNs = 50'000'000;
constexpr size_t kMaxErrorBytes = 64 * 1024;

}  // namespace

/// One request on its way.
struct LoadRun::Flight {
  Flight(serve::TextRoute route, int64_t start_ns) : reader(route), times(start_ns) {}

  serve::CallId call = 0;
  size_t place = 0;  // of its record
  size_t index = 0;  // of the plan
  int64_t planned_prompt = 0;
  int status = 0;
  bool is_stream = false;
  std::string error_body;
  std::string stream_code;  // of an error within the stream
  Status stream_error;
  serve::SseParser parser;
  serve::AnswerReader reader;
  serve::TokenTimes times;
};

int64_t LoadPlan::num_requests() const {
  int64_t count = static_cast<int64_t>(requests.size());
  for (const serve::AgentSession& session : agent.sessions)
    count += static_cast<int64_t>(session.turns.size());
  return count;
}

LoadRun::LoadRun(serve::HttpClient& client,
                 const LoadPlan& plan,
                 LoadLimits limits,
                 LoadProgress progress)
    : client_(client), plan_(plan), limits_(limits), progress_(std::move(progress)) {
  for (size_t s = 0; s < plan.agent.sessions.size(); ++s)
    conversations_.emplace_back(plan.agent, s);
}

LoadOutcome LoadRun::run() {
  begin_ns_ = last_end_ns_ = monotonic_ns();
  arrive();
  tick();
  client_.run();
  outcome_.duration_s = static_cast<double>(last_end_ns_ - begin_ns_) * 1e-9;
  const auto sent = static_cast<int64_t>(outcome_.records.size());
  std::erase_if(outcome_.records, [](const auto& r) { return r.error_code == "cancelled"; });
  const int64_t cut = sent - static_cast<int64_t>(outcome_.records.size());
  outcome_.left_out = plan_.num_requests() - sent + cut;
  return std::move(outcome_);
}

int64_t LoadRun::now_ns() const {
  return monotonic_ns() - begin_ns_;
}

// All that are due by now, and a timer for the next.
void LoadRun::arrive() {
  const size_t count = agent() ? conversations_.size() : plan_.requests.size();
  const auto at = [&](size_t i) {
    return agent() ? plan_.session_at_ns[i] : plan_.requests[i].at_ns;
  };
  while (!stopping_ && arrived_ < count && at(arrived_) <= now_ns()) {
    due_.push_back({.index = arrived_, .since_ns = at(arrived_)});
    ++arrived_;
  }
  pump();
  if (stopping_ || arrived_ == count) return;
  later(std::max<int64_t>(at(arrived_) - now_ns(), 0), [this] { arrive(); });
}

void LoadRun::tick() {
  if (take_interrupt()) {
    outcome_.interrupted = true;
    stop();
    for (const auto& flight : flights_)
      client_.cancel(flight->call);
  }
  const double gone_s = static_cast<double>(now_ns()) * 1e-9;
  if (limits_.duration_s > 0 && gone_s >= limits_.duration_s) stop();
  close_if_finished();
  if (!finished()) later(kTickNs, [this] { tick(); });
}

// No further request begins.
void LoadRun::stop() {
  stopping_ = true;
  due_.clear();
  thinking_ = 0;
}

bool LoadRun::finished() const {
  const size_t count = agent() ? conversations_.size() : plan_.requests.size();
  const bool nothing_comes = stopping_ || (arrived_ == count && thinking_ == 0);
  return nothing_comes && due_.empty() && flights_.empty();
}

void LoadRun::close_if_finished() {
  if (!finished()) return;
  for (const serve::TimerId timer : timers_)
    client_.drop(timer);
  timers_.clear();
}

void LoadRun::later(int64_t delay_ns, std::function<void()> then) {
  auto id = std::make_shared<serve::TimerId>(0);
  *id = client_.after(delay_ns, [this, id, then = std::move(then)] {
    timers_.erase(*id);
    then();
  });
  timers_.insert(*id);
}

void LoadRun::pump() {
  const auto free = [&] {
    return limits_.max_concurrency == 0 ||
           static_cast<int64_t>(flights_.size()) < limits_.max_concurrency;
  };
  while (!due_.empty() && free()) {
    const Due due = due_.front();
    due_.pop_front();
    launch(due);
  }
}

void LoadRun::launch(const Due& due) {
  serve::LoadRecord record;
  std::string body;
  int64_t planned = 0;
  if (agent()) {
    const serve::AgentConversation& talk = conversations_[due.index];
    serve::TextRequest request = plan_.agent_request;
    request.messages = talk.messages();
    request.max_tokens = talk.turn().output_len;
    body = serve::request_body(plan_.route, request);
    record.session = static_cast<int64_t>(due.index);
    record.turn = static_cast<int64_t>(talk.next_turn());
  } else {
    body = serve::request_body(plan_.route, plan_.requests[due.index].request);
    planned = plan_.requests[due.index].prompt_tokens;
  }
  // The time begins when there is nothing left to do but to send it.
  const int64_t start_ns = monotonic_ns();
  record.start_ns = start_ns - begin_ns_;
  record.queued_ns = std::max<int64_t>(record.start_ns - due.since_ns, 0);
  const auto flight = std::make_shared<Flight>(plan_.route, start_ns);
  flight->place = outcome_.records.size();
  flight->index = due.index;
  flight->planned_prompt = planned;
  outcome_.records.push_back(std::move(record));
  flights_.insert(flight);
  serve::CallListener listener;
  listener.on_head = [flight](const serve::ReplyHead& head) {
    flight->status = head.status;
    flight->is_stream = head.header("content-type").starts_with("text/event-stream");
  };
  listener.on_body = [this, flight](std::string_view bytes) { take_events(*flight, bytes); };
  listener.on_end = [this, flight](CallFault fault, const Status& status) {
    end(*flight, fault, status);
  };
  flight->call = client_.start({.method = "POST",
                                .path = std::string(text_route_path(plan_.route)),
                                .body = std::move(body)},
                               std::move(listener));
}

void LoadRun::take_events(Flight& flight, std::string_view bytes) {
  if (flight.status != 200 || !flight.is_stream) {
    const size_t room = kMaxErrorBytes - std::min(flight.error_body.size(), kMaxErrorBytes);
    flight.error_body += bytes.substr(0, room);
    return;
  }
  if (!flight.stream_error.ok()) return;
  const int64_t now = monotonic_ns();
  const auto take = [&](const serve::SseEvent& event) {
    if (!flight.stream_error.ok()) return;
    Result<serve::AnswerPiece> piece = flight.reader.read(event);
    if (piece.ok()) return flight.times.note(piece->kind, now);
    flight.stream_code = flight.reader.error_code();
    if (flight.stream_code.empty()) flight.stream_code = "broken_reply";
    flight.stream_error = std::move(piece).status();
  };
  Status parsed = flight.parser.push(bytes, take);
  if (!parsed.ok() && flight.stream_error.ok()) {
    flight.stream_code = "broken_reply";
    flight.stream_error = std::move(parsed);
  }
  if (!flight.stream_error.ok()) client_.cancel(flight.call);
}

// Whether the request counts, and if not, why.
void LoadRun::judge(Flight& flight, CallFault fault, const Status& status) {
  serve::LoadRecord& record = outcome_.records[flight.place];
  const auto fail = [&](std::string code, std::string message) {
    record.error_code = std::move(code);
    record.error = std::move(message);
  };
  const serve::ReceivedAnswer& answer = flight.reader.answer();
  fill_record(flight.times, answer, flight.planned_prompt, record);
  if (!flight.stream_error.ok()) {
    fail(flight.stream_code, flight.stream_error.message());
  } else if (fault != CallFault::kNone) {
    fail(std::string(call_fault_name(fault)), status.message());
  } else if (flight.status != 200) {
    const serve::SentError sent = serve::read_error_body(flight.error_body);
    fail(error_code_of(flight.status, sent), sent.message);
  } else if (!flight.is_stream) {
    fail("no_stream", "the reply is no text/event-stream");
  } else if (answer.finish_reason.empty() && !flight.reader.ended()) {
    fail("cut_stream", "the stream ended before the answer did");
  } else if (!flight.times.any()) {
    fail("no_tokens", "the stream held no choice");
  } else {
    record.ok = true;
  }
}

void LoadRun::end(Flight& flight, CallFault fault, const Status& status) {
  // The set holds what keeps it alive.
  const auto self = std::find_if(flights_.begin(), flights_.end(),
                                 [&](const auto& f) { return f.get() == &flight; });
  const std::shared_ptr<Flight> alive = *self;
  flights_.erase(self);
  judge(flight, fault, status);
  last_end_ns_ = monotonic_ns();
  const serve::LoadRecord& record = outcome_.records[flight.place];
  failed_ += record.ok ? 0 : 1;
  if (agent() && record.ok && !stopping_) go_on(flight.index, flight.reader.answer());
  pump();
  if (progress_) {
    const auto running = static_cast<int64_t>(flights_.size());
    progress_(static_cast<int64_t>(outcome_.records.size()) - running, running, failed_);
  }
  close_if_finished();
}

void LoadRun::go_on(size_t session, const serve::ReceivedAnswer& answer) {
  serve::AgentConversation& talk = conversations_[session];
  talk.add_answer(answer);
  if (talk.finished()) return;
  ++thinking_;
  later(talk.turn().think_ns, [this, session] {
    if (stopping_) return;
    --thinking_;
    due_.push_back({.index = session, .since_ns = now_ns()});
    pump();
  });
}

}  // namespace fathom::cli
