// The tensors of a checkpoint as a plan asks about them, and the comparison of the two.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "fathom/base/status.h"
#include "fathom/weights/checkpoint/checkpoint.h"
#include "fathom/weights/checkpoint/linear_format.h"
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

}  // namespace fathom
