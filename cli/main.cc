// fathom: finds the subcommand, maps Status to an exit code.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <fcntl.h>
#include <new>
#include <system_error>
#include <unistd.h>
#include <vector>

#include "cli/command.h"
#include "cli/config/print_config.h"
#include "cli/config/value_sources.h"
#include "cli/flags.h"
#include "cli/not_empty.h"
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

// "fathom bench kernel".
std::string words_of(const CLI::App& app) {
  const CLI::App* parent = app.get_parent();
  return parent == nullptr ? app.get_name() : str_cat(words_of(*parent), " ", app.get_name());
}

// A word that is no command where one is expected, or no word at all.
void explain_missing_command(const CLI::App& chosen, const std::string& word) {
  std::vector<std::string> names;
  for (const CLI::App* command : chosen.get_subcommands([](const CLI::App*) { return true; }))
    names.push_back(command->get_name());
  std::string known;
  for (const std::string& name : names)
    str_append(known, str_cat(known.empty() ? "" : ", ", name));
  const std::string in = words_of(chosen);
  if (word.empty()) {
    std::fprintf(stderr, "fathom: `%s` needs a command: %s\n", in.c_str(), known.c_str());
    return;
  }
  const std::vector<std::string> near = near_names(word, names);
  const std::string hint = near.empty() ? str_cat(", expected ", known) : did_you_mean(near);
  std::fprintf(stderr, "fathom: '%s' is no command of `%s`%s\n", word.c_str(), in.c_str(),
               hint.c_str());
}

int usage_error(const CLI::App& app, const CLI::ParseError& error) {
  const CLI::App& chosen = innermost(app);
  const std::vector<std::string> left = app.remaining(true);
  const std::string word = left.empty() ? std::string{} : left.front();
  const bool is_extra = dynamic_cast<const CLI::ExtrasError*>(&error) != nullptr;
  const bool lacks_command = dynamic_cast<const CLI::RequiredError*>(&error) != nullptr &&
                             chosen.get_require_subcommand_min() > 0;
  if (lacks_command && !word.starts_with('-')) {
    explain_missing_command(chosen, word);
  } else if (lacks_command || is_extra) {
    explain_unknown(app, chosen, word);
  } else {
    std::fprintf(stderr, "fathom: %s\n", error.what());
  }
  std::fprintf(stderr, "fathom: `%s --help` lists the %s\n", words_of(chosen).c_str(),
               lacks_command ? "commands" : "flags");
  return kExitUsage;
}

int report(const Status& status) {
  if (status.code() == StatusCode::kCancelled) return kExitInterrupted;
  log_error(status.message());
  log_debug("raised at ", status.origin(), " as ", status_code_name(status.code()));
  return exit_code_of(status.code());
}

// A key of the command line shows in the list of processes; from here on it does not.
void hide_keys(int argc, char** argv) {
  constexpr std::string_view kFlag = "--api-key";
  for (int i = 1; i < argc; ++i) {
    const std::string_view word = argv[i];
    if (word == kFlag && i + 1 < argc) {
      std::fill_n(argv[i + 1], std::strlen(argv[i + 1]), '*');
    } else if (word.starts_with(str_cat(kFlag, "="))) {
      std::fill_n(argv[i] + kFlag.size() + 1, word.size() - kFlag.size() - 1, '*');
    }
  }
}

int run_program(int argc, char** argv) {
  CLI::App app{"fathom: inference for the DeepSeek family, native, on this machine", "fathom"};
  app.set_version_flag("--version", "fathom " FATHOM_VERSION)->configurable(false);
  app.require_subcommand(1);
  GlobalFlags globals;
  add_global_flags(app, globals);
  app.fallthrough();
  std::vector<Command> commands{
      add_run(app, globals),   add_chat(app, globals),  add_inspect(app, globals),
      add_doctor(app),         add_tokenize(app),       add_eval(app, globals),
      add_synth(app),          add_quantize(app),       add_verify(app),
      add_bench(app, globals), add_trace(app, globals), add_roofline(app)};
#if FATHOM_WITH_SERVER
  commands.push_back(add_serve(app, globals));
#endif
  app.add_subcommand("version", "Print the version")->callback([] {
    std::printf("fathom %s\n", FATHOM_VERSION);
  });
  refuse_empty_values(app);
  try {
    app.parse(words_of_arguments(argc, argv));
  } catch (const CLI::CallForHelp&) {
    std::printf("%s", innermost(app).help().c_str());
    return kExitOk;
  } catch (const CLI::CallForAllHelp&) {
    std::printf("%s", print_all_flags(app).c_str());
    return kExitOk;
  } catch (const CLI::CallForVersion&) {
    std::printf("fathom %s\n", FATHOM_VERSION);
    return kExitOk;
  } catch (const CLI::ParseError& error) {
    return usage_error(app, error);
  }
  hide_keys(argc, argv);
  for (Command& command : commands) {
    if (!command.app->parsed()) continue;
    const Result<ValueSources> sources =
        fill_from_environment_and_config(app, *command.app, globals.config_file);
    if (!sources.ok()) return report(sources.status());
    if (Status s = apply_log_flags(globals); !s.ok()) return report(s);
    if (!globals.print_config.empty()) {
      const bool json = globals.print_config == "json";
      const std::string text =
          print_config(app, *command.app, *sources, json ? ConfigStyle::kJson : ConfigStyle::kYaml);
      std::printf("%s", text.c_str());
      return kExitOk;
    }
    globals.effective_config = [&] {
      return print_config(app, *command.app, *sources, ConfigStyle::kJson);
    };
    Result<int> result = command.action(globals);
    return result.ok() ? result.value() : report(result.status());
  }
  return kExitOk;
}

// A file that is opened where standard output was closed by the caller would receive what is
// printed. The place is taken by a descriptor that refuses it, as the closed one did.
void fill_closed_descriptors() {
  for (const int fd : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO}) {
    if (fcntl(fd, F_GETFD) != -1) continue;
    if (::open("/dev/null", fd == STDIN_FILENO ? O_WRONLY : O_RDONLY) < 0) return;
  }
}

// The exit code, and an error where what was printed did not all arrive.
int finish_output(int code) {
  int error = std::fflush(stdout) == 0 ? 0 : errno;
  if (error == 0 && std::ferror(stdout) == 0) return code;
  // The reason of an earlier failure is gone. The output has a hole already, so that a byte more
  // does no harm: it asks the system again.
  if (error == 0 && ::write(STDOUT_FILENO, "\n", 1) < 0) error = errno;
  log_error("cannot write standard output: ",
            error == 0 ? "a part of it is missing" : std::generic_category().message(error));
  return code == kExitOk ? kExitIo : code;
}

}  // namespace
}  // namespace fathom::cli

int main(int argc, char** argv) {
  fathom::cli::fill_closed_descriptors();
  // A file beyond the limit of the shell is an error of the write, not the end of the process: what
  // was begun is cleaned up.
  std::signal(SIGXFSZ, SIG_IGN);
  int code = fathom::cli::kExitOk;
  try {
    code = fathom::cli::run_program(argc, argv);
  } catch (const std::bad_alloc&) {
    std::fprintf(stderr, "fathom: error: out of memory\n");
    code = fathom::cli::kExitConfig;
  } catch (const CLI::Error& error) {
    std::fprintf(stderr, "fathom: error: %s\n", error.what());
    code = fathom::cli::kExitUsage;
  }
  return fathom::cli::finish_output(code);
}
