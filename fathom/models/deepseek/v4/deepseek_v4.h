// DeepSeek-V4 Flash and Pro: several residual streams (mHC), attention over a window and compressed
// rows, experts that the first layers choose by token id. What tells the two apart stands in their
// configuration.
//
//   X = the embedding, n times
//   each layer:   x, post, comb = pre(X);   X = post(attention(norm(x)), X)      mhc_pre, mhc_post
//                 x, post, comb = pre(X);   X = post(experts(norm(x)), X)
//   logits = head(norm(read(X)))                                                 mhc_head
//
// v4_nextn.cc has the draft layer, deepseek_v4_cache.cc what is kept of tokens.
#pragma once

#include <span>
#include <vector>

#include "fathom/layers/attention/compressed_attention.h"
#include "fathom/models/deepseek/v4/v4_names.h"
#include "fathom/models/model.h"

namespace fathom {

/// How a sub-layer reads the n streams, and how they are mixed meanwhile: n, n and n^2 rows.
struct StreamWeights {
  View fn;     ///< [2*n+n*n, n*H] f32; [n, n*H] before the head
  View base;   ///< [2*n+n*n] f32; [n]
  View scale;  ///< [3] f32; [1]
};

struct V4Layer {
  int index = 0;
  StreamWeights hc_attn;
  StreamWeights hc_ffn;
  View attn_norm;
  View ffn_norm;
  CompressedWeights attn;
  MoeWeights moe;
  // Where its rows lie in groups of the cache that not all layers have.
  size_t rows_place = 0;
};

/// The draft layer (multi-token prediction): a layer with a window alone, on streams of its own.
struct V4NextN {
  View enorm;           ///< [H]
  View hnorm;           ///< [H], the same for every stream
  LinearWeight e_proj;  ///< [H, H]
  LinearWeight h_proj;  ///< [H, H]
  V4Layer layer;
  StreamWeights hc_head;
  View norm;
};

/// Indices of the groups in the layout of such a model; those that no layer needs are left out, and
/// have kNoGroup.
struct V4Groups {
  static constexpr size_t kNoGroup = SIZE_MAX;
  size_t window = kNoGroup;
  size_t sparse = kNoGroup;  ///< rows of 4 tokens
  size_t heavy = kNoGroup;   ///< rows of 128 tokens
  size_t index = kNoGroup;   ///< the indexer's keys
  size_t sparse_state = kNoGroup;
  size_t heavy_state = kNoGroup;
  size_t index_state = kNoGroup;
};

/// The groups of a model, and their places; `draft`: the draft layer is one of its layers.
CacheLayout v4_cache_layout(const ModelConfig& config,
                            const ModelOptions& options,
                            bool draft,
                            V4Groups& at);

/// The weights of streams "p...fn", "base" and "scale"; `head`: those that are read a last time.
Status declare_streams(
    WeightPlan& plan, const V4Names& name, const std::string& prefix, bool head, StreamWeights& w);

/// What a sub-layer reads, and how its output goes back to the streams.
struct StreamMix {
  View x;                ///< [T, H], normed
  View post;             ///< [T, n] f32
  View comb;             ///< [T, n, n] f32
  bool is_read = false;  ///< for the sub-layer that comes
};

/// The part of one layer in a step's cache.
CompressedRows v4_rows(const Batch& batch, const V4Groups& at, const V4Layer& layer);

class DeepseekV4 final : public Model {
 public:
  DeepseekV4(ModelConfig config, ModelOptions options);

  const ModelConfig& config() const override { return config_; }

  const ModelOptions& options() const override { return options_; }

  Status declare_weights(WeightPlan& plan) override;
  Status attach(WeightStore store) override;

  const WeightStore& weights() const override { return store_; }

  /// All streams of a token.
  int64_t state_width() const override { return config_.hc_mult * config_.hidden_size; }

  bool has_draft() const override { return has_draft_; }

  bool takes_trees() const override { return true; }

  CacheLayout cache_layout() const override { return layout_; }

  Status forward(Exec& ex, const Batch& batch, ForwardOut& out) const override;
  Status draft(Exec& ex, const Batch& batch, const View& hidden, ForwardOut& out) const override;

 private:
  Status declare_layer(
      WeightPlan& plan, const V4Names& name, const std::string& prefix, int index, V4Layer& layer);
  Status declare_nextn(WeightPlan& plan, const V4Names& name);  // v4_nextn.cc
  /// Which all these layers read.
  Result<RangeLists> decode_lists(Exec& ex,
                                  std::span<const V4Layer> layers,
                                  const Batch& batch) const;
  /// The layers one after the other; the streams are read and written.
  Status run_layers(Exec& ex,
                    std::span<const V4Layer> layers,
                    const Batch& batch,
                    const View& streams) const;
  /// A layer; `next` is the one behind it, whose first input may be made on the way.
  Status run_layer(Exec& ex,
                   const V4Layer& w,
                   const V4Layer* next,
                   const Batch& batch,
                   const RangeLists& lists,
                   const View& streams,
                   StreamMix& mix) const;
  Status read_streams(Exec& ex,
                      const StreamWeights& w,
                      Op norm,
                      const View& norm_weight,
                      const View& streams,
                      const StreamMix& mix) const;
  /// Whether the output of a sub-layer becomes the input of the next one in one kernel.
  bool chains(int64_t tokens) const;
  Status chain_streams(Exec& ex,
                       const StreamWeights& w,
                       const View& norm,
                       const View& y,
                       const View& streams,
                       const StreamMix& mix) const;
  Status nextn_streams(Exec& ex, const Batch& batch, const View& hidden, const View& streams) const;
  /// Reads the streams a last time; norm and head.
  Status read_out(Exec& ex,
                  const Batch& batch,
                  const View& streams,
                  const StreamWeights& w,
                  const View& norm,
                  const View& h,
                  ForwardOut& out) const;

  ModelConfig config_;
  ModelOptions options_;
  CompressedContext attention_;
  MoeContext moe_;
  CacheLayout layout_;
  V4Groups groups_;
  float eps_ = 1e-6f;
  View embed_;  // [V, H]
  std::vector<V4Layer> layers_;
  StreamWeights hc_head_;
  View norm_;
  LinearWeight head_;
  bool has_draft_ = false;
  V4NextN nextn_;
  WeightStore store_;
};

}  // namespace fathom
