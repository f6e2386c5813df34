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

#include "cli/about/command_doc.h"
#include "cli/about/flag_pages.h"
#include "cli/about/help_text.h"
#include "cli/command.h"
#include "cli/config/print_config.h"
#include "cli/config/spelling.h"
#include "cli/config/usage_error.h"
#include "cli/config/value_sources.h"
#include "cli/flags.h"
#include "cli/io/interrupt.h"
#include "cli/not_empty.h"
#include "fathom/base/hint.h"
#include "fathom/base/log.h"
#include "fathom/os/file.h"

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

int refuse(const Refusal& refusal) {
  // A value that was refused may have named a hint of its own.
  log_error(with_hint(invalid_argument(refusal.message), refusal.hint).message());
  return kExitUsage;
}

// Of a flag with one value that was given twice the last counts, as people are used to who put
// theirs behind those of a script.
void let_last_count(CLI::App& app) {
  for (CLI::Option* option : app.get_options()) {
    const bool single = option->get_expected_max() == 1 && option->get_type_size_max() == 1;
    if (single && option->get_multi_option_policy() == CLI::MultiOptionPolicy::Throw) {
      option->multi_option_policy(CLI::MultiOptionPolicy::TakeLast);
    }
  }
  for (CLI::App* command : app.get_subcommands([](const CLI::App*) { return true; }))
    let_last_count(*command);
}

int print_help(const CLI::App& root, HelpDetail detail) {
  const CommandDoc all = describe(root);
  const CommandDoc chosen = describe(innermost(root));
  const bool as_page = detail == HelpDetail::kAll && chosen.words.empty();
  const std::string text =
      as_page ? flags_markdown(all) : help_text(all, chosen, detail, help_columns());
  std::printf("%s", text.c_str());
  return kExitOk;
}

int report(const Status& status, const CLI::App& root) {
  if (status.code() == StatusCode::kCancelled) return kExitInterrupted;
  std::string message = status.message();
  if (status.code() == StatusCode::kInvalidArgument && without_hint(message) == message) {
    str_append(message, str_cat(kHintMark, "`", command_line_of(innermost(root)),
                                " --help` lists the flags"));
  }
  if (status.code() == StatusCode::kNumerical && without_hint(message) == message) {
    str_append(message, str_cat(kHintMark, "`fathom verify MODEL` finds damaged weights"));
  }
  log_error(message);
  log_debug("raised at ", status.origin(), " as ", status_code_name(status.code()));
  return exit_code_of(status.code());
}

// A key of the command line shows in the list of processes; from here on it does not.
void hide_keys(int argc, char** argv) {
  for (const std::string_view flag : {"--api-key", "--api_key"}) {
    for (int i = 1; i < argc; ++i) {
      const std::string_view word = argv[i];
      if (word == flag && i + 1 < argc) {
        std::fill_n(argv[i + 1], std::strlen(argv[i + 1]), '*');
      } else if (word.starts_with(str_cat(flag, "="))) {
        std::fill_n(argv[i] + flag.size() + 1, word.size() - flag.size() - 1, '*');
      }
    }
  }
}

int run_program(int argc, char** argv) {
  CLI::App app{"Inference for the DeepSeek family, native, on this machine", "fathom"};
  app.require_subcommand(1);
  GlobalFlags globals;
  add_global_flags(app, globals);
  app.set_version_flag("--version", "fathom " FATHOM_VERSION, "Print the version, and end")
      ->configurable(false);
  app.fallthrough();
  std::vector<Command> commands{
      add_run(app, globals),   add_chat(app, globals),  add_inspect(app, globals),
      add_doctor(app),         add_tokenize(app),       add_eval(app, globals),
      add_synth(app),          add_quantize(app),       add_verify(app),
      add_bench(app, globals), add_trace(app, globals), add_roofline(app)};
#if FATHOM_WITH_SERVER
  commands.push_back(add_serve(app, globals));
#endif
  commands.push_back(add_presets(app));
  commands.push_back(add_version(app));
  commands.push_back(add_help(app));
  commands.push_back(add_completion(app));
  let_last_count(app);
  refuse_empty_values(app);
  SpelledWords spelled = spell_words(app, {argv + std::min(argc, 1), argv + argc});
  if (spelled.refusal) return refuse(*spelled.refusal);
  try {
    // The parser takes its words from the end.
    std::reverse(spelled.words.begin(), spelled.words.end());
    app.parse(std::move(spelled.words));
  } catch (const CLI::CallForHelp&) {
    return print_help(app, HelpDetail::kUsual);
  } catch (const CLI::CallForAllHelp&) {
    return print_help(app, HelpDetail::kAll);
  } catch (const CLI::CallForVersion&) {
    const std::vector<std::string> left = app.remaining(true);
    if (!left.empty()) return refuse(explain_usage(app, CLI::ExtrasError(left)));
    std::printf("fathom %s\n", FATHOM_VERSION);
    return kExitOk;
  } catch (const CLI::ParseError& error) {
    return refuse(explain_usage(app, error));
  }
  hide_keys(argc, argv);
  for (Command& command : commands) {
    if (!command.app->parsed()) continue;
    const Result<ValueSources> sources =
        fill_from_environment_and_config(app, *command.app, globals.config_file);
    if (!sources.ok()) return report(sources.status(), app);
    if (Status s = apply_log_flags(globals); !s.ok()) return report(s, app);
    if (!globals.print_config.empty()) {
      const bool json = globals.print_config == "json";
      const std::string text =
          print_config(app, *command.app, *sources, json ? ConfigStyle::kJson : ConfigStyle::kYaml);
      std::printf("%s", text.c_str());
      return kExitOk;
    }
    end_at_interrupt("nothing was written");
    globals.effective_config = [&] {
      return print_config(app, *command.app, *sources, ConfigStyle::kJson);
    };
    Result<int> result = command.action(globals);
    return result.ok() ? result.value() : report(result.status(), app);
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
  log_error(error == 0 ? std::string("cannot write standard output: a part of it is missing")
                       : errno_status("write", "standard output", error).message());
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
  } catch (const std::system_error& error) {  // of std::thread
    const bool thread = error.code() == std::errc::resource_unavailable_try_again;
    std::fprintf(
        stderr, "fathom: error: %s%s%s\n", thread ? "cannot start a thread: " : "", error.what(),
        thread ? "\nhint: lower --threads, or raise the limit of processes (ulimit -u)" : "");
    code = thread ? fathom::cli::kExitConfig : fathom::cli::kExitEngineFault;
  }
  return fathom::cli::finish_output(code);
}
