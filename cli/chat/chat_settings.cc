#include "cli/chat/chat_settings.h"

#include <CLI/CLI.hpp>
#include <algorithm>

#include "cli/config/usage_error.h"
#include "cli/flags.h"
#include "cli/not_empty.h"
#include "fathom/base/near_names.h"

namespace fathom::cli {
namespace {

// The flags alone, as a command line of their own.
class SettingFlags {
 public:
  SettingFlags() : app_("settings of a chat", "fathom chat") {
    app_.set_help_flag();
    add_chat_settings(app_, values_);
    // The format is chosen with the model and cannot change under a conversation.
    app_.remove_option(app_.get_option("--chat-format"));
    refuse_empty_values(app_);
  }

  SettingFlags(const SettingFlags&) = delete;
  SettingFlags& operator=(const SettingFlags&) = delete;

  CLI::App& app() { return app_; }

  const ChatSettings& values() const { return values_; }

  std::vector<const CLI::Option*> options() const {
    std::vector<const CLI::Option*> out;
    for (const CLI::Option* option : app_.get_options())
      if (!option->get_lnames().empty()) out.push_back(option);
    return out;
  }

  // The option that is called so, by any of its long names.
  Result<const CLI::Option*> find(std::string_view typed) const {
    std::string name(typed);
    std::replace(name.begin(), name.end(), '_', '-');
    std::vector<std::string> names;
    for (const CLI::Option* option : options()) {
      for (const std::string& known : option->get_lnames()) {
        if (known == name) return option;
        names.push_back(known);
      }
    }
    const auto near = near_names(name, std::move(names), 1);
    return invalid_argument(str_cat(
        "'", typed, "' is no setting of a chat",
        near.empty() ? "; /set alone lists them" : did_you_mean(near, "? /set alone lists them")));
  }

 private:
  ChatSettings values_;
  CLI::App app_;
};

std::string joined(const std::vector<std::string>& texts) {
  std::string out;
  for (const std::string& text : texts)
    str_append(out, str_cat(out.empty() ? "" : ", ", text));
  return out;
}

}  // namespace

void add_chat_settings(CLI::App& app, ChatSettings& settings) {
  add_chat_flags(app, settings.prompt);
  app.add_option("--reasoning", settings.reasoning,
                 "What is seen of a model's reasoning; fold: how many tokens it had")
      ->check(one_of({"show", "fold"}))
      ->capture_default_str();
  add_sampling_flags(app, settings.sampling);
}

SettingsTable::SettingsTable(const CLI::App& app, ChatSettings values)
    : values_(std::move(values)) {
  const SettingFlags flags;
  for (const CLI::Option* known : flags.options()) {
    const std::string& name = known->get_lnames().front();
    const CLI::Option* option = app.get_option_no_throw("--" + name);
    if (option == nullptr || option->results().empty()) continue;
    std::vector<std::string> texts = option->results();
    // Of a flag with one value the last counts.
    if (known->get_expected_max() <= 1) {
      texts.erase(texts.begin(), texts.end() - 1);
    }
    given_[name] = std::move(texts);
  }
}

Result<SettingsTable> SettingsTable::with(std::string_view name, const std::string& value) const {
  const SettingFlags flags;
  FATHOM_ASSIGN(const CLI::Option* const option, flags.find(name));
  SettingsTable changed = *this;
  changed.given_.erase(option->get_lnames().front());
  if (value != "default") changed.given_[option->get_lnames().front()] = {value};
  FATHOM_TRY(changed.parse());
  return changed;
}

Status SettingsTable::parse() {
  SettingFlags flags;
  std::vector<std::string> words;
  for (const auto& [name, texts] : given_)
    for (const std::string& text : texts)
      words.push_back(str_cat("--", name, "=", text));
  try {
    std::reverse(words.begin(), words.end());  // the parser takes its words from the end
    flags.app().parse(std::move(words));
  } catch (const CLI::ParseError& error) {
    return invalid_argument(explain_usage(flags.app(), error).message);
  }
  std::string format = std::move(values_.prompt.chat_format);
  values_ = flags.values();
  values_.prompt.chat_format = std::move(format);
  return {};
}

Result<std::string> SettingsTable::show(std::string_view name, const NamedValues& model) const {
  const SettingFlags flags;
  const auto value_of = [&](const CLI::Option& option) -> std::string {
    const std::string& known = option.get_lnames().front();
    if (const auto own = given_.find(known); own != given_.end()) return joined(own->second);
    if (const auto asked = model.find(known); asked != model.end()) return asked->second;
    return option.get_default_str().empty() ? "-" : option.get_default_str();
  };
  if (!name.empty()) {
    FATHOM_ASSIGN(const CLI::Option* const option, flags.find(name));
    return str_cat(option->get_lnames().front(), " ", value_of(*option), "\n");
  }
  constexpr size_t kNames = 20, kValues = 10;
  std::string out;
  for (const CLI::Option* option : flags.options()) {
    std::string left = option->get_lnames().front();
    left.resize(std::max(left.size(), kNames), ' ');
    std::string value = value_of(*option);
    value.resize(std::max(value.size(), kValues), ' ');
    str_append(out, str_cat(left, " ", value, " ", option->get_description(), "\n"));
  }
  return out;
}

}  // namespace fathom::cli
