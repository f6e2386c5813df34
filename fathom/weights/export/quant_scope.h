// Which weights of a checkpoint are quantised, by their names: those of DeepSeek V2 to V3.2, and of
// V4 in both namings.
#pragma once

#include <string>
#include <string_view>

#include "fathom/base/status.h"

namespace fathom {

/// Which linears are quantised. Embeddings, the head, norms, the router, what mixes residual
/// streams, the weights of an indexer's heads and V4's wo_a never are.
enum class QuantScope {
  kExperts,      ///< routed experts
  kMlpO,         ///< all MLPs, experts and o_proj (V4: wo_b), as in R1-NVFP4-v2
  kAllLinear,    ///< the projections of attention and of the indexer as well
  kCompressors,  ///< V4's compressors as well; DeepSeek and NVIDIA publish them in bf16
};

/// "experts", "mlp-o", "all-linear" or "compressors". Errors: InvalidArgument.
Result<QuantScope> parse_quant_scope(std::string_view name);

/// True if the scope takes this weight, by its name.
bool in_quant_scope(std::string_view weight_name, QuantScope scope);

/// gate_proj for up_proj (V4: w1 for w3), k_proj for v_proj, and the other way round; empty for
/// other weights.
std::string fused_partner(std::string_view weight_name);

}  // namespace fathom
