// `fathom bench serve` against a server whose answers are known.
#include <cmath>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/e2e/mock_text_server.h"
#include "tests/e2e/program.h"

namespace fathom::e2e {
namespace {

using testing::HasSubstr;
using Words = std::vector<std::string>;

ProgramResult bench(const std::string& url, const Words& flags) {
  Words args{"bench", "serve", "--base-url", url, "--quiet"};
  args.insert(args.end(), flags.begin(), flags.end());
  return run_fathom(args);
}

/// The JSON that a run prints.
Json bench_json(const std::string& url, const Words& flags) {
  Words args = flags;
  args.insert(args.end(), {"-o", "json"});
  const ProgramResult r = bench(url, args);
  EXPECT_EQ(r.exit_code, 0) << r.err;
  auto json = parse_json(r.out, {}, "output");
  EXPECT_TRUE(json.ok()) << r.out;
  return json.ok() ? std::move(json).value() : Json{};
}

int64_t integer(const Json& json, std::string_view name) {
  const Json* found = json.find(name);
  EXPECT_TRUE(found != nullptr && found->is_int()) << name;
  return found != nullptr && found->is_int() ? found->as_int() : -1;
}

double number(const Json& json, std::string_view name) {
  const Json* found = json.find(name);
  EXPECT_TRUE(found != nullptr && found->is_number()) << name;
  return found != nullptr && found->is_number() ? found->as_double() : NAN;
}

TEST(BenchServe, RandomIdsHaveTheirLengthsAndCountsAddUp) {
  MockTextServer server;

  const Json r = bench_json(
      server.url(), {"--num-prompts", "20", "--input-len", "50", "--output-len", "8",
                     "--range-ratio", "0.5", "--seed", "3", "--ignore-eos", "--save-detailed",
                     "--temperature", "0", "--extra-body", R"({"top_k":5})"});

  EXPECT_EQ(integer(r, "completed"), 20);
  EXPECT_EQ(integer(r, "failed"), 0);
  EXPECT_EQ(r.find("model_id")->as_string(), "mock");
  EXPECT_EQ(r.find("tokenizer_id")->as_string(), "/models/mock");
  const std::vector<Json> bodies = server.bodies();
  ASSERT_EQ(bodies.size(), 21u);  // one warms up
  int64_t input = 0, output = 0;
  for (size_t i = 1; i < bodies.size(); ++i) {
    const auto length = static_cast<int64_t>(bodies[i].find("prompt")->items().size());
    EXPECT_TRUE(length >= 25 && length <= 75) << length;
    EXPECT_EQ(bodies[i].find("ignore_eos")->as_bool(), true);
    EXPECT_EQ(bodies[i].find("temperature")->as_double(), 0);
    EXPECT_EQ(bodies[i].find("top_k")->as_int(), 5);
    input += length;
    output += integer(bodies[i], "max_tokens");
    for (const Json& id : bodies[i].find("prompt")->items())
      EXPECT_TRUE(id.as_int() >= 125 && id.as_int() < 875);
  }
  EXPECT_EQ(integer(r, "total_input_tokens"), input);
  EXPECT_EQ(integer(r, "total_output_tokens"), output);
  int64_t gaps = 0;
  for (const Json& itls : r.find("itls")->items())
    gaps += static_cast<int64_t>(itls.items().size());
  EXPECT_EQ(gaps, output - 20);
  EXPECT_GE(number(r, "p99_e2el_ms"), number(r, "median_e2el_ms"));
  EXPECT_GT(number(r, "mean_ttft_ms"), 0);
  EXPECT_EQ(integer(*r.find("fathom")->find("usage"), "completion_tokens"), output);
}

TEST(BenchServe, SameSeedSendsTheSamePrompts) {
  MockTextServer a, b;
  const Words flags{"--num-prompts",     "3", "--input-len",   "10", "--output-len", "2",
                    "--max-concurrency", "1", "--num-warmups", "0"};

  bench_json(a.url(), flags);
  bench_json(b.url(), flags);

  EXPECT_EQ(a.bodies(), b.bodies());
  EXPECT_EQ(a.bodies().size(), 3u);
}

TEST(BenchServe, ChatPromptsHaveTheLengthTheServerTokenizes) {
  MockTextServer server;

  const Json r = bench_json(server.url(), {"--endpoint", "/v1/chat/completions", "--num-prompts",
                                           "4", "--input-len", "37", "--output-len", "3"});

  EXPECT_EQ(integer(r, "total_input_tokens"), 4 * 37);
  EXPECT_EQ(integer(r, "total_output_tokens"), 4 * 3);
  EXPECT_EQ(r.find("backend")->as_string(), "openai-chat");
}

TEST(BenchServe, ServersThatTellNothingGetWords) {
  MockTextServer server({.tokenizes = false, .names_vocabulary = false});

  const Json r =
      bench_json(server.url(), {"--num-prompts", "2", "--input-len", "110", "--output-len", "2"});

  EXPECT_EQ(integer(r, "total_input_tokens"), 200);  // 1.1 tokens a word are assumed
  const Json* notes = r.find("fathom")->find("notes");
  ASSERT_EQ(notes->items().size(), 2u);
  EXPECT_THAT(notes->items()[0].as_string(), HasSubstr("prompts are text"));
  EXPECT_THAT(notes->items()[1].as_string(), HasSubstr("are estimates"));
}

TEST(BenchServe, FailedRequestsAreCountedByTheirCode) {
  MockTextServer server({.fail_every = 4, .cut_every = 5});

  const Json r = bench_json(server.url(), {"--num-prompts", "20", "--input-len", "5",
                                           "--output-len", "4", "--num-warmups", "0"});

  EXPECT_EQ(integer(r, "completed"), 12);
  EXPECT_EQ(integer(r, "failed"), 8);
  const Json* errors = r.find("fathom")->find("errors_by_code");
  EXPECT_EQ(integer(*errors, "429 queue_full"), 5);  // the twentieth is both
  EXPECT_EQ(integer(*errors, "closed"), 3);
}

TEST(BenchServe, ConcurrencyIsLimited) {
  MockTextServer server({.token_delay_ms = 5});

  const Json r = bench_json(server.url(), {"--num-prompts", "12", "--input-len", "5",
                                           "--output-len", "3", "--max-concurrency", "3"});

  EXPECT_EQ(server.most_at_once(), 3);
  EXPECT_EQ(integer(r, "max_concurrent_requests"), 3);
  EXPECT_EQ(integer(r, "max_concurrency"), 3);
  // A token may be read late and the one behind it at once: only sums have a lower bound.
  EXPECT_GT(number(r, "mean_client_queue_time_ms"), 10);  // three rounds wait for the one before
  EXPECT_GE(number(r, "mean_ttft_ms"), 5);
  EXPECT_GE(number(r, "mean_e2el_ms"), 15);
}

TEST(BenchServe, RequestsComeAtTheirRate) {
  MockTextServer server;

  const Json r =
      bench_json(server.url(), {"--num-prompts", "20", "--request-rate", "100", "--input-len", "5",
                                "--output-len", "1", "--goodput", "ttft:60000", "e2el:60000"});

  EXPECT_GE(number(r, "duration"), 0.2);
  EXPECT_EQ(number(r, "request_rate"), 100);
  EXPECT_DOUBLE_EQ(number(r, "request_goodput"), number(r, "request_throughput"));
}

TEST(BenchServe, DurationEndsARun) {
  MockTextServer server;

  const Json r =
      bench_json(server.url(), {"--num-prompts", "1000", "--request-rate", "10", "--input-len", "5",
                                "--output-len", "1", "--duration", "0.5"});

  EXPECT_LT(integer(r, "completed"), 50);
  EXPECT_EQ(integer(r, "completed") + integer(*r.find("fathom"), "left_out"), 1000);
}

TEST(BenchServe, AgentSessionsGrowAndHitTheCache) {
  MockTextServer server({.calls_tools = true});
  const Words flags{
      "--dataset",           "agent", "--sessions",          "4",   "--turns",      "3",
      "--projects",          "2",     "--shared-prefix-len", "200", "--task-len",   "20",
      "--tool-result-len",   "30",    "--output-len",        "5",   "--think-time", "0.01",
      "--tool-result-sigma", "0.3",   "--max-concurrency",   "1"};

  const Json r = bench_json(server.url(), flags);

  EXPECT_EQ(integer(r, "completed"), 12);
  const Json& own = *r.find("fathom");
  const auto& turns = own.find("turns")->items();
  ASSERT_EQ(turns.size(), 3u);
  const double first = number(turns[0], "cached_share");
  const double second = number(turns[1], "cached_share");
  const double third = number(turns[2], "cached_share");
  // Two of four first turns find their project's prompt of some 200 words, the two first of a
  // project only the words of the salt; later turns find all but what was added.
  EXPECT_GT(first, 0.3);
  EXPECT_LT(first, 0.6);
  EXPECT_GT(second, first);
  EXPECT_GT(third, 0.5);
  EXPECT_LT(third, 1.0);
  EXPECT_LT(number(turns[0], "mean_prompt_tokens"), number(turns[2], "mean_prompt_tokens"));
  EXPECT_EQ(integer(*own.find("sessions"), "whole"), 4);
  EXPECT_GT(number(*own.find("sessions"), "median_s"), 0);

  int tool_messages = 0;
  const std::vector<Json> bodies = server.bodies();
  for (const Json& body : bodies) {
    for (const Json& message : body.find("messages")->items())
      tool_messages += message.find("role")->as_string() == "tool";
  }
  EXPECT_EQ(tool_messages, 4 * (1 + 2));
  EXPECT_TRUE(bodies.back().find("tools")->is_array());
}

TEST(BenchServe, AgentRunsOfOneSeedDifferInTheSaltAlone) {
  MockTextServer server;
  const Words flags{"--dataset",           "agent", "--sessions", "1",  "--turns",      "1",
                    "--shared-prefix-len", "100",   "--task-len", "20", "--think-time", "0",
                    "--num-warmups",       "0"};
  Words kept = flags;
  kept.emplace_back("--keep-prefixes");

  const auto cached = [&](const Words& with) {
    return number(bench_json(server.url(), with).find("fathom")->find("turns")->items()[0],
                  "cached_share");
  };

  EXPECT_LT(cached(flags), 0.05);
  EXPECT_LT(cached(flags), 0.05);
  EXPECT_LT(cached(kept), 0.05);
  EXPECT_EQ(cached(kept), 1);
}

TEST(BenchServe, FilesGiveRequests) {
  MockTextServer server;
  TempFolder folder;
  const std::string lines = (folder / "a.jsonl").string(), talk = (folder / "talk.jsonl").string(),
                    trace = (folder / "t.jsonl").string(), chats = (folder / "s.json").string();
  std::ofstream(lines) << "{\"prompt\":\"one two three\",\"output_len\":2}\n"
                          "{\"prompt\":[7,8],\"output_len\":3}\n";
  std::ofstream(talk) << "{\"messages\":[{\"role\":\"user\",\"content\":\"a b\"}]}\n";
  std::ofstream(trace)
      << "{\"timestamp\":0,\"input_length\":600,\"output_length\":2,\"hash_ids\":[1,2]}\n"
         "{\"timestamp\":100,\"input_length\":520,\"output_length\":2,\"hash_ids\":[1,3]}\n";
  std::ofstream(chats) << R"([{"conversations":[{"value":"q q"},{"value":"a a a a a"}]}])";

  const auto run = [&](const char* dataset, const std::string& path, const char* count) {
    return bench_json(server.url(),
                      {"--dataset", dataset, "--dataset-path", path, "--num-prompts", count});
  };
  const Json from_lines = run("jsonl", lines, "2");
  const Json from_talk = run("jsonl", talk, "1");
  const Json from_chats = run("sharegpt", chats, "1");
  const Json from_trace = run("trace", trace, "10");

  EXPECT_EQ(integer(from_lines, "total_input_tokens"), 5);
  EXPECT_EQ(integer(from_lines, "total_output_tokens"), 5);
  EXPECT_EQ(from_talk.find("backend")->as_string(), "openai-chat");
  EXPECT_EQ(integer(from_talk, "total_input_tokens"), 2);
  EXPECT_EQ(integer(from_chats, "total_output_tokens"), 5);
  EXPECT_EQ(integer(from_trace, "total_input_tokens"), 1120);
  EXPECT_EQ(integer(*from_trace.find("fathom")->find("usage"), "cached_tokens"), 512);
  EXPECT_GE(number(from_trace, "duration"), 0.1);
}

TEST(BenchServe, DirectoriesGetThreeFilesAndAreNotOverwritten) {
  MockTextServer server;
  TempFolder folder;
  const std::string out = (folder / "out").string();
  const Words flags{"--num-prompts", "3", "--input-len", "4",
                    "--output-len",  "2", "--out-dir",   out};

  const ProgramResult first = bench(server.url(), flags);
  const ProgramResult second = bench(server.url(), flags);

  EXPECT_EQ(first.exit_code, 0) << first.err;
  EXPECT_EQ(first.out, "");
  EXPECT_THAT(read_all(folder / "out/serve.md"), HasSubstr("# Serving benchmark: mock, random"));
  EXPECT_TRUE(is_json(read_all(folder / "out/serve.json")));
  const std::string rows = read_all(folder / "out/requests.csv");
  EXPECT_EQ(std::count(rows.begin(), rows.end(), '\n'), 4);
  EXPECT_EQ(second.exit_code, 64);
  EXPECT_THAT(second.err, HasSubstr("--force"));
}

TEST(BenchServe, KeysComeFromAFileOrTheEnvironment) {
  MockTextServer server({.key = "secret"});
  TempFolder folder;
  const std::string file = (folder / "key").string();
  std::ofstream(file) << "secret\n";
  const Words flags{"--num-prompts", "1", "--input-len", "4", "--output-len", "1"};
  Words with = flags;
  with.insert(with.end(), {"--api-key-file", file});

  const ProgramResult without = bench(server.url(), flags);
  const ProgramResult given = bench(server.url(), with);
  setenv("FATHOM_API_KEY", "secret", 1);
  const ProgramResult inherited = bench(server.url(), flags);
  unsetenv("FATHOM_API_KEY");

  EXPECT_EQ(without.exit_code, 69);
  EXPECT_THAT(without.err, HasSubstr("401 invalid_api_key"));
  EXPECT_EQ(given.exit_code, 0) << given.err;
  EXPECT_EQ(inherited.exit_code, 0) << inherited.err;
}

TEST(BenchServe, SimulatedAcceptanceIsSaid) {
  MockTextServer server({.simulates_acceptance = true});

  const ProgramResult r =
      bench(server.url(), {"--num-prompts", "1", "--input-len", "4", "--output-len", "1"});

  EXPECT_THAT(r.out, HasSubstr("simulated acceptance"));
}

TEST(BenchServe, FlagsThatDoNotFitAreRefused) {
  MockTextServer server;
  const auto refused = [&](const Words& flags, const std::string& says) {
    const ProgramResult r = bench(server.url(), flags);
    EXPECT_EQ(r.exit_code, 64) << says << ": " << r.err;
    EXPECT_THAT(r.err, HasSubstr(says));
  };

  refused({"--dataset", "jsonl"}, "--dataset jsonl needs --dataset-path");
  refused({"--dataset-path", "x"}, "--dataset random reads no file");
  refused({"--dataset", "nothing"}, "--dataset");
  refused({"--dataset", "agent", "--endpoint", "/v1/completions"}, "--dataset agent needs");
  refused({"--endpoint", "/v1/embeddings"}, "--endpoint is '/v1/embeddings'");
  refused({"--request-rate", "0"}, "--request-rate is '0'");
  refused({"--request-rate", "nan"}, "--request-rate is 'nan'");
  refused({"--burstiness", "0"}, "--burstiness");
  refused({"--goodput", "itl:5"}, "--goodput is 'itl:5'");
  refused({"--extra-body", "[1]"}, "--extra-body is an array");
  refused({"--extra-body", "{"}, "--extra-body");
  refused({"--range-ratio", "1"}, "--range-ratio");
  EXPECT_TRUE(server.bodies().empty());
}

TEST(BenchServe, ServersThatAreNotThereAreNamed) {
  const ProgramResult none = bench("http://127.0.0.1:1", {"--num-prompts", "1"});
  const ProgramResult word = bench("localhost", {"--num-prompts", "1"});

  EXPECT_EQ(none.exit_code, 69);
  EXPECT_THAT(none.err, HasSubstr("cannot connect to 127.0.0.1:1"));
  EXPECT_EQ(word.exit_code, 64);
  EXPECT_THAT(word.err, HasSubstr("--base-url: the address is 'localhost'"));
}

TEST(BenchServe, AServerThatRefusesEverythingStopsTheWarmUp) {
  MockTextServer server({.fail_every = 1});
  const Words flags{"--num-prompts", "2", "--input-len", "4", "--output-len", "1"};
  Words cold = flags;
  cold.insert(cold.end(), {"--num-warmups", "0"});

  const ProgramResult warm = bench(server.url(), flags);
  const ProgramResult without = bench(server.url(), cold);

  EXPECT_EQ(warm.exit_code, 69);
  EXPECT_THAT(warm.err, HasSubstr("429 queue_full: the queue is full"));
  EXPECT_EQ(without.exit_code, 1);
  EXPECT_THAT(without.err, HasSubstr("no request was answered: 429 queue_full"));
}

}  // namespace
}  // namespace fathom::e2e
