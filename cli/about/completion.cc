#include "cli/about/completion.h"

#include <algorithm>

#include "fathom/base/str_cat.h"

namespace fathom::cli {
namespace {

// The words before the cursor: which command they lead to, and what is open.
struct Place {
  const CommandDoc* command = nullptr;
  const FlagDoc* open_flag = nullptr;  // waits for its value
  size_t positionals = 0;              // given so far
};

const FlagDoc* find_flag(const CommandDoc& command, std::string_view word) {
  const bool is_long = word.starts_with("--");
  const std::string_view name = word.substr(is_long ? 2 : 1);
  for (const FlagDoc& flag : command.flags) {
    const auto lists = [&](const std::vector<std::string>& names) {
      return std::find(names.begin(), names.end(), name) != names.end();
    };
    if (is_long ? flag.name == name || lists(flag.aliases) : lists(flag.letters)) return &flag;
  }
  return nullptr;
}

Place place_of(const CommandDoc& root, const std::vector<std::string>& words) {
  Place place{.command = &root, .open_flag = nullptr, .positionals = 0};
  for (size_t i = 0; i + 1 < words.size(); ++i) {
    const std::string& word = words[i];
    // bash cuts "--flag=value" in three.
    if (word == "=") continue;
    if (place.open_flag != nullptr) {
      place.open_flag = nullptr;
      continue;
    }
    if (word.size() > 1 && word.front() == '-') {
      const FlagDoc* flag = find_flag(*place.command, word);
      if (flag == nullptr) flag = find_flag(root, word);
      const bool waits = flag != nullptr && !flag->is_switch() && flag->value.front() != '[';
      if (waits) place.open_flag = flag;
      continue;
    }
    const CommandDoc* below = nullptr;
    for (const CommandDoc& command : place.command->commands)
      if (command.words.substr(command.words.rfind(' ') + 1) == word) below = &command;
    if (below != nullptr) {
      place.command = below;
    } else {
      ++place.positionals;
    }
  }
  return place;
}

std::vector<Candidate> with_prefix(const std::vector<std::string>& texts,
                                   std::string_view prefix,
                                   std::string_view before = {}) {
  std::vector<Candidate> out;
  for (const std::string& text : texts)
    if (text.starts_with(prefix)) out.push_back({str_cat(before, text), {}});
  return out;
}

std::vector<Candidate> values_of(const FlagDoc& flag,
                                 std::string_view prefix,
                                 const CompletionNames& names,
                                 std::string_view before = {}) {
  if (flag.value == "MODEL" || flag.value == "SRC")
    return with_prefix(names.models, prefix, before);
  if (flag.value == "PRESET") return with_prefix(names.presets, prefix, before);
  return with_prefix(flag.words, prefix, before);
}

void add_flags(const CommandDoc& command, std::string_view prefix, std::vector<Candidate>& out) {
  const auto add = [&](const std::string& name, const FlagDoc& flag) {
    if (name.starts_with(prefix)) out.push_back({name, flag.help});
  };
  for (const FlagDoc& flag : command.flags) {
    if (flag.name == flag.positional) continue;
    add("--" + flag.name, flag);
    if (flag.negatable) add("--no-" + flag.name, flag);
    // Letters alone would hide the names; they are shown to who asks for one.
    if (prefix.size() == 2 && prefix[1] != '-') {
      for (const std::string& letter : flag.letters)
        add("-" + letter, flag);
    }
  }
}

// Flags, or after "--flag=" its values.
std::vector<Candidate> complete_flag(const CommandDoc& root,
                                     const CommandDoc& command,
                                     const std::string& word,
                                     const CompletionNames& names) {
  if (const size_t equals = word.find('='); equals != std::string::npos) {
    const std::string typed = word.substr(0, equals);
    const FlagDoc* flag = find_flag(command, typed);
    if (flag == nullptr) flag = find_flag(root, typed);
    if (flag == nullptr) return {};
    return values_of(*flag, std::string_view(word).substr(equals + 1), names, typed + "=");
  }
  std::vector<Candidate> out;
  add_flags(command, word, out);
  if (&command != &root) add_flags(root, word, out);
  return out;
}

}  // namespace

std::vector<Candidate> complete(const CommandDoc& root,
                                const std::vector<std::string>& words,
                                const CompletionNames& names) {
  const Place place = place_of(root, words);
  const std::string last = words.empty() ? std::string{} : words.back();
  if (place.open_flag != nullptr) return values_of(*place.open_flag, last, names);
  if (last.starts_with('-')) return complete_flag(root, *place.command, last, names);
  std::vector<Candidate> out;
  for (const CommandDoc& command : place.command->commands) {
    const std::string name = command.words.substr(command.words.rfind(' ') + 1);
    if (name.starts_with(last)) out.push_back({name, command.help});
  }
  if (place.command->words == "help") {
    // The words behind it are those of a command.
    std::vector<std::string> path(words.begin() + 1, words.end() - 1);
    std::erase_if(path, [](const std::string& word) { return word.starts_with('-'); });
    const CommandDoc* command = find_command(root, path);
    if (command == nullptr) return {};
    for (const CommandDoc& below : command->commands) {
      const std::string name = below.words.substr(below.words.rfind(' ') + 1);
      if (name.starts_with(last)) out.push_back({name, below.help});
    }
    return out;
  }
  size_t position = 0;
  for (const FlagDoc& flag : place.command->flags) {
    if (flag.positional.empty() || position++ != place.positionals) continue;
    const std::vector<Candidate> values = values_of(flag, last, names);
    out.insert(out.end(), values.begin(), values.end());
  }
  return out;
}

std::string_view completion_script(std::string_view shell) {
  if (shell == "bash") {
    return R"(# bash completion of fathom
_fathom() {
  local IFS=$'\n' line program=${COMP_WORDS[0]/#\~/$HOME}
  COMPREPLY=()
  while IFS=$'\t' read -r line _; do
    COMPREPLY+=("$line")
  done < <("$program" completion --words -- "${COMP_WORDS[@]:1:COMP_CWORD}" 2>/dev/null)
}
complete -o default -F _fathom fathom
)";
  }
  if (shell == "zsh") {
    return R"(#compdef fathom
# zsh completion of fathom
compdef _fathom fathom
_fathom() {
  local -a candidates
  local text help
  while IFS=$'\t' read -r text help; do
    candidates+=("${text//:/\\:}:${help}")
  done < <("${words[1]}" completion --words -- "${(@)words[2,CURRENT]}" 2>/dev/null)
  if (( $#candidates )); then
    _describe 'fathom' candidates
  else
    _files
  fi
}
# Loaded by the shell at the first completion, the file is the function itself.
if [ "$funcstack[1]" = "_fathom" ]; then
  _fathom
fi
)";
  }
  if (shell == "fish") {
    return R"(# fish completion of fathom
function __fathom_complete
    set -l before (commandline -opc)
    set -e before[1]
    set -l last (commandline -ct)
    set -l candidates (command fathom completion --words -- $before "$last" 2>/dev/null)
    if test (count $candidates) -gt 0
        printf '%s\n' $candidates
    else
        __fish_complete_path "$last"
    end
end
complete -c fathom -f -a '(__fathom_complete)'
)";
  }
  return {};
}

}  // namespace fathom::cli
