// A subcommand of the program: its flags and its action.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "fathom/api/options.h"

// The parser's header takes seconds to compile; whoever adds flags includes it.
namespace CLI {
class App;
}

namespace fathom::cli {

/// Exit codes of the program (sysexits numbers).
enum ExitCode : int {
  kExitOk = 0,
  kExitCheckFailed = 1,  ///< a requested check failed (`--check`, `eval`)
  kExitUsage = 64,
  kExitBadInput = 65,     ///< bad model or input file
  kExitUnavailable = 69,  ///< hardware, driver or library missing
  kExitEngineFault = 70,
  kExitIo = 74,
  kExitConfig = 78,  ///< the configuration cannot be met
  kExitInterrupted = 130,
};

/// The exit code of an error; the one table.
int exit_code_of(StatusCode code);

/// Flags that every command takes, and the options of the engine that it takes.
struct GlobalFlags {
  int verbose = 0;
  bool quiet = false;
  std::string log_level = "info";
  std::string color = "auto";
  std::string config_file;
  std::string print_config;  ///< yaml or json: print what counts, and where it comes from
  EngineOptions engine;
  std::function<std::string()> effective_config;  ///< every flag, its value and source, as JSON
};

using Action = std::function<Result<int>(const GlobalFlags&)>;

/// Registers one subcommand on `app`; the action runs when the user picked it.
struct Command {
  CLI::App* app = nullptr;
  Action action;
};

// Those with `flags` fill its options of the engine; it must live as long as `app`.
Command add_run(CLI::App& app, GlobalFlags& flags);
Command add_chat(CLI::App& app, GlobalFlags& flags);
Command add_inspect(CLI::App& app, GlobalFlags& flags);
Command add_doctor(CLI::App& app);
Command add_tokenize(CLI::App& app);
Command add_eval(CLI::App& app, GlobalFlags& flags);
Command add_synth(CLI::App& app);
Command add_quantize(CLI::App& app);
Command add_verify(CLI::App& app);
Command add_bench(CLI::App& app, GlobalFlags& flags);
Command add_trace(CLI::App& app, GlobalFlags& flags);
Command add_roofline(CLI::App& app);
Command add_presets(CLI::App& app);
Command add_version(CLI::App& app);
Command add_help(CLI::App& app);
Command add_completion(CLI::App& app);
#if FATHOM_WITH_SERVER
Command add_serve(CLI::App& app, GlobalFlags& flags);
#endif

}  // namespace fathom::cli
