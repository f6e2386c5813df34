// bench serve: load on a running server, and what came of it.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "cli/command.h"
#include "cli/config/server_flags.h"
#include "fathom/serve/load/agent_trace.h"
#include "fathom/serve/load/prompts.h"

namespace fathom::cli {

struct BenchServeFlags {
  std::string base_url = "http://127.0.0.1:8000";
  ServerFlags server;
  std::string model;     ///< empty: the first that the server names
  std::string endpoint;  ///< empty: by dataset
  std::string dataset = "random";
  std::string dataset_path;
  std::optional<int64_t> output_len;
  serve::RandomLengths lengths;
  serve::AgentOptions agent;
  bool keep_prefixes = false;
  int64_t num_prompts = 100;
  std::optional<std::string> request_rate;  ///< a number or inf
  double burstiness = 1;
  int64_t max_concurrency = 0;  ///< 0: no limit
  int64_t num_warmups = 1;
  double duration_s = 0;  ///< 0: no limit
  bool ignore_eos = false;
  std::optional<double> temperature;
  std::string extra_body;
  std::vector<std::string> goodput;
  uint64_t seed = 0;
  bool save_detailed = false;
  std::string output = "md";
  std::string out_file;
  std::string out_dir;
  bool force = false;
};

void add_bench_serve(CLI::App& bench, BenchServeFlags& flags);

/// Errors: Unavailable in a build without HTTP; those of the server and of files. 1 if no request
/// was answered.
Result<int> bench_serve(const BenchServeFlags& flags, const GlobalFlags& globals);

}  // namespace fathom::cli
