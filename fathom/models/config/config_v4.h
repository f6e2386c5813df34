// The keys of config.json that DeepSeek-V4 has in place of those of MLA.
#pragma once

#include <string_view>

#include "fathom/models/config/config.h"
#include "fathom/models/config/config_reader.h"

namespace fathom {

/// Attention, streams and experts. Ratios come as the list `compress_ratios` of DeepSeek's files,
/// one entry a layer and one a draft layer, or as the lists of words that transformers writes
/// (`layer_types`, `mlp_layer_types`).
void read_v4(ConfigReader& in, ModelConfig& config);

/// rope_theta, compress_rope_theta and rope_scaling; or rope_parameters with `main` and `compress`.
void read_v4_rope(ConfigReader& in, ModelConfig& config);

/// Errors: Corrupt for sizes that contradict each other.
Status validate_v4(const ModelConfig& config, std::string_view what);

}  // namespace fathom
