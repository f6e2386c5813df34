#include "fathom/models/deepseek/v4/deepseek_v4.h"

#include <cmath>
#include <utility>

#include "fathom/kernels/core/launch.h"
#include "fathom/kernels/mhc/mhc_chain/mhc_chain.h"
#include "fathom/kernels/mhc/mhc_post/mhc_post.h"
#include "fathom/kernels/mhc/mhc_pre/mhc_pre.h"
#include "fathom/layers/attention/rope_table.h"
#include "fathom/layers/embedding.h"
#include "fathom/layers/linear.h"
#include "fathom/layers/norm.h"
#include "fathom/layers/phase_scope.h"
#include "fathom/models/deepseek/deepseek_v3.h"
#include "fathom/trace/scope.h"

namespace fathom {

// ---- 1. Weights, by DeepSeek's names.

Status declare_streams(
    WeightPlan& plan, const V4Names& name, const std::string& p, bool head, StreamWeights& w) {
  using enum WeightRole;
  FATHOM_TRY(plan.table(name(p + "fn"), head ? "n,n*H" : "2*n+n*n,n*H", kStream, &w.fn));
  FATHOM_TRY(plan.vector(name(p + "base"), head ? "n" : "2*n+n*n", kStream, &w.base));
  return plan.vector(name(p + "scale"), head ? "1" : "3", kStream, &w.scale);
}

namespace {

struct CompressorAxes {
  const char* half;
  const char* both;
  const char* ape;
  const char* norm;
  const char* u_z;
};

constexpr CompressorAxes kSparseAxes{"2*D,H", "4*D,H", "4,2*D", "D", "T,4*D"};
constexpr CompressorAxes kHeavyAxes{"D,H", "2*D,H", "128,D", "D", "T,2*D"};
constexpr CompressorAxes kIndexAxes{"2*Di,H", "4*Di,H", "4,2*Di", "Di", "T,4*Di"};

Status declare_compressor(WeightPlan& plan,
                          const V4Names& name,
                          const std::string& p,
                          const CompressorAxes& axes,
                          CompressorWeights& w) {
  using enum WeightRole;
  w.u_z_axes = axes.u_z;
  FATHOM_TRY(plan.rows({name(p + "wkv.weight"), axes.half}, {name(p + "wgate.weight"), axes.half},
                       axes.both, kCompressor, &w.kv_gate));
  FATHOM_TRY(plan.table(name(p + "ape"), axes.ape, kAttentionBias, &w.ape));
  return plan.vector(name(p + "norm.weight"), axes.norm, kNorm, &w.norm);
}

Status declare_attention(WeightPlan& plan,
                         const V4Names& name,
                         const std::string& p,
                         CompressRatio ratio,
                         CompressedWeights& w) {
  using enum WeightRole;
  w.ratio = ratio;
  FATHOM_TRY(plan.rows({name(p + "wq_a.weight"), "Lq,H"}, {name(p + "wkv.weight"), "D,H"}, "Lq+D,H",
                       kAttention, &w.q_kv_a));
  FATHOM_TRY(plan.vector(name(p + "q_norm.weight"), "Lq", kNorm, &w.q_norm));
  FATHOM_TRY(plan.vector(name(p + "kv_norm.weight"), "D", kNorm, &w.kv_norm));
  FATHOM_TRY(plan.vector(name(p + "attn_sink"), "Nh", kAttentionBias, &w.sink));
  FATHOM_TRY(plan.matrix(name(p + "wq_b.weight"), "Nh*D,Lq", kAttention, &w.q_b));
  FATHOM_TRY(plan.matrix(name(p + "wo_a.weight"), "Go*Lo,Hg*D", kOutputGroups, &w.o_a));
  FATHOM_TRY(plan.matrix(name(p + "wo_b.weight"), "H,Go*Lo", kOutput, &w.o_b));
  if (ratio == CompressRatio::kNone) return {};
  const bool sparse = ratio == CompressRatio::kSparse;
  FATHOM_TRY(
      declare_compressor(plan, name, p + "compressor.", sparse ? kSparseAxes : kHeavyAxes, w.rows));
  if (!sparse) return {};
  FATHOM_TRY(plan.matrix(name(p + "indexer.wq_b.weight"), "Hi*Di,Lq", kAttention, &w.indexer.wq_b));
  FATHOM_TRY(plan.matrix(name(p + "indexer.weights_proj.weight"), "Hi,H", kRouter,
                         &w.indexer.weights_proj));
  return declare_compressor(plan, name, p + "indexer.compressor.", kIndexAxes, w.indexer.keys);
}

Status declare_experts(WeightPlan& plan,
                       const V4Names& name,
                       const ModelConfig& c,
                       const std::string& p,
                       bool by_token,
                       MoeWeights& w) {
  using enum WeightRole;
  FATHOM_TRY(plan.matrix(name(p + "gate.weight"), "E,H", kRouter, &w.gate));
  if (by_token) {
    FATHOM_TRY(plan.index_table(name(p + "gate.tid2eid"), "V,K", c.n_routed_experts, &w.tid2eid));
  } else {
    FATHOM_TRY(plan.vector(name(p + "gate.bias"), "E", kRouterBias, &w.bias));
  }
  FATHOM_TRY(plan.stack_rows({name(p + "experts.{}.w1.weight"), "I,H"},
                             {name(p + "experts.{}.w3.weight"), "I,H"}, c.n_routed_experts,
                             "E,2*I,H", "E,I,H", kExpert, &w.gate_up));
  FATHOM_TRY(plan.stack({{name(p + "experts.{}.w2.weight"), "H,I"}}, c.n_routed_experts, "E,H,I",
                        kExpert, &w.down));
  if (c.n_shared_experts == 0) return {};
  const std::string s = p + "shared_experts.";
  w.shared.gate_up_axes = "T,2*Ns*I";
  w.shared.act_axes = "T,Ns*I";
  FATHOM_TRY(plan.rows({name(s + "w1.weight"), "Ns*I,H"}, {name(s + "w3.weight"), "Ns*I,H"},
                       "2*Ns*I,H", kSharedExpert, &w.shared.gate_up));
  return plan.matrix(name(s + "w2.weight"), "H,Ns*I", kSharedExpert, &w.shared.down);
}

RopeParams window_rope(const ModelConfig& c) {
  return {.dim = c.qk_rope_head_dim, .theta = c.rope_theta};
}

RopeParams compressed_rope(const ModelConfig& c) {
  const RopeScaling& s = c.rope_scaling;
  return {.dim = c.qk_rope_head_dim,
          .theta = c.compress_rope_theta,
          .yarn = s.yarn,
          .factor = s.factor,
          .original_positions = s.original_max_position_embeddings,
          .beta_fast = s.beta_fast,
          .beta_slow = s.beta_slow};
}

}  // namespace

DeepseekV4::DeepseekV4(ModelConfig config, ModelOptions options)
    : config_(std::move(config)), options_(std::move(options)) {
  const ModelConfig& c = config_;
  eps_ = static_cast<float>(c.rms_norm_eps);
  attention_.shape = {.Nh = c.num_attention_heads,
                      .Lq = c.q_lora_rank,
                      .D = c.head_dim,
                      .Go = c.o_groups,
                      .Lo = c.o_lora_rank,
                      .W = c.sliding_window,
                      .Hi = c.index_n_heads,
                      .Di = c.index_head_dim,
                      .topk = c.index_topk,
                      .scale = static_cast<float>(c.softmax_scale()),
                      .eps = eps_};
  attention_.index_keys = options_.index_format(c);
  moe_.shape = {.E = c.n_routed_experts,
                .K = c.num_experts_per_tok,
                .I = c.moe_intermediate_size,
                .rule = RouterRule::kSqrtSoftplus,
                .renormalize = true,
                .scaling = static_cast<float>(c.routed_scaling_factor),
                .limit = static_cast<float>(c.swiglu_limit)};
  moe_.options = options_.moe;
  has_draft_ = options_.draft && c.num_nextn_predict_layers > 0;
  layout_ = v4_cache_layout(c, options_, has_draft_, groups_);
}

Status DeepseekV4::declare_layer(
    WeightPlan& plan, const V4Names& name, const std::string& p, int index, V4Layer& w) {
  using enum WeightRole;
  w.index = index;
  for (int earlier = 0; earlier < index; ++earlier)
    if (config_.compress_ratio(earlier) == config_.compress_ratio(index)) ++w.rows_place;
  FATHOM_TRY(declare_streams(plan, name, p + "hc_attn_", false, w.hc_attn));
  FATHOM_TRY(plan.vector(name(p + "attn_norm.weight"), "H", kNorm, &w.attn_norm));
  FATHOM_TRY(declare_attention(plan, name, p + "attn.", config_.compress_ratio(index), w.attn));
  FATHOM_TRY(declare_streams(plan, name, p + "hc_ffn_", false, w.hc_ffn));
  FATHOM_TRY(plan.vector(name(p + "ffn_norm.weight"), "H", kNorm, &w.ffn_norm));
  return declare_experts(plan, name, config_, p + "ffn.", index < config_.num_hash_layers, w.moe);
}

Status DeepseekV4::declare_weights(WeightPlan& plan) {
  const V4Names name(plan);
  FATHOM_TRY(plan.table(name("embed.weight"), "V,H", WeightRole::kEmbedding, &embed_));
  layers_.assign(static_cast<size_t>(config_.num_hidden_layers), {});
  for (int i = 0; i < config_.num_hidden_layers; ++i) {
    FATHOM_TRY(
        declare_layer(plan, name, str_cat("layers.", i, "."), i, layers_[static_cast<size_t>(i)]));
  }
  FATHOM_TRY(declare_streams(plan, name, "hc_head_", true, hc_head_));
  FATHOM_TRY(plan.vector(name("norm.weight"), "H", WeightRole::kNorm, &norm_));
  FATHOM_TRY(plan.matrix(name("head.weight"), "V,H", WeightRole::kHead, &head_));
  return has_draft_ ? declare_nextn(plan, name) : Status{};
}

Status DeepseekV4::attach(WeightStore store) {
  store_ = std::move(store);
  const int64_t positions =
      options_.max_positions > 0 ? options_.max_positions : config_.max_position_embeddings;
  FATHOM_ASSIGN(attention_.window_rope, rope_table(store_, window_rope(config_), positions));
  FATHOM_ASSIGN(attention_.compressed_rope,
                rope_table(store_, compressed_rope(config_), positions));
  FATHOM_ASSIGN(attention_.request_offsets, request_offsets(store_, options_.attention));
  FATHOM_ASSIGN(moe_.arrivals, router_arrivals(store_, options_.moe));
  return {};
}

// ---- 2. The layer.

namespace {

Status write_streams(Exec& ex, const StreamMix& mix, const View& y, const View& streams) {
  return launch<MhcPost>(
      ex, "hc_post",
      {.y = y, .streams = streams, .post = mix.post, .comb = mix.comb, .out = streams});
}

}  // namespace

Status DeepseekV4::read_streams(Exec& ex,
                                const StreamWeights& w,
                                Op norm,
                                const View& norm_weight,
                                const View& streams,
                                const StreamMix& mix) const {
  FATHOM_TRY(launch<MhcPre>(ex, "hc_pre",
                            {.streams = streams,
                             .fn = w.fn,
                             .base = w.base,
                             .scale = w.scale,
                             .x = mix.x,
                             .post = mix.post,
                             .comb = mix.comb,
                             .eps = eps_,
                             .hc_eps = static_cast<float>(config_.hc_eps),
                             .iterations = static_cast<int>(config_.hc_sinkhorn_iters)}));
  return rms_norm(ex, norm, mix.x, norm_weight, mix.x, eps_);
}

bool DeepseekV4::chains(int64_t tokens) const {
  constexpr int64_t kFewTokens = 32;  // more are as long as their bytes, not as their launches
  return options_.chain_streams && tokens <= kFewTokens;
}

Status DeepseekV4::chain_streams(Exec& ex,
                                 const StreamWeights& w,
                                 const View& norm,
                                 const View& y,
                                 const View& streams,
                                 const StreamMix& mix) const {
  return launch<MhcChain>(ex, "hc_post_pre",
                          {.y = y,
                           .streams = streams,
                           .post = mix.post,
                           .comb = mix.comb,
                           .fn = w.fn,
                           .base = w.base,
                           .scale = w.scale,
                           .norm = norm,
                           .out = streams,
                           .h = mix.x,
                           .next_post = mix.post,
                           .next_comb = mix.comb,
                           .eps = eps_,
                           .hc_eps = static_cast<float>(config_.hc_eps),
                           .norm_eps = eps_,
                           .iterations = static_cast<int>(config_.hc_sinkhorn_iters)});
}

Status DeepseekV4::run_layer(Exec& ex,
                             const V4Layer& w,
                             const V4Layer* next,
                             const Batch& batch,
                             const RangeLists& lists,
                             const View& streams,
                             StreamMix& mix) const {
  Scope scope(ex.recorder, "layer", w.index);
  const View rows = reshape(streams, {streams.dim(0), state_width()}, "T,n*H");
  if (w.index > 0) tap(batch.probe, "layer.input", w.index, rows);
  const bool chained = chains(streams.dim(0));
  Arena& arena = *ex.activations;
  ArenaScope temporary(arena);
  FATHOM_ASSIGN(const View y,
                arena.tensor({streams.dim(0), config_.hidden_size}, streams.format, "T,H"));
  if (!mix.is_read) FATHOM_TRY(read_streams(ex, w.hc_attn, "attn_norm", w.attn_norm, streams, mix));
  FATHOM_TRY(compressed_attend(ex, attention_, w.attn, batch.attention, v4_rows(batch, groups_, w),
                               lists, mix.x, y, batch.probe, w.index));
  tap(batch.probe, "attn.output", w.index, y);
  if (chained) {
    FATHOM_TRY(chain_streams(ex, w.hc_ffn, w.ffn_norm, y, streams, mix));
  } else {
    FATHOM_TRY(write_streams(ex, mix, y, streams));
    FATHOM_TRY(read_streams(ex, w.hc_ffn, "ffn_norm", w.ffn_norm, streams, mix));
  }
  {
    Scope experts(ex.recorder, "ffn");
    FATHOM_TRY(moe(ex, moe_, w.moe, mix.x, y, w.index, batch.probe, batch.token_ids));
    tap(batch.probe, "ffn.output", w.index, y);
  }
  mix.is_read = chained && next != nullptr;
  return mix.is_read ? chain_streams(ex, next->hc_attn, next->attn_norm, y, streams, mix)
                     : write_streams(ex, mix, y, streams);
}

Result<RangeLists> DeepseekV4::decode_lists(Exec& ex,
                                            std::span<const V4Layer> layers,
                                            const Batch& batch) const {
  Scope scope(ex.recorder, "lists");
  RangeLists lists;
  for (const V4Layer& w : layers) {
    FATHOM_TRY(add_lists(ex, attention_, w.attn.ratio, batch.attention, batch.attention.decode,
                         v4_rows(batch, groups_, w), lists));
  }
  return lists;
}

Status DeepseekV4::run_layers(Exec& ex,
                              std::span<const V4Layer> layers,
                              const Batch& batch,
                              const View& streams) const {
  const int64_t T = streams.dim(0);
  const int64_t n = config_.hc_mult;
  Arena& arena = *ex.activations;
  ArenaScope temporary(arena);
  StreamMix mix;
  FATHOM_ASSIGN(mix.x, arena.tensor({T, config_.hidden_size}, streams.format, "T,H"));
  FATHOM_ASSIGN(mix.post, arena.tensor({T, n}, Format::kF32, "T,n"));
  FATHOM_ASSIGN(mix.comb, arena.tensor({T, n, n}, Format::kF32, "T,n,n"));
  FATHOM_ASSIGN(const RangeLists lists, decode_lists(ex, layers, batch));
  for (size_t i = 0; i < layers.size(); ++i) {
    const V4Layer* next = i + 1 < layers.size() ? &layers[i + 1] : nullptr;
    FATHOM_TRY(run_layer(ex, layers[i], next, batch, lists, streams, mix));
  }
  return {};
}

// ---- 3. The forward pass: embed, layers, read the streams, final norm, head.

Status DeepseekV4::forward(Exec& ex, const Batch& batch, ForwardOut& out) const {
  const bool named = ex.recorder != nullptr && ex.recorder->phase() != Phase::kNone;
  PhaseScope phase(named ? nullptr : ex.recorder, phase_of(batch));
  Scope scope(ex.recorder, "model");
  const int64_t T = batch.num_tokens();
  const int64_t H = config_.hidden_size;
  Arena& arena = *ex.activations;
  View state = batch.hidden;
  if (!state.present()) {
    FATHOM_ASSIGN(state, arena.tensor({T, state_width()}, options_.activations, "T,n*H"));
  }
  const View streams = reshape(state, {T, config_.hc_mult, H}, "T,n,H");
  FATHOM_ASSIGN(const View h, arena.tensor({T, H}, options_.activations, "T,H"));
  FATHOM_TRY(embed_tokens(ex, batch.token_ids, embed_, h));
  tap(batch.probe, "layer.input", 0, h);
  FATHOM_TRY(launch<MhcExpand>(ex, "hc_expand", {.x = h, .streams = streams}));
  FATHOM_TRY(run_layers(ex, layers_, batch, streams));
  tap(batch.probe, "final.input", static_cast<int>(layers_.size()), state);
  out.hidden = state;
  FATHOM_TRY(read_out(ex, batch, streams, hc_head_, norm_, h, out));
  tap(batch.probe, "final.norm", static_cast<int>(layers_.size()), h);
  return {};
}

Status DeepseekV4::read_out(Exec& ex,
                            const Batch& batch,
                            const View& streams,
                            const StreamWeights& w,
                            const View& norm,
                            const View& h,
                            ForwardOut& out) const {
  FATHOM_TRY(launch<MhcHead>(ex, "hc_head",
                             {.streams = streams,
                              .fn = w.fn,
                              .base = w.base,
                              .scale = w.scale,
                              .h = h,
                              .eps = eps_,
                              .hc_eps = static_cast<float>(config_.hc_eps)}));
  FATHOM_TRY(rms_norm(ex, "norm", h, norm, h, eps_));
  return head_logits(ex, batch, h, head_, out);
}

}  // namespace fathom
