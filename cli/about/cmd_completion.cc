// completion: scripts for shells, and what those ask for.
#include <CLI/CLI.hpp>
#include <cstdio>
#include <memory>

#include "cli/about/command_doc.h"
#include "cli/about/completion.h"
#include "cli/command.h"
#include "cli/config/model_places.h"
#include "cli/not_empty.h"
#include "fathom/base/near_names.h"
#include "fathom/models/config/presets.h"

namespace fathom::cli {
namespace {

struct Flags {
  std::vector<std::string> words;
  bool complete = false;
};

Result<int> completion(const CLI::App& app, const Flags& flags) {
  if (flags.complete) {
    CompletionNames names{.models = known_models(), .presets = {}};
    for (const std::string_view preset : preset_names())
      names.presets.emplace_back(preset);
    for (const Candidate& c : complete(describe(app), flags.words, names))
      std::printf("%s\t%s\n", c.text.c_str(), c.help.c_str());
    return kExitOk;
  }
  if (flags.words.size() != 1) {
    return invalid_argument("completion needs the name of a shell: bash, zsh or fish");
  }
  const std::string& shell = flags.words.front();
  const std::string_view script = completion_script(shell);
  if (script.empty()) {
    return invalid_argument(str_cat("SHELL is '", shell, "', expected bash, zsh or fish",
                                    did_you_mean(near_names(shell, {"bash", "zsh", "fish"}))));
  }
  std::fwrite(script.data(), 1, script.size(), stdout);
  return kExitOk;
}

}  // namespace

Command add_completion(CLI::App& app) {
  auto flags = std::make_shared<Flags>();
  CLI::App* sub = app.add_subcommand("completion", "The completion of a shell, as its script");
  sub->add_option("SHELL", flags->words, "bash, zsh or fish")
      ->type_name("bash|zsh|fish")
      ->check(empty_is_a_value());
  // What the scripts call: the words of a line up to the cursor follow behind `--`.
  sub->add_flag("--words", flags->complete, "Print what the last of the words may become")
      ->configurable(false)
      ->group("");
  return {sub, [flags, &app](const GlobalFlags&) { return completion(app, *flags); }};
}

}  // namespace fathom::cli
