#include "cli/bench/bench_serve.h"

#include <CLI/CLI.hpp>

#include "cli/flags.h"
#include "cli/integers.h"
#include "cli/not_empty.h"
#ifdef FATHOM_WITH_SERVER
#include "cli/serve_client/bench_load.h"
#endif

namespace fathom::cli {
namespace {

constexpr double kLongest = 1e8;  // seconds
constexpr int64_t kMostTokens = int64_t{1} << 24;

void add_dataset_flags(CLI::App& app, BenchServeFlags& f) {
  const auto tokens = integer_range<int64_t>(1, kMostTokens).description("");
  app.add_option("--dataset,--dataset-name", f.dataset, "Where requests come from")
      ->check(one_of({"random", "jsonl", "sharegpt", "trace", "agent"}))
      ->capture_default_str();
  app.add_option("--dataset-path", f.dataset_path, "File of jsonl, sharegpt or trace")
      ->check(not_empty("a file"));
  app.add_option("--input-len,--random-input-len", f.lengths.input, "Tokens of a random prompt")
      ->check(tokens)
      ->capture_default_str();
  app.add_option("--output-len,--random-output-len", f.output_len,
                 "Tokens to ask for (default: the dataset's, else 128; agent: the median)")
      ->check(tokens);
  app.add_option("--range-ratio,--random-range-ratio", f.lengths.range_ratio,
                 "Random lengths lie within this share of their mean, below 1")
      ->check(finite_range(0, 0.999999))
      ->capture_default_str();
  app.add_option("--num-prompts", f.num_prompts, "Requests to send; agent: see --sessions")
      ->check(integer_range<int64_t>(1, 10'000'000).description(""))
      ->capture_default_str();
}

void add_agent_flags(CLI::App& app, serve::AgentOptions& a, bool& keep_prefixes) {
  const std::string group = "Agent sessions (--dataset agent)";
  const auto count = integer_range<int64_t>(1, 1'000'000).description("");
  const auto tokens = integer_range<int64_t>(1, kMostTokens).description("");
  const auto add = [&](const char* name, int64_t& to, const char* help, const CLI::Validator& ok) {
    app.add_option(name, to, help)->check(ok)->capture_default_str()->group(group);
  };
  add("--sessions", a.sessions, "Sessions", count);
  add("--turns", a.turns, "Turns of a session", count);
  add("--projects", a.projects, "System prompts that sessions share", count);
  add("--shared-prefix-len", a.shared_prefix_len, "Tokens of such a system prompt", tokens);
  add("--task-len", a.task_len, "Tokens of the first message, mean", tokens);
  app.add_option("--tool-result-len", a.tool_result_len, "Tokens of a tool's result, median")
      ->check(finite_range(1, kMostTokens))
      ->capture_default_str()
      ->group(group);
  app.add_option("--tool-result-sigma", a.tool_result_sigma, "Its spread: sigma of a lognormal")
      ->check(finite_range(0, 5))
      ->capture_default_str()
      ->group(group);
  add("--tool-result-max", a.tool_result_max, "Its longest", tokens);
  app.add_option("--think-time", a.think_time_s, "Seconds before a next turn, mean")
      ->check(finite_range(0, 1e6))
      ->capture_default_str()
      ->group(group);
  app.add_flag("--keep-prefixes", keep_prefixes,
               "The prompts of an earlier run with the same seed, which may be cached")
      ->group(group);
}

void add_traffic_flags(CLI::App& app, BenchServeFlags& f) {
  app.add_option("--request-rate", f.request_rate,
                 "Requests (agent: sessions) a second, or inf (default: inf; trace: its own times)")
      ->check(not_empty("a number above 0, or inf"));
  app.add_option("--burstiness", f.burstiness,
                 "Shape of the gamma of gaps: 1 Poisson, below it bursts")
      ->check(finite_range(1e-3, 1e6))
      ->capture_default_str();
  app.add_option("--max-concurrency", f.max_concurrency, "Requests at once; 0: no limit")
      ->check(integer_range<int64_t>(0, 100'000).description(""))
      ->capture_default_str();
  app.add_option("--duration", f.duration_s, "Seconds after which no request is sent; 0: no limit")
      ->check(finite_range(0, kLongest))
      ->capture_default_str();
  app.add_option("--num-warmups", f.num_warmups, "Small requests before the run")
      ->check(integer_range<int64_t>(0, 1000).description(""))
      ->capture_default_str();
  app.add_flag("--ignore-eos", f.ignore_eos, "Ask for all tokens, past the end token");
  app.add_option("--temperature", f.temperature, "Of every request (default: the server's)")
      ->check(finite_range(0, 2));
  app.add_option("--extra-body", f.extra_body, "JSON object whose members every request gets");
  app.add_option("--seed", f.seed, "Of prompts, lengths and arrivals")
      ->check(integer_range<uint64_t>(0, UINT64_MAX).description(""))
      ->capture_default_str();
}

void add_output_flags(CLI::App& app, BenchServeFlags& f) {
  app.add_option("--goodput", f.goodput,
                 "Limits of a good request in ms: ttft:500 tpot:30 e2el:9000")
      ->expected(1, 3);
  app.add_flag("--save-detailed", f.save_detailed, "JSON with the values of every request");
  app.add_option("-o,--output", f.output, "md, json, or csv with a line a request")
      ->check(one_of({"md", "json", "csv"}))
      ->capture_default_str();
  app.add_flag_callback(
      "--json", [&f] { f.output = "json"; }, "The same as --output json");
  app.add_option("--out-file", f.out_file, "Write to this file (default: standard output)")
      ->check(not_empty("a file"));
  app.add_option("--out-dir", f.out_dir, "Write serve.md, serve.json and requests.csv here")
      ->check(not_empty("a directory"));
  app.add_flag("--force", f.force, "Overwrite the files of an earlier run in --out-dir");
}

}  // namespace

void add_bench_serve(CLI::App& bench, BenchServeFlags& flags) {
  CLI::App* sub = bench.add_subcommand("serve", "Load on a running server: latency, throughput");
  sub->add_option("--base-url", flags.base_url, "http://HOST:PORT or https://HOST[:PORT]")
      ->check(not_empty("an address"))
      ->capture_default_str();
  sub->add_option("--model", flags.model, "Name of the model (default: the server's first)")
      ->check(not_empty("a name"));
  sub->add_option("--endpoint", flags.endpoint,
                  "/v1/completions, /v1/chat/completions or /v1/messages (default: by dataset)")
      ->check(not_empty("a route"));
  add_server_flags(*sub, flags.server);
  add_dataset_flags(*sub, flags);
  add_traffic_flags(*sub, flags);
  add_output_flags(*sub, flags);
  add_agent_flags(*sub, flags.agent, flags.keep_prefixes);
}

Result<int> bench_serve(const BenchServeFlags& flags, const GlobalFlags& globals) {
#ifdef FATHOM_WITH_SERVER
  return run_bench_load(flags, globals);
#else
  (void)flags, (void)globals;
  return no_http("bench serve");
#endif
}

}  // namespace fathom::cli
