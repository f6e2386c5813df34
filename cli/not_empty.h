// Values that are there and hold nothing, which is what a script passes for a variable that it did
// not set. They would count as flags that were not given, or take the next word for their value;
// every option of every command refuses them, but for the few whose empty text means something.
#pragma once

#include <CLI/CLI.hpp>
#include <string_view>

namespace fathom::cli {

/// Refuses the empty text. `expected` says what belongs there, where that is worth a word.
CLI::Validator not_empty(std::string_view expected);

/// Marks an option whose empty text is a value, such as a prompt.
CLI::Validator empty_is_a_value();

/// Adds the refusal of an empty value to each option of `app` and of its commands, those left out
/// that empty_is_a_value marks. Called when all options are there.
void refuse_empty_values(CLI::App& app);

}  // namespace fathom::cli
