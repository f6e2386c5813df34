// bench model: tokens a second of prefill and decode, and how far decode is from the memory's rate.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "cli/command.h"
#include "cli/engine/model_setup.h"

namespace fathom::cli {

struct BenchModelFlags {
  EngineOptions engine;
  int64_t prompt = 512;
  int64_t generate = 128;
  int64_t depth = 0;
  std::vector<int64_t> batch{1};  ///< sequences that decode together, one block of rows each
  int repetitions = 3;
  double temperature = 0;    ///< of the tokens that are drawn; 0: the largest logits
  bool engine_rate = false;  ///< the engine's own path too
  std::optional<double> simulated_acceptance;  ///< of drafts, in place of the model's
  int ops = 10;                                ///< listed; 0: all
  std::string output = "md";
  std::string out_file;
  /// Called before each timed run, with what it times; set by the command.
  std::function<void(std::string_view)> on_run = [](std::string_view) {};
  /// Asked before each run and each decode step; its error, Cancelled after Ctrl-C, ends the
  /// benchmark. Set by the command.
  std::function<Status()> go_on = [] { return Status{}; };
};

void add_bench_model(CLI::App& bench, BenchModelFlags& flags, GlobalFlags& globals);
Result<int> bench_model(const BenchModelFlags& flags, const GlobalFlags& globals);

}  // namespace fathom::cli
