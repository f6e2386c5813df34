// What a chat may change while it runs: the flags of sampling, thinking and reasoning, by the one
// table that the command line has.
#pragma once

#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "cli/chat/answer_printer.h"
#include "cli/engine/text_engine.h"
#include "cli/io/chat_input.h"

namespace fathom::cli {

struct ChatSettings {
  SamplingFlags sampling;
  ChatFlags prompt;
  std::string reasoning = "show";

  ReasoningView view() const {
    return reasoning == "fold" ? ReasoningView::kFold : ReasoningView::kShow;
  }
};

/// The flags of sampling, prompts and reasoning.
void add_chat_settings(CLI::App& app, ChatSettings& settings);

/// Values by the long name of their flag, such as those that a model asks for.
using NamedValues = std::map<std::string, std::string>;

class SettingsTable {
 public:
  /// Begins with what a parsed command line, its environment and its file gave `app`, which has the
  /// flags of add_chat_settings.
  SettingsTable(const CLI::App& app, ChatSettings values);

  const ChatSettings& values() const { return values_; }

  /// The table with one value changed, as the text of a flag; "default" gives up what was said of
  /// it. Names may have dashes or underscores. Errors: InvalidArgument for a name that is none,
  /// with the nearest, and those of the flag.
  Result<SettingsTable> with(std::string_view name, const std::string& value) const;

  /// "temperature 0.5", or a line for each name, with what it does, where none is given. A value
  /// that nobody gave is that of `model`, else "-". Errors: InvalidArgument for a name that is
  /// none.
  Result<std::string> show(std::string_view name, const NamedValues& model) const;

 private:
  using Given = std::map<std::string, std::vector<std::string>>;
  Status parse();

  Given given_;  // by the first long name of the flag
  ChatSettings values_;
};

}  // namespace fathom::cli
