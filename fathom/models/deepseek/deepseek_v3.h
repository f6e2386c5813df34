// DeepSeek-V2-Lite, V2, V3, R1, V3.1 and V3.2: MLA, DeepSeekMoE, the draft layer of the V3 family,
// and the indexer of V3.2 (deepseek_v32.h); DeepSeek-MoE, whose attention is another
// (deepseek_v1.h). What tells them apart stands in their configuration.
#pragma once

#include <vector>

#include "fathom/layers/attention/dsa.h"
#include "fathom/layers/attention/mha.h"
#include "fathom/layers/norm.h"
#include "fathom/models/model.h"

namespace fathom {

/// One decoder layer: attention, then a dense or an expert feed-forward block.
struct DecoderLayer {
  int index = 0;
  bool is_moe = false;
  View input_norm;
  View post_norm;
  MlaWeights attn;
  MhaWeights mha;          ///< of V1, in place of attn
  IndexerWeights indexer;  ///< of V3.2, else absent
  MlpWeights mlp;          ///< dense layers
  MoeWeights moe;          ///< expert layers
};

/// What all layers of a model share.
struct LayerContext {
  MlaContext mla;
  MhaContext mha;  ///< of V1, in place of mla
  DsaContext dsa;  ///< of models with an indexer
  MoeContext moe;
  float eps = 1e-6f;
};

RouterRule router_rule(TopkMethod method);

/// The weights of layer `index`, by the names of the checkpoint. Up rows of the experts come first
/// if the options ask for the fused strategy, whose kernels want them so.
Status declare_layer(WeightPlan& plan,
                     const ModelConfig& config,
                     const ModelOptions& options,
                     int index,
                     DecoderLayer& layer);

/// h of the layer's input gives h of its output, whose last branch is still pending.
Status decoder_layer(
    Exec& ex, const LayerContext& m, const DecoderLayer& w, const Batch& batch, Hidden& h);

/// The draft head ("multi-token prediction", NextN): one more decoder layer that reads the state of
/// a token and the embedding of the next one. nextn.cc.
struct NextN {
  View enorm;
  View hnorm;
  LinearWeight eh_proj;  ///< [H, 2*H], embedding half first
  DecoderLayer layer;
  View head_norm;
};

Status declare_nextn(WeightPlan& plan,
                     const ModelConfig& config,
                     const ModelOptions& options,
                     NextN& nextn);

/// Draft logits. `embed` [V, H] and `head` [V, H] are those of the main model.
Status nextn_forward(Exec& ex,
                     const LayerContext& m,
                     const NextN& w,
                     const View& embed,
                     const LinearWeight& head,
                     const Batch& batch,
                     const View& hidden,
                     ForwardOut& out);

/// What the calls of a whole pass are, for records that do not say.
Phase phase_of(const Batch& batch);

/// Takes rows [R, V] of logits from the arena and fills them.
Status head_logits(
    Exec& ex, const Batch& batch, const View& hidden, const LinearWeight& head, ForwardOut& out);

class DeepseekV3 final : public Model {
 public:
  DeepseekV3(ModelConfig config, ModelOptions options);

  const ModelConfig& config() const override { return config_; }

  const ModelOptions& options() const override { return options_; }

  Status declare_weights(WeightPlan& plan) override;
  Status attach(WeightStore store) override;

  const WeightStore& weights() const override { return store_; }

  CacheLayout cache_layout() const override;
  Status forward(Exec& ex, const Batch& batch, ForwardOut& out) const override;

  bool takes_trees() const override { return true; }

  bool has_draft() const override { return has_draft_; }

  Status draft(Exec& ex, const Batch& batch, const View& hidden, ForwardOut& out) const override;

 private:
  const char* head_name(const WeightPlan& plan);

  ModelConfig config_;
  ModelOptions options_;
  bool has_draft_ = false;
  bool head_is_stored_ = false;  // the checkpoint has a head of its own
  LayerContext context_;
  View embed_;  // [V, H]
  std::vector<DecoderLayer> layers_;
  View norm_;
  LinearWeight head_;
  NextN nextn_;
  WeightStore store_;
};

}  // namespace fathom
