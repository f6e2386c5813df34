#include "cli/config/spelling.h"

#include <CLI/CLI.hpp>
#include <algorithm>

#include "cli/about/command_doc.h"
#include "cli/config/elsewhere.h"
#include "fathom/base/str_cat.h"

namespace fathom::cli {
namespace {

constexpr size_t kLongestShortAlias = 3;  // letters of -ctk

std::string with_dashes(std::string name) {
  std::replace(name.begin(), name.end(), '_', '-');
  return name;
}

class Speller {
 public:
  Speller(const CLI::App& root, const std::vector<std::string>& words)
      : app_(&root), words_(words) {}

  SpelledWords spell() {
    while (next_ < words_.size() && !out_.refusal) {
      const std::string& word = words_[next_++];
      if (word == "--") {
        keep(word);
        keep_next(words_.size());
      } else if (word.size() > 2 && word.starts_with("--")) {
        spell_long(word, word.substr(2));
      } else if (word.size() > 1 && word.front() == '-') {
        spell_letters(word);
      } else {
        enter(word);
        keep(word);
      }
    }
    return std::move(out_);
  }

 private:
  void keep(std::string word) { out_.words.push_back(std::move(word)); }

  // The next words are values, whatever they look like.
  void keep_next(size_t count) {
    for (; count > 0 && next_ < words_.size(); --count)
      keep(words_[next_++]);
  }

  // The command's, else one of those above it, as the parser looks for them.
  template <class Matches>
  const CLI::Option* find(const Matches& matches) const {
    for (const CLI::App* app = app_; app != nullptr; app = app->get_parent()) {
      for (const CLI::Option* option : app->get_options())
        if (matches(*option)) return option;
    }
    return nullptr;
  }

  const CLI::Option* find_long(const std::string& name) const {
    return find([&](const CLI::Option& option) { return option.check_lname(name); });
  }

  // Values that follow a flag without `=`. The parser takes more for lists, and stops at a flag.
  static size_t values_of(const CLI::Option& option) {
    return option.get_expected_max() == 0
               ? 0
               : static_cast<size_t>(std::max(option.get_items_expected_min(), 0));
  }

  void spell_long(const std::string& word, const std::string& body) {
    const size_t equals = std::min(body.find('='), body.size());
    const std::string name = with_dashes(body.substr(0, equals));
    const std::string value = body.substr(equals);
    const CLI::Option* option = find_long(name);
    if (option == nullptr) return spell_elsewhere(word, "--" + name, value);
    // The parser counts switches in 64 bits, and throws beyond them.
    constexpr size_t kMostDigits = 18;
    if (option->get_expected_max() == 0 && value.size() > 1 + kMostDigits) {
      out_.refusal = Refusal{
          str_cat("--", name, " is '", value.substr(1, 64), "', expected true, false or nothing"),
          {}};
      return;
    }
    // The parser would take the next word for the value of "--name=".
    const bool is_empty = value == "=" && values_of(*option) > 0;
    keep(is_empty ? "--" + name : str_cat("--", name, value));
    if (is_empty) keep("");
    if (value.empty()) keep_next(values_of(*option));
  }

  void spell_letters(const std::string& word) {
    const size_t equals = std::min(word.find('='), word.size());
    const std::string name = word.substr(1, equals - 1);
    if (name.size() > 1 && name.size() <= kLongestShortAlias) {
      const CLI::Option* option = find_long(name);
      if (option != nullptr && option->get_lnames().front() != name) {
        return spell_long(word, word.substr(1));
      }
    }
    const std::string value = word.substr(equals);
    if (find_elsewhere_flag("-" + name) != nullptr && !is_letter_of_ours(name)) {
      return spell_elsewhere(word, "-" + name, value);
    }
    keep(word);
    // "-n" has its value behind it, "-n5" within; "-vq" is two switches.
    for (size_t i = 1; i < word.size(); ++i) {
      const CLI::Option* option =
          find([&](const CLI::Option& o) { return o.check_sname(std::string(1, word[i])); });
      if (option == nullptr || values_of(*option) == 0) continue;
      if (i + 1 == word.size()) keep_next(values_of(*option));
      return;
    }
  }

  bool is_letter_of_ours(const std::string& name) const {
    return name.size() == 1 &&
           find([&](const CLI::Option& option) { return option.check_sname(name); }) != nullptr;
  }

  // A flag that is not ours is the parser's to refuse, unless another program has it.
  void spell_elsewhere(const std::string& word,
                       const std::string& typed,
                       const std::string& value) {
    const ElsewhereFlag* flag = find_elsewhere_flag(typed);
    if (flag == nullptr) return keep(word);
    if (flag->changes_nothing) return;
    std::string given = value.empty() ? value : value.substr(1);
    const bool has_next = next_ < words_.size() && !words_[next_].starts_with('-');
    const bool takes_next = !flag->is_switch && value.empty() && has_next;
    if (takes_next) given = words_[next_];
    if (!flag->harmless.empty() && given == flag->harmless) {
      next_ += takes_next ? 1 : 0;
      return;
    }
    const std::string shown = flag->is_switch || given.empty() ? "" : " " + given.substr(0, 64);
    out_.refusal = Refusal{str_cat(typed, shown, " is a flag of ", flag->from, ", not of `",
                                   command_line_of(*app_), "`"),
                           std::string(flag->instead)};
  }

  void enter(const std::string& word) {
    for (const CLI::App* command : app_->get_subcommands([](const CLI::App*) { return true; })) {
      if (!command->check_name(word)) continue;
      app_ = command;
      return;
    }
  }

  const CLI::App* app_;  // the command that the words have led to
  const std::vector<std::string>& words_;
  size_t next_ = 0;
  SpelledWords out_;
};

}  // namespace

SpelledWords spell_words(const CLI::App& root, const std::vector<std::string>& words) {
  return Speller(root, words).spell();
}

}  // namespace fathom::cli
