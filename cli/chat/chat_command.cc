#include "cli/chat/chat_command.h"

#include <algorithm>
#include <vector>

#include "fathom/base/near_names.h"

namespace fathom::cli {
namespace {

enum class Argument { kNone, kOptional, kNeeded };

struct Row {
  std::string_view name;
  ChatVerb verb;
  Argument needs;
  std::string_view argument;  // as /help shows it
  std::string_view help;      // empty: another name of a row above
};

constexpr Row kRows[] = {
    {"/help", ChatVerb::kHelp, Argument::kNone, "", "this list"},
    {"/regenerate", ChatVerb::kRegenerate, Argument::kNone, "", "another answer to your message"},
    {"/edit", ChatVerb::kEdit, Argument::kOptional, "[TEXT]",
     "change your last message, in $EDITOR or to TEXT, and have it answered"},
    {"/clear", ChatVerb::kClear, Argument::kNone, "", "forget the conversation"},
    {"/system", ChatVerb::kSystem, Argument::kOptional, "[TEXT]",
     "set the system message and start again; alone: show it"},
    {"/set", ChatVerb::kSet, Argument::kOptional, "[NAME [VALUE]]",
     "set temperature, top_p, seed, ..., default: as it was; alone: show them"},
    {"/save", ChatVerb::kSave, Argument::kNeeded, "FILE", "write the conversation as JSON"},
    {"/load", ChatVerb::kLoad, Argument::kNeeded, "FILE", "go on with one that was saved"},
    {"/tokens", ChatVerb::kTokens, Argument::kNone, "",
     "tokens of the conversation, and what is left of the context"},
    {"/stats", ChatVerb::kStats, Argument::kNone, "", "figures of the last answer"},
    {"/exit", ChatVerb::kExit, Argument::kNone, "", "leave (or Ctrl-D)"},
    {"/quit", ChatVerb::kExit, Argument::kNone, "", ""},
};

constexpr std::string_view kHelpOfInput =
    "  A message of several lines: paste it, end lines with \\, or put it between \"\"\" and "
    "\"\"\".\n"
    "  A message that begins with / is written with //. Ctrl-C stops the answer.\n";

constexpr std::string_view kBlanks = " \t\n";

std::string_view name_of(std::string_view line) {
  return line.substr(0, line.find_first_of(kBlanks));
}

const Row* find_row(std::string_view name) {
  const auto* row = std::find_if(std::begin(kRows), std::end(kRows),
                                 [&](const Row& r) { return r.name == name; });
  return row == std::end(kRows) ? nullptr : row;
}

Status unknown(std::string_view name) {
  std::vector<std::string> names;
  std::vector<std::string> longer;
  for (const Row& row : kRows) {
    names.emplace_back(row.name);
    if (name.size() > 1 && row.name.starts_with(name)) longer.emplace_back(row.name);
  }
  const auto near = longer.empty() ? near_names(name, std::move(names)) : longer;
  const std::string escape = str_cat(" (a message that begins with / is written /", name, ")");
  return invalid_argument(str_cat("unknown command '", name, "'",
                                  near.empty() ? str_cat("; /help lists them", escape)
                                               : did_you_mean(near, str_cat("?", escape))));
}

}  // namespace

bool names_chat_command(std::string_view line) {
  return find_row(name_of(line)) != nullptr;
}

Result<ChatCommand> parse_chat_command(std::string_view line) {
  const std::string_view name = name_of(line);
  const Row* row = find_row(name);
  if (row == nullptr) return unknown(name);
  std::string_view argument = line.substr(name.size());
  argument.remove_prefix(std::min(argument.find_first_not_of(kBlanks), argument.size()));
  argument = argument.substr(0, argument.find_last_not_of(kBlanks) + 1);
  if (row->needs == Argument::kNone && !argument.empty()) {
    return invalid_argument(str_cat(name, " takes nothing behind it, found '", argument, "'"));
  }
  if (row->needs == Argument::kNeeded && argument.empty()) {
    return invalid_argument(str_cat(name, " needs a ", row->argument));
  }
  return ChatCommand{.verb = row->verb, .argument = std::string(argument)};
}

std::string chat_help() {
  constexpr size_t kColumn = 22;
  std::string out;
  for (const Row& row : kRows) {
    if (row.help.empty()) continue;
    std::string left = str_cat(row.name, row.argument.empty() ? "" : " ", row.argument);
    left.resize(std::max(left.size(), kColumn), ' ');
    str_append(out, str_cat("  ", left, " ", row.help, "\n"));
  }
  return out += kHelpOfInput;
}

}  // namespace fathom::cli
