// What `inspect` knows of a model as JSON: schema fathom.inspect/1 of docs/json.md.
#pragma once

#include <string>

#include "cli/inspect_plan.h"

namespace fathom::cli {

/// The model, its weights and cache, the verdict of the memory plan, and every distinct op of a
/// decode step with what its calls cost. Errors: those of memory_plan_text and dry_records.
Result<std::string> inspection_json(const std::string& name,
                                    const std::vector<std::string>& notes,
                                    const Model& model,
                                    const PlanOptions& options);

}  // namespace fathom::cli
