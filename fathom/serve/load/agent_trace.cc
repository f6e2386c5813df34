#include "fathom/serve/load/agent_trace.h"

#include <algorithm>
#include <cmath>
#include <string_view>

#include "fathom/serve/load/prompts.h"
#include "fathom/serve/load/variates.h"

namespace fathom::serve {
namespace {

// Streams of random numbers: projects and sessions each have their own.
constexpr uint64_t kProjects = uint64_t{1} << 32;
constexpr uint64_t kSessions = uint64_t{2} << 32;

constexpr double kOutputSigma = 0.6;
constexpr int64_t kOutputTail = 8;
constexpr int64_t kShortest = 16;  // tokens of an answer or a result

struct Parameter {
  std::string_view name;
  std::string_view description;
};

Json tool(std::string_view name,
          std::string_view description,
          std::initializer_list<Parameter> parameters) {
  std::vector<JsonMember> properties;
  std::vector<Json> required;
  const auto text = [](std::string_view t) { return Json::string(std::string(t)); };
  for (const Parameter& p : parameters) {
    properties.emplace_back(
        p.name, Json::object({{"type", text("string")}, {"description", text(p.description)}}));
    required.push_back(text(p.name));
  }
  return Json::object(
      {{"type", text("function")},
       {"function",
        Json::object(
            {{"name", text(name)},
             {"description", text(description)},
             {"parameters", Json::object({{"type", text("object")},
                                          {"properties", Json::object(std::move(properties))},
                                          {"required", Json::array(std::move(required))}})}})}});
}

Json agent_tools() {
  return Json::array(
      {tool("read_file", "Reads a file of the project.", {{"path", "Path from the root"}}),
       tool("edit_file", "Replaces a text that occurs once in a file.",
            {{"path", "Path from the root"},
             {"old", "Text to replace"},
             {"new", "What replaces it"}}),
       tool("run_command", "Runs a command in the root and returns what it prints.",
            {{"command", "Command line"}}),
       tool("search", "Finds a pattern in the files of the project.",
            {{"pattern", "Text to find"}, {"folder", "Where to look"}}),
       tool("list_folder", "Lists a folder.", {{"path", "Path from the root"}})});
}

std::string words_of_tokens(Rng& rng, double tokens, double tokens_per_word) {
  return random_words(rng, std::max<int64_t>(std::llround(tokens / tokens_per_word), 1));
}

AgentSession make_session(const AgentOptions& o, int64_t number) {
  Rng rng(o.seed, kSessions + static_cast<uint64_t>(number));
  AgentSession session{.project = number % o.projects, .turns = {}};
  for (int64_t t = 0; t < o.turns; ++t) {
    AgentTurn turn;
    if (t == 0) {
      const double length = exponential_double(rng, static_cast<double>(o.task_len));
      turn.text = words_of_tokens(rng, length, o.tokens_per_word);
    } else {
      const int64_t length = lognormal_length(rng, o.tool_result_len, o.tool_result_sigma,
                                              kShortest, std::max(kShortest, o.tool_result_max));
      turn.text = words_of_tokens(rng, static_cast<double>(length), o.tokens_per_word);
      turn.think_ns = std::llround(exponential_double(rng, o.think_time_s) * 1e9);
    }
    const auto longest = static_cast<int64_t>(o.output_len * kOutputTail);
    turn.output_len =
        lognormal_length(rng, o.output_len, kOutputSigma, 1, std::max<int64_t>(longest, 1));
    session.turns.push_back(std::move(turn));
  }
  return session;
}

}  // namespace

AgentTrace make_agent_trace(const AgentOptions& o) {
  AgentTrace trace;
  trace.tools = agent_tools();
  for (int64_t p = 0; p < o.projects; ++p) {
    Rng rng(o.seed, kProjects + static_cast<uint64_t>(p));
    std::string prompt = o.salt.empty() ? std::string{} : str_cat("Session key ", o.salt, ".\n");
    str_append(prompt, str_cat("You work on project ", p, " with the tools you are given.\n",
                               words_of_tokens(rng, static_cast<double>(o.shared_prefix_len),
                                               o.tokens_per_word)));
    trace.system_prompts.push_back(std::move(prompt));
  }
  for (int64_t s = 0; s < o.sessions; ++s)
    trace.sessions.push_back(make_session(o, s));
  return trace;
}

AgentConversation::AgentConversation(const AgentTrace& trace, size_t session)
    : session_(&trace.sessions[session]) {
  const auto project = static_cast<size_t>(session_->project);
  messages_.push_back(chat_message("system", trace.system_prompts[project]));
  if (!finished()) messages_.push_back(chat_message("user", turn().text));
}

void AgentConversation::add_answer(const ReceivedAnswer& answer) {
  messages_.push_back(assistant_message(answer));
  ++next_;
  if (finished()) return;
  const std::vector<ReceivedToolCall> calls = whole_tool_calls(answer);
  if (calls.empty()) messages_.push_back(chat_message("user", turn().text));
  for (size_t i = 0; i < calls.size(); ++i) {
    Json result = chat_message("tool", i == 0 ? turn().text : std::string("done"));
    result.members().emplace_back("tool_call_id", Json::string(calls[i].id));
    messages_.push_back(std::move(result));
  }
}

}  // namespace fathom::serve
