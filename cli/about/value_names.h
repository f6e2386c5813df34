// What the value of a flag is called, where neither its words nor the table of the engine's options
// say it: a file, seconds, tokens. A flag means the same in every command, and so does its value.
#pragma once

#include <string_view>

namespace fathom::cli {

/// What the parser takes a value for.
enum class ValueType { kText, kNumber };

/// "FILE" for "out-file", "SECONDS" for "timeout"; empty for a flag that is not listed.
std::string_view listed_value_name(std::string_view flag, ValueType type);

}  // namespace fathom::cli
