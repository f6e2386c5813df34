// run --prompts: a file of prompts, a line of JSON each, answered together; a file of answers, a
// line each as they end. Begun again it goes on where it was: ids that the answers have are left
// out.
#pragma once

#include <string>

#include "cli/command.h"
#include "cli/engine/text_engine.h"

namespace fathom::cli {

struct BatchFlags {
  std::string prompts;  ///< {"id": "a", "prompt": "..."} a line; without id the number of the line
  std::string out;      ///< fathom.run/1 a line
  int64_t at_once = 8;  ///< answers that are written together
};

/// Answers every prompt that `out` has no answer of. The seed of a line is that of the flags, or of
/// the run, plus the lines before it, so that it does not depend on what else runs. 130 after
/// Ctrl-C; what was answered stays. Errors: Corrupt naming the line of either file; InvalidArgument
/// for a prompt that the context cannot hold; those of the engine.
Result<int> run_batch(const BatchFlags& flags,
                      const SamplingFlags& sampling,
                      const GlobalFlags& globals);

}  // namespace fathom::cli
