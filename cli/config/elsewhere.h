// Flags and commands that people bring from llama.cpp, vLLM, SGLang and ollama and that are not
// here: what to type instead, or why there is none. Those that mean the same are aliases of ours.
#pragma once

#include <string>
#include <string_view>

namespace fathom::cli {

struct ElsewhereFlag {
  std::string_view names;     ///< as they are typed, separated by blanks: "--n-gpu-layers -ngl"
  std::string_view from;      ///< "llama.cpp"
  std::string_view harmless;  ///< a value that says what is the case here; empty: none
  std::string_view instead;   ///< what is here, or why not
  bool is_switch = false;
  bool changes_nothing = false;  ///< a switch that asks for what is the case here

  /// The name that leads the list.
  std::string_view name() const { return names.substr(0, names.find(' ')); }
};

/// The flag of that spelling ("--tp", "-ngl"; dashes and underscores within are alike), or null.
const ElsewhereFlag* find_elsewhere_flag(std::string_view typed);

/// What to type for a command of another program; empty for one that is not known.
std::string_view find_elsewhere_command(std::string_view typed);

}  // namespace fathom::cli
