#include "fathom/models/deepseek/deepseek_v1.h"

#include <utility>

namespace fathom {

MhaContext mha_context(const ModelConfig& c, const ModelOptions& o) {
  return {
      .shape = {.Nh = c.num_attention_heads,
                .Nk = c.num_key_value_heads,
                .D = c.qk_head_dim(),
                .softmax_scale = static_cast<float>(c.softmax_scale()),
                .rope_style = c.rope_interleave ? RopeStyle::kInterleaved : RopeStyle::kHalfSplit},
      .kv_scale = o.attention.kv_scale,
      .rope_table = {}};
}

Status declare_mha(WeightPlan& plan, const std::string& p, MhaWeights& w) {
  using enum WeightRole;
  FATHOM_TRY(plan.matrix(p + "q_proj.weight", "Nh*D,H", kAttention, &w.q));
  FATHOM_TRY(plan.rows({p + "k_proj.weight", "Nk*D,H"}, {p + "v_proj.weight", "Nk*D,H"}, "2*Nk*D,H",
                       kAttention, &w.kv));
  return plan.matrix(p + "o_proj.weight", "H,Nh*D", kOutput, &w.o);
}

CacheGroup key_value_group(const ModelConfig& c, const ModelOptions& o, std::vector<int> layers) {
  const Format format = o.cache_format();
  return {.name = "key_value",
          .layers = std::move(layers),
          .rows = o.page_size,
          .codec = PageCodec::dense(str_cat("keys and values ", format_name(format)), format,
                                    2 * c.num_key_value_heads * c.qk_head_dim(),
                                    "pages,page_size,2*Nk*D")};
}

}  // namespace fathom
