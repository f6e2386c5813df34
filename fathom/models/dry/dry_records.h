// The calls of a dry run, all of them.
#pragma once

#include <vector>

#include "fathom/models/model.h"
#include "fathom/trace/record.h"

namespace fathom {

/// What dry_run records of that shape; the options' recorder is not used. Errors: those of dry_run.
Result<std::vector<OpRecord>> dry_records(const Model& model,
                                          const BatchShape& shape,
                                          DryRunOptions options = {});

}  // namespace fathom
