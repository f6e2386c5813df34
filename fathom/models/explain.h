// Why an op runs on the kernel it runs on: the selection table of its layer and the variants of the
// kernel, with the match, for `inspect --explain OP`.
#pragma once

#include <string>
#include <string_view>

#include "fathom/models/model.h"

namespace fathom {

/// Runs a dry pass of that shape, finds the op, and explains its first call in each phase:
/// operands, row of the layer's table, variants of the kernel on the CPU in order of preference.
/// Errors: NotFound listing the ops of the model; those of dry_run.
Result<std::string> explain_op(const Model& model, std::string_view op, const BatchShape& shape);

}  // namespace fathom
