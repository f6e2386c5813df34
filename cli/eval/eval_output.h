// What `eval` found, as text for people and as JSON (fathom.eval/1, docs/json.md). `missed` are the
// bounds and budgets that were not met, a line each.
#pragma once

#include <string>
#include <vector>

#include "fathom/models/model.h"
#include "fathom/runtime/eval/compare_logits.h"
#include "fathom/runtime/eval/evaluate.h"

namespace fathom::cli {

enum class EvalForm { kText, kJson };

struct PerplexityFound {
  std::string model;
  Perplexity result;
  int64_t text_bytes = 0;
};

std::string shown(const PerplexityFound& found, EvalForm form);

struct VectorsFound {
  std::string model;
  std::string numbers;  ///< the formats that it ran with
  VectorComparison result;
  std::vector<std::string> missed;
};

std::string shown(const VectorsFound& found, EvalForm form);

struct LogitsWritten {
  std::string model;
  std::string file;
  int64_t prompts = 0;
};

std::string shown(const LogitsWritten& written, EvalForm form);

struct ModelsCompared {
  std::string model;
  std::string reference;
  LogitComparison result;
  const TapComparison* layers = nullptr;  ///< null: not asked for
  std::vector<std::string> missed;
};

std::string shown(const ModelsCompared& found, EvalForm form);

/// "1.25e-03".
std::string scientific(double value);

}  // namespace fathom::cli
