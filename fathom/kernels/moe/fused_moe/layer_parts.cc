#include "fathom/kernels/moe/fused_moe/layer_parts.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "fathom/formats/block/block_fp4.h"
#include "fathom/formats/block/block_fp8.h"
#include "fathom/kernels/core/elements.h"
#include "fathom/kernels/core/launch.h"
#include "fathom/kernels/moe/gate/gate.h"
#include "fathom/kernels/moe/permute/permute.h"
#include "fathom/kernels/moe/route/route.h"

namespace fathom {
namespace {

/// Element i of a vector, or row e and column i of a matrix; `absent` where there is none.
float value_at(const View& v, int64_t i, float absent) {
  if (!v.present()) return absent;
  return with_activation_type(v.format, [&]<class T>(T) { return to_float(v.as<const T>()[i]); });
}

float sigmoid(float z) {
  return 1.0f / (1.0f + std::exp(-z));
}

/// One element of h from the scaled parts.
struct Activation {
  GatedActivation kind;
  float alpha, beta, clamp;

  float operator()(float u, float g) const {
    if (kind == GatedActivation::kGeGlu) {
      constexpr float kInverseRoot2 = 0.70710678f;
      return 0.5f * g * (1.0f + std::erf(g * kInverseRoot2)) * u;
    }
    // In this order a NaN stays one.
    g = g > clamp ? clamp : g;
    u = u > clamp ? clamp : (u < -clamp ? -clamp : u);
    return g * sigmoid(alpha * g) * (u + beta);
  }
};

void activate(const GatedRows& g, int64_t e, int64_t r, float* h) {
  const int64_t I = g.out.dim(1);
  const float* sums = g.sums.row<const float>(r);
  const float up = value_at(g.up_scale, e, 1.0f);
  const float gate = value_at(g.gate_scale, e, 1.0f);
  const Activation act{.kind = g.act,
                       .alpha = value_at(g.alpha, e, 1.0f),
                       .beta = value_at(g.beta, e, 0.0f),
                       .clamp = value_at(g.clamp, e, std::numeric_limits<float>::infinity())};
  const int64_t bias = g.bias_up.present() ? e * g.bias_up.stride(0) : 0;
  for (int64_t i = 0; i < I; ++i) {
    const float u = sums[i] * up + value_at(g.bias_up, bias + i, 0.0f);
    const float z = sums[I + i] * gate + value_at(g.bias_up, bias + I + i, 0.0f);
    h[i] = act(u, z);
  }
}

void store(const GatedRows& g, int64_t r, const float* h) {
  const int64_t I = g.out.dim(1);
  switch (g.out.format) {
    case Format::kFp8Group:
      fp8_quantize_groups(h, 1, I, kFp8Block, {}, g.out.as<E4m3>() + r * g.out.stride(0),
                          g.scales.row<float>(r));
      return;
    case Format::kNvfp4:
      nvfp4_quantize_activations(h, 1, I, 1.0f, g.out.as<uint8_t>() + r * g.out.stride(0) / 2,
                                 g.scales.row<E4m3>(r));
      return;
    default:
      with_activation_type(g.out.format, [&]<class T>(T) {
        for (int64_t i = 0; i < I; ++i)
          g.out.row<T>(r)[i] = from_float<T>(h[i]);
      });
  }
}

/// The logits of chosen experts as their weights.
void take_logits(const View& logits, const View& ids, float scaling, const View& weights) {
  for (int64_t t = 0; t < ids.dim(0); ++t) {
    for (int64_t k = 0; k < ids.dim(1); ++k) {
      const int64_t at = t * logits.stride(0) + ids.row<const int32_t>(t)[k];
      weights.row<float>(t)[k] = value_at(logits, at, 0.0f) * scaling;
    }
  }
}

}  // namespace

Status route_tokens(Exec& ex,
                    const View& logits,
                    const View& bias,
                    const MoeRouting& routing,
                    const View& ids,
                    const View& weights) {
  const auto by_softmax = [&](Renormalize renorm) {
    return launch<TopkSoftmax>(ex, "topk",
                               {.logits = logits,
                                .weights = weights,
                                .ids = ids,
                                .renorm = renorm,
                                .scaling = routing.scaling});
  };
  switch (routing.method) {
    case RoutingMethod::kSoftmaxTopk:
      return by_softmax(Renormalize::kNo);
    case RoutingMethod::kTopkSoftmax:  // the softmax of the best is their share of the whole one
    case RoutingMethod::kSoftmaxTopkRenormalize:
      return by_softmax(Renormalize::kYes);
    case RoutingMethod::kDeepSeekV3:
      return launch<GroupedTopkGate>(ex, "topk",
                                     {.logits = logits,
                                      .bias = bias,
                                      .weights = weights,
                                      .ids = ids,
                                      .n_group = routing.n_group,
                                      .topk_group = routing.topk_group,
                                      .scaling = routing.scaling});
    case RoutingMethod::kLlama4:
      return launch<TopkSigmoid>(
          ex, "topk",
          {.logits = logits, .weights = weights, .ids = ids, .scaling = routing.scaling});
    case RoutingMethod::kTopk:
      FATHOM_TRY(by_softmax(Renormalize::kNo));
      take_logits(logits, ids, routing.scaling, weights);
      return {};
  }
  return {};
}

Status sort_rows(
    Exec& ex, const View& ids, const View& offsets, const View& src_row, const View& dest) {
  return launch<RouteOffsets>(ex, "route",
                              {.ids = ids, .offsets = offsets, .src_row = src_row, .dest = dest});
}

Status sum_rows(Exec& ex, const View& rows, const View& dest, const View& weights, const View& y) {
  return launch<UnpermuteWeightedSum>(ex, "apply_shuffle_mul_sum",
                                      {.x = rows, .dest = dest, .weights = weights, .y = y});
}

void localize_experts(const View& ids, int64_t first, int64_t count) {
  for (int64_t t = 0; t < ids.dim(0); ++t) {
    for (int64_t k = 0; k < ids.dim(1); ++k) {
      int32_t& id = ids.row<int32_t>(t)[k];
      const int64_t local = id - first;
      id = local >= 0 && local < count ? static_cast<int32_t>(local) : -1;
    }
  }
}

void gate_rows(const GatedRows& g, int64_t e, int64_t begin, int64_t end, float* row) {
  for (int64_t r = begin; r < end; ++r) {
    activate(g, e, r, row);
    store(g, r, row);
  }
}

void finish_rows(
    const View& rows, const View& scale, const View& bias, int64_t e, int64_t begin, int64_t end) {
  const float factor = value_at(scale, e, 1.0f);
  const int64_t at = bias.present() ? e * bias.stride(0) : 0;
  for (int64_t r = begin; r < end; ++r) {
    for (int64_t h = 0; h < rows.dim(1); ++h) {
      float& value = rows.row<float>(r)[h];
      value = value * factor + value_at(bias, at + h, 0.0f);
    }
  }
}

}  // namespace fathom
