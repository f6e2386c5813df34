// run: one completion of a prompt.
#include <CLI/CLI.hpp>
#include <cstdio>
#include <memory>
#include <unistd.h>

#include "cli/command.h"
#include "cli/engine/text_engine.h"
#include "cli/flags.h"
#include "cli/integers.h"
#include "cli/io/terminal.h"
#include "cli/io/text_input.h"
#include "cli/not_empty.h"
#include "fathom/os/atomic_file.h"

namespace fathom::cli {
namespace {

struct Flags {
  ModelFlags model;
  SamplingFlags sampling;
  std::string prompt;
  std::string file;
  std::string ids_out;
  bool prompt_given = false;
  bool echo = false;
  int64_t max_model_len = 0;
  EngineOptions engine;
};

Result<std::string> read_prompt(const Flags& flags) {
  if (!flags.file.empty()) return read_text(flags.file);
  if (flags.prompt_given) return flags.prompt;
  if (isatty(STDIN_FILENO) == 1) {
    return invalid_argument("no prompt: give one with -p TEXT or -f FILE, or pipe it in");
  }
  return read_standard_input();
}

Result<int> run(const Flags& flags, const GlobalFlags& globals) {
  FATHOM_ASSIGN(const std::string directory, resolve_model_argument(flags.model.model));
  FATHOM_ASSIGN(Tokenizer tokenizer, Tokenizer::load(directory));
  FATHOM_ASSIGN(const SamplingParams defaults, default_sampling_of(directory));
  FATHOM_ASSIGN(const SamplingParams params, sampling_params(flags.sampling, defaults));
  FATHOM_TRY(validate(params, tokenizer.vocab_size()));
  if (!flags.ids_out.empty()) FATHOM_TRY(check_writable(flags.ids_out));
  FATHOM_ASSIGN(const std::string text, read_prompt(flags));
  if (text.empty()) {
    return invalid_argument("the prompt is empty; give text with -p, -f or standard input");
  }
  const std::vector<int32_t> prompt = tokenizer.encode(
      text, {.add_bos = AddBos::kAsConfigured, .added_tokens = AddedTokens::kParse});
  const auto prompt_length = static_cast<int64_t>(prompt.size());
  const int64_t length = flags.max_model_len > 0 ? flags.max_model_len
                         : params.max_tokens     ? prompt_length + *params.max_tokens
                                                 : 0;
  EngineOptions options = flags.engine;
  options.max_model_len = length;
  FATHOM_ASSIGN(const auto engine,
                open_engine(flags.model, globals, directory, std::move(tokenizer),
                            std::move(options), prompt_length));
  if (flags.echo) std::printf("%s", text.c_str());
  install_interrupt_handler();
  bool interrupted = false;
  FATHOM_ASSIGN(const Completion answer, engine->generate(prompt, params, [&](const TextDelta& d) {
    std::fwrite(d.text.data(), 1, d.text.size(), stdout);
    std::fflush(stdout);
    interrupted |= take_interrupt();  // the event of the end comes here too
    return interrupted ? Flow::kStop : Flow::kContinue;
  }));
  std::printf("\n");
  std::fflush(stdout);
  if (!globals.quiet) std::fprintf(stderr, "fathom: %s\n", summary_of(answer).c_str());
  if (!flags.ids_out.empty()) {
    FATHOM_TRY(write_file(flags.ids_out, format_ids(answer.tokens) + "\n"));
  }
  return interrupted ? kExitInterrupted : kExitOk;
}

}  // namespace

Command add_run(CLI::App& app) {
  auto flags = std::make_shared<Flags>();
  CLI::App* sub = app.add_subcommand("run", "Complete a prompt");
  sub->add_option("MODEL", flags->model.model, "Model directory, or ORG/NAME in the local cache")
      ->required();
  CLI::Option* prompt = sub->add_option("-p,--prompt", flags->prompt, "The prompt");
  sub->add_option("-f,--file", flags->file, "File with the prompt, - for standard input")
      ->check(not_empty("a file, or - for standard input"))
      ->excludes(prompt);
  sub->add_option("--ids-out", flags->ids_out, "Write the generated ids to this file, as JSON");
  sub->add_flag("--echo", flags->echo, "Print the prompt before the answer");
  flags->model.context_for_answer = true;
  sub->add_option("--max-model-len", flags->max_model_len,
                  "Context to make room for (default: prompt and --max-tokens)")
      ->check(integer_range(int64_t{1}, int64_t{1} << 24))
      ->each([flags](const std::string&) { flags->model.context_for_answer = false; });
  add_sampling_flags(*sub, flags->sampling);
  add_model_flags(*sub, flags->model);
  add_device_flags(*sub, flags->model);
  add_engine_flags(*sub, flags->engine);
  return {sub, [flags, prompt](const GlobalFlags& globals) {
            flags->prompt_given = prompt->count() > 0;
            return run(*flags, globals);
          }};
}

}  // namespace fathom::cli
