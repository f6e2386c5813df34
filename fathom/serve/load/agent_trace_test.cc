#include "fathom/serve/load/agent_trace.h"

#include <algorithm>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "fathom/text/json_writer.h"

namespace fathom::serve {
namespace {

std::string print(const AgentTrace& trace) {
  std::string out = dump_json(trace.tools);
  for (const std::string& prompt : trace.system_prompts)
    out += prompt + "\n";
  for (const AgentSession& session : trace.sessions) {
    str_append(out, str_cat("project ", session.project, "\n"));
    for (const AgentTurn& t : session.turns)
      str_append(out, str_cat(t.think_ns, " ", t.output_len, " ", t.text, "\n"));
  }
  return out;
}

TEST(AgentTrace, DependsOnItsOptionsAlone) {
  AgentOptions other;
  other.seed = 1;

  EXPECT_EQ(print(make_agent_trace({})), print(make_agent_trace({})));
  EXPECT_NE(print(make_agent_trace({})), print(make_agent_trace(other)));
}

TEST(AgentTrace, MoreSessionsLeaveTheOthersAsTheyAre) {
  AgentOptions few, many;
  few.sessions = 3;
  many.sessions = 7;

  const AgentTrace a = make_agent_trace(few), b = make_agent_trace(many);

  for (size_t s = 0; s < 3; ++s) {
    for (size_t t = 0; t < a.sessions[s].turns.size(); ++t)
      EXPECT_EQ(a.sessions[s].turns[t].text, b.sessions[s].turns[t].text);
  }
}

TEST(AgentTrace, HasTheShapeThatIsAsked) {
  AgentOptions o;
  o.sessions = 200;
  o.turns = 20;
  o.projects = 3;
  o.tokens_per_word = 2;
  o.think_time_s = 2;
  o.salt = "k7";

  const AgentTrace trace = make_agent_trace(o);

  ASSERT_EQ(trace.system_prompts.size(), 3u);
  EXPECT_THAT(trace.system_prompts[1],
              testing::StartsWith("Session key k7.\nYou work on project 1"));
  const auto blanks = [](const std::string& t) { return std::count(t.begin(), t.end(), ' '); };
  EXPECT_NEAR(static_cast<double>(blanks(trace.system_prompts[0])), 2000, 20);
  double think = 0, outputs = 0;
  std::vector<int64_t> results;
  for (const AgentSession& session : trace.sessions) {
    ASSERT_EQ(session.turns.size(), 20u);
    EXPECT_EQ(session.turns[0].think_ns, 0);
    for (size_t t = 1; t < 20; ++t) {
      think += static_cast<double>(session.turns[t].think_ns) * 1e-9;
      results.push_back(blanks(session.turns[t].text) + 1);
      outputs += session.turns[t].output_len < 128;
    }
  }
  const double n = static_cast<double>(results.size());
  std::sort(results.begin(), results.end());
  EXPECT_EQ(trace.sessions[4].project, 1);
  EXPECT_NEAR(think / n, 2, 0.13);       // four standard errors, 2 / sqrt(3800)
  EXPECT_NEAR(outputs / n, 0.5, 0.035);  // as many below the median as above
  EXPECT_NEAR(static_cast<double>(results[results.size() / 2]), 150, 15);
  EXPECT_EQ(results.back(), 4000);  // the tail is long and cut
  EXPECT_GT(results[results.size() * 9 / 10], 500);
}

TEST(AgentConversation, GrowsByAnswersAndResults) {
  AgentOptions o;
  o.sessions = 1;
  o.turns = 4;
  const AgentTrace trace = make_agent_trace(o);
  const auto& turns = trace.sessions[0].turns;
  AgentConversation c(trace, 0);
  const auto role = [&](size_t i) { return c.messages()[i].find("role")->as_string(); };
  const auto content = [&](size_t i) { return c.messages()[i].find("content")->as_string(); };

  ASSERT_EQ(c.messages().size(), 2u);
  EXPECT_EQ(content(1), turns[0].text);

  ReceivedAnswer plain;
  plain.content = "thinking aloud";
  const std::string before = dump_json(Json::array(c.messages()));
  c.add_answer(plain);
  EXPECT_EQ(role(3), "user");
  EXPECT_EQ(content(3), turns[1].text);
  const std::string after = dump_json(Json::array(c.messages()));
  EXPECT_THAT(after, testing::StartsWith(before.substr(0, before.size() - 1)));

  ReceivedAnswer calls;
  calls.tool_calls = {{"a", "search", "{}"}, {"b", "read_file", "{}"}};
  c.add_answer(calls);
  ASSERT_EQ(c.messages().size(), 7u);
  EXPECT_EQ(role(5), "tool");
  EXPECT_EQ(content(5), turns[2].text);
  EXPECT_EQ(c.messages()[5].find("tool_call_id")->as_string(), "a");
  EXPECT_EQ(content(6), "done");
  EXPECT_EQ(c.messages()[6].find("tool_call_id")->as_string(), "b");

  ReceivedAnswer cut;
  cut.tool_calls = {{"a", "search", "{\"pat"}};
  c.add_answer(cut);
  EXPECT_EQ(role(8), "user");
  EXPECT_FALSE(c.finished());
  c.add_answer(plain);
  EXPECT_TRUE(c.finished());
}

}  // namespace
}  // namespace fathom::serve
