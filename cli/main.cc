// fathom: finds the subcommand, maps Status to an exit code.
#include <CLI/CLI.hpp>
#include <csignal>
#include <cstdio>
#include <new>
#include <vector>

#include "cli/command.h"
#include "cli/flags.h"
#include "fathom/base/log.h"
#include "fathom/base/near_names.h"

namespace fathom::cli {

int exit_code_of(StatusCode code) {
  switch (code) {
    case StatusCode::kOk:
      return kExitOk;
    case StatusCode::kInvalidArgument:
      return kExitUsage;
    case StatusCode::kNotFound:
    case StatusCode::kCorrupt:
      return kExitBadInput;
    case StatusCode::kUnavailable:
      return kExitUnavailable;
    case StatusCode::kUnsupported:
    case StatusCode::kOutOfMemory:
    case StatusCode::kOverloaded:
      return kExitConfig;
    case StatusCode::kIo:
      return kExitIo;
    case StatusCode::kCancelled:
      return kExitInterrupted;
    case StatusCode::kNumerical:
    case StatusCode::kDeviceLost:
    case StatusCode::kInternal:
      return kExitEngineFault;
  }
  return kExitEngineFault;
}

namespace {

// What was typed that nobody knows, with the closest known name.
void explain_unknown(const CLI::App& root, const CLI::App& chosen, const std::string& word) {
  std::vector<std::string> names;
  for (const CLI::App* app : {&root, &chosen}) {
    for (const CLI::Option* option : app->get_options()) {
      for (const std::string& name : option->get_lnames())
        names.push_back("--" + name);
    }
  }
  const std::string typed = word.substr(0, word.find('='));
  std::fprintf(stderr, "fathom: unknown argument '%s'", word.c_str());
  if (const auto near = near_names(typed, names, 1); !near.empty() && typed.starts_with("--")) {
    std::fprintf(stderr, "; did you mean %s?", near.front().c_str());
  }
  std::fprintf(stderr, "\n");
}

const CLI::App& innermost(const CLI::App& app) {
  const auto chosen = app.get_subcommands();
  return chosen.empty() ? app : innermost(*chosen.front());
}

int usage_error(const CLI::App& app, const CLI::ParseError& error) {
  if (const auto* extras = dynamic_cast<const CLI::ExtrasError*>(&error)) {
    (void)extras;
    const auto left = app.remaining(true);
    explain_unknown(app, innermost(app), left.empty() ? std::string("?") : left.front());
  } else {
    std::fprintf(stderr, "fathom: %s\n", error.what());
  }
  const CLI::App& chosen = innermost(app);
  std::fprintf(stderr, "fathom: `fathom%s%s --help` lists the flags\n", &chosen == &app ? "" : " ",
               &chosen == &app ? "" : chosen.get_name().c_str());
  return kExitUsage;
}

int report(const Status& status) {
  if (status.code() == StatusCode::kCancelled) return kExitInterrupted;
  log_error(status.message());
  log_debug("raised at ", status.origin(), " as ", status_code_name(status.code()));
  return exit_code_of(status.code());
}

int run_program(int argc, char** argv) {
  CLI::App app{"fathom: inference for the DeepSeek family, native, on this machine", "fathom"};
  app.set_version_flag("--version", "fathom " FATHOM_VERSION);
  app.require_subcommand(1);
  GlobalFlags globals;
  std::string config_file;
  add_global_flags(app, globals, config_file);
  app.fallthrough();
  std::vector<Command> commands{add_run(app),    add_chat(app),     add_inspect(app),
                                add_doctor(app), add_tokenize(app), add_eval(app),
                                add_synth(app),  add_quantize(app), add_bench(app),
                                add_trace(app),  add_roofline(app)};
  app.add_subcommand("version", "Print the version")->callback([] {
    std::printf("fathom %s\n", FATHOM_VERSION);
  });
  try {
    app.parse(argc, argv);
  } catch (const CLI::CallForHelp&) {
    std::printf("%s", innermost(app).help().c_str());
    return kExitOk;
  } catch (const CLI::CallForVersion&) {
    std::printf("fathom %s\n", FATHOM_VERSION);
    return kExitOk;
  } catch (const CLI::ParseError& error) {
    return usage_error(app, error);
  }
  for (Command& command : commands) {
    if (!command.app->parsed()) continue;
    if (Status s = fill_from_environment_and_config(app, *command.app, config_file); !s.ok()) {
      return report(s);
    }
    if (Status s = apply_log_flags(globals); !s.ok()) return report(s);
    Result<int> result = command.action(globals);
    return result.ok() ? result.value() : report(result.status());
  }
  return kExitOk;
}

}  // namespace
}  // namespace fathom::cli

int main(int argc, char** argv) {
  // A file beyond the limit of the shell is an error of the write, not the end of the process: what
  // was begun is cleaned up.
  std::signal(SIGXFSZ, SIG_IGN);
  try {
    return fathom::cli::run_program(argc, argv);
  } catch (const std::bad_alloc&) {
    std::fprintf(stderr, "fathom: error: out of memory\n");
    return fathom::cli::kExitConfig;
  } catch (const CLI::Error& error) {
    std::fprintf(stderr, "fathom: error: %s\n", error.what());
    return fathom::cli::kExitUsage;
  }
}
