#include "fathom/models/deepseek/deepseek_v32.h"

#include <utility>

namespace fathom {

DsaContext dsa_context(const ModelConfig& c, const ModelOptions& o) {
  return {.shape = {.Hi = c.index_n_heads, .Di = c.index_head_dim, .topk = c.index_topk},
          .options = {.keys = o.index_format(c)}};
}

// DeepSeek-V3.2 report, section 2.1.
Status declare_indexer(WeightPlan& plan, const std::string& prefix, IndexerWeights& w) {
  using enum WeightRole;
  const std::string p = prefix + "indexer.";
  FATHOM_TRY(plan.matrix(p + "wq_b.weight", "Hi*Di,Lq", kAttention, &w.wq_b));
  FATHOM_TRY(plan.matrix(p + "wk.weight", "Di,H", kAttention, &w.wk));
  FATHOM_TRY(plan.vector(p + "k_norm.weight", "Di", kNorm, &w.k_norm));
  FATHOM_TRY(plan.vector(p + "k_norm.bias", "Di", kNorm, &w.k_norm_bias));
  return plan.matrix(p + "weights_proj.weight", "Hi,H", kRouter, &w.weights_proj);
}

CacheGroup index_group(const ModelConfig& c, const ModelOptions& o, std::vector<int> layers) {
  const Format format = o.index_format(c);
  const int64_t width = c.index_head_dim;
  PageCodec codec;
  if (format == Format::kE4m3) {
    codec = {
        .name = "indexer key e4m3",
        .plane_bytes = {width, 4},
        .fields = {{.name = "keys", .format = format, .width = width, .axes = "pages,page_size,Di"},
                   {.name = "scales",
                    .format = Format::kF32,
                    .width = 1,
                    .axes = "pages,page_size,1",
                    .plane = 1}}};
  } else {
    codec = PageCodec::dense(str_cat("indexer key ", format_name(format)), format, width,
                             "pages,page_size,Di");
  }
  return {
      .name = "index", .layers = std::move(layers), .rows = o.page_size, .codec = std::move(codec)};
}

PageCodec scaled_latent_codec(const ModelConfig& c) {
  const int64_t codes = c.kv_lora_rank;
  const int64_t scales = codes / kLatentGroup;
  const int64_t rotary = c.qk_rope_head_dim;
  return {.name = "mla latent fp8_ds_mla",
          .plane_bytes = {codes + 4 * scales + 2 * rotary},
          .fields = {{.name = "values",
                      .format = Format::kE4m3,
                      .width = codes,
                      .axes = "pages,page_size,Lkv"},
                     {.name = "rope",
                      .format = Format::kBf16,
                      .width = rotary,
                      .axes = "pages,page_size,Dr",
                      .offset = codes + 4 * scales},
                     {.name = "scales",
                      .format = Format::kF32,
                      .width = scales,
                      .axes = "pages,page_size,Lkv/128",
                      .offset = codes}}};
}

CacheRows latent_rows(const Batch& batch, size_t layer) {
  CacheRows rows = batch.rows_of(0, layer);
  if (batch.cache[0].num_fields > 1) {
    rows.rope = batch.cache[0].at(layer, 1);
    rows.scales = batch.cache[0].at(layer, 2);
  }
  return rows;
}

IndexRows index_rows(const Batch& batch, size_t layer) {
  const GroupRows& group = batch.cache[kIndexGroup];
  return {.keys = group.at(layer),
          .scales = group.num_fields > 1 ? group.at(layer, 1) : View{},
          .slots = batch.slots[kIndexGroup]};
}

}  // namespace fathom
