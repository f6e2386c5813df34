// Experts by grouped products: rows in expert order, each expert's weights read once.
#include <array>

#include "fathom/kernels/act/gated_act/gated_act.h"
#include "fathom/kernels/core/launch.h"
#include "fathom/kernels/moe/permute/permute.h"
#include "fathom/kernels/moe/route/route.h"
#include "fathom/layers/ffn/moe.h"
#include "fathom/layers/linear.h"
#include "fathom/layers/side_work.h"
#include "fathom/trace/scope.h"

namespace fathom {
namespace {

struct ExpertRows {
  View y;     // [R, H], rows in expert order
  View dest;  // [T, K] row of each chosen expert
};

Result<ExpertRows> expert_rows(
    Exec& ex, const MoeShape& s, const MoeWeights& w, const View& x, const RouterChoice& choice) {
  Scope scope(ex.recorder, "experts");
  const int64_t T = x.dim(0);
  const int64_t H = x.dim(1);
  const int64_t R = T * s.K;
  Arena& arena = *ex.activations;
  ExpertRows out;
  FATHOM_ASSIGN(out.dest, arena.tensor({T, s.K}, Format::kI32, "T,K"));
  FATHOM_ASSIGN(out.y, arena.tensor({R, H}, x.format, "T*K,H"));
  ArenaScope temporary(arena);
  FATHOM_ASSIGN(const View offsets, arena.tensor({s.E + 1}, Format::kI32, "E+1"));
  FATHOM_ASSIGN(const View src_row, arena.tensor({R}, Format::kI32, "T*K"));
  FATHOM_TRY(launch<RouteOffsets>(
      ex, "prepare_moe_input",
      {.ids = choice.ids, .offsets = offsets, .src_row = src_row, .dest = out.dest}));
  FATHOM_ASSIGN(const View rows, arena.tensor({R, H}, x.format, "T*K,H"));
  FATHOM_TRY(launch<PermuteRows>(ex, "shuffle_rows", {.x = x, .src_row = src_row, .y = rows}));
  FATHOM_ASSIGN(const View gate_up, arena.tensor({R, 2 * s.I}, x.format, "T*K,2*I"));
  const std::array<Op, 2> parts = {Op("gate_proj"), Op("up_proj")};
  FATHOM_TRY(group_linear_rows(ex, "gate_up_proj", parts, rows, w.gate_up, offsets, gate_up, s.K));
  FATHOM_ASSIGN(const View act, arena.tensor({R, s.I}, x.format, "T*K,I"));
  FATHOM_TRY(launch<SiluMul>(ex, "act_fn", {.x = gate_up, .y = act, .limit = s.limit}));
  FATHOM_TRY(group_linear(ex, "down_proj", act, w.down, offsets, out.y, s.K));
  return out;
}

// Kernels of experts that share out their work over the whole GPU wait for blocks of others that
// run beside them: those of few rows an expert, but of many experts.
bool gains_beside(const MoeShape& s, int64_t tokens) {
  constexpr int64_t kFewTokens = 16;
  constexpr int64_t kManyRows = 16;  // of an expert
  return tokens <= kFewTokens || tokens * s.K >= kManyRows * s.E;
}

}  // namespace

Status moe_grouped(Exec& ex,
                   const MoeShape& s,
                   const MoeWeights& w,
                   const View& x,
                   const RouterChoice& choice,
                   const View& y) {
  ArenaScope arena(*ex.activations);
  const bool shared = has_shared_experts(w);
  SideWork beside(ex, gains_beside(s, x.dim(0)));
  if (shared) {
    FATHOM_TRY(beside.run([&](Exec& side) { return shared_experts(side, s, w, x, y); }));
  }
  FATHOM_ASSIGN(const ExpertRows experts, expert_rows(ex, s, w, x, choice));
  FATHOM_TRY(beside.join());
  // The weight multiplies the expert's output, and the shared expert is added unscaled.
  return launch<UnpermuteWeightedSum>(ex, "apply_shuffle_mul_sum",
                                      {.x = experts.y,
                                       .dest = experts.dest,
                                       .weights = choice.weights,
                                       .add = shared ? y : View{},
                                       .y = y},
                                      moe_row(MoeStrategy::kGrouped));
}

}  // namespace fathom
