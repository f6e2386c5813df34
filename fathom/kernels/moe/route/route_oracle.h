// The order of slots by expert: for the cases of all that sorts them.
#pragma once

#include <vector>

#include "fathom/kernels/conformance/operands/operands.h"

namespace fathom {

/// The definition: the slots of each expert, in their order. Ids of no expert are left out.
inline std::vector<std::vector<int64_t>> slots_of_experts(const Tensor& ids, int experts) {
  std::vector<std::vector<int64_t>> slots(static_cast<size_t>(experts));
  for (int64_t i = 0; i < ids.numel(); ++i) {
    const double id = ids[i];
    if (id >= 0 && id < experts) slots[static_cast<size_t>(id)].push_back(i);
  }
  return slots;
}

/// Slots that have an expert, stably sorted by it.
inline std::vector<int64_t> sorted_slots(const Tensor& ids, int experts) {
  std::vector<int64_t> sorted;
  for (const std::vector<int64_t>& slots : slots_of_experts(ids, experts))
    sorted.insert(sorted.end(), slots.begin(), slots.end());
  return sorted;
}

inline std::vector<double> counts_of_experts(const Tensor& ids, int experts) {
  std::vector<double> counts;
  for (const std::vector<int64_t>& slots : slots_of_experts(ids, experts))
    counts.push_back(static_cast<double>(slots.size()));
  return counts;
}

}  // namespace fathom
