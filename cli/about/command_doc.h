// The commands and flags of the program as its documents tell of them. Help, man pages, completion
// and the page of flags are made from this and from nothing else, and this from the parser's tree:
// what is accepted is what is told.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace CLI {
class App;
class Option;
}  // namespace CLI

namespace fathom::cli {

/// One flag or positional argument. Names have no dashes.
struct FlagDoc {
  std::string name;                  ///< canonical: "max-model-len"; "MODEL" for one without a flag
  std::vector<std::string> letters;  ///< "c"
  std::vector<std::string> aliases;  ///< other long names, those that say no left out
  std::string positional;            ///< "MODEL" where it may stand without a flag
  std::string value;                 ///< "FILE", "auto|bf16|f32"; empty for a switch
  std::vector<std::string> words;    ///< the values, or the first of them, that are words
  std::string range;                 ///< "1 to 4096", where the parser says it
  std::string usual;                 ///< the default: "512", "off", "none", "the model's"
  std::string environment;           ///< "FATHOM_THREADS"; empty where the environment gives none
  std::string help;                  ///< what it does, without its default
  std::string group;                 ///< heading of the help: "Options", "Memory"
  bool negatable = false;            ///< --no-NAME is the opposite
  bool repeats = false;              ///< every time counts; of others the last does
  bool required = false;
  bool is_help = false;  ///< prints and ends

  bool is_switch() const { return value.empty(); }
};

/// One command.
struct CommandDoc {
  std::string words;  ///< "bench kernel"; empty for the program
  std::string help;   ///< one line
  std::vector<FlagDoc> flags;
  std::vector<CommandDoc> commands;

  /// "fathom bench kernel".
  std::string line() const;
};

/// The command at `app` with all below it. Hidden flags and commands are left out.
CommandDoc describe(const CLI::App& app);

/// "--max-model-len", "--[no-]prefix-cache", "MODEL": the canonical name as it is typed.
std::string typed_name(const FlagDoc& flag);

/// "-c, --max-model-len N", with every alias behind it if `aliases` is.
enum class Names { kShort, kAll };
std::string names_with_value(const FlagDoc& flag, Names names);

/// The command that the words lead to, such as {"bench", "kernel"}; null if there is none.
const CommandDoc* find_command(const CommandDoc& root, const std::vector<std::string>& words);

/// The name of an option's value in help and messages: "FILE", "SECONDS", "auto|bf16|f32"; empty
/// for a switch.
std::string value_name(const CLI::Option& option);

/// The words of a value such as "cpu|cuda|cuda:N", without those that stand for others (N).
std::vector<std::string> words_of_value(std::string_view value);

/// "fathom bench kernel".
std::string command_line_of(const CLI::App& app);

}  // namespace fathom::cli
