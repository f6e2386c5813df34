// Experts of a token or two: two kernels, which the shared expert belongs to.
#include "fathom/kernels/core/launch.h"
#include "fathom/kernels/moe/chosen_experts/chosen_experts.h"
#include "fathom/layers/ffn/moe.h"
#include "fathom/trace/scope.h"

namespace fathom {

Status moe_chosen(Exec& ex,
                  const MoeShape& s,
                  const MoeWeights& w,
                  const View& x,
                  const RouterChoice& choice,
                  const View& y) {
  Scope scope(ex.recorder, "experts");
  ArenaScope arena(*ex.activations);
  const bool shared = has_shared_experts(w);
  const int64_t width = s.K * s.I + (shared ? w.shared.down.w.cols() : 0);
  FATHOM_ASSIGN(const View act, ex.activations->tensor({x.dim(0), width}, x.format,
                                                       shared ? "T,K*I+Ns*I" : "T,K*I"));
  const SelectionRow row = moe_row(MoeStrategy::kChosen);
  FATHOM_TRY(
      launch<ChosenExpertsGateUp>(ex, "gate_up_proj",
                                  {.x = x,
                                   .experts = w.gate_up.parts[0].w.values,
                                   .ids = choice.ids,
                                   .shared = shared ? w.shared.gate_up.parts[0].w.values : View{},
                                   .y = act},
                                  row));
  return launch<ChosenExpertsDown>(ex, "down_proj",
                                   {.x = act,
                                    .experts = w.down.w.values,
                                    .ids = choice.ids,
                                    .weights = choice.weights,
                                    .shared = shared ? w.shared.down.w.values : View{},
                                    .y = y},
                                   row);
}

}  // namespace fathom
