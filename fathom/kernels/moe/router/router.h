// The router of a layer as one kernel, from hidden states to the order in which experts get their
// rows: router_gemm, a kernel of moe/gate and route_offsets. In a decode step each of them takes as
// long as its launch.
#pragma once

#include <array>

#include "fathom/kernels/moe/gate/gate.h"
#include "fathom/kernels/moe/route/route.h"
#include "fathom/tensor/quant_view.h"

namespace fathom {

/// How experts are chosen and weighted.
enum class RouterRule : uint8_t {
  kSoftmax,              ///< V2-Lite: the K largest of the softmax
  kGroupLimitedSoftmax,  ///< V2: within the best groups by their largest
  kGroupedSigmoid,       ///< V3: sigmoid; biased for the choice; groups by their two largest
  kSqrtSoftplus,         ///< V4: sqrt(softplus); biased for the choice, or by token id
};

/// The experts of each token, and what is sorted by them.
///
///   logits[t,e] = sum over h of x[t,h] gate[e,h]                            router_gemm, float32
///   weights, ids = by the rule, with bias or tid2eid where it has them      moe/gate
///   offsets, src_row, dest = the slots sorted by ids, if asked for: all or none   route_offsets
///
/// Precision, order, NaN and errors are as in the three contracts: logits may be summed in another
/// order, the choice among them is by the same code. arrivals is 0 before and after a call: with it
/// the blocks of a GPU find out which is the last, so calls that share it must not run at once.
/// Tokens are independent, but for their order. Deterministic.
/// Errors: InvalidArgument for some of offsets, src_row and dest alone, tid2eid of another number
/// of experts than ids or without token_ids, or for another rule than kSqrtSoftplus. Source:
/// DeepSeek-V3 report, 2.1.2; DeepSeek-V4, inference/model.py (Gate).
struct Router {
  static constexpr KernelInfo kInfo{
      .name = "router",
      .signature =
          "x[T,H]:bf16|f32 gate[E,H]:bf16|f32 bias?[E]:f32 token_ids?[T]:i32 "
          "tid2eid?[V,C]:i32|i64 arrivals[1]:i32 -> weights[T,K]:f32 ids[T,K]:i32 "
          "offsets?[E+1]:i32 src_row?[T*K]:i32 dest?[T,K]:i32 arrivals",
      .limits = "T<=16, K>=1, K<=E, E<=2048",
      .equation = "ids, weights = gate(x gate^T); offsets, src_row, dest = route_offsets(ids)",
      .source = "DeepSeek-V3 report, 2.1.2",
      .flops = "2*T*E*H",
      .outside = "few tokens on a GPU; on a CPU its parts are three ops",
  };

  static constexpr int64_t kMostTokens = 16;  ///< as in the limits

  struct Args {
    View x;
    QuantView gate;
    View bias{}, token_ids{}, tid2eid{}, arrivals;
    View weights, ids, offsets{}, src_row{}, dest{};
    RouterRule rule = RouterRule::kSoftmax;
    int n_group = 1;  ///< of the rules with groups
    int topk_group = 1;
    Renormalize renorm = Renormalize::kNo;  ///< kSqrtSoftplus always does
    float scaling = 1.0f;
  };

  static constexpr auto operands(const Args& a) {
    return std::array{&a.x,       &a.gate.values, &a.bias,    &a.token_ids, &a.tid2eid, &a.arrivals,
                      &a.weights, &a.ids,         &a.offsets, &a.src_row,   &a.dest};
  }

  static Cost cost(const Args& a) {
    return {.flops = 2.0 * static_cast<double>(a.x.numel() * a.gate.rows())};
  }

  /// Of the table the rows of the tokens.
  static void bytes(const Args& a, Cost& cost);
  static Status check(const Args& a);
  static int64_t workspace(const Args& a, int num_threads);
};

/// Calls choose.template operator()<K>(args) with the kernel of moe/gate that has the rule, for
/// these logits.
template <class Choose>
auto with_gate(const Router::Args& a, const View& logits, Choose choose) {
  switch (a.rule) {
    case RouterRule::kGroupLimitedSoftmax:
      return choose.template operator()<GroupLimitedSoftmaxGate>({.logits = logits,
                                                                  .weights = a.weights,
                                                                  .ids = a.ids,
                                                                  .n_group = a.n_group,
                                                                  .topk_group = a.topk_group,
                                                                  .scaling = a.scaling,
                                                                  .renorm = a.renorm});
    case RouterRule::kGroupedSigmoid:
      return choose.template operator()<GroupedTopkGate>({.logits = logits,
                                                          .bias = a.bias,
                                                          .weights = a.weights,
                                                          .ids = a.ids,
                                                          .n_group = a.n_group,
                                                          .topk_group = a.topk_group,
                                                          .scaling = a.scaling,
                                                          .renorm = a.renorm});
    case RouterRule::kSqrtSoftplus:
      if (a.tid2eid.present()) {
        return choose.template operator()<HashRoute>({.logits = logits,
                                                      .token_ids = a.token_ids,
                                                      .tid2eid = a.tid2eid,
                                                      .weights = a.weights,
                                                      .ids = a.ids,
                                                      .scaling = a.scaling});
      }
      return choose.template operator()<TopkSqrtsoftplus>({.logits = logits,
                                                           .bias = a.bias,
                                                           .weights = a.weights,
                                                           .ids = a.ids,
                                                           .scaling = a.scaling});
    case RouterRule::kSoftmax:
      break;
  }
  return choose.template operator()<TopkSoftmax>({.logits = logits,
                                                  .bias = a.bias,
                                                  .weights = a.weights,
                                                  .ids = a.ids,
                                                  .renorm = a.renorm,
                                                  .scaling = a.scaling});
}

/// The parts as kernels of their own, on either backend. In ex.workspace and the scratch behind it
/// they take what workspace() says; on a GPU, router_logits_bytes().
Status run_router_parts(Exec& ex, const Router::Args& a);
int64_t router_logits_bytes(const Router::Args& a);

extern const VariantTable<Router> router_cpu;
extern const VariantTable<Router> router_cuda;

}  // namespace fathom
