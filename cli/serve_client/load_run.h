// Sends the requests of a plan when they are due and takes the times of their answers.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "fathom/serve/client/request_body.h"
#include "fathom/serve/http/client/http_client.h"
#include "fathom/serve/load/agent_trace.h"
#include "fathom/serve/load/load_record.h"

namespace fathom::cli {

/// A request that does not wait for others.
struct PlannedRequest {
  serve::TextRequest request;
  int64_t prompt_tokens = 0;  ///< as planned; 0: unknown
  int64_t at_ns = 0;          ///< from the start
};

struct LoadPlan {
  serve::TextRoute route = serve::TextRoute::kCompletions;
  std::vector<PlannedRequest> requests;  ///< ascending in at_ns

  // Of the agent scenario.
  serve::AgentTrace agent;
  serve::TextRequest agent_request;  ///< model, tools and extras of every turn
  std::vector<int64_t> session_at_ns;

  /// Requests if all goes well.
  int64_t num_requests() const;
};

struct LoadLimits {
  int64_t max_concurrency = 0;  ///< 0: none
  double duration_s = 0;        ///< 0: none
};

struct LoadOutcome {
  std::vector<serve::LoadRecord> records;  ///< in the order of sending
  double duration_s = 0;                   ///< to the end of the last answer
  int64_t left_out = 0;                    ///< never sent, or cut by Ctrl-C
  bool interrupted = false;
};

/// What is told of a run while it goes on: ended requests, those running, failed ones.
using LoadProgress = std::function<void(int64_t ended, int64_t running, int64_t failed)>;

class LoadRun {
 public:
  LoadRun(serve::HttpClient& client,
          const LoadPlan& plan,
          LoadLimits limits,
          LoadProgress progress);

  /// Runs the loop to the end of the last request, or until Ctrl-C, which leaves running ones.
  LoadOutcome run();

 private:
  struct Flight;

  /// A request that is due: an index of the plan, or the next turn of a session.
  struct Due {
    size_t index = 0;
    int64_t since_ns = 0;
  };

  void arrive();
  void tick();
  void stop();
  void pump();
  void launch(const Due& due);
  void take_events(Flight& flight, std::string_view bytes);
  void end(Flight& flight, serve::CallFault fault, const Status& status);
  void judge(Flight& flight, serve::CallFault fault, const Status& status);
  void go_on(size_t session, const serve::ReceivedAnswer& answer);
  void later(int64_t delay_ns, std::function<void()> then);
  bool finished() const;
  void close_if_finished();
  int64_t now_ns() const;

  bool agent() const { return !plan_.agent.sessions.empty(); }

  serve::HttpClient& client_;
  const LoadPlan& plan_;
  LoadLimits limits_;
  LoadProgress progress_;
  int64_t begin_ns_ = 0;
  int64_t last_end_ns_ = 0;
  size_t arrived_ = 0;
  int64_t thinking_ = 0;  // sessions that wait for their next turn
  int64_t failed_ = 0;
  bool stopping_ = false;
  std::deque<Due> due_;
  std::set<std::shared_ptr<Flight>> flights_;
  std::set<serve::TimerId> timers_;
  std::vector<serve::AgentConversation> conversations_;
  LoadOutcome outcome_;
};

}  // namespace fathom::cli
