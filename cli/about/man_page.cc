#include "cli/about/man_page.h"

#include <algorithm>
#include <cctype>

#include "cli/about/command_texts.h"
#include "cli/about/help_text.h"
#include "fathom/base/str_cat.h"

namespace fathom::cli {
namespace {

// Text as roff prints it unchanged. A hyphen would become a typographic one, which nobody can type
// or search for; a dot or a quote at the beginning of a line would be a request.
std::string escaped(std::string_view text) {
  std::string out;
  bool at_begin = true;
  for (const char c : text) {
    if (at_begin && (c == '.' || c == '\'')) out += "\\&";
    at_begin = c == '\n';
    switch (c) {
      case '\\':
        out += "\\e";
        break;
      case '-':
        out += "\\-";
        break;
      case '\'':
        out += "\\(aq";
        break;
      case '`':
        out += "\\(ga";
        break;
      case '~':
        out += "\\(ti";
        break;
      case '^':
        out += "\\(ha";
        break;
      default:
        out += c;
    }
  }
  return out;
}

std::string section(std::string_view heading) {
  return str_cat(".SH \"", heading, "\"\n");
}

// An empty line begins a paragraph.
std::string paragraphs(std::string_view text) {
  std::string out;
  for (size_t at = 0; at < text.size();) {
    const size_t end = std::min(text.find("\n\n", at), text.size());
    str_append(out, str_cat(".PP\n", escaped(text.substr(at, end - at)), "\n"));
    at = end + 2;
  }
  return out;
}

std::string bold(std::string_view text) {
  return str_cat("\\fB", escaped(text), "\\fR");
}

std::string flag_entry(const FlagDoc& flag) {
  std::string names;
  const auto add = [&](const std::string& name) {
    str_append(names, str_cat(names.empty() ? "" : ", ", name));
  };
  if (!flag.positional.empty()) add(str_cat("\\fI", escaped(flag.positional), "\\fR"));
  for (const std::string& letter : flag.letters)
    add(bold("-" + letter));
  if (flag.name != flag.positional) add(bold(typed_name(flag)));
  for (const std::string& alias : flag.aliases)
    add(bold("--" + alias));
  if (!flag.value.empty() && flag.name != flag.positional && flag.value != flag.positional) {
    str_append(names,
               str_cat(flag.value.front() == '[' ? "" : " ", "\\fI", escaped(flag.value), "\\fR"));
  }
  const bool ends = flag.help.empty() || flag.help.back() == '.';
  return str_cat(".TP\n", names, "\n", escaped(str_cat(flag.help, ends ? "" : ".", facts_of(flag))),
                 "\n");
}

std::string flag_sections(const CommandDoc& command) {
  std::string out;
  std::vector<std::string> groups;
  for (const FlagDoc& flag : command.flags) {
    const std::string& group = flag.positional.empty() ? flag.group : "Arguments";
    if (std::find(groups.begin(), groups.end(), group) == groups.end()) groups.push_back(group);
  }
  std::stable_partition(groups.begin(), groups.end(),
                        [](const std::string& g) { return g == "Arguments"; });
  if (!groups.empty()) out += section("OPTIONS");
  for (const std::string& group : groups) {
    str_append(out, str_cat(".SS \"", escaped(group), "\"\n"));
    for (const FlagDoc& flag : command.flags)
      if ((flag.positional.empty() ? flag.group : "Arguments") == group) out += flag_entry(flag);
  }
  return out;
}

std::string listed_commands(const CommandDoc& command) {
  std::string out = section("COMMANDS");
  for (const CommandDoc& below : command.commands) {
    str_append(out, str_cat(".TP\n", bold(str_cat(man_page_name(below), "(1)")), "\n",
                            escaped(below.help), ".\n"));
  }
  return out;
}

std::string upper(std::string text) {
  for (char& c : text)
    c = static_cast<char>(std::toupper(static_cast<unsigned char>(c)));
  return text;
}

std::string see_also(const CommandDoc& root, const CommandDoc& command) {
  std::string pages;
  const auto add = [&](const CommandDoc& page) {
    if (page.words == command.words) return;
    str_append(pages, str_cat(pages.empty() ? "" : ",\n", bold(man_page_name(page)), "(1)"));
  };
  add(root);
  const std::string first = command.words.substr(0, command.words.find(' '));
  for (const CommandDoc& page : root.commands)
    if (page.words == first) add(page);
  for (const CommandDoc& page : command.commands)
    add(page);
  return pages.empty() ? pages : str_cat(section("SEE ALSO"), pages, "\n");
}

}  // namespace

std::string man_page_name(const CommandDoc& command) {
  std::string name = command.line();
  std::replace(name.begin(), name.end(), ' ', '-');
  return name;
}

std::string man_page(const CommandDoc& root, const CommandDoc& command) {
  const bool is_root = command.words.empty();
  const std::string name = man_page_name(command);
  std::string out = str_cat(".TH \"", escaped(upper(name)), "\" 1 \"\" \"fathom ",
                            escaped(FATHOM_VERSION), "\" \"fathom\"\n");
  // Without hyphens within words and stretched lines.
  out += ".nh\n.ad l\n";
  str_append(out, str_cat(section("NAME"), escaped(name), " \\- ", escaped(command.help), "\n"));
  if (const CommandText* text = find_command_text(command.words)) {
    out += section("SYNOPSIS");
    for (size_t i = 0; i < text->usage.size(); ++i)
      str_append(out, str_cat(i == 0 ? "" : ".br\n", escaped(text->usage[i]), "\n"));
    if (!text->details.empty()) out += section("DESCRIPTION") + paragraphs(text->details);
    if (is_root) out += section("DESCRIPTION") + paragraphs(model_text());
    out += section("EXAMPLES");
    for (const Example& example : text->examples) {
      str_append(out, str_cat(".TP\n", bold(example.line), "\n", escaped(example.says), "\n"));
    }
  }
  if (!command.commands.empty()) out += listed_commands(command);
  if (!is_root) out += flag_sections(command);
  out += section("OPTIONS OF EVERY COMMAND");
  for (const FlagDoc& flag : root.flags)
    out += flag_entry(flag);
  out += section("VALUES") + paragraphs(value_source_text());
  out += section("EXIT STATUS") + paragraphs(exit_code_text());
  return out + see_also(root, command);
}

}  // namespace fathom::cli
