// Experts in one kernel: choice, products, activation and sum.
#include "fathom/kernels/core/launch.h"
#include "fathom/kernels/moe/fused_moe/fused_moe.h"
#include "fathom/layers/ffn/moe.h"
#include "fathom/trace/scope.h"

namespace fathom {
namespace {

RoutingMethod routing_method(const MoeShape& s) {
  if (s.rule == RouterRule::kGroupedSigmoid) return RoutingMethod::kDeepSeekV3;
  return s.renormalize ? RoutingMethod::kSoftmaxTopkRenormalize : RoutingMethod::kSoftmaxTopk;
}

// y [T, H]; may be float32 and its rows strided.
template <class K>
Status run(Exec& ex,
           const MoeShape& s,
           const MoeWeights& w,
           const View& logits,
           const View& x,
           const View& y) {
  Scope scope(ex.recorder, "experts");
  return launch<K>(ex, "fused_experts",
                   {.logits = logits,
                    .bias = w.bias,
                    .x = x,
                    .w_up = w.gate_up.parts[0].w,
                    .w_down = w.down.w,
                    .y = y,
                    .routing = {.method = routing_method(s),
                                .top_k = static_cast<int>(s.K),
                                .n_group = s.n_group,
                                .topk_group = s.topk_group,
                                .scaling = s.scaling}},
                   moe_row(MoeStrategy::kFused));
}

}  // namespace

Status moe_fused(Exec& ex, const MoeShape& s, const MoeWeights& w, const View& x, const View& y) {
  ArenaScope arena(*ex.activations);
  FATHOM_ASSIGN(const View logits, router_logits(ex, s, w, x));
  return add_shared_experts(ex, s, w, x, y, [&](const View& out) {
    switch (w.down.w.format()) {
      case Format::kNvfp4:
        return run<FusedMoeNvfp4>(ex, s, w, logits, x, out);
      case Format::kFp8Block:
      case Format::kFp8BlockUe8m0:
        return run<FusedMoeFp8Block>(ex, s, w, logits, x, out);
      default:
        return run<FusedMoeBf16>(ex, s, w, logits, x, out);
    }
  });
}

}  // namespace fathom
