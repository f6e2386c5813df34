// Which part of a tensor a rank holds. Tensor parallelism of the V2 and V3 family: what a shape
// says in symbols decides, for each role one of them is shared out.
//
//   embedding, head   V    rows of the vocabulary
//   attention         Nh   rows of q_proj, q_b_proj and kv_b_proj, by heads; columns of o_proj
//   dense MLP         Id   rows of gate and up, columns of down
//   shared experts    I    the same
//   routed experts    I    the same; or whole experts (ExpertShards::kNumber)
//
// A tensor without that symbol (norms, router, projections down to the latents, draft) is whole on
// every rank. Products over cut columns give sums that the ranks add up.
#pragma once

#include <string>

#include "fathom/base/status.h"
#include "fathom/weights/plan/placement.h"
#include "fathom/weights/plan/weight_spec.h"

namespace fathom {

/// Rows and columns that a cut of a matrix in that format must be a multiple of: its scale blocks
/// and packed groups stay whole. 1 where it has none.
int64_t cut_step(Format format, int axis);

/// Sets `spec.part` from its axes, dims, role and format. Errors: Unsupported where the ranks do
/// not divide the symbol or would cut a block, naming the tensor (by `place`), its size, the number
/// of ranks and the numbers that fit.
Status cut_tensor(const SymbolTable& symbols,
                  const Shard& shard,
                  const std::string& place,
                  WeightSpec& spec);

/// Experts [begin, begin + count) of `experts` that a rank holds. Errors: Unsupported, as above.
struct ExpertRange {
  int64_t begin = 0;
  int64_t count = 0;
};

Result<ExpertRange> experts_of(const Shard& shard, int64_t experts, const std::string& place);

}  // namespace fathom
