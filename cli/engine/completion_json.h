// Answers as JSON, schema fathom.run/1 of docs/json.md: of `run --json` one document, of a batch a
// line each.
#pragma once

#include <optional>
#include <string>

#include "fathom/api/engine.h"
#include "fathom/text/json_writer.h"

namespace fathom::cli {

struct CompletionFacts {
  std::string model;                  ///< as it was named
  std::optional<std::string> id;      ///< of a line of a batch
  std::optional<std::string> prompt;  ///< where it was asked for
  const SamplingParams& params;       ///< its seed is set
  const Completion& answer;
};

std::string completion_json(const CompletionFacts& facts, JsonStyle style);

}  // namespace fathom::cli
