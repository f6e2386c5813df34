// Mixture of experts: gate, choice, experts, shared expert (DeepSeekMoE).
//
//   y = Shared(x) + sum over the K chosen experts of  w_e * Expert_e(x)
//
// Four strategies compute the routed sum; a table chooses. They differ in how rows meet experts:
//
//   chosen    a token or two, weights in rows: the chosen matrices are read where they lie, the
//             shared expert beside them; nothing is sorted, copied or summed by kernels of its own
//   grouped   rows are copied into expert order, one grouped product each way, then summed back
//   sorted    products gather and scatter rows through sorted slots; no copy of the rows is made
//   fused     choice, products and sum are one kernel; the router's logits are all it gets
//
// Source: DeepSeek-V3 report, section 2.1.2; DeepSeek-V2 report, section 2.2.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "fathom/base/status.h"
#include "fathom/kernels/core/exec.h"
#include "fathom/kernels/moe/router/router.h"
#include "fathom/layers/ffn/mlp.h"
#include "fathom/layers/probe.h"
#include "fathom/weights/weight_store.h"

namespace fathom {

struct MoeShape {
  int64_t E = 0;  ///< routed experts
  int64_t K = 0;  ///< experts per token
  int64_t I = 0;  ///< width of an expert
  RouterRule rule = RouterRule::kSoftmax;
  int n_group = 1;
  int topk_group = 1;
  bool renormalize = false;
  float scaling = 1.0f;  ///< of routed weights, applied once, inside the router
  float limit = 0.0f;    ///< clamps gate and up of routed and shared experts; 0: does not
};

struct MoeWeights {
  LinearWeight gate;   ///< [E, H]
  View bias;           ///< [E] f32, kGroupedSigmoid and kSqrtSoftplus
  View tid2eid;        ///< [V, K] the experts of each token id, of layers that choose by it
  RowsWeight gate_up;  ///< [E, 2*I, H], gate rows first; up rows first for kFused
  LinearWeight down;   ///< [E, H, I]
  MlpWeights shared;   ///< absent (not present()) where a model has none
};

enum class MoeStrategy : uint8_t { kChosen, kGrouped, kSorted, kFused };

/// What the products of routed experts read.
enum class MoeActivations : uint8_t {
  kAuto,  ///< activations as they are, but for weights whose scheme quantises them
  kFp8,   ///< E4M3 with a scale for 128 of a row: lossy (docs/numerics.md, Experts in FP8)
};

struct MoeOptions {
  std::optional<MoeStrategy> strategy;  ///< pins one
  MoeActivations activations = MoeActivations::kAuto;
  /// Few tokens: one kernel from their states to the order of their rows (router), whose logits are
  /// summed in another order than those of many tokens.
  bool join_router = false;
};

/// What the choice of a strategy depends on besides the options.
struct MoeCall {
  Format experts = Format::kBf16;  ///< of gate_up and down
  RouterRule rule = RouterRule::kSoftmax;
  bool renormalize = false;
  bool clamped = false;
  int64_t tokens = 0;  ///< 0: any number
  /// All matrices, also of the shared expert, are bf16 in rows of whole vectors, gate above up.
  bool in_rows = false;
  /// The kernels of the chosen experts have variants that take the call.
  bool chosen_fits = true;
  bool in_fp8_groups = true;     ///< widths_fit_fp8_groups
  bool quantises_input = false;  ///< the products read NVFP4 (LinearWeight::input_gs)
};

/// Whether both widths of an expert are whole groups of activations in FP8, 128 values each.
bool widths_fit_fp8_groups(int64_t hidden, int64_t intermediate);

/// Whether the options may ask for a strategy.
enum class MoePin : uint8_t {
  kMay,
  kMust,   ///< never chosen otherwise
  kNever,  ///< it cannot compute every call of a model
};

/// A row of the strategy table: the first that is not pinned away and takes the call wins.
struct MoeRow {
  MoeStrategy strategy;
  std::string_view name;
  MoePin pin;
  /// Why the strategy cannot compute the call; empty if it can.
  std::string_view (*why_not)(const MoeCall& call);
};

std::span<const MoeRow> moe_rows();

/// The row of a strategy, for records.
SelectionRow moe_row(MoeStrategy strategy);

/// The row that computes a call. Errors: Unsupported, if a pinned strategy cannot or none can, or
/// the experts have no product with the activations that the options ask for.
Result<int> choose_moe(const MoeCall& call, const MoeOptions& options);

/// The same with the reasons, as lines of text, for `inspect --explain`.
std::string explain_moe(const MoeCall& call, const MoeOptions& options);

struct MoeContext {
  MoeShape shape;
  MoeOptions options;
  View arrivals;  ///< of join_router: see Router. Passes of one model follow each other.
};

/// That of the context, in the memory of the weights; absent if the options do not join.
Result<View> router_arrivals(WeightStore& store, const MoeOptions& options);

/// The rows of experts, as route_offsets has them; absent: not sorted yet.
struct RowOrder {
  View offsets;             ///< [E + 1] i32
  View src_row;             ///< [T*K] i32
  View dest;                ///< [T, K] i32
  View scale_offsets = {};  ///< [E + 1] i32, where products quantise their rows; else absent
};

/// What the router decided.
struct RouterChoice {
  View ids;      ///< [T, K] i32
  View weights;  ///< [T, K] f32
  RowOrder order = {};
};

/// y = the whole block of x [T, H]; token_ids [T] where experts are chosen by them. The router's
/// choices go to the probe as "router.ids" and "router.weights" of that layer, but for the fused
/// strategy. Errors: those of choose_moe.
Status moe(Exec& ex,
           const MoeContext& m,
           const MoeWeights& w,
           const View& x,
           const View& y,
           int layer,
           const Probe* probe,
           const View& token_ids = {});

// The parts of moe().
Result<View> router_logits(Exec& ex, const MoeShape& s, const MoeWeights& w, const View& x);
/// Sorts too where one kernel does both and `strategy` reads the order.
Result<RouterChoice> route_tokens(Exec& ex,
                                  const MoeContext& m,
                                  const MoeWeights& w,
                                  const View& x,
                                  const View& token_ids,
                                  MoeStrategy strategy);
Result<RowOrder> row_order(Exec& ex, const MoeShape& s, int64_t tokens);
Status moe_grouped(Exec& ex,
                   const MoeShape& s,
                   const MoeWeights& w,
                   const View& x,
                   const RouterChoice& choice,
                   MoeActivations activations,
                   const View& y);
Status moe_chosen(Exec& ex,
                  const MoeShape& s,
                  const MoeWeights& w,
                  const View& x,
                  const RouterChoice& choice,
                  const View& y);
Status moe_sorted(Exec& ex,
                  const MoeShape& s,
                  const MoeWeights& w,
                  const View& x,
                  const RouterChoice& choice,
                  const View& y);

/// The choice is part of the kernel; nobody sees it.
Status moe_fused(Exec& ex, const MoeShape& s, const MoeWeights& w, const View& x, const View& y);

/// y = the shared experts of x, as one MLP of their summed width.
Status shared_experts(
    Exec& ex, const MoeShape& s, const MoeWeights& w, const View& x, const View& y);

inline bool has_shared_experts(const MoeWeights& w) {
  return w.shared.down.present();
}

/// Whether products of routed experts quantise their rows to NVFP4.
inline bool quantises_input(const MoeWeights& w) {
  return w.gate_up.parts[0].quantises_input() || w.down.quantises_input();
}

/// Float32 [T, 2*H] from the arena, the shared experts of x in its right half; and y = left +
/// right.
Result<View> shared_half(Exec& ex, const MoeShape& s, const MoeWeights& w, const View& x);
Status add_halves(Exec& ex, const View& both, const View& y);

/// y [T, H] = the routed sum, which routed(out) writes, plus the shared experts if there are any:
/// both meet in float32, side by side, and are rounded once. `out` has strided rows then.
template <class Routed>
Status add_shared_experts(Exec& ex,
                          const MoeShape& s,
                          const MoeWeights& w,
                          const View& x,
                          const View& y,
                          const Routed& routed) {
  if (!has_shared_experts(w)) return routed(y);
  ArenaScope arena(*ex.activations);
  FATHOM_ASSIGN(const View both, shared_half(ex, s, w, x));
  FATHOM_TRY(routed(slice_cols(both, 0, x.dim(1), "T,H")));
  return add_halves(ex, both, y);
}

}  // namespace fathom
