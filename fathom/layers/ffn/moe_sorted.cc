// Experts by sorted slots: products that gather their rows through a list of (token, slot) pairs
// sorted by expert and padded to blocks.
#include "fathom/kernels/act/gated_act/gated_act.h"
#include "fathom/kernels/core/launch.h"
#include "fathom/kernels/moe/permute/permute.h"
#include "fathom/kernels/moe/route/route.h"
#include "fathom/kernels/moe/sorted_moe/sorted_moe.h"
#include "fathom/layers/ffn/moe.h"
#include "fathom/trace/scope.h"

namespace fathom {
namespace {

// Slots that one expert's block holds. Results do not depend on it.
constexpr int kBlock = 16;

struct SortedSlots {
  View ids;
  View block_expert;
  View num_padded;
};

Result<SortedSlots> sort_slots(Exec& ex, const MoeShape& s, const View& ids) {
  const int64_t capacity = AlignExperts::capacity(ids.numel(), s.E, kBlock);
  SortedSlots slots;
  FATHOM_ASSIGN(slots.ids, ex.activations->tensor({capacity}, Format::kI32, "M"));
  FATHOM_ASSIGN(slots.block_expert,
                ex.activations->tensor({capacity / kBlock}, Format::kI32, "M/block"));
  FATHOM_ASSIGN(slots.num_padded, ex.activations->tensor({1}, Format::kI32));
  FATHOM_TRY(launch<AlignExperts>(ex, "moe_align_block_size",
                                  {.ids = ids,
                                   .sorted_ids = slots.ids,
                                   .block_expert = slots.block_expert,
                                   .num_padded = slots.num_padded,
                                   .block = kBlock,
                                   .num_experts = static_cast<int>(s.E)}));
  return slots;
}

// y [T, H] = sum over slots of weight * expert; y may be float32 and its rows strided.
Status routed_sum(Exec& ex,
                  const MoeShape& s,
                  const MoeWeights& w,
                  const View& x,
                  const RouterChoice& choice,
                  const View& y) {
  Scope scope(ex.recorder, "experts");
  ArenaScope temporary(*ex.activations);
  const int64_t T = x.dim(0);
  const int64_t R = T * s.K;
  Arena& arena = *ex.activations;
  FATHOM_ASSIGN(const SortedSlots slots, sort_slots(ex, s, choice.ids));
  SortedMoeGemm::Args product{.x = x,
                              .w = w.gate_up.w,
                              .sorted_ids = slots.ids,
                              .block_expert = slots.block_expert,
                              .num_padded = slots.num_padded,
                              .y = {},
                              .block = kBlock,
                              .top_k = static_cast<int>(s.K)};
  FATHOM_ASSIGN(product.y, arena.tensor({R, 2 * s.I}, x.format, "T*K,2*I"));
  FATHOM_TRY(launch<SortedMoeGemm>(ex, "gate_up_proj", product));
  FATHOM_ASSIGN(const View act, arena.tensor({R, s.I}, x.format, "T*K,I"));
  FATHOM_TRY(launch<SiluMul>(ex, "act_fn", {.x = product.y, .y = act}));
  product.x = act;
  product.w = w.down.w;
  product.weights = reshape(choice.weights, {R}, "T*K");
  product.top_k = 1;
  FATHOM_ASSIGN(product.y, arena.tensor({R, x.dim(1)}, x.format, "T*K,H"));
  FATHOM_TRY(launch<SortedMoeGemm>(ex, "down_proj", product));
  ex.selection_row = 0;
  return launch<TopkSum>(ex, "moe_sum_reduce",
                         {.x = reshape(product.y, {T, s.K, x.dim(1)}, "T,K,H"), .y = y});
}

}  // namespace

Status moe_sorted(Exec& ex,
                  const MoeShape& s,
                  const MoeWeights& w,
                  const View& x,
                  const RouterChoice& choice,
                  const View& y) {
  if (!has_shared_experts(w)) return routed_sum(ex, s, w, x, choice, y);
  // Routed sum and shared expert meet in float32, side by side, and are rounded once.
  ArenaScope arena(*ex.activations);
  const int64_t T = x.dim(0);
  const int64_t H = x.dim(1);
  FATHOM_ASSIGN(const View both, ex.activations->tensor({T, 2 * H}, Format::kF32, "T,2*H"));
  FATHOM_TRY(shared_experts(ex, w, x, slice_cols(both, H, H, "T,H")));
  FATHOM_TRY(routed_sum(ex, s, w, x, choice, slice_cols(both, 0, H, "T,H")));
  return launch<TopkSum>(ex, "add_shared_experts",
                         {.x = reshape(both, {T, 2, H}, "T,2,H"), .y = y});
}

}  // namespace fathom
