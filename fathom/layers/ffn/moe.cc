#include "fathom/layers/ffn/moe.h"

#include "fathom/kernels/core/launch.h"
#include "fathom/kernels/moe/gate/gate.h"
#include "fathom/layers/linear.h"
#include "fathom/trace/scope.h"

namespace fathom {
namespace {

constexpr MoeRow kMoeRows[] = {
    {MoeStrategy::kSorted, "sorted", "when the options ask for it",
     [](const MoeOptions& o) { return o.strategy == MoeStrategy::kSorted; }},
    {MoeStrategy::kGrouped, "grouped", "otherwise", [](const MoeOptions&) { return true; }},
};

}  // namespace

std::span<const MoeRow> moe_rows() {
  return kMoeRows;
}

int choose_moe(const MoeOptions& options) {
  int row = 0;
  while (!kMoeRows[row].fits(options))
    ++row;
  return row;
}

std::string explain_moe(const MoeOptions& options) {
  const int chosen = choose_moe(options);
  std::string out;
  int index = 0;
  for (const MoeRow& r : kMoeRows) {
    const std::string_view verdict = index == chosen  ? "chosen"
                                     : index > chosen ? "an earlier row fits"
                                                      : "does not apply";
    str_append(out, str_cat("row ", index, "  ", r.name, " (", r.when, "): ", verdict, "\n"));
    ++index;
  }
  return out;
}

// DeepSeek-V3 report, eq. 13 to 16; all of it in float32.
Result<RouterChoice> route_tokens(Exec& ex, const MoeShape& s, const MoeWeights& w, const View& x) {
  const int64_t T = x.dim(0);
  RouterChoice choice;
  FATHOM_ASSIGN(choice.ids, ex.activations->tensor({T, s.K}, Format::kI32, "T,K"));
  FATHOM_ASSIGN(choice.weights, ex.activations->tensor({T, s.K}, Format::kF32, "T,K"));
  ArenaScope arena(*ex.activations);
  FATHOM_ASSIGN(const View logits, ex.activations->tensor({T, s.E}, Format::kF32, "T,E"));
  FATHOM_TRY(linear(ex, "gate", x, w.gate, logits, LinearUse::kRouter));
  const Renormalize renorm = s.renormalize ? Renormalize::kYes : Renormalize::kNo;
  switch (s.rule) {
    case RouterRule::kSoftmax:
      FATHOM_TRY(launch<TopkSoftmax>(ex, "topk",
                                     {.logits = logits,
                                      .weights = choice.weights,
                                      .ids = choice.ids,
                                      .renorm = renorm,
                                      .scaling = s.scaling}));
      break;
    case RouterRule::kGroupLimitedSoftmax:
      FATHOM_TRY(launch<GroupLimitedSoftmaxGate>(ex, "topk",
                                                 {.logits = logits,
                                                  .weights = choice.weights,
                                                  .ids = choice.ids,
                                                  .n_group = s.n_group,
                                                  .topk_group = s.topk_group,
                                                  .scaling = s.scaling,
                                                  .renorm = renorm}));
      break;
    case RouterRule::kGroupedSigmoid:
      FATHOM_TRY(launch<GroupedTopkGate>(ex, "topk",
                                         {.logits = logits,
                                          .bias = w.bias,
                                          .weights = choice.weights,
                                          .ids = choice.ids,
                                          .n_group = s.n_group,
                                          .topk_group = s.topk_group,
                                          .scaling = s.scaling,
                                          .renorm = renorm}));
      break;
  }
  return choice;
}

Status shared_experts(Exec& ex, const MoeWeights& w, const View& x, const View& y) {
  Scope scope(ex.recorder, "shared_experts");
  return mlp(ex, w.shared, x, y);
}

Status moe(Exec& ex,
           const MoeContext& m,
           const MoeWeights& w,
           const View& x,
           const View& y,
           int layer,
           const Probe* probe) {
  ArenaScope arena(*ex.activations);
  FATHOM_ASSIGN(const RouterChoice choice, route_tokens(ex, m.shape, w, x));
  tap(probe, "router.ids", layer, choice.ids);
  tap(probe, "router.weights", layer, choice.weights);
  switch (kMoeRows[choose_moe(m.options)].strategy) {
    case MoeStrategy::kGrouped:
      return moe_grouped(ex, m.shape, w, x, choice, y);
    case MoeStrategy::kSorted:
      return moe_sorted(ex, m.shape, w, x, choice, y);
  }
  return internal_error("no strategy for the experts");
}

}  // namespace fathom
