// run: one completion of a prompt.
#include <CLI/CLI.hpp>
#include <cstdio>
#include <memory>
#include <unistd.h>

#include "cli/command.h"
#include "cli/config/engine_flags.h"
#include "cli/engine/batch_run.h"
#include "cli/engine/completion_json.h"
#include "cli/engine/text_engine.h"
#include "cli/integers.h"
#include "cli/io/interrupt.h"
#include "cli/io/terminal.h"
#include "cli/io/text_input.h"
#include "cli/not_empty.h"
#include "fathom/base/log.h"
#include "fathom/os/atomic_file.h"

namespace fathom::cli {
namespace {

struct Flags {
  SamplingFlags sampling;
  std::string prompt;
  std::string file;
  std::string ids_out;
  BatchFlags batch;
  bool prompt_given = false;
  bool echo = false;
  bool json = false;
};

Result<std::string> read_prompt(const Flags& flags) {
  if (!flags.file.empty()) return read_prompt_text(flags.file);
  if (flags.prompt_given && flags.prompt != "-") return flags.prompt;
  if (!flags.prompt_given && isatty(STDIN_FILENO) == 1) {
    return invalid_argument("no prompt: give one with -p TEXT or -f FILE, or pipe it in");
  }
  return read_prompt_text("-");
}

Result<int> run(const Flags& flags, const GlobalFlags& globals) {
  FATHOM_ASSIGN(TextModel model, open_text_model(globals.engine));
  const Tokenizer& tokenizer = *model.source.tokenizer;
  FATHOM_ASSIGN(SamplingParams params,
                sampling_params(flags.sampling, sampling_defaults(model.source.model.generation)));
  FATHOM_TRY(validate(params, tokenizer.vocab_size()));
  if (!flags.ids_out.empty()) FATHOM_TRY(check_writable(flags.ids_out));
  FATHOM_ASSIGN(const std::string text, read_prompt(flags));
  if (text.empty()) {
    return invalid_argument("the prompt is empty\nhint: give text with -p, -f or standard input");
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
                                      "\nhint: shorten the prompt, or lower --max-tokens"));
    }
    model.options.max_model_len = length;
  }
  FATHOM_ASSIGN(const auto engine, load_engine(std::move(model), globals, prompt_length));
  // Told, so that the same text can be had again.
  if (!params.seed) params.seed = engine->options().seed;
  log_debug("seed ", params.seed.value_or(0));
  if (flags.echo && !flags.json) write_text(text);
  bool begun = false;  // until then there is no answer to keep
  bool interrupted = false;
  FATHOM_ASSIGN(const Completion answer, engine->generate(prompt, params, [&](const TextDelta& d) {
    if (!std::exchange(begun, true)) install_interrupt_handler();
    if (!flags.json) write_text(d.text);
    std::fflush(stdout);
    interrupted |= take_interrupt();  // the event of the end comes here too
    return interrupted ? Flow::kStop : Flow::kContinue;
  }));
  if (flags.json) {
    const CompletionFacts facts{.model = globals.engine.model,
                                .id = {},
                                .prompt = flags.echo ? std::optional(text) : std::nullopt,
                                .params = params,
                                .answer = answer};
    std::printf("%s", completion_json(facts, JsonStyle::kIndented).c_str());
  }
  std::printf("\n");
  std::fflush(stdout);
  if (!globals.quiet && !flags.json)
    std::fprintf(stderr, "fathom: %s\n", summary_of(answer).c_str());
  if (!flags.ids_out.empty()) {
    FATHOM_TRY(write_file(flags.ids_out, format_ids(answer.tokens) + "\n"));
  }
  return interrupted ? kExitInterrupted : kExitOk;
}

// Of all flags that are there those of a single answer do nothing beside them.
void add_batch_flags(CLI::App& sub, BatchFlags& flags) {
  CLI::Option* prompts = sub.add_option(
      "--prompts", flags.prompts,
      "File of many prompts: a line of JSON each, {\"id\": \"a\", \"prompt\": \"...\"}");
  CLI::Option* out =
      sub.add_option("--out", flags.out,
                     "With --prompts: append the answers here, a line of JSON each (fathom.run/1); "
                     "ids that it has are left out");
  CLI::Option* batch =
      sub.add_option("--batch", flags.at_once, "With --prompts: answers that are written together")
          ->check(integer_range(int64_t{1}, int64_t{4096}))
          ->capture_default_str();
  for (const char* single : {"--prompt", "--file", "--ids-out", "--echo", "--json"})
    prompts->excludes(sub.get_option(single));
  prompts->needs(out);
  out->needs(prompts);
  batch->needs(prompts);
}

}  // namespace

Command add_run(CLI::App& app, GlobalFlags& globals) {
  auto flags = std::make_shared<Flags>();
  CLI::App* sub = app.add_subcommand("run", "Complete a prompt");
  CLI::Option* prompt = sub->add_option("-p,--prompt", flags->prompt,
                                        "The prompt, every character of it; - reads standard input")
                            ->check(empty_is_a_value());
  sub->add_option(
         "-f,--file", flags->file,
         "File or pipe with the prompt, - for standard input; one newline at its end is cut")
      ->check(not_empty("a file, or - for standard input"))
      ->excludes(prompt);
  sub->add_option("--ids-out", flags->ids_out, "Write the generated ids to this file, as JSON");
  sub->add_flag("--echo", flags->echo, "Print the prompt before the answer");
  sub->add_flag("--json", flags->json,
                "Print the whole answer with its ids, seed and times as JSON (fathom.run/1)");
  add_batch_flags(*sub, flags->batch);
  add_sampling_flags(*sub, flags->sampling);
  add_engine_flags(*sub, globals.engine, kComplete,
                   {OptionGroup::kModel, OptionGroup::kDevice, OptionGroup::kNumbers,
                    OptionGroup::kMemory, OptionGroup::kDrafts, OptionGroup::kKernels});
  return {sub, [flags, prompt](const GlobalFlags& given) {
            flags->prompt_given = prompt->count() > 0;
            if (!flags->batch.prompts.empty())
              return run_batch(flags->batch, flags->sampling, given);
            return run(*flags, given);
          }};
}

}  // namespace fathom::cli
