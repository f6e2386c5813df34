// How the three contracts of this group run: one layer, a chunk of tokens at a time.
#pragma once

#include "fathom/kernels/moe/fused_moe/fused_moe.h"
#include "fathom/kernels/moe/fused_moe/layer_parts.h"

namespace fathom {

/// The operands of any of the three contracts.
struct FusedLayer {
  View logits, bias, x, x_scales;
  QuantView w_up, w_down;
  View y;
  MoeRouting routing;
  GatedRows gated = {};  ///< but for sums, out and scales
  View down_scale = {}, bias_down = {};
  View rows = {}, weights = {}, positions = {};  ///< instead of y

  int64_t tokens() const { return logits.dim(0); }

  int64_t hidden() const { return x.dim(1); }

  int64_t intermediate() const { return w_down.cols(); }

  int64_t experts() const { return w_up.values.dim(0); }

  /// x is codes, and then the activation is, too.
  bool quantised() const { return x_scales.present(); }
};

Cost layer_cost(const FusedLayer& layer);
void layer_bytes(const FusedLayer& layer, Cost& cost);
int64_t layer_workspace(const FusedLayer& layer, int num_threads);
Status check_layer(const FusedLayer& layer);
Status run_layer(Exec& ex, const FusedLayer& layer);

}  // namespace fathom
