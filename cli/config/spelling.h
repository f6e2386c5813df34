// A command line in the spelling of the parser, which knows one: people write --top_p for --top-p,
// -ctk for --ctk, and flags of other programs.
#pragma once

#include <optional>
#include <string>
#include <vector>

namespace CLI {
class App;
}

namespace fathom::cli {

/// What was typed and cannot be taken, and what to type instead.
struct Refusal {
  std::string message;
  std::string hint;  ///< empty: none
};

struct SpelledWords {
  std::vector<std::string> words;
  std::optional<Refusal> refusal;  ///< a flag of another program that asks for what is not here
};

/// The words after the program's name as the parser wants them. Values are left as they are: of
/// each flag the tree at `root` says whether it has one. A flag of another program is dropped where
/// it asks for what is the case here.
SpelledWords spell_words(const CLI::App& root, const std::vector<std::string>& words);

}  // namespace fathom::cli
