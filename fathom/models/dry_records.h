// The calls of a dry run, all of them.
#pragma once

#include <vector>

#include "fathom/models/model.h"
#include "fathom/trace/record.h"

namespace fathom {

/// What dry_run records of that shape. Errors: those of dry_run.
Result<std::vector<OpRecord>> dry_records(const Model& model,
                                          const BatchShape& shape,
                                          int num_threads,
                                          DryPass pass = DryPass::kForward,
                                          const DeviceInfo* gpu = nullptr);

}  // namespace fathom
