// Generated traffic with the shape of coding agents: sessions of many turns that share a project's
// long system prompt, call tools and get their results, and grow with every turn.
//
//   project 0  system prompt + tools   <- shared by all sessions of the project
//     session 0   turn 0: task           -> answer, think
//                 turn 1: tool result    -> answer, think
//                 ...
//
// The first session of a project finds nothing in a prefix cache; first turns of later ones find
// the system prompt, later turns everything up to their last message. What the assistant says comes
// from the server, so that prefixes match what it has cached.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "fathom/serve/client/request_body.h"
#include "fathom/text/json.h"

namespace fathom::serve {

/// Lengths are in tokens; text is made of words at `tokens_per_word`.
struct AgentOptions {
  int64_t sessions = 8;
  int64_t turns = 10;                ///< of a session, all alike
  int64_t projects = 2;              ///< session s belongs to project s mod projects
  int64_t shared_prefix_len = 4000;  ///< of a project's system prompt, without the tools
  int64_t task_len = 400;            ///< of the first message, mean of an exponential
  double tool_result_len = 300;      ///< median of a lognormal
  double tool_result_sigma = 1.2;    ///< its sigma: 95 % lie within a factor of 10.5
  int64_t tool_result_max = 8000;
  double output_len = 128;  ///< median of a lognormal of sigma 0.6, at most 8 times that
  double think_time_s = 1;  ///< before every turn but the first, mean of an exponential
  double tokens_per_word = 1.1;
  std::string salt{};  ///< begins each system prompt: another salt, nothing cached
  uint64_t seed = 0;
};

struct AgentTurn {
  std::string text;        ///< the task, or the result of a tool
  int64_t output_len = 0;  ///< tokens to ask for
  int64_t think_ns = 0;    ///< from the end of the turn before
};

struct AgentSession {
  int64_t project = 0;
  std::vector<AgentTurn> turns;
};

struct AgentTrace {
  std::vector<std::string> system_prompts;  ///< by project
  Json tools;                               ///< definitions, the same for all
  std::vector<AgentSession> sessions;
};

/// The same options give the same trace; session s does not depend on how many there are.
AgentTrace make_agent_trace(const AgentOptions& options);

/// The messages of one session as they grow. The trace outlives it.
class AgentConversation {
 public:
  AgentConversation(const AgentTrace& trace, size_t session);

  bool finished() const { return next_ == session_->turns.size(); }

  size_t next_turn() const { return next_; }

  /// The turn that comes next. Not when finished.
  const AgentTurn& turn() const { return session_->turns[next_]; }

  /// The messages to send for it.
  const std::vector<Json>& messages() const { return messages_; }

  /// Its answer came: the assistant's message, then what the next turn brings. Results answer the
  /// first call of the answer, further ones get a short result; without calls the text comes from
  /// the user.
  void add_answer(const ReceivedAnswer& answer);

 private:
  const AgentSession* session_;
  size_t next_ = 0;
  std::vector<Json> messages_;
};

}  // namespace fathom::serve
