// The routers: from scores of all experts to the few that a token uses, and their weights. One
// kernel for each rule of the DeepSeek family and its relatives:
//
//   topk_softmax               V2-Lite      softmax, best K
//   topk_sigmoid               -            sigmoid + bias for the choice, best K
//   topk_sqrtsoftplus          V4           sqrt(softplus) + bias for the choice, best K
//   hash_route                 V4           by token id; weights of sqrt(softplus)
//   grouped_topk_gate          V3, R1       sigmoid + bias; groups by the sum of their two best
//   group_limited_softmax_gate V2           softmax; groups by their best
//
// In all of them: arithmetic in float32; ids in order of decreasing choice score, the lower id
// first among equal scores (a group with the lower index, among equal groups); logits that are NaN
// rank below all others, so ids are valid and distinct whatever the bits of the input, and a weight
// that depends on a NaN is NaN. Rows are independent; all variants choose the same experts unless
// scores differ by less than the rounding of an exponential.
#pragma once

#include <array>

#include "fathom/kernels/core/kernel_set/variants.h"

namespace fathom {

/// The widest router: rows are worked on in memory of the stack.
inline constexpr int64_t kMaxExperts = 2048;

/// Whether weights are divided by their sum before they are scaled.
enum class Renormalize : uint8_t { kNo, kYes };

/// The precision in which sigmoid scores are compared.
enum class ScorePrecision : uint8_t {
  kF32,
  kLogits,  ///< rounded to the format of the logits: the score, and the score with bias
};

/// Softmax router.
///
///   z = logits, or softcap * tanh(logits / softcap) if softcap != 0;   z += bias
///   p = softmax(z) over the E experts;   ids = the K largest z;   weights = p[ids]
///   kYes: weights /= sum of weights;   weights *= scaling
///
/// logits may be strided between rows. bias: optional, part of the score and of the weight.
/// Errors: none beyond the signature.
/// Source: reference name topk_softmax; DeepSeek-V2 (greedy) with scaling = routed_scaling_factor.
struct TopkSoftmax {
  static constexpr KernelInfo kInfo{
      .name = "topk_softmax",
      .reference_names = {"topk_softmax"},
      .signature = "logits[T,E]:f32|bf16|f16 bias?[E]:f32 -> weights[T,K]:f32 ids[T,K]:i32",
      .limits = "K>=1, K<=E, E<=2048",
      .equation = "p = softmax(logits); ids = topk(p); weights = p[ids] * scaling",
      .source = "arXiv 2405.04434, eq. 22 to 24",
      .flops = "10*T*E",
  };

  struct Args {
    View logits, bias{}, weights, ids;
    Renormalize renorm = Renormalize::kNo;
    float scaling = 1.0f;
    float softcap = 0.0f;
  };

  static constexpr auto operands(const Args& a) {
    return std::array{&a.logits, &a.bias, &a.weights, &a.ids};
  }

  static Cost cost(const Args& a) {
    return {.flops = 10.0 * static_cast<double>(a.logits.numel())};
  }
};

/// Sigmoid router without groups.
///
///   s = sigmoid(logits);   choice = s + bias;   ids = the K largest choice;   weights = s[ids]
///   kYes: weights /= sum of weights;   weights *= scaling
///
/// Errors: none beyond the signature.
/// Source: reference name topk_sigmoid.
struct TopkSigmoid {
  static constexpr KernelInfo kInfo{
      .name = "topk_sigmoid",
      .reference_names = {"topk_sigmoid"},
      .signature = "logits[T,E]:f32|bf16|f16 bias?[E]:f32 -> weights[T,K]:f32 ids[T,K]:i32",
      .limits = "K>=1, K<=E, E<=2048",
      .equation = "s = sigmoid(logits); ids = topk(s + bias); weights = s[ids] * scaling",
      .source = "sgl-kernel, topk_sigmoid",
      .flops = "10*T*E",
      .outside = "a router without groups or bias, which no DeepSeek model has",
  };

  struct Args {
    View logits, bias{}, weights, ids;
    Renormalize renorm = Renormalize::kNo;
    float scaling = 1.0f;
  };

  static constexpr auto operands(const Args& a) {
    return std::array{&a.logits, &a.bias, &a.weights, &a.ids};
  }

  static Cost cost(const Args& a) {
    return {.flops = 10.0 * static_cast<double>(a.logits.numel())};
  }
};

/// The router of DeepSeek-V4.
///
///   s = sqrt(softplus(logits)),  softplus(z) = log(1 + e^z);   choice = s + bias
///   ids = the K largest choice;   w = s[ids];   weights = w / (sum of w) * scaling
///
/// bias is for the choice alone. softplus keeps its digits at both ends: it is z above 18, and
/// below -18 s is e^(z/2). Where all w are 0 (logits below -200) weights are NaN, 0 / 0.
/// Errors: none beyond the signature.
/// Source: DeepSeek-V4, inference/model.py (Gate); scaling = routed_scaling_factor.
struct TopkSqrtsoftplus {
  static constexpr KernelInfo kInfo{
      .name = "topk_sqrtsoftplus",
      .signature = "logits[T,E]:f32|bf16|f16 bias?[E]:f32 -> weights[T,K]:f32 ids[T,K]:i32",
      .limits = "K>=1, K<=E, E<=2048",
      .equation =
          "s = sqrt(softplus(logits)); ids = topk(s + bias); "
          "weights = s[ids] / sum(s[ids]) * scaling",
      .source = "DeepSeek-V4, Gate",
      .flops = "12*T*E",
  };

  struct Args {
    View logits, bias{}, weights, ids;
    float scaling = 1.0f;
  };

  static constexpr auto operands(const Args& a) {
    return std::array{&a.logits, &a.bias, &a.weights, &a.ids};
  }

  static Cost cost(const Args& a) {
    return {.flops = 12.0 * static_cast<double>(a.logits.numel())};
  }
};

/// The router of DeepSeek-V4's first layers: the experts of a token are those of its id in the
/// vocabulary; the logits weigh them.
///
///   ids[t] = tid2eid[token_ids[t]];   w = s[ids], s as in topk_sqrtsoftplus
///   weights = w / (sum of w) * scaling
///
/// token_ids are those of the tokens whose hidden states made the logits. Rows of tid2eid may be
/// strided; of it only the rows of these tokens are read.
/// Errors: InvalidArgument for a token id outside [0, V) or, in a row that is read, an expert
/// outside [0, E); both are looked at before anything is written.
/// Source: DeepSeek-V4, inference/model.py (Gate).
struct HashRoute {
  static constexpr KernelInfo kInfo{
      .name = "hash_route",
      .signature =
          "logits[T,E]:f32|bf16|f16 token_ids[T]:i32 tid2eid[V,K]:i32|i64 "
          "-> weights[T,K]:f32 ids[T,K]:i32",
      .limits = "K>=1, K<=E, E<=2048",
      .equation =
          "ids = tid2eid[token_ids]; weights = s[ids] / sum(s[ids]) * scaling, "
          "s = sqrt(softplus(logits))",
      .source = "DeepSeek-V4, Gate",
      .flops = "12*T*K",
  };

  struct Args {
    View logits, token_ids, tid2eid, weights, ids;
    float scaling = 1.0f;
  };

  static constexpr auto operands(const Args& a) {
    return std::array{&a.logits, &a.token_ids, &a.tid2eid, &a.weights, &a.ids};
  }

  static Cost cost(const Args& a) { return {.flops = 12.0 * static_cast<double>(a.ids.numel())}; }

  /// Of the table the rows of the tokens, of the logits those of their experts.
  static void bytes(const Args& a, Cost& cost);
  static Status check(const Args& a);
};

/// The router of DeepSeek-V3 and R1 ("noaux_tc").
///
///   s = sigmoid(logits);   b = s + bias                       bias is for the choice alone
///   G[g] = sum of the two largest b in group g of E / n_group consecutive experts
///   keep the topk_group groups of largest G; the others count as -inf
///   ids = the K largest b of the groups kept;   w = s[ids]
///   kYes: w /= sum of w + 1e-20;   weights = w * scaling
///
/// num_shared > 0 appends shared experts as ids E, E+1, ... with weight shared_weight in the last
/// columns (a fused shared expert of a reference stack); K counts them.
/// A float32 bias stays float32: rounding it changes choices. A group of one expert has that one as
/// its sum. precision = kLogits rounds s, and s + bias again, to the format of the logits, as a
/// reference does that computes in it; equal scores are then common, and the lower id wins.
/// moe_fused_gate with routed_scaling_factor f is: scaling 1 and shared_weight 1/f, or with
/// apply_routed_scaling_factor_on_output scaling f and shared_weight 1; precision kLogits.
/// Errors: InvalidArgument if E is no multiple of n_group, topk_group is not in [1, n_group], or
/// the groups kept hold fewer than K experts. Source: DeepSeek-V3, arXiv 2412.19437, eq. 13 to 16,
/// and deepseek-ai/DeepSeek-V3 inference/model.py; reference name moe_fused_gate.
struct GroupedTopkGate {
  static constexpr KernelInfo kInfo{
      .name = "grouped_topk_gate",
      .reference_names = {"moe_fused_gate"},
      .signature =
          "logits[T,E]:f32|bf16|f16 bias?[E]:f32|bf16|f16 -> weights[T,K]:f32 ids[T,K]:i32",
      .limits = "E>=1, K>=1, E<=2048",
      .equation =
          "s = sigmoid(logits); choose by s + bias in the groups of best top-2 sum; "
          "weights = s / sum(s) * scaling",
      .source = "arXiv 2412.19437, eq. 13 to 16",
      .flops = "12*T*E",
  };

  struct Args {
    View logits, bias{}, weights, ids;
    int n_group = 1;
    int topk_group = 1;
    float scaling = 1.0f;
    Renormalize renorm = Renormalize::kYes;
    int num_shared = 0;
    float shared_weight = 1.0f;
    ScorePrecision precision = ScorePrecision::kF32;
  };

  static constexpr auto operands(const Args& a) {
    return std::array{&a.logits, &a.bias, &a.weights, &a.ids};
  }

  static Cost cost(const Args& a) {
    return {.flops = 12.0 * static_cast<double>(a.logits.numel())};
  }

  static Status check(const Args& a);
};

/// The router of DeepSeek-V2 ("group_limited_greedy").
///
///   p = softmax(logits);   G[g] = the largest p in group g;   keep the topk_group groups
///   of largest G;   ids = the K largest p of those;   w = p[ids]
///   kYes: w /= sum of w + 1e-20;   weights = w * scaling
///
/// V2 passes kNo and scaling 16; where a config asks for normalised weights, Hugging Face's code
/// leaves the factor out, and the layer passes kYes and scaling 1.
/// Errors: as GroupedTopkGate.
/// Source: DeepSeek-V2, arXiv 2405.04434, section 2.2.2; deepseek-ai/DeepSeek-V2 modeling code.
struct GroupLimitedSoftmaxGate {
  static constexpr KernelInfo kInfo{
      .name = "group_limited_softmax_gate",
      .signature = "logits[T,E]:f32|bf16|f16 -> weights[T,K]:f32 ids[T,K]:i32",
      .limits = "E>=1, K>=1, K<=E, E<=2048",
      .equation =
          "p = softmax(logits); choose in the groups of best maximum; weights = p * scaling",
      .source = "arXiv 2405.04434, section 2.2.2",
      .flops = "10*T*E",
  };

  struct Args {
    View logits, weights, ids;
    int n_group = 1;
    int topk_group = 1;
    float scaling = 1.0f;
    Renormalize renorm = Renormalize::kNo;
  };

  static constexpr auto operands(const Args& a) {
    return std::array{&a.logits, &a.weights, &a.ids};
  }

  static Cost cost(const Args& a) {
    return {.flops = 10.0 * static_cast<double>(a.logits.numel())};
  }

  static Status check(const Args& a);
};

extern const VariantTable<TopkSoftmax> topk_softmax_cpu;
extern const VariantTable<TopkSoftmax> topk_softmax_cuda;
extern const VariantTable<TopkSigmoid> topk_sigmoid_cpu;
extern const VariantTable<TopkSigmoid> topk_sigmoid_cuda;
extern const VariantTable<TopkSqrtsoftplus> topk_sqrtsoftplus_cpu;
extern const VariantTable<TopkSqrtsoftplus> topk_sqrtsoftplus_cuda;
extern const VariantTable<HashRoute> hash_route_cpu;
extern const VariantTable<HashRoute> hash_route_cuda;
extern const VariantTable<GroupedTopkGate> grouped_topk_gate_cpu;
extern const VariantTable<GroupedTopkGate> grouped_topk_gate_cuda;
extern const VariantTable<GroupLimitedSoftmaxGate> group_limited_softmax_gate_cpu;
extern const VariantTable<GroupLimitedSoftmaxGate> group_limited_softmax_gate_cuda;

}  // namespace fathom
