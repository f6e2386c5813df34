// A step without its contents: a batch whose views have their sizes and no data. Where requests
// are alike nothing is kept of each but its length, so that a step of millions of tokens costs no
// more than one of a few.
#pragma once

#include <vector>

#include "fathom/models/model.h"

namespace fathom {

/// The batch that BatchBuffer would build of such a step, without data. Its lengths and offsets,
/// which layers read on the host, are there.
class DryBatch {
 public:
  /// Errors: InvalidArgument for requests without tokens and for a step of more than 2^31 - 1
  /// tokens, which offsets cannot count.
  static Result<DryBatch> create(const CacheLayout& layout, const BatchShape& shape);

  DryBatch(DryBatch&&) = default;
  DryBatch& operator=(DryBatch&&) = default;

  /// Points into this object, and may still be read when that was moved. `cache` is the caller's.
  const Batch& batch() const { return batch_; }

 private:
  struct Lengths {
    std::vector<int32_t> query_offsets = {0};
    std::vector<int32_t> kv_lens;
  };

  DryBatch() = default;

  Batch batch_;
  Lengths prefill_;
  Lengths decode_;
  std::vector<View> slots_;
  std::vector<PooledRows> pooled_;
};

}  // namespace fathom
