// What DeepSeek-V3.2 adds to V3: an indexer in every layer, and the cache of its keys. Everything
// else is deepseek_v3.h.
#pragma once

#include <string>

#include "fathom/layers/attention/dsa.h"
#include "fathom/models/model.h"

namespace fathom {

/// Index of the group of the indexer's keys in the layout of such a model; latents are group 0.
inline constexpr size_t kIndexGroup = 1;

/// Channels of a latent that share a scale in scaled_latent_codec.
inline constexpr int64_t kLatentGroup = 128;

DsaContext dsa_context(const ModelConfig& config, const ModelOptions& options);

/// The weights of the indexer of one layer; `prefix` is "model.layers.N.self_attn.".
Status declare_indexer(WeightPlan& plan, const std::string& prefix, IndexerWeights& w);

/// The indexer's keys in these layers, one a token: [page rows, Di]; as e4m3 with a float32 power
/// of two a row, whose page is P x Di bytes of codes, then P x 4 bytes of scales (DeepGEMM).
CacheGroup index_group(const ModelConfig& config,
                       const ModelOptions& options,
                       std::vector<int> layers);

/// Latents in e4m3 with a float32 scale for 128 channels, then the rotated key in bf16: 656 bytes
/// (cache_row.h; FlashMLA, fp8_ds_mla).
PageCodec scaled_latent_codec(const ModelConfig& config);

/// The rows of group 0 in layer `layer`, with their scales if they have any.
CacheRows latent_rows(const Batch& batch, size_t layer);

/// The rows of the group of keys in layer `layer`.
IndexRows index_rows(const Batch& batch, size_t layer);

}  // namespace fathom
