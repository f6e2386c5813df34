#include "cli/about/help_text.h"

#include <algorithm>
#include <unistd.h>

#include "cli/about/command_texts.h"
#include "cli/io/terminal.h"
#include "fathom/base/str_cat.h"

namespace fathom::cli {
namespace {

constexpr size_t kHelpColumn = 28;

std::string joined(const std::vector<std::string>& names, std::string_view dashes) {
  std::string out;
  for (const std::string& name : names)
    str_append(out, str_cat(out.empty() ? "" : ", ", dashes, name));
  return out;
}

std::string bracket_of(const FlagDoc& flag, HelpDetail detail) {
  if (flag.is_help) return {};
  std::string out;
  const auto add = [&](const std::string& part) {
    str_append(out, str_cat(out.empty() ? "" : "; ", part));
  };
  const bool says_nothing = flag.usual == "none" || flag.usual == "off";
  if (flag.required) {
    add("required");
  } else if (detail == HelpDetail::kAll || !says_nothing) {
    add(str_cat("default: ", flag.usual));
  }
  if (detail == HelpDetail::kAll) {
    if (!flag.range.empty()) add(flag.range);
    if (flag.repeats) add("may be repeated");
    if (!flag.environment.empty()) add(flag.environment);
    if (!flag.aliases.empty()) add(str_cat("also ", joined(flag.aliases, "--")));
  }
  return out.empty() ? out : str_cat(" [", out, "]");
}

// Names in the left column, the text in the right one, or below names that are too long.
std::string row(const std::string& names, const std::string& text, size_t columns) {
  std::string out = str_cat("  ", names);
  std::string lines = wrapped(text, kHelpColumn, columns);
  if (out.size() + 2 <= kHelpColumn) {
    lines.erase(0, out.size());
    return out + lines;
  }
  return str_cat(out, "\n", lines);
}

std::string flag_row(const FlagDoc& flag, HelpDetail detail, size_t columns) {
  std::string names = names_with_value(flag, Names::kShort);
  // Long names stand below each other, whether there is a letter or not.
  if (flag.letters.empty() && flag.positional.empty()) names = "    " + names;
  return row(names, flag.help + bracket_of(flag, detail), columns);
}

std::string flag_groups(const std::vector<FlagDoc>& flags, HelpDetail detail, size_t columns) {
  std::string out;
  std::vector<std::string> groups;
  for (const FlagDoc& flag : flags) {
    const bool known = std::find(groups.begin(), groups.end(), flag.group) != groups.end();
    if (flag.positional.empty() && !known) groups.push_back(flag.group);
  }
  std::string arguments;
  for (const FlagDoc& flag : flags)
    if (!flag.positional.empty()) arguments += flag_row(flag, detail, columns);
  if (!arguments.empty()) str_append(out, str_cat("\nArguments:\n", arguments));
  for (const std::string& group : groups) {
    str_append(out, str_cat("\n", group, ":\n"));
    for (const FlagDoc& flag : flags)
      if (flag.positional.empty() && flag.group == group) out += flag_row(flag, detail, columns);
  }
  return out;
}

std::string usage_and_examples(const CommandText& text, size_t columns) {
  std::string out = "\nUsage:\n";
  for (const std::string_view line : text.usage)
    str_append(out, str_cat("  ", line, "\n"));
  if (!text.details.empty()) str_append(out, str_cat("\n", wrapped(text.details, 0, columns)));
  out += "\nExamples:\n";
  for (const Example& example : text.examples)
    str_append(out, str_cat("  ", example.line, "\n", wrapped(example.says, 6, columns)));
  return out;
}

}  // namespace

std::string wrapped(std::string_view text, size_t indent, size_t width) {
  std::string out;
  const std::string margin(indent, ' ');
  for (size_t at = 0; at <= text.size();) {
    const size_t end = std::min(text.find('\n', at), text.size());
    std::string line;
    for (size_t word_at = at; word_at < end;) {
      const size_t word_end = std::min(text.find(' ', word_at), end);
      const std::string_view word = text.substr(word_at, word_end - word_at);
      if (!line.empty() && indent + line.size() + 1 + word.size() > width) {
        str_append(out, str_cat(margin, line, "\n"));
        line.clear();
      }
      str_append(line, str_cat(line.empty() ? "" : " ", word));
      word_at = word_end + 1;
    }
    str_append(out, str_cat(line.empty() ? "" : margin, line, "\n"));
    at = end + 1;
  }
  return out;
}

size_t help_columns() {
  const size_t columns = terminal_columns(STDOUT_FILENO);
  return columns > 0 ? std::clamp<size_t>(columns, 60, 120) : 80;
}

std::string help_text(const CommandDoc& root,
                      const CommandDoc& command,
                      HelpDetail detail,
                      size_t columns) {
  const bool is_root = command.words.empty();
  std::string out = wrapped(command.help, 0, columns);
  if (const CommandText* text = find_command_text(command.words)) {
    out += usage_and_examples(*text, columns);
  }
  if (!command.commands.empty()) {
    out += "\nCommands:\n";
    for (const CommandDoc& below : command.commands) {
      const std::string name = below.words.substr(below.words.rfind(' ') + 1);
      out += row(name, below.help, columns);
    }
  }
  if (!is_root) out += flag_groups(command.flags, detail, columns);
  out += "\nEvery command:\n";
  for (const FlagDoc& flag : root.flags)
    out += flag_row(flag, detail, columns);
  if (is_root) {
    const auto paragraph = [&](std::string_view text) { out += "\n" + wrapped(text, 0, columns); };
    paragraph(model_text());
    paragraph(value_source_text());
    paragraph(str_cat("Exit codes: ", exit_code_text()));
  } else if (detail == HelpDetail::kUsual) {
    str_append(out, str_cat("\n", wrapped(str_cat("`", command.line(),
                                                  " --help-all` adds limits, other spellings and "
                                                  "the environment."),
                                          0, columns)));
  }
  return out;
}

std::string facts_of(const FlagDoc& flag) {
  if (flag.is_help) return {};
  std::string out = flag.required ? " Required." : str_cat(" Default: ", flag.usual, ".");
  if (!flag.range.empty()) str_append(out, str_cat(" Values: ", flag.range, "."));
  if (flag.repeats) out += " May be repeated.";
  if (!flag.environment.empty()) str_append(out, str_cat(" Environment: ", flag.environment, "."));
  return out;
}

}  // namespace fathom::cli
