#include "fathom/models/deepseek/deepseek_v3.h"

#include <numeric>
#include <utility>

#include "fathom/base/log.h"
#include "fathom/layers/attention/rope_table.h"
#include "fathom/layers/embedding.h"
#include "fathom/layers/linear.h"
#include "fathom/layers/phase_scope.h"
#include "fathom/models/deepseek/deepseek_v1.h"
#include "fathom/models/deepseek/deepseek_v32.h"
#include "fathom/trace/scope.h"

namespace fathom {
namespace {

// ---- 1. Weights: name in the checkpoint, shape in the report's symbols, role.

constexpr const char* kHead = "lm_head.weight";
constexpr const char* kEmbedding = "model.embed_tokens.weight";

// DeepSeek-V2 report, section 2.1.
Status declare_attention(WeightPlan& plan,
                         const ModelConfig& c,
                         Format activations,
                         const std::string& p,
                         MlaWeights& w) {
  using enum WeightRole;
  if (c.q_lora_rank > 0) {
    FATHOM_TRY(plan.rows({p + "q_a_proj.weight", "Lq,H"},
                         {p + "kv_a_proj_with_mqa.weight", "Lkv+Dr,H"}, "Lq+Lkv+Dr,H", kAttention,
                         &w.q_kv_a));
    FATHOM_TRY(plan.vector(p + "q_a_layernorm.weight", "Lq", kNorm, &w.q_a_norm));
    FATHOM_TRY(plan.matrix(p + "q_b_proj.weight", "Nh*Dq,Lq", kAttention, &w.q_b));
  } else {
    FATHOM_TRY(plan.rows({p + "q_proj.weight", "Nh*Dq,H"},
                         {p + "kv_a_proj_with_mqa.weight", "Lkv+Dr,H"}, "Nh*Dq+Lkv+Dr,H",
                         kAttention, &w.q_kv_a, JoinRows::kWhereItGains));
  }
  FATHOM_TRY(plan.vector(p + "kv_a_layernorm.weight", "Lkv", kNorm, &w.kv_a_norm));
  FATHOM_TRY(plan.matrix(p + "kv_b_proj.weight", "Nh*(Dn+Dv),Lkv", kAttention, &w.kv_b));
  FATHOM_TRY(plan.absorbed(c.qk_nope_head_dim, c.v_head_dim, activations, &w.w_kc, &w.w_vc));
  return plan.matrix(p + "o_proj.weight", "H,Nh*Dv", kOutput, &w.o);
}

// `width` is Id in dense layers, Ns*I for the shared experts, which are one MLP.
struct MlpAxes {
  const char* half;
  const char* gate_up;
  const char* down;
  const char* gate_up_result;
  const char* act_result;
};

Status declare_mlp(
    WeightPlan& plan, const std::string& p, MlpAxes axes, WeightRole role, MlpWeights& w) {
  w.gate_up_axes = axes.gate_up_result;
  w.act_axes = axes.act_result;
  FATHOM_TRY(plan.rows({p + "gate_proj.weight", axes.half}, {p + "up_proj.weight", axes.half},
                       axes.gate_up, role, &w.gate_up));
  return plan.matrix(p + "down_proj.weight", axes.down, role, &w.down);
}

// DeepSeek-V3 report, section 2.1.2.
Status declare_moe(WeightPlan& plan,
                   const ModelConfig& c,
                   const MoeOptions& options,
                   const std::string& p,
                   MoeWeights& w) {
  using enum WeightRole;
  FATHOM_TRY(plan.matrix(p + "gate.weight", "E,H", kRouter, &w.gate));
  if (c.topk_method == TopkMethod::kNoauxTc) {
    FATHOM_TRY(plan.vector(p + "gate.e_score_correction_bias", "E", kRouterBias, &w.bias));
  }
  RowPart first = {p + "experts.{}.gate_proj.weight", "I,H"};
  RowPart second = {p + "experts.{}.up_proj.weight", "I,H"};
  if (options.strategy == MoeStrategy::kFused) std::swap(first, second);
  FATHOM_TRY(
      plan.stack_rows(first, second, c.n_routed_experts, "E,2*I,H", "E,I,H", kExpert, &w.gate_up));
  FATHOM_TRY(plan.stack({{p + "experts.{}.down_proj.weight", "H,I"}}, c.n_routed_experts, "E,H,I",
                        kExpert, &w.down));
  if (c.n_shared_experts == 0) return {};
  return declare_mlp(plan, p + "shared_experts.",
                     {"Ns*I,H", "2*Ns*I,H", "H,Ns*I", "T,2*Ns*I", "T,Ns*I"}, kSharedExpert,
                     w.shared);
}

MlaShape mla_shape(const ModelConfig& c) {
  return {.Nh = c.num_attention_heads,
          .Lq = c.q_lora_rank,
          .Lkv = c.kv_lora_rank,
          .Dn = c.qk_nope_head_dim,
          .Dr = c.qk_rope_head_dim,
          .Dv = c.v_head_dim,
          .softmax_scale = static_cast<float>(c.softmax_scale()),
          .rope_style = c.rope_interleave ? RopeStyle::kInterleaved : RopeStyle::kHalfSplit};
}

// V2's code normalises the weights of several experts or applies the factor; V3's always applies
// it. Groups are there for the methods that choose among them.
MoeShape moe_shape(const ModelConfig& c) {
  const bool v3 = c.topk_method == TopkMethod::kNoauxTc;
  const bool grouped = c.topk_method != TopkMethod::kGreedy;
  const bool renormalize = c.norm_topk_prob && (v3 || c.num_experts_per_tok > 1);
  return {.E = c.n_routed_experts,
          .K = c.num_experts_per_tok,
          .I = c.moe_intermediate_size,
          .rule = router_rule(c.topk_method),
          .n_group = grouped ? static_cast<int>(c.n_group) : 1,
          .topk_group = grouped ? static_cast<int>(c.topk_group) : 1,
          .renormalize = renormalize,
          .scaling = v3 || !renormalize ? static_cast<float>(c.routed_scaling_factor) : 1.0f};
}

RopeParams rope_params(const ModelConfig& c) {
  const RopeScaling& s = c.rope_scaling;
  return {.dim = c.qk_rope_head_dim,
          .theta = c.rope_theta,
          .yarn = s.yarn,
          .factor = s.factor,
          .original_positions = s.original_max_position_embeddings,
          .beta_fast = s.beta_fast,
          .beta_slow = s.beta_slow,
          .attention_factor = c.rope_attention_factor(),
          .position_divisor = s.yarn ? 1.0 : s.factor};
}

PageCodec latent_codec(const ModelConfig& c, const ModelOptions& o) {
  const Format format = o.cache_format();
  if (c.has_indexer() && format == Format::kE4m3) return scaled_latent_codec(c);
  return PageCodec::dense(str_cat("mla latent ", format_name(format)), format, c.kv_width(),
                          "pages,page_size,Lkv+Dr");
}

}  // namespace

RouterRule router_rule(TopkMethod method) {
  switch (method) {
    case TopkMethod::kGreedy:
      return RouterRule::kSoftmax;
    case TopkMethod::kGroupLimitedGreedy:
      return RouterRule::kGroupLimitedSoftmax;
    case TopkMethod::kNoauxTc:
      return RouterRule::kGroupedSigmoid;
    case TopkMethod::kSqrtSoftplus:
      return RouterRule::kSqrtSoftplus;
  }
  return RouterRule::kSoftmax;
}

Status declare_layer(
    WeightPlan& plan, const ModelConfig& c, const ModelOptions& o, int index, DecoderLayer& w) {
  const std::string p = str_cat("model.layers.", index, ".");
  w.index = index;
  w.is_moe = c.is_moe_layer(index);
  FATHOM_TRY(plan.vector(p + "input_layernorm.weight", "H", WeightRole::kNorm, &w.input_norm));
  FATHOM_TRY(c.is_v1() ? declare_mha(plan, p + "self_attn.", w.mha)
                       : declare_attention(plan, c, o.activations, p + "self_attn.", w.attn));
  if (c.has_indexer()) FATHOM_TRY(declare_indexer(plan, p + "self_attn.", w.indexer));
  FATHOM_TRY(
      plan.vector(p + "post_attention_layernorm.weight", "H", WeightRole::kNorm, &w.post_norm));
  if (w.is_moe) return declare_moe(plan, c, o.moe, p + "mlp.", w.moe);
  return declare_mlp(plan, p + "mlp.", {"Id,H", "2*Id,H", "H,Id", "T,2*Id", "T,Id"},
                     WeightRole::kMlp, w.mlp);
}

DeepseekV3::DeepseekV3(ModelConfig config, ModelOptions options)
    : config_(std::move(config)), options_(std::move(options)) {
  has_draft_ = options_.draft && config_.num_nextn_predict_layers > 0;
  context_.mla.shape = mla_shape(config_);
  context_.mla.options = options_.attention;
  if (config_.is_v1()) context_.mha = mha_context(config_, options_);
  if (config_.has_indexer()) {
    context_.dsa = dsa_context(config_, options_);
    context_.mla.options.fused_rope = false;  // keys are written before they are chosen
  }
  context_.moe.shape = moe_shape(config_);
  context_.moe.options = options_.moe;
  context_.eps = static_cast<float>(config_.rms_norm_eps);
}

Status DeepseekV3::declare_weights(WeightPlan& plan) {
  FATHOM_TRY(plan.table(kEmbedding, "V,H", WeightRole::kEmbedding, &embed_));
  layers_.assign(static_cast<size_t>(config_.num_hidden_layers), {});
  for (int i = 0; i < config_.num_hidden_layers; ++i) {
    FATHOM_TRY(declare_layer(plan, config_, options_, i, layers_[static_cast<size_t>(i)]));
  }
  FATHOM_TRY(plan.vector("model.norm.weight", "H", WeightRole::kNorm, &norm_));
  FATHOM_TRY(plan.matrix(head_name(plan), "V,H", WeightRole::kHead, &head_));
  return has_draft_ ? declare_nextn(plan, config_, options_, nextn_) : Status{};
}

// A file that ties the head to the embedding and has a head all the same means the head it has: the
// reference loads it and ties only what is missing.
const char* DeepseekV3::head_name(const WeightPlan& plan) {
  head_is_stored_ = plan.is_stored(kHead);
  return config_.tie_word_embeddings && !head_is_stored_ ? kEmbedding : kHead;
}

Status DeepseekV3::attach(WeightStore store) {
  store_ = std::move(store);
  // A model is declared and attached dry before it is loaded; only what has weights makes logits.
  if (store_.data() != nullptr && config_.tie_word_embeddings && head_is_stored_) {
    log_info("tie_word_embeddings is true, and the checkpoint has ", kHead,
             ": the logits are made with ", kHead, ", not with ", kEmbedding);
  }
  const int64_t positions =
      options_.max_positions > 0 ? options_.max_positions : config_.max_position_embeddings;
  FATHOM_ASSIGN(context_.mla.rope_table, rope_table(store_, rope_params(config_), positions));
  context_.mha.rope_table = context_.mla.rope_table.with_axes("P,D");
  FATHOM_ASSIGN(context_.moe.arrivals, router_arrivals(store_, options_.moe));
  if (config_.is_v1()) return {};
  FATHOM_ASSIGN(context_.mla.request_offsets, request_offsets(store_, options_.attention));
  return {};
}

// MLA keeps one row a token and layer, shared by all heads: the normalised latent and the rotated
// key part. DeepSeek-V2 report, section 2.1.
CacheLayout DeepseekV3::cache_layout() const {
  const int layers = static_cast<int>(config_.num_hidden_layers) + (has_draft_ ? 1 : 0);
  std::vector<int> all(static_cast<size_t>(layers));
  std::iota(all.begin(), all.end(), 0);
  CacheLayout layout{.block_tokens = options_.page_size, .groups = {}};
  if (config_.is_v1()) {
    layout.groups.push_back(key_value_group(config_, options_, std::move(all)));
    return layout;
  }
  CacheGroup latent{.name = "latent",
                    .layers = std::move(all),
                    .rows = options_.page_size,
                    .codec = latent_codec(config_, options_)};
  std::vector<int> indexed = config_.has_indexer() ? latent.layers : std::vector<int>{};
  layout.groups.push_back(std::move(latent));
  if (!indexed.empty()) layout.groups.push_back(index_group(config_, options_, std::move(indexed)));
  return layout;
}

// ---- 2. The layer. DeepSeek-V3 report, section 2.1 and figure 2.

namespace {

Status attend(
    Exec& ex, const LayerContext& m, const DecoderLayer& w, const Batch& batch, Hidden& h) {
  const auto layer = static_cast<size_t>(w.index);
  if (m.mha.present()) {
    return mha_attend(ex, m.mha, w.mha, batch.attention, batch.rows_of(0, layer), h.normed,
                      h.branch);
  }
  const CacheRows latents = latent_rows(batch, layer);
  if (!w.indexer.present())
    return mla_attend(ex, m.mla, w.attn, batch.attention, latents, h.normed, h.branch);
  return dsa_attend(ex, m.mla, m.dsa, w.attn, w.indexer, batch.attention, latents,
                    index_rows(batch, layer), h.normed, h.branch, batch.probe, w.index);
}

}  // namespace

Status decoder_layer(
    Exec& ex, const LayerContext& m, const DecoderLayer& w, const Batch& batch, Hidden& h) {
  Scope scope(ex.recorder, "layer", w.index);
  FATHOM_TRY(add_norm(ex, "input_layernorm", h, w.input_norm, m.eps));
  tap(batch.probe, "layer.input", w.index, h.residual);
  FATHOM_TRY(attend(ex, m, w, batch, h));
  tap(batch.probe, "attn.output", w.index, h.branch);
  h.pending = true;
  FATHOM_TRY(add_norm(ex, "post_attention_layernorm", h, w.post_norm, m.eps));
  Scope mlp_scope(ex.recorder, "mlp");
  FATHOM_TRY(w.is_moe ? moe(ex, m.moe, w.moe, h.normed, h.branch, w.index, batch.probe)
                      : mlp(ex, w.mlp, h.normed, h.branch));
  tap(batch.probe, "ffn.output", w.index, h.branch);
  h.pending = true;
  return {};
}

// ---- 3. The forward pass: embed, layers, final norm, head.

Phase phase_of(const Batch& batch) {
  return batch.attention.prefill.num_tokens > 0 ? Phase::kPrefill : Phase::kDecode;
}

Status head_logits(
    Exec& ex, const Batch& batch, const View& hidden, const LinearWeight& head, ForwardOut& out) {
  FATHOM_ASSIGN(out.logits,
                ex.activations->tensor({batch.num_logits(), head.w.rows()}, Format::kF32, "R,V"));
  if (batch.num_logits() == 0) return {};
  return lm_head(ex, hidden, batch.logit_rows, head, out.logits);
}

Status DeepseekV3::forward(Exec& ex, const Batch& batch, ForwardOut& out) const {
  const bool named = ex.recorder != nullptr && ex.recorder->phase() != Phase::kNone;
  PhaseScope phase(named ? nullptr : ex.recorder, phase_of(batch));
  Scope scope(ex.recorder, "model");
  FATHOM_ASSIGN(Hidden h,
                make_hidden(ex, batch.num_tokens(), config_.hidden_size, options_.activations));
  FATHOM_TRY(embed_tokens(ex, batch.token_ids, embed_, h.residual));
  for (const DecoderLayer& layer : layers_) {
    FATHOM_TRY(decoder_layer(ex, context_, layer, batch, h));
  }
  if (batch.hidden.present()) h.normed = batch.hidden;
  FATHOM_TRY(add_norm(ex, "norm", h, norm_, context_.eps));
  tap(batch.probe, "final.input", static_cast<int>(layers_.size()), h.residual);
  tap(batch.probe, "final.norm", static_cast<int>(layers_.size()), h.normed);
  out.hidden = h.normed;
  return head_logits(ex, batch, h.normed, head_, out);
}

Status DeepseekV3::draft(Exec& ex, const Batch& batch, const View& hidden, ForwardOut& out) const {
  if (!has_draft_) return unsupported("this model has no draft layer");
  PhaseScope phase(ex.recorder, Phase::kDraft);
  LayerContext context = context_;
  // Its experts may have another format than the model's, bf16 in NVFP4 checkpoints. It only
  // guesses: what it has no product for is computed exactly.
  const DecoderLayer& layer = nextn_.layer;
  if (layer.is_moe && !takes_fp8_rows(layer.moe.down.w.format()))
    context.moe.options.activations = MoeActivations::kAuto;
  return nextn_forward(ex, context, nextn_, embed_, head_, batch, hidden, out);
}

}  // namespace fathom
