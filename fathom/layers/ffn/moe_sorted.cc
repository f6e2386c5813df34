// Experts by sorted slots: products that gather their rows through a list of (token, slot) pairs
// sorted by expert and padded to blocks.
#include "fathom/kernels/act/gated_act/gated_act.h"
#include "fathom/kernels/core/launch.h"
#include "fathom/kernels/moe/permute/permute.h"
#include "fathom/kernels/moe/route/route.h"
#include "fathom/kernels/moe/sorted_moe/sorted_moe.h"
#include "fathom/kernels/quant/token_quant/token_quant.h"
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
  FATHOM_ASSIGN(slots.ids, ex.activations->tensor({capacity}, Format::kI32, "slots"));
  FATHOM_ASSIGN(slots.block_expert,
                ex.activations->tensor({capacity / kBlock}, Format::kI32, "blocks"));
  FATHOM_ASSIGN(slots.num_padded, ex.activations->tensor({1}, Format::kI32, "1"));
  FATHOM_TRY(launch<AlignExperts>(ex, "moe_align_block_size",
                                  {.ids = ids,
                                   .sorted_ids = slots.ids,
                                   .block_expert = slots.block_expert,
                                   .num_padded = slots.num_padded,
                                   .block = kBlock,
                                   .num_experts = static_cast<int>(s.E)}));
  return slots;
}

// One product; experts with a scale per channel take x as codes with a scale a row.
Status product(Exec& ex, Op op, SortedMoeGemm::Args args, const LinearWeight& w) {
  const Format format = w.w.format();
  if (format != Format::kFp8Channel && format != Format::kInt8Channel) {
    args.w = w.w;
    return launch<SortedMoeGemm>(ex, op, args);
  }
  ArenaScope temporary(*ex.activations);
  const Format codes = format == Format::kFp8Channel ? Format::kE4m3 : Format::kI8;
  const View x = args.x;
  const int64_t rows = x.dim(0);
  FATHOM_ASSIGN(args.x, ex.activations->tensor({rows, x.dim(1)}, codes, x.axes));
  FATHOM_ASSIGN(args.x_scales, ex.activations->tensor({rows, 1}, Format::kF32));
  const View scales = reshape(args.x_scales, {rows});
  if (codes == Format::kE4m3) {
    FATHOM_TRY(launch<TokenQuantFp8>(ex, "input_quant", {.x = x, .q = args.x, .s = scales}));
  } else {
    FATHOM_TRY(launch<TokenQuantInt8>(ex, "input_quant", {.x = x, .q = args.x, .s = scales}));
  }
  args.w = QuantView::dense(w.w.values);
  args.w.values.format = codes;
  args.w_scales = w.w.scales;
  args.group_n = 1;
  return launch<SortedMoeGemm>(ex, op, args);
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
  SortedMoeGemm::Args args{.x = x,
                           .w = {},
                           .sorted_ids = slots.ids,
                           .block_expert = slots.block_expert,
                           .num_padded = slots.num_padded,
                           .y = {},
                           .block = kBlock,
                           .top_k = static_cast<int>(s.K)};
  FATHOM_ASSIGN(args.y, arena.tensor({R, 2 * s.I}, x.format, "T*K,2*I"));
  FATHOM_TRY(product(ex, "gate_up_proj", args, w.gate_up.parts[0]));
  FATHOM_ASSIGN(const View act, arena.tensor({R, s.I}, x.format, "T*K,I"));
  FATHOM_TRY(launch<SiluMul>(ex, "act_fn", {.x = args.y, .y = act, .limit = s.limit}));
  args.x = act;
  args.weights = reshape(choice.weights, {R}, "T*K");
  args.top_k = 1;
  FATHOM_ASSIGN(args.y, arena.tensor({R, x.dim(1)}, x.format, "T*K,H"));
  FATHOM_TRY(product(ex, "down_proj", args, w.down));
  return launch<TopkSum>(ex, "moe_sum_reduce",
                         {.x = reshape(args.y, {T, s.K, x.dim(1)}, "T,K,H"), .y = y},
                         moe_row(MoeStrategy::kSorted));
}

}  // namespace

Status moe_sorted(Exec& ex,
                  const MoeShape& s,
                  const MoeWeights& w,
                  const View& x,
                  const RouterChoice& choice,
                  const View& y) {
  return add_shared_experts(ex, s, w, x, y,
                            [&](const View& out) { return routed_sum(ex, s, w, x, choice, out); });
}

}  // namespace fathom
