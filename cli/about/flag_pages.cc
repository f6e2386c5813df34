#include "cli/about/flag_pages.h"

#include <algorithm>

#include "cli/about/command_texts.h"
#include "fathom/api/options.h"
#include "fathom/text/figures.h"
#include "fathom/text/json_writer.h"

namespace fathom::cli {
namespace {

using Commands = std::vector<const CommandDoc*>;

void collect(const CommandDoc& command, Commands& out) {
  out.push_back(&command);
  for (const CommandDoc& below : command.commands)
    collect(below, out);
}

bool is_engine_flag(const FlagDoc& flag, const OptionInfo& row) {
  return flag.name == row.flag && flag.group == group_heading(row.group);
}

bool is_engine_flag(const FlagDoc& flag) {
  const std::span<const OptionInfo> rows = option_table();
  return std::any_of(rows.begin(), rows.end(),
                     [&](const OptionInfo& row) { return is_engine_flag(flag, row); });
}

const FlagDoc* find_engine_flag(const CommandDoc& command, const OptionInfo& row) {
  const auto found = std::find_if(command.flags.begin(), command.flags.end(),
                                  [&](const FlagDoc& flag) { return is_engine_flag(flag, row); });
  return found == command.flags.end() ? nullptr : &*found;
}

std::string code(std::string_view text) {
  return text.empty() ? std::string{} : str_cat("`", text, "`");
}

// "`-c` `--max-model-len` `--ctx-size`".
std::string coded_names(const FlagDoc& flag) {
  std::string out;
  const auto add = [&](const std::string& name) {
    str_append(out, str_cat(out.empty() ? "" : " ", code(name)));
  };
  if (!flag.positional.empty()) add(flag.positional);
  for (const std::string& letter : flag.letters)
    add("-" + letter);
  if (flag.name != flag.positional) add(typed_name(flag));
  for (const std::string& alias : flag.aliases)
    add("--" + alias);
  return out;
}

// A default that is no value is no code.
std::string usual_cell(const FlagDoc& flag) {
  const bool is_word = flag.usual.find(' ') == std::string::npos && flag.usual != "none" &&
                       flag.usual != "off" && flag.usual != "on" && flag.usual != "required";
  return is_word ? code(flag.usual) : flag.usual;
}

std::string value_cell(const FlagDoc& flag) {
  return str_cat(code(flag.value), flag.range.empty() ? "" : ", ", flag.range);
}

// The options that at least one command takes, by group.
std::string engine_tables(const Commands& commands) {
  std::string out;
  MarkdownTable table({});
  const std::span<const OptionInfo> rows = option_table();
  for (size_t i = 0; i < rows.size(); ++i) {
    const OptionInfo& row = rows[i];
    if (i == 0 || rows[i - 1].group != row.group) {
      table = MarkdownTable({"flag", "value", "default", "environment", "commands", ""});
    }
    std::string takers;
    const FlagDoc* flag = nullptr;
    for (const CommandDoc* command : commands) {
      const FlagDoc* found = find_engine_flag(*command, row);
      if (found == nullptr) continue;
      flag = found;
      str_append(takers, str_cat(takers.empty() ? "" : ", ",
                                 command->words.empty() ? "all" : command->words));
    }
    if (flag != nullptr) {
      // Of a text its name says more than that it is one.
      const bool is_text = row.expected() == "a text";
      const bool takes_words = !row.words().empty() || row.value().empty() || is_text;
      table.add({coded_names(*flag), takes_words ? code(row.value()) : row.expected(),
                 usual_cell(*flag), code(flag->environment), takers, flag->help});
    }
    if (i + 1 == rows.size() || rows[i + 1].group != row.group) {
      str_append(out, str_cat("\n### ", group_heading(row.group), "\n\n", table.str()));
    }
  }
  return out;
}

std::string own_table(const CommandDoc& command) {
  MarkdownTable table({"flag", "value", "default", "environment", ""});
  for (const FlagDoc& flag : command.flags) {
    if (is_engine_flag(flag)) continue;
    table.add({coded_names(flag), value_cell(flag), flag.is_help ? "" : usual_cell(flag),
               code(flag.environment), flag.help});
  }
  return table.empty() ? std::string{} : "\n" + table.str();
}

std::string usage_block(const CommandDoc& command) {
  const CommandText* text = find_command_text(command.words);
  if (text == nullptr) return {};
  std::string out = "\n```\n";
  for (const std::string_view line : text->usage)
    str_append(out, str_cat(line, "\n"));
  out += "```\n";
  if (!text->details.empty()) str_append(out, str_cat("\n", text->details, "\n"));
  out += "\n";
  for (const Example& example : text->examples)
    str_append(out, str_cat("- `", example.line, "`: ", example.says, "\n"));
  return out;
}

void write_strings(JsonWriter& out, std::string_view key, const std::vector<std::string>& texts) {
  out.key(key).begin_array();
  for (const std::string& text : texts)
    out.string(text);
  out.end_array();
}

void write_flag(JsonWriter& out, const FlagDoc& flag) {
  out.begin_object().key("name").string(flag.name);
  out.key("typed").string(names_with_value(flag, Names::kAll));
  out.key("positional").boolean(!flag.positional.empty());
  out.key("value").string(flag.value);
  write_strings(out, "words", flag.words);
  out.key("range").string(flag.range).key("default").string(flag.usual);
  out.key("environment").string(flag.environment).key("group").string(flag.group);
  out.key("repeats").boolean(flag.repeats).key("help").string(flag.help).end_object();
}

void write_command(JsonWriter& out, const CommandDoc& command) {
  out.begin_object().key("command").string(command.line()).key("help").string(command.help);
  const CommandText* text = find_command_text(command.words);
  out.key("usage").begin_array();
  if (text != nullptr)
    for (const std::string_view line : text->usage)
      out.string(line);
  out.end_array().key("examples").begin_array();
  if (text != nullptr)
    for (const Example& example : text->examples)
      out.string(example.line);
  out.end_array().key("flags").begin_array();
  for (const FlagDoc& flag : command.flags)
    write_flag(out, flag);
  out.end_array().end_object();
}

}  // namespace

std::string flags_markdown(const CommandDoc& root) {
  Commands commands;
  collect(root, commands);
  std::string out = "# Commands and flags\n\n## Options of the engine\n" + engine_tables(commands);
  for (const CommandDoc* command : commands) {
    const bool is_root = command->words.empty();
    const std::string heading = is_root ? "Every command" : command->line();
    str_append(out, str_cat("\n## ", heading, "\n"));
    if (!is_root) {
      str_append(out, str_cat("\n", command->help, ".\n", usage_block(*command)));
    }
    out += own_table(*command);
  }
  return out;
}

std::string help_json(const CommandDoc& root) {
  Commands commands;
  collect(root, commands);
  JsonWriter out(JsonStyle::kIndented);
  out.begin_object().key("schema").string("fathom.help/1");
  out.key("version").string(FATHOM_VERSION).key("commands").begin_array();
  for (const CommandDoc* command : commands)
    write_command(out, *command);
  out.end_array().end_object();
  return out.take() + "\n";
}

}  // namespace fathom::cli
