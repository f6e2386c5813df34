// The tensors of a checkpoint as a plan asks about them, and the comparison of the two.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "fathom/base/status.h"
#include "fathom/weights/checkpoint/checkpoint.h"
#include "fathom/weights/checkpoint/linear_format.h"
#include "fathom/weights/checkpoint/quant_config.h"
#include "fathom/weights/plan/weight_plan.h"

namespace fathom {

/// The layer in "model.layers.61.mlp..." or "layers.42.ffn...", or -1. Draft layers of DeepSeek-V4,
/// "mtp.0...", come behind the `num_layers` others.
int64_t layer_number(std::string_view tensor, int64_t num_layers);

/// How a planned tensor is stored. Errors: Corrupt for a shape that is not the planned one; those
/// of describe_linear.
Result<StoredLinear> describe_source(const Checkpoint& checkpoint, const WeightSpec& spec);

/// What a plan asks of a checkpoint, which outlives it. A tensor that is missing counts as bf16, so
/// that a plan can be made and verify_tensors can list everything that is missing. Shapes are
/// compared before the plan looks at them: a size of config.json that is wrong is no limit of a
/// layout. Errors of the source: those of describe_source and of reading scales.
TensorSource tensors_of(const Checkpoint& checkpoint);

/// What a comparison of plan and checkpoint found that is no error.
struct TensorReport {
  std::vector<std::string> surplus;  ///< tensors that nobody reads, draft layers not counted
  int64_t draft_tensors = 0;         ///< of layers past the last one, left out by the plan
};

/// Compares the plan with the checkpoint before any memory is taken: every planned tensor is there
/// with the planned shape. Layers from `num_layers` on must be draft layers, which a plan may leave
/// out. Errors: Corrupt naming the first missing tensors and their number; or file, tensor, byte,
/// shape found and shape expected; or a tensor of a layer that the model does not have.
Result<TensorReport> verify_tensors(const WeightPlan& plan,
                                    const Checkpoint& checkpoint,
                                    int64_t num_layers);

/// Whether weights of one role, such as experts, have one quantised format, or `declared` says that
/// several are meant; unquantised ones may lie among them, and draft layers have formats of their
/// own. Errors: Corrupt naming file, tensor, its format and that of the first one of its role.
Status check_one_format(const WeightPlan& plan,
                        const Checkpoint& checkpoint,
                        const QuantConfig& declared);

/// What to tell of a declaration that no weight bears out: one of fp8 over tensors in bf16, which
/// is what a conversion leaves that forgot config.json, or the config of another model. The tensors
/// decide how they are read, so it is no error. Empty where some weight is of the declared kind,
/// and where several kinds or none are declared.
std::string unmet_declaration(const WeightPlan& plan,
                              const Checkpoint& checkpoint,
                              const QuantConfig& declared);

}  // namespace fathom
