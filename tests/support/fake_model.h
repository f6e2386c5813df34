// A model whose next token is a digest of all tokens so far, read back from the KV pages. A page
// that is wrong, stale or somebody else's changes the tokens.
#pragma once

#include <functional>
#include <limits>
#include <utility>
#include <vector>

#include "fathom/base/rng.h"
#include "fathom/kernels/attn/tree_keys.h"
#include "fathom/models/model.h"

namespace fathom {

class FakeModel : public Model {
 public:
  static constexpr int64_t kPageSize = 4;
  static constexpr int32_t kNanToken = 13;  ///< once in a prompt, logits are NaN; never generated

  explicit FakeModel(int64_t vocab = 40, int64_t context = 256) {
    config_.vocab_size = vocab;
    config_.max_position_embeddings = context;
    config_.hidden_size = 1;
    options_.page_size = kPageSize;
    options_.activations = Format::kF32;
  }

  const ModelConfig& config() const override { return config_; }

  const ModelOptions& options() const override { return options_; }

  Status declare_weights(WeightPlan&) override { return {}; }

  Status attach(WeightStore) override { return {}; }

  const WeightStore& weights() const override { return weights_; }

  CacheLayout cache_layout() const override {
    return {.block_tokens = kPageSize,
            .groups = {{.name = "tokens",
                        .layers = {0, 1},
                        .rows = kPageSize,
                        .codec = PageCodec::dense("token", Format::kF32, 1, nullptr)}}};
  }

  bool takes_trees() const override { return true; }

  Status draft(Exec&, const Batch&, const View&, ForwardOut&) const override {
    return unsupported("no draft layer");
  }

  Status forward(Exec& ex, const Batch& batch, ForwardOut& out) const override {
    FATHOM_ASSIGN(out.logits, ex.activations->tensor({batch.num_logits(), config_.vocab_size},
                                                     Format::kF32, "R,V"));
    if (ex.dry()) return {};
    ++num_forwards;
    if (on_forward) on_forward(batch.num_tokens());
    if (fail_at > 0 && num_forwards >= fail_at) return Status::error(fail_with, "injected");
    int64_t row = 0;
    for (const TokenRange* range : {&batch.attention.prefill, &batch.attention.decode}) {
      run_range(batch, *range, out.logits, row);
    }
    return {};
  }

  /// Logits of the token after `tokens`, by the definition.
  static std::vector<float> logits_after(const std::vector<int32_t>& tokens, int64_t vocab) {
    uint64_t digest = 1;
    for (int32_t t : tokens)
      digest = mix(digest, t);
    return logits_of(digest, vocab);
  }

  /// What the configuration says of draft layers.
  void set_nextn_layers(int64_t count) { config_.num_nextn_predict_layers = count; }

  mutable int64_t num_forwards = 0;
  std::function<void(int64_t num_tokens)> on_forward;  ///< may move a clock
  int64_t fail_at = 0;  ///< this forward pass and later ones fail; 0: none
  StatusCode fail_with = StatusCode::kInternal;

 protected:
  ModelConfig config_;
  ModelOptions options_;

  /// Calls f(slot) for the keys that token t of a batch sees, in order; t is one of request i of a
  /// range, and stands at the last of their positions.
  template <class F>
  static void each_key(const Batch& b, const TokenRange& r, int64_t i, int64_t t, const F& f) {
    int64_t count = 0;
    const int64_t in_range = t - r.token_begin;
    const int32_t* pages = r.block_table.as<int32_t>() + i * r.block_table.dim(1);
    const int64_t behind = r.query_offsets[static_cast<size_t>(i) + 1] - in_range - 1;
    TreeToken token{.begin = r.kv_lens[static_cast<size_t>(i)] - behind};
    if (r.tree_masks.present()) {
      token = {r.tree_begins.as<int32_t>()[i],
               static_cast<uint64_t>(r.tree_masks.as<int64_t>()[in_range])};
    }
    for (; count < num_seen(token); ++count) {
      const int64_t place = place_of_seen(token, count);
      f(pages[place / kPageSize] * kPageSize + place % kPageSize);
    }
    FATHOM_CHECK(b.attention.positions.as<int32_t>()[t] == count - 1,
                 "a token stands behind the keys before it");
  }

  static uint64_t mix(uint64_t digest, int32_t token) {
    if (digest == 0 || token == kNanToken) return 0;
    const PhiloxBlock b = philox_block(digest, static_cast<uint64_t>(token), 3);
    return (b.word[0] | uint64_t{b.word[1]} << 32) | 1;
  }

  static std::vector<float> logits_of(uint64_t digest, int64_t vocab) {
    std::vector<float> logits(static_cast<size_t>(vocab));
    fill_logits(digest, logits.data(), vocab);
    return logits;
  }

  static void fill_logits(uint64_t digest, float* logits, int64_t vocab) {
    Rng rng(digest);
    for (int64_t v = 0; v < vocab; ++v) {
      logits[v] = digest == 0      ? std::numeric_limits<float>::quiet_NaN()
                  : v == kNanToken ? -50.0f
                                   : 6.0f * rng.next_uniform();
    }
  }

 private:
  void run_range(const Batch& b, const TokenRange& r, const View& logits, int64_t& row) const {
    for (int64_t i = 0; i < r.num_requests(); ++i) {
      const int64_t first = r.token_begin + r.query_offsets[static_cast<size_t>(i)];
      const int64_t end = r.token_begin + r.query_offsets[static_cast<size_t>(i) + 1];
      for (int64_t t = first; t < end; ++t) {
        const auto id = static_cast<float>(b.token_ids.as<int32_t>()[t]);
        for (const View& layer : b.cache[0].views)
          layer.as<float>()[b.slots[0].as<int64_t>()[t]] = id;
        if (row == logits.dim(0) || b.logit_rows.as<int32_t>()[row] != t) continue;
        uint64_t digest = 1;
        each_key(b, r, i, t, [&](int64_t slot) {
          digest = mix(digest, static_cast<int32_t>(b.cache[0].at(1).as<float>()[slot]));
        });
        fill_logits(digest, logits.row<float>(row++), config_.vocab_size);
      }
    }
  }

  WeightStore weights_;
};

}  // namespace fathom
