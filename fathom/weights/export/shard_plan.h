// Which tensor goes to which shard, and where in it: a pure function of the list of tensors.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "fathom/base/status.h"
#include "fathom/weights/checkpoint/safetensors.h"

namespace fathom {

/// One file to be written.
struct ShardPlan {
  std::string name;             ///< "model-00002-of-00004.safetensors"
  std::vector<size_t> tensors;  ///< indexes into the plan, in the order of their data
  std::string header;           ///< length and header, as written
  int64_t data_bytes = 0;

  int64_t file_bytes() const { return static_cast<int64_t>(header.size()) + data_bytes; }
};

/// Cuts the tensors, in their order, into shards of at most max_shard_bytes of data each. Where the
/// order would leave a tensor at an address that is no multiple of its element size, which other
/// readers need, the tensors of that shard are ordered by element size, largest first.
/// Errors: InvalidArgument for a name that is empty, too long or given twice, for a dtype that is
/// not dense, and for sizes beyond the limits of safetensors.h.
Result<std::vector<ShardPlan>> plan_shards(
    const std::vector<TensorEntry>& tensors,
    int64_t max_shard_bytes,
    const std::vector<std::pair<std::string, std::string>>& metadata);

/// The text of model.safetensors.index.json.
std::string format_index(const std::vector<TensorEntry>& tensors,
                         const std::vector<ShardPlan>& shards);

}  // namespace fathom
