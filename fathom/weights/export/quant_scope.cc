#include "fathom/weights/export/quant_scope.h"

#include <algorithm>

#include "fathom/weights/stored_tensors.h"

namespace fathom {
namespace {

// Linears whose name holds `module` and ends with `suffix`, and the narrowest scope with them.
struct LinearName {
  std::string_view module;
  std::string_view suffix;
  QuantScope scope;
};

using enum QuantScope;
constexpr LinearName kLinears[] = {
    // DeepSeek V1 to V3.2, and exports of V4 by transformers.
    {".mlp.experts.", ".gate_proj.weight", kExperts},
    {".mlp.experts.", ".up_proj.weight", kExperts},
    {".mlp.experts.", ".down_proj.weight", kExperts},
    {".mlp.", ".gate_proj.weight", kMlpO},
    {".mlp.", ".up_proj.weight", kMlpO},
    {".mlp.", ".down_proj.weight", kMlpO},
    {".self_attn.", ".o_proj.weight", kMlpO},
    {".self_attn.", ".o_b_proj.weight", kMlpO},
    {".self_attn.", ".q_proj.weight", kAllLinear},
    {".self_attn.", ".k_proj.weight", kAllLinear},
    {".self_attn.", ".v_proj.weight", kAllLinear},
    {".self_attn.", ".q_a_proj.weight", kAllLinear},
    {".self_attn.", ".q_b_proj.weight", kAllLinear},
    {".self_attn.", ".kv_a_proj_with_mqa.weight", kAllLinear},
    {".self_attn.", ".kv_b_proj.weight", kAllLinear},
    {".self_attn.", ".self_attn.kv_proj.weight", kAllLinear},
    {".self_attn.indexer.", ".wq_b.weight", kAllLinear},
    {".self_attn.indexer.", ".wk.weight", kAllLinear},
    {".self_attn.compressor.", ".kv_proj.weight", kCompressors},
    {".self_attn.compressor.", ".gate_proj.weight", kCompressors},
    // DeepSeek's own names of V4.
    {".ffn.experts.", ".w1.weight", kExperts},
    {".ffn.experts.", ".w2.weight", kExperts},
    {".ffn.experts.", ".w3.weight", kExperts},
    {".ffn.shared_experts.", ".w1.weight", kMlpO},
    {".ffn.shared_experts.", ".w2.weight", kMlpO},
    {".ffn.shared_experts.", ".w3.weight", kMlpO},
    {".attn.", ".attn.wo_b.weight", kMlpO},
    {".attn.", ".attn.wq_a.weight", kAllLinear},
    {".attn.", ".attn.wq_b.weight", kAllLinear},
    {".attn.", ".attn.wkv.weight", kAllLinear},
    {".attn.indexer.", ".indexer.wq_b.weight", kAllLinear},
    {".attn.", ".compressor.wkv.weight", kCompressors},
    {".attn.", ".compressor.wgate.weight", kCompressors},
};

constexpr std::pair<std::string_view, std::string_view> kFused[] = {
    {".gate_proj.", ".up_proj."},
    {".up_proj.", ".gate_proj."},
    {".k_proj.", ".v_proj."},
    {".v_proj.", ".k_proj."},
    {".w1.", ".w3."},
    {".w3.", ".w1."},
};

}  // namespace

Result<QuantScope> parse_quant_scope(std::string_view name) {
  if (name == "experts") return kExperts;
  if (name == "mlp-o") return kMlpO;
  if (name == "all-linear") return kAllLinear;
  if (name == "compressors") return kCompressors;
  return invalid_argument(
      str_cat("--scope is '", name, "'; known are experts, mlp-o, all-linear and compressors"));
}

bool in_quant_scope(std::string_view name, QuantScope scope) {
  if (layer_number(name, 0) < 0) return false;
  return std::any_of(std::begin(kLinears), std::end(kLinears), [&](const LinearName& linear) {
    return linear.scope <= scope && name.ends_with(linear.suffix) &&
           name.find(linear.module) != std::string_view::npos;
  });
}

std::string fused_partner(std::string_view name) {
  for (const auto& [own, other] : kFused) {
    const size_t at = name.find(own);
    if (at == std::string_view::npos) continue;
    return str_cat(name.substr(0, at), other, name.substr(at + own.size()));
  }
  return {};
}

}  // namespace fathom
