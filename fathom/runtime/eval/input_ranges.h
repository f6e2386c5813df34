// What the weights of a model read while it runs on a CPU: for the scales of activations that are
// quantised later.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "fathom/base/status.h"
#include "fathom/weights/plan/weight_plan.h"

namespace fathom {

/// The largest magnitudes of the inputs of linear layers. Outlives the model that it watches.
class InputRanges {
 public:
  /// From here on the products of this model note what they read; `plan` is that of its weights,
  /// which lie in the memory of the host (OpenOptions::loaded).
  void watch(const WeightPlan& plan);

  /// By the names of the weights' tensors; those that read nothing are left out. Tensors that lie
  /// in one matrix read the same. Gate and up rows of all experts of a layer have one range, since
  /// they read the same tokens; a down_proj without a token has that of the layer's largest, as in
  /// checkpoints of ModelOpt. Errors: Numerical naming a weight that read what is not finite.
  Result<std::map<std::string, float>> by_weight() const;

 private:
  struct Matrices {
    std::vector<std::vector<std::string>> names;  ///< of each
    std::vector<float> amax;                      ///< of each; -1: nothing was read
  };

  std::vector<Matrices> items_;
};

}  // namespace fathom
