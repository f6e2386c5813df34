// Names of DeepSeek-V4's tensors. DeepSeek's own are short ("layers.3.attn.wq_a.weight"); exports
// of transformers have its module paths ("model.layers.3.self_attn.q_a_proj.weight").
#pragma once

#include <string>
#include <string_view>

#include "fathom/weights/plan/weight_plan.h"

namespace fathom {

/// The name in an export of transformers of a tensor that DeepSeek calls `name`. "{}" stays. The
/// draft layer has modules as other layers have, and keeps its "mtp.0.".
std::string transformers_name(std::string_view name);

/// Gives names as a checkpoint has them.
class V4Names {
 public:
  /// By what is stored: names of transformers if the embedding has that name there. The plan
  /// outlives this.
  explicit V4Names(const WeightPlan& plan);

  /// Of two spellings of transformers the one that is stored; the newer if neither is.
  std::string operator()(std::string_view name) const;

 private:
  const WeightPlan& plan_;
  bool transformers_ = false;
  bool draft_transformers_ = false;  // transformers drops it: it may be there as it was
};

}  // namespace fathom
