// help: the page of a command, on the terminal, as a manual page or for programs; and all pages in
// a directory, as an installation has them.
#include <CLI/CLI.hpp>
#include <cstdio>
#include <memory>

#include "cli/about/command_doc.h"
#include "cli/about/completion.h"
#include "cli/about/flag_pages.h"
#include "cli/about/help_text.h"
#include "cli/about/man_page.h"
#include "cli/command.h"
#include "fathom/base/hint.h"
#include "fathom/base/near_names.h"
#include "fathom/os/atomic_file.h"
#include "fathom/os/file.h"

namespace fathom::cli {
namespace {

struct Flags {
  std::vector<std::string> words;
  std::string directory;
  bool man = false;
  bool json = false;
};

Result<const CommandDoc*> chosen_command(const CommandDoc& root,
                                         const std::vector<std::string>& words) {
  std::vector<std::string> path;
  const CommandDoc* at = &root;
  for (const std::string& word : words) {
    path.push_back(word);
    const CommandDoc* below = find_command(root, path);
    if (below != nullptr) {
      at = below;
      continue;
    }
    std::vector<std::string> names;
    for (const CommandDoc& command : at->commands)
      names.push_back(command.words.substr(command.words.rfind(' ') + 1));
    Status unknown = invalid_argument(str_cat("'", word, "' is no command of `", at->line(), "`",
                                              did_you_mean(near_names(word, std::move(names)))));
    return with_hint(std::move(unknown), "`fathom help` lists the commands");
  }
  return at;
}

Status write_man_pages(const CommandDoc& root, const CommandDoc& command, const std::string& to) {
  FATHOM_TRY(write_file(join_path(to, man_page_name(command) + ".1"), man_page(root, command)));
  for (const CommandDoc& below : command.commands)
    FATHOM_TRY(write_man_pages(root, below, to));
  return {};
}

// Where shells look for them below share/. Of zsh the first place is for /usr/local, the second for
// packages of Debian.
Status write_pages(const CommandDoc& root, const std::string& directory) {
  constexpr std::string_view kScripts[][3] = {
      {"bash", "bash-completion/completions", "fathom"},
      {"zsh", "zsh/site-functions", "_fathom"},
      {"zsh", "zsh/vendor-completions", "_fathom"},
      {"fish", "fish/vendor_completions.d", "fathom.fish"},
  };
  const std::string man = join_path(directory, "man/man1");
  FATHOM_TRY(make_directories(man));
  FATHOM_TRY(write_man_pages(root, root, man));
  for (const auto& [shell, folder, name] : kScripts) {
    const std::string to = join_path(directory, folder);
    FATHOM_TRY(make_directories(to));
    FATHOM_TRY(write_file(join_path(to, name), completion_script(shell)));
  }
  return {};
}

Result<int> help(const CLI::App& app, const Flags& flags) {
  const CommandDoc root = describe(app);
  FATHOM_ASSIGN(const CommandDoc* command, chosen_command(root, flags.words));
  if (!flags.directory.empty()) {
    FATHOM_TRY(write_pages(root, flags.directory));
    return kExitOk;
  }
  std::printf("%s", flags.json ? help_json(root).c_str()
                    : flags.man
                        ? man_page(root, *command).c_str()
                        : help_text(root, *command, HelpDetail::kUsual, help_columns()).c_str());
  return kExitOk;
}

}  // namespace

Command add_help(CLI::App& app) {
  auto flags = std::make_shared<Flags>();
  CLI::App* sub =
      app.add_subcommand("help", "The help of a command, its manual page, or all pages");
  sub->add_option("COMMAND", flags->words, "Words of a command, such as: bench kernel");
  CLI::Option* man = sub->add_flag("--man", flags->man, "Its manual page, as roff");
  CLI::Option* json = sub->add_flag("--json", flags->json, "Every command and flag as JSON");
  sub->add_option("--out-dir", flags->directory,
                  "Write every manual page and completion below this directory, which is share/ of "
                  "an installation")
      ->excludes(man, json);
  json->excludes(man);
  return {sub, [flags, &app](const GlobalFlags&) { return help(app, *flags); }};
}

}  // namespace fathom::cli
