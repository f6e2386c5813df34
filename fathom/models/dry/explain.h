// Why an op runs on the kernel it runs on: the selection table of its layer and the variants of the
// kernel, with the match, for `inspect --explain OP`.
#pragma once

#include <string>
#include <string_view>

#include "fathom/models/model.h"

namespace fathom {

/// Runs a dry pass of that shape, finds the op, and explains its first call in each phase, on each
/// kernel and in each part of the model (an expert's `down_proj` is another one than a dense
/// layer's): operands, row of the layer's table, variants of the kernel among `kernels`, those of a
/// CPU, in order of preference. Errors: NotFound listing the ops of the pass; those of dry_run.
Result<std::string> explain_op(const Model& model,
                               std::string_view op,
                               const BatchShape& shape,
                               const KernelSet& kernels,
                               DryPass pass = DryPass::kForward);

/// The same for each kind of pass that has the op, under a heading: decode, prefill, prefill after
/// a prefix, draft. Errors: NotFound with the near ones of all ops, or all of them where none is.
Result<std::string> explain_op_everywhere(const Model& model,
                                          std::string_view op,
                                          const KernelSet& kernels);

}  // namespace fathom
