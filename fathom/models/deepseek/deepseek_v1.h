// What the first DeepSeek models (DeepSeek-MoE) have in place of MLA: plain heads of keys and
// values, and a cache of both. Everything else is deepseek_v3.h.
#pragma once

#include <string>
#include <vector>

#include "fathom/layers/attention/mha.h"
#include "fathom/models/model.h"

namespace fathom {

MhaContext mha_context(const ModelConfig& config, const ModelOptions& options);

/// The weights of the attention of one layer; `prefix` is "model.layers.N.self_attn.".
Status declare_mha(WeightPlan& plan, const std::string& prefix, MhaWeights& w);

/// Keys and values in these layers, one row a token: [page rows, 2*Nk*D], keys first.
CacheGroup key_value_group(const ModelConfig& config,
                           const ModelOptions& options,
                           std::vector<int> layers);

}  // namespace fathom
