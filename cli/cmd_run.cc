// run: one completion of a prompt.
#include <CLI/CLI.hpp>
#include <cstdio>
#include <memory>
#include <unistd.h>

#include "cli/command.h"
#include "cli/config/engine_flags.h"
#include "cli/engine/text_engine.h"
#include "cli/io/terminal.h"
#include "cli/io/text_input.h"
#include "cli/not_empty.h"
#include "fathom/os/atomic_file.h"

namespace fathom::cli {
namespace {

struct Flags {
  SamplingFlags sampling;
  std::string prompt;
  std::string file;
  std::string ids_out;
  bool prompt_given = false;
  bool echo = false;
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
  FATHOM_ASSIGN(TextModel model, open_text_model(globals.engine));
  const Tokenizer& tokenizer = *model.source.tokenizer;
  FATHOM_ASSIGN(const SamplingParams params,
                sampling_params(flags.sampling, sampling_defaults(model.source.model.generation)));
  FATHOM_TRY(validate(params, tokenizer.vocab_size()));
  if (!flags.ids_out.empty()) FATHOM_TRY(check_writable(flags.ids_out));
  FATHOM_ASSIGN(const std::string text, read_prompt(flags));
  if (text.empty()) {
    return invalid_argument("the prompt is empty; give text with -p, -f or standard input");
  }
  const std::vector<int32_t> prompt = tokenizer.encode(
      text, {.add_bos = AddBos::kAsConfigured, .added_tokens = AddedTokens::kParse});
  const auto prompt_length = static_cast<int64_t>(prompt.size());
  if (model.options.max_model_len == 0 && params.max_tokens) {
    const int64_t length = prompt_length + *params.max_tokens;
    const int64_t context = model.source.model.config.max_position_embeddings;
    if (length > context) {
      return invalid_argument(str_cat("prompt and answer need room for ", length,
                                      " tokens, but the model's context holds ", context,
                                      "; shorten the prompt, or lower --max-tokens"));
    }
    model.options.max_model_len = length;
  }
  FATHOM_ASSIGN(const auto engine, load_engine(std::move(model), globals, prompt_length));
  if (flags.echo) write_text(text);
  install_interrupt_handler();
  bool interrupted = false;
  FATHOM_ASSIGN(const Completion answer, engine->generate(prompt, params, [&](const TextDelta& d) {
    write_text(d.text);
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

Command add_run(CLI::App& app, GlobalFlags& globals) {
  auto flags = std::make_shared<Flags>();
  CLI::App* sub = app.add_subcommand("run", "Complete a prompt");
  CLI::Option* prompt =
      sub->add_option("-p,--prompt", flags->prompt, "The prompt")->check(empty_is_a_value());
  sub->add_option("-f,--file", flags->file, "File with the prompt, - for standard input")
      ->check(not_empty("a file, or - for standard input"))
      ->excludes(prompt);
  sub->add_option("--ids-out", flags->ids_out, "Write the generated ids to this file, as JSON");
  sub->add_flag("--echo", flags->echo, "Print the prompt before the answer");
  add_sampling_flags(*sub, flags->sampling);
  add_engine_flags(*sub, globals.engine, kComplete,
                   {OptionGroup::kModel, OptionGroup::kDevice, OptionGroup::kNumbers,
                    OptionGroup::kMemory, OptionGroup::kKernels});
  return {sub, [flags, prompt](const GlobalFlags& given) {
            flags->prompt_given = prompt->count() > 0;
            return run(*flags, given);
          }};
}

}  // namespace fathom::cli
