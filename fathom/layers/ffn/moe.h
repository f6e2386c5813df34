// Mixture of experts: gate, choice, experts, shared expert (DeepSeekMoE).
//
//   y = Shared(x) + sum over the K chosen experts of  w_e * Expert_e(x)
//
// Two strategies compute the routed sum; a table chooses. They differ in how rows meet experts:
//
//   grouped   rows are copied into expert order, one grouped product each way, then summed back
//   sorted    products gather and scatter rows through sorted slots; no copy of the rows is made
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
#include "fathom/layers/ffn/mlp.h"
#include "fathom/layers/probe.h"

namespace fathom {

/// How experts are chosen and weighted.
enum class RouterRule : uint8_t {
  kSoftmax,              ///< V2-Lite: the K largest of the softmax
  kGroupLimitedSoftmax,  ///< V2: within the best groups by their largest
  kGroupedSigmoid,       ///< V3: sigmoid; biased for the choice; groups by their two largest
};

struct MoeShape {
  int64_t E = 0;  ///< routed experts
  int64_t K = 0;  ///< experts per token
  int64_t I = 0;  ///< width of an expert
  RouterRule rule = RouterRule::kSoftmax;
  int n_group = 1;
  int topk_group = 1;
  bool renormalize = false;
  float scaling = 1.0f;  ///< of routed weights, applied once, inside the router
};

struct MoeWeights {
  LinearWeight gate;     ///< [E, H]
  View bias;             ///< [E] f32, kGroupedSigmoid alone
  LinearWeight gate_up;  ///< [E, 2*I, H]
  LinearWeight down;     ///< [E, H, I]
  MlpWeights shared;     ///< absent (not present()) where a model has none
};

enum class MoeStrategy : uint8_t { kGrouped, kSorted };

struct MoeOptions {
  std::optional<MoeStrategy> strategy;  ///< pins one
};

/// A row of the strategy table: the first that fits wins.
struct MoeRow {
  MoeStrategy strategy;
  std::string_view name;
  std::string_view when;
  bool (*fits)(const MoeOptions& options);
};

std::span<const MoeRow> moe_rows();
int choose_moe(const MoeOptions& options);
std::string explain_moe(const MoeOptions& options);

struct MoeContext {
  MoeShape shape;
  MoeOptions options;
};

/// What the router decided.
struct RouterChoice {
  View ids;      ///< [T, K] i32
  View weights;  ///< [T, K] f32
};

/// y = the whole block of x [T, H]. The router's choices go to the probe as "router.ids" and
/// "router.weights" of that layer.
Status moe(Exec& ex,
           const MoeContext& m,
           const MoeWeights& w,
           const View& x,
           const View& y,
           int layer,
           const Probe* probe);

// The parts of moe().
Result<RouterChoice> route_tokens(Exec& ex, const MoeShape& s, const MoeWeights& w, const View& x);
Status moe_grouped(Exec& ex,
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

/// y = the shared experts of x, as one MLP of their summed width.
Status shared_experts(Exec& ex, const MoeWeights& w, const View& x, const View& y);

inline bool has_shared_experts(const MoeWeights& w) {
  return w.shared.down.present();
}

}  // namespace fathom
