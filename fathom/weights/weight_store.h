// The one block of memory that holds all weights of a model, where their plan says, and the tables
// that the model computes beside them.
#pragma once

#include <cstdint>
#include <functional>
#include <initializer_list>
#include <vector>

#include "fathom/device/memory.h"
#include "fathom/weights/plan/weight_plan.h"

namespace fathom {

/// The memory of all weights. Owned by the model; the views of the plan point into it.
class WeightStore {
 public:
  WeightStore() = default;

  /// Allocates the bytes of the plan, where the plan says, and binds its views. Errors:
  /// OutOfMemory.
  static Result<WeightStore> allocate(const WeightPlan& plan);

  /// Binds null pointers: for plans of models that no machine here can hold.
  static WeightStore dry(const WeightPlan& plan);

  /// A table that a model computes once, in the memory of the weights: positions' cosines and the
  /// like. `fill` writes it on the host; it is not called for a dry store, whose view has no data.
  /// The table lives as long as the store, also when that moves. `what` names it in messages.
  /// Errors: OutOfMemory; those of the device.
  Result<View> constant(std::string_view what,
                        std::initializer_list<int64_t> dims,
                        Format format,
                        const char* axes,
                        const std::function<void(std::byte*)>& fill);

  std::byte* data() const { return memory_.data(); }

  int64_t bytes() const { return bytes_; }

  /// The host can read it; a dry store answers for where its weights would lie.
  bool is_host() const { return placement_.is_host(); }

  const std::vector<WeightSummary>& summary() const { return summary_; }

 private:
  static WeightStore describe(const WeightPlan& plan);

  Placement placement_;
  Buffer memory_;
  std::vector<Buffer> constants_;
  int64_t bytes_ = 0;
  std::vector<WeightSummary> summary_;
};

}  // namespace fathom
