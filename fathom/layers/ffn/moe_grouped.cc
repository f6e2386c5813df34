// Experts by grouped products: rows in expert order, each expert's weights read once.
#include <array>

#include "fathom/formats/block/block_fp8.h"
#include "fathom/kernels/act/gated_act/gated_act.h"
#include "fathom/kernels/core/launch.h"
#include "fathom/kernels/moe/permute/permute.h"
#include "fathom/kernels/moe/route/route.h"
#include "fathom/kernels/quant/group_quant/group_quant.h"
#include "fathom/layers/ffn/moe.h"
#include "fathom/layers/linear.h"
#include "fathom/layers/side_work.h"
#include "fathom/trace/scope.h"

namespace fathom {
namespace {

/// What a product reads: rows as they are, or FP8 with a scale for 128 of a row.
struct Rows {
  View x;
  View scales;  // absent: x is not quantised
};

/// Names of the axes of rows, of their scales, and of each as one expert of the quantiser.
struct RowAxes {
  const char* rows;
  const char* scales;
  const char* one_rows;
  const char* one_scales;
};

constexpr RowAxes kTokenAxes{"T,H", "T,H/128", "1,T,H", "1,T,H/128"};
constexpr RowAxes kExpertAxes{"T*K,I", "T*K,I/128", "1,T*K,I", "1,T*K,I/128"};

View one_expert(const View& v, const char* axes) {
  View out = as_one_expert(v);
  out.axes = axes;
  return out;
}

Result<Rows> in_fp8(Exec& ex, const View& x, const RowAxes& axes) {
  Arena& arena = *ex.activations;
  const int64_t groups = x.dim(1) / kFp8Block;
  Rows q;
  FATHOM_ASSIGN(q.x, arena.tensor({x.dim(0), x.dim(1)}, Format::kE4m3, axes.rows));
  FATHOM_ASSIGN(q.scales, arena.tensor({x.dim(0), groups}, Format::kF32, axes.scales));
  FATHOM_TRY(launch<GroupQuantFp8>(ex, "input_quant",
                                   {.x = one_expert(x, axes.one_rows),
                                    .masked_rows = {},
                                    .q = one_expert(q.x, axes.one_rows),
                                    .s = one_expert(q.scales, axes.one_scales)}));
  return q;
}

// The rows of x in expert order. Each token is quantised once, not once for each of its experts.
Result<Rows> rows_of_experts(Exec& ex, const View& x, const View& src_row, MoeActivations how) {
  Arena& arena = *ex.activations;
  const int64_t R = src_row.dim(0);
  const int64_t H = x.dim(1);
  Rows from{.x = x, .scales = {}};
  if (how == MoeActivations::kFp8) {
    FATHOM_ASSIGN(from, in_fp8(ex, x, kTokenAxes));
  }
  Rows out;
  FATHOM_ASSIGN(out.x, arena.tensor({R, H}, from.x.format, "T*K,H"));
  FATHOM_TRY(
      launch<PermuteRows>(ex, "shuffle_rows", {.x = from.x, .src_row = src_row, .y = out.x}));
  if (!from.scales.present()) return out;
  FATHOM_ASSIGN(out.scales, arena.tensor({R, H / kFp8Block}, Format::kF32, "T*K,H/128"));
  FATHOM_TRY(launch<PermuteRows>(ex, "shuffle_scales",
                                 {.x = from.scales, .src_row = src_row, .y = out.scales}));
  return out;
}

// The rows of one token: each is that token, where it lies.
Rows rows_of_one_token(View x, int64_t num_rows) {
  x.dims[0] = num_rows;
  x.strides[0] = 0;
  x.axes = "T*K,H";
  return {.x = x, .scales = {}};
}

// As the products know it: codes that have scales.
View operand(const Rows& rows) {
  View x = rows.x;
  if (rows.scales.present()) x.format = Format::kFp8Group;
  return x;
}

// act [R, I] = SwiGLU of gate and up of each row: within the products' kernel where it can, else by
// one behind it.
Status gate_and_up(Exec& ex,
                   const MoeShape& s,
                   const MoeWeights& w,
                   const Rows& rows,
                   const ExpertRuns& runs,
                   const View& act) {
  const View x = operand(rows);
  FATHOM_ASSIGN(const bool gated, gated_group_linear(ex, "gate_up_proj", x, w.gate_up, runs, act,
                                                     s.K, s.limit, rows.scales));
  if (gated) return {};
  FATHOM_ASSIGN(const View gate_up,
                ex.activations->tensor({act.dim(0), 2 * s.I}, act.format, "T*K,2*I"));
  const std::array<Op, 2> parts = {Op("gate_proj"), Op("up_proj")};
  FATHOM_TRY(
      group_linear_rows(ex, "gate_up_proj", parts, x, w.gate_up, runs, gate_up, s.K, rows.scales));
  return launch<SiluMul>(ex, "act_fn", {.x = gate_up, .y = act, .limit = s.limit});
}

struct ExpertRows {
  View y;     // [R, H], rows in expert order
  View dest;  // [T, K] row of each chosen expert
};

Result<ExpertRows> expert_rows(Exec& ex,
                               const MoeShape& s,
                               const MoeWeights& w,
                               const View& x,
                               const RouterChoice& choice,
                               MoeActivations activations) {
  Scope scope(ex.recorder, "experts");
  const int64_t T = x.dim(0);
  const int64_t H = x.dim(1);
  const int64_t R = T * s.K;
  Arena& arena = *ex.activations;
  RowOrder order = choice.order;
  if (!order.offsets.present()) {
    FATHOM_ASSIGN(order, row_order(ex, s, T));
    if (quantises_input(w)) {
      FATHOM_ASSIGN(order.scale_offsets, arena.tensor({s.E + 1}, Format::kI32, "E+1"));
    }
    FATHOM_TRY(launch<RouteOffsets>(ex, "prepare_moe_input",
                                    {.ids = choice.ids,
                                     .offsets = order.offsets,
                                     .src_row = order.src_row,
                                     .dest = order.dest,
                                     .scale_offsets = order.scale_offsets}));
  }
  ExpertRows out{.y = {}, .dest = order.dest};
  FATHOM_ASSIGN(out.y, arena.tensor({R, H}, x.format, "T*K,H"));
  ArenaScope temporary(arena);
  // A router that sorts is for few tokens anyway; otherwise any number of them has the same calls.
  const bool in_place =
      T == 1 && choice.order.offsets.present() && activations != MoeActivations::kFp8;
  Rows rows;
  if (in_place) {
    rows = rows_of_one_token(x, R);
  } else {
    FATHOM_ASSIGN(rows, rows_of_experts(ex, x, order.src_row, activations));
  }
  FATHOM_ASSIGN(const View act, arena.tensor({R, s.I}, x.format, "T*K,I"));
  const ExpertRuns runs{.offsets = order.offsets, .scale_offsets = order.scale_offsets};
  FATHOM_TRY(gate_and_up(ex, s, w, rows, runs, act));
  Rows inner{.x = act, .scales = {}};
  if (activations == MoeActivations::kFp8) {
    FATHOM_ASSIGN(inner, in_fp8(ex, act, kExpertAxes));
  }
  FATHOM_TRY(group_linear(ex, "down_proj", operand(inner), w.down, runs, out.y, s.K, inner.scales));
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
                   MoeActivations activations,
                   const View& y) {
  ArenaScope arena(*ex.activations);
  const bool shared = has_shared_experts(w);
  SideWork beside(ex, SideNumber::kFirst, gains_beside(s, x.dim(0)));
  if (shared) {
    FATHOM_TRY(beside.run([&](Exec& side) { return shared_experts(side, s, w, x, y); }));
  }
  FATHOM_ASSIGN(const ExpertRows experts, expert_rows(ex, s, w, x, choice, activations));
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
