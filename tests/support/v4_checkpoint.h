// A small DeepSeek-V4 checkpoint with a draft layer: random weights, layers of every kind.
#pragma once

#include <cmath>
#include <fstream>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "fathom/base/rng.h"
#include "fathom/base/str_cat.h"
#include "fathom/formats/minifloat.h"
#include "fathom/weights/checkpoint/safetensors.h"
#include "tests/support/temp_dir.h"

namespace fathom {

/// Every tensor is filled. A window of 8 tokens, blocks of 4 and 128, an indexer, four streams.
class V4Checkpoint {
 public:
  static constexpr int64_t kVocab = 256;
  static constexpr int64_t kState = 4 * 64;  ///< streams of a token

  using Rename = std::function<std::string(const std::string&)>;  ///< an empty name: left out

  explicit V4Checkpoint(
      const Rename& rename = [](const std::string& name) { return name; }, int64_t vocab = kVocab)
      : rename_(rename), vocab_(vocab) {
    std::ofstream(dir_.file("config.json")) << "{\"vocab_size\": " << vocab << kConfig;
    matrix("embed.weight", vocab, 64);
    for (int l = 0; l < 4; ++l)
      layer(str_cat("layers.", l, "."), l % 2 == 1 ? 4 : l == 2 ? 128 : 0, l == 0);
    streams("hc_head_", 4, 1);
    vector("norm.weight", 64, 1.0f);
    matrix("head.weight", vocab, 64);
    layer("mtp.0.", 0, false);
    for (const char* name : {"enorm", "hnorm", "norm"})
      vector(str_cat("mtp.0.", name, ".weight"), 64, 1.0f);
    for (const char* name : {"e_proj", "h_proj"})
      matrix(str_cat("mtp.0.", name, ".weight"), 64, 64);
    streams("mtp.0.hc_head_", 4, 1);
    std::ofstream(dir_.file("model.safetensors"), std::ios::binary)
        << format_safetensors_header(entries_, {}) << data_;
  }

  const std::string& path() const { return dir_.path(); }

 private:
  static constexpr const char* kConfig = R"(,
  "architectures": ["DeepseekV4ForCausalLM"], "model_type": "deepseek_v4",
  "hidden_size": 64, "num_hidden_layers": 4, "num_nextn_predict_layers": 1,
  "num_attention_heads": 4, "num_key_value_heads": 1, "head_dim": 32, "qk_rope_head_dim": 16,
  "q_lora_rank": 32, "o_groups": 2, "o_lora_rank": 32, "sliding_window": 8,
  "compress_ratios": [0, 4, 128, 4, 0], "rope_theta": 10000, "compress_rope_theta": 160000,
  "rope_scaling": {"type": "yarn", "factor": 4, "beta_fast": 32, "beta_slow": 1,
                   "original_max_position_embeddings": 128},
  "max_position_embeddings": 4096, "index_n_heads": 16, "index_head_dim": 32, "index_topk": 8,
  "n_routed_experts": 8, "n_shared_experts": 1, "num_experts_per_tok": 3,
  "moe_intermediate_size": 32, "num_hash_layers": 1, "scoring_func": "sqrtsoftplus",
  "topk_method": "noaux_tc", "norm_topk_prob": true, "routed_scaling_factor": 1.5,
  "swiglu_limit": 0.7, "hc_mult": 4, "hc_sinkhorn_iters": 20, "hc_eps": 1e-6,
  "rms_norm_eps": 1e-6, "tie_word_embeddings": false, "torch_dtype": "bfloat16"})";

  void layer(const std::string& p, int64_t ratio, bool by_token) {
    streams(p + "hc_attn_", 24, 3);
    streams(p + "hc_ffn_", 24, 3);
    vector(p + "attn_norm.weight", 64, 1.0f);
    vector(p + "ffn_norm.weight", 64, 1.0f);
    matrix(p + "attn.wq_a.weight", 32, 64);
    vector(p + "attn.q_norm.weight", 32, 1.0f);
    matrix(p + "attn.wq_b.weight", 4 * 32, 32);
    matrix(p + "attn.wkv.weight", 32, 64);
    vector(p + "attn.kv_norm.weight", 32, 1.0f);
    floats(p + "attn.attn_sink", {4}, 0.0f, 1.0f);
    matrix(p + "attn.wo_a.weight", 2 * 32, 2 * 32);
    matrix(p + "attn.wo_b.weight", 64, 2 * 32);
    if (ratio > 0) compressor(p + "attn.compressor.", ratio, 32);
    if (ratio == 4) {
      compressor(p + "attn.indexer.compressor.", ratio, 32);
      matrix(p + "attn.indexer.wq_b.weight", 16 * 32, 32);
      matrix(p + "attn.indexer.weights_proj.weight", 16, 64);
    }
    matrix(p + "ffn.gate.weight", 8, 64);
    if (by_token) {
      hash_table(p + "ffn.gate.tid2eid");
    } else {
      floats(p + "ffn.gate.bias", {8}, 0.0f, 0.5f);
    }
    for (int e = 0; e < 8; ++e)
      mlp(str_cat(p, "ffn.experts.", e, "."));
    mlp(p + "ffn.shared_experts.");
  }

  void mlp(const std::string& p) {
    matrix(p + "w1.weight", 32, 64);
    matrix(p + "w3.weight", 32, 64);
    matrix(p + "w2.weight", 64, 32);
  }

  void compressor(const std::string& p, int64_t ratio, int64_t width) {
    const int64_t rows = ratio == 4 ? 2 * width : width;
    matrix(p + "wkv.weight", rows, 64);
    matrix(p + "wgate.weight", rows, 64);
    floats(p + "ape", {ratio, rows}, 0.0f, 0.5f);
    vector(p + "norm.weight", width, 1.0f);
  }

  void streams(const std::string& p, int64_t rows, int64_t scales) {
    floats(p + "fn", {rows, kState}, 0.0f, 0.1f);
    floats(p + "base", {rows}, 0.0f, 1.0f);
    floats(p + "scale", {scales}, 1.0f, 0.3f);
  }

  void matrix(const std::string& name, int64_t n, int64_t k) {
    bf16s(name, {n, k}, 0.0f, 1.5f / std::sqrt(static_cast<float>(k)));
  }

  void vector(const std::string& name, int64_t n, float mean) { bf16s(name, {n}, mean, 0.2f); }

  void bf16s(const std::string& name, std::vector<int64_t> shape, float mean, float deviation) {
    add<Bf16>(name, Format::kBf16, std::move(shape),
              [&](Rng& rng) { return bf16_from_float(mean + deviation * rng.next_normal()); });
  }

  void floats(const std::string& name, std::vector<int64_t> shape, float mean, float deviation) {
    add<float>(name, Format::kF32, std::move(shape),
               [&](Rng& rng) { return mean + deviation * rng.next_normal(); });
  }

  // The experts of a token are three different ones.
  void hash_table(const std::string& name) {
    int64_t column = 0;
    int64_t first = 0;
    add<int64_t>(name, Format::kI64, {vocab_, 3}, [&](Rng& rng) {
      if (column % 3 == 0) first = rng.next_below(8);
      return (first + 2 * (column++ % 3)) % 8;
    });
  }

  // Numbers follow from the place of the tensor, so those of other names are the same.
  template <class T, class F>
  void add(const std::string& name, Format dtype, std::vector<int64_t> shape, F next) {
    Rng rng(++seed_);
    int64_t count = 1;
    for (const int64_t d : shape)
      count *= d;
    std::string bytes;
    for (int64_t i = 0; i < count; ++i) {
      const T value = next(rng);
      bytes.append(reinterpret_cast<const char*>(&value), sizeof value);
    }
    const std::string stored = rename_(name);
    if (stored.empty()) return;
    entries_.push_back({stored, dtype, std::move(shape), 0, 0});
    data_ += bytes;
  }

  TempDir dir_;
  Rename rename_;
  int64_t vocab_;
  uint64_t seed_ = 0;
  std::vector<TensorEntry> entries_;
  std::string data_;
};

}  // namespace fathom
