// Completion of command lines. One function knows what may follow; the scripts of the shells ask it
// through `fathom completion --words` and hold nothing that could become untrue.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "cli/about/command_doc.h"

namespace fathom::cli {

struct Candidate {
  std::string text;
  std::string help;
};

/// Names that only the machine knows.
struct CompletionNames {
  std::vector<std::string> models;
  std::vector<std::string> presets;
};

/// What the last of the words may become, the words before it given. Nothing where a file is
/// wanted, or where nothing is known: the shell then offers files.
std::vector<Candidate> complete(const CommandDoc& root,
                                const std::vector<std::string>& words,
                                const CompletionNames& names);

/// The script for "bash", "zsh" or "fish"; empty for another shell.
std::string_view completion_script(std::string_view shell);

}  // namespace fathom::cli
