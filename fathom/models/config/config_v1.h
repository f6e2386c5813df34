// The keys of config.json that the first DeepSeek models have in place of those of MLA.
#pragma once

#include <string_view>

#include "fathom/models/config/config.h"
#include "fathom/models/config/config_reader.h"

namespace fathom {

/// Sizes of the attention. Heads have hidden_size / num_attention_heads channels, all of them
/// rotated, in halves.
void read_v1(ConfigReader& in, ModelConfig& config);

/// The keys of experts and of rotation that other families have and the published code of this one
/// does not know: values that would change the model are refused by name.
void refuse_later_keys(ConfigReader& in);

/// Errors: Corrupt for sizes that contradict each other.
Status validate_v1(const ModelConfig& config, std::string_view what);

}  // namespace fathom
