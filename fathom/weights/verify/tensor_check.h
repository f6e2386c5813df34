// Whether the numbers of a checkpoint's tensors are numbers, whatever the tensors are for.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "fathom/base/status.h"
#include "fathom/weights/checkpoint/checkpoint.h"
#include "fathom/weights/checkpoint/linear_format.h"

namespace fathom {

/// Knows which tensors are scales. Reading is thread-safe.
class TensorCheck {
 public:
  /// The checkpoint outlives it. A weight whose scales are missing or of a wrong shape is one of
  /// faults().
  explicit TensorCheck(const Checkpoint& checkpoint);

  const std::vector<std::string>& faults() const { return faults_; }

  /// Whole elements of a tensor, from its byte `offset` on: floats are finite, scales of blocks not
  /// negative, scales of tensors positive. Integers and 4-bit codes always pass. Errors: Corrupt
  /// naming file, tensor, element, byte and value.
  Status check(const TensorRef& tensor, std::span<const std::byte> values, int64_t offset) const;

 private:
  const Checkpoint* checkpoint_;
  std::unordered_map<const TensorRef*, StoredLinear> block_scales_;  // of which weight
  std::unordered_set<const TensorRef*> tensor_scales_;
  std::vector<std::string> faults_;
};

}  // namespace fathom
