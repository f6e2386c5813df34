// A whole layer of experts in one call: routing, the two products of each chosen expert with the
// gated activation between them, and the weighted sum. The three contracts differ in the format of
// the experts. All of them are put together from the kernels of this family (gate, route, permute,
// the grouped GEMMs), so that they compute what the grouped strategy of a model does.
//
//   logits ---- gate ----> ids, weights [T,K]
//   x [T,H] --- permute --> rows of x by expert --- w_up^T --> [u | g] [R,2I] --- act --> [R,I]
//           --- w_down^T --> [R,H] --- weighted sum --> y [T,H]
//
// Rows 0 .. I-1 of w_up make the linear part u, rows I .. 2I-1 the gate g: the other way round than
// in silu_mul. shuffled_weights.h brings the reference's shuffled and blocked weights into this
// order, once, when a model is loaded.
#pragma once

#include <array>

#include "fathom/kernels/core/kernel_set/variants.h"
#include "fathom/tensor/quant_view.h"

namespace fathom {

/// How logits become experts and weights. The numbers are those of the reference's
/// routing_method_type. Ties and NaN are as in moe/gate.
enum class RoutingMethod : uint8_t {
  kSoftmaxTopk = 0,             ///< softmax over all experts, best K
  kTopkSoftmax = 1,             ///< best K, softmax over these
  kDeepSeekV3 = 2,              ///< sigmoid + bias, groups (grouped_topk_gate)
  kLlama4 = 3,                  ///< best K (there K is 1), sigmoid of each
  kSoftmaxTopkRenormalize = 4,  ///< softmax, best K, divided by their sum: the same as 1
  kTopk = 5,                    ///< best K, their logits as they are
};

enum class GatedActivation : uint8_t {
  kSwiGlu,  ///< silu(g) * u
  kGeGlu,   ///< gelu(g) * u, with the error function
};

/// Routing of a call; bias is read by kDeepSeekV3 alone.
struct MoeRouting {
  RoutingMethod method = RoutingMethod::kSoftmaxTopk;
  int top_k = 1;
  int n_group = 1;     ///< of kDeepSeekV3
  int topk_group = 1;  ///< of kDeepSeekV3
  float scaling = 1.0f;
  int64_t first_expert = 0;  ///< of those that w_up and w_down hold
};

/// Experts with bf16 weights.
///
///   y[t] = sum_j weights[t,j] * w_down[e_j] act( w_up[e_j] x[t] ),   e_j = ids[t,j]
///
/// Only experts first_expert <= e < first_expert + El contribute; the weights are normalised over
/// all top_k all the same. Sums of products are float32 (see the grouped GEMM of the format); the
/// activation is rounded to the format of x once; expert outputs are float32 and summed in the
/// order of j; y is rounded once. Rows are independent. Deterministic. NaN and infinity in x reach
/// their own token; in logits, see moe/gate. Errors: InvalidArgument for a top_k outside [1, E],
/// groups that do not fit, or experts beyond E; what the grouped GEMM refuses of a weight. Source:
/// DeepSeek-V3, arXiv 2412.19437, section 2.1.2; reference name trtllm_bf16_moe (FlashInfer).
struct FusedMoeBf16 {
  static constexpr KernelInfo kInfo{
      .name = "fused_moe_bf16",
      .reference_names = {"trtllm_bf16_moe"},
      .signature =
          "logits[T,E]:f32|bf16 bias?[E]:f32|bf16 x[T,H]:bf16|f32 "
          "w_up[El,J,H]:bf16|f32 w_down[El,H,I]:bf16|f32 -> y[T,H]:bf16|f32",
      .limits = "J==2*I, El<=E",
      .equation = "y[t] = sum_j weight_j w_down[e_j] act(w_up[e_j] x[t])",
      .source = "arXiv 2412.19437, section 2.1.2; FlashInfer",
      .flops = "~6 H I for each slot of a token, T top_k El / E of them as expected",
  };

  struct Args {
    View logits, bias{}, x;
    QuantView w_up, w_down;
    View y;
    MoeRouting routing;
    GatedActivation act = GatedActivation::kSwiGlu;
  };

  static constexpr auto operands(const Args& a) {
    return std::array{&a.logits, &a.bias, &a.x, &a.w_up.values, &a.w_down.values, &a.y};
  }

  static Cost cost(const Args& a);
  /// Weights of the experts that are expected to have rows.
  static void bytes(const Args& a, Cost& cost);
  static int64_t workspace(const Args& a, int num_threads);
  static Status check(const Args& a);
};

/// Experts with block-scaled FP8 weights.
///
/// As FusedMoeBf16. x is bf16 or float32; or E4M3 codes (format fp8_group) with x_scales float32
/// [T, H/128] in any strides (the reference's [H/128, T] has strides 1, T), and then the activation
/// is quantised to E4M3 in groups of 128 as well, scale = amax / 448 (a group of zeros has codes
/// 0). Source: DeepSeek-V3, arXiv 2412.19437, section 3.3; reference name
/// trtllm_fp8_block_scale_moe.
struct FusedMoeFp8Block {
  static constexpr KernelInfo kInfo{
      .name = "fused_moe_fp8_block",
      .reference_names = {"trtllm_fp8_block_scale_moe"},
      .signature =
          "logits[T,E]:f32|bf16 bias?[E]:f32|bf16 x[T,H]:fp8_group|bf16|f32 "
          "w_up[El,J,H]:fp8_block|fp8_block_ue8m0 w_down[El,H,I]:fp8_block|fp8_block_ue8m0 "
          "-> y[T,H]:bf16|f32",
      .limits = "J==2*I, El<=E",
      .equation = "y[t] = sum_j weight_j w_down[e_j] act(w_up[e_j] x[t])",
      .source = "arXiv 2412.19437, section 3.3; FlashInfer",
      .flops = "~6 H I for each slot of a token, T top_k El / E of them as expected",
  };

  struct Args {
    View logits, bias{}, x;
    QuantView w_up, w_down;
    View y;
    MoeRouting routing;
    GatedActivation act = GatedActivation::kSwiGlu;
    View x_scales = {};  ///< of fp8_group x
  };

  static constexpr auto operands(const Args& a) {
    return std::array{&a.logits, &a.bias, &a.x, &a.w_up.values, &a.w_down.values, &a.y};
  }

  static Cost cost(const Args& a);
  static void bytes(const Args& a, Cost& cost);
  static int64_t workspace(const Args& a, int num_threads);
  static Status check(const Args& a);
};

/// Experts with NVFP4 weights.
///
/// As FusedMoeBf16, with what an expert e of the reference brings along, each float32 [El] or
/// absent:
///
///   u'  = up_scale[e] * u + bias_up;    g' = gate_scale[e] * g + bias_up
///   g'' = min(g', clamp[e]);            u'' = u' within +-clamp[e]
///   h   = g'' * sigmoid(alpha[e] * g'') * (u'' + beta[e])
///   out = down_scale[e] * (w_down h) + bias_down[e]
///
/// bias_up is [El,2I] in the order of w_up, bias_down [El,H]. alpha, beta and clamp are SwiGLU's;
/// absent, they are 1, 0 and infinity. u and g include the global scales of w_up if it has any; in
/// the reference's call the weights have none, and the scalars stand for them.
/// x is bf16 or float32; or E2M1 codes (format nvfp4) with x_scales E4M3 [T, H/16], linear. Of
/// codes h is quantised to NVFP4 too, with global scale 1: up_scale then includes the global scale
/// of w_down's input.
///
/// Where expert outputs are wanted instead of y (the reference's do_finalize = false), `rows`
/// [T*K,H] takes them sorted by expert, `weights` [T,K] the router's weights and `positions` [T,K]
/// the row of each slot, -1 for experts that are not here; y is then left out. Rows past the last
/// are zeros. Source: DeepSeek-V3; NVIDIA/Model-Optimizer; reference name
/// trtllm_fp4_block_scale_moe.
struct FusedMoeNvfp4 {
  static constexpr KernelInfo kInfo{
      .name = "fused_moe_nvfp4",
      .reference_names = {"trtllm_fp4_block_scale_moe"},
      .signature =
          "logits[T,E]:f32|bf16 bias?[E]:f32|bf16 x[T,H]:nvfp4|bf16|f32 "
          "w_up[El,J,H]:nvfp4 w_down[El,H,I]:nvfp4 up_scale?[El]:f32 gate_scale?[El]:f32 "
          "down_scale?[El]:f32 bias_up?[El,J]:f32|bf16 bias_down?[El,H]:f32|bf16 "
          "-> y?[T,H]:bf16|f32 rows?[R,H]:bf16|f32 weights?[T,K]:f32 positions?[T,K]:i32",
      .limits = "J==2*I, El<=E",
      .equation = "y[t] = sum_j weight_j w_down[e_j] act(w_up[e_j] x[t])",
      .source = "NVIDIA/Model-Optimizer; FlashInfer",
      .flops = "~6 H I for each slot of a token, T top_k El / E of them as expected",
  };

  struct Args {
    View logits, bias{}, x;
    QuantView w_up, w_down;
    View y = {};
    MoeRouting routing;
    GatedActivation act = GatedActivation::kSwiGlu;
    View x_scales = {};  ///< of nvfp4 x
    View up_scale = {}, gate_scale = {}, down_scale = {};
    View bias_up = {}, bias_down = {};
    View alpha = {}, beta = {}, clamp = {};
    View rows = {}, weights = {}, positions = {};
  };

  static constexpr auto operands(const Args& a) {
    return std::array{&a.logits,   &a.bias,       &a.x,          &a.w_up.values, &a.w_down.values,
                      &a.up_scale, &a.gate_scale, &a.down_scale, &a.bias_up,     &a.bias_down,
                      &a.y,        &a.rows,       &a.weights,    &a.positions};
  }

  static Cost cost(const Args& a);
  static void bytes(const Args& a, Cost& cost);
  static int64_t workspace(const Args& a, int num_threads);
  static Status check(const Args& a);
};

extern const VariantTable<FusedMoeBf16> fused_moe_bf16_cpu;
extern const VariantTable<FusedMoeFp8Block> fused_moe_fp8_block_cpu;
extern const VariantTable<FusedMoeNvfp4> fused_moe_nvfp4_cpu;
extern const VariantTable<FusedMoeNvfp4> fused_moe_nvfp4_cuda;

}  // namespace fathom
