// DeepSeek-V4 and its draft layer against the float64 oracle, on random weights: of every kind of
// layer, with every tensor filled, so that one that is forgotten shows.
#include <cmath>
#include <fstream>
#include <functional>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "fathom/base/rng.h"
#include "fathom/formats/minifloat.h"
#include "fathom/models/deepseek/v4/v4_names.h"
#include "fathom/weights/export/quantizer.h"
#include "tests/support/model_runner.h"
#include "tests/support/reference_v4.h"
#include "tests/support/temp_dir.h"

namespace fathom {
namespace {

using testing::HasSubstr;

constexpr int64_t kVocab = 256;
constexpr int64_t kState = 4 * 64;  // streams of a token

constexpr const char* kConfig = R"({
  "architectures": ["DeepseekV4ForCausalLM"], "model_type": "deepseek_v4",
  "vocab_size": 256, "hidden_size": 64, "num_hidden_layers": 4, "num_nextn_predict_layers": 1,
  "num_attention_heads": 4, "num_key_value_heads": 1, "head_dim": 32, "qk_rope_head_dim": 16,
  "q_lora_rank": 32, "o_groups": 2, "o_lora_rank": 32, "sliding_window": 8,
  "compress_ratios": [0, 4, 128, 4, 0], "rope_theta": 10000, "compress_rope_theta": 160000,
  "rope_scaling": {"type": "yarn", "factor": 4, "beta_fast": 32, "beta_slow": 1,
                   "original_max_position_embeddings": 128},
  "max_position_embeddings": 512, "index_n_heads": 16, "index_head_dim": 32, "index_topk": 8,
  "n_routed_experts": 8, "n_shared_experts": 1, "num_experts_per_tok": 3,
  "moe_intermediate_size": 32, "num_hash_layers": 1, "scoring_func": "sqrtsoftplus",
  "topk_method": "noaux_tc", "norm_topk_prob": true, "routed_scaling_factor": 1.5,
  "swiglu_limit": 0.7, "hc_mult": 4, "hc_sinkhorn_iters": 20, "hc_eps": 1e-6,
  "rms_norm_eps": 1e-6, "tie_word_embeddings": false, "torch_dtype": "bfloat16"})";

using Rename = std::function<std::string(const std::string&)>;  // an empty name: left out

class V4Checkpoint {
 public:
  explicit V4Checkpoint(const Rename& rename = [](const std::string& name) { return name; })
      : rename_(rename) {
    std::ofstream(dir_.file("config.json")) << kConfig;
    matrix("embed.weight", kVocab, 64);
    for (int l = 0; l < 4; ++l)
      layer(str_cat("layers.", l, "."), l % 2 == 1 ? 4 : l == 2 ? 128 : 0, l == 0);
    streams("hc_head_", 4, 1);
    vector("norm.weight", 64, 1.0f);
    matrix("head.weight", kVocab, 64);
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
    add<int64_t>(name, Format::kI64, {kVocab, 3}, [&](Rng& rng) {
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
  uint64_t seed_ = 0;
  std::vector<TensorEntry> entries_;
  std::string data_;
};

std::vector<int32_t> some_tokens(size_t count, uint64_t seed) {
  Rng rng(seed);
  std::vector<int32_t> tokens(count);
  for (int32_t& t : tokens)
    t = static_cast<int32_t>(rng.next_below(kVocab));
  return tokens;
}

ModelOptions f32_options() {
  ModelOptions o;
  o.activations = Format::kF32;
  o.indexer_format = Format::kF32;
  return o;
}

// The largest |a - b|.
template <class A, class B>
double difference(const std::vector<A>& a, const std::vector<B>& b) {
  FATHOM_CHECK(a.size() == b.size());
  double most = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    const double d = std::abs(static_cast<double>(a[i]) - static_cast<double>(b[i]));
    if (!(d <= most)) most = d;  // NaN stays
  }
  return most;
}

// The rows [first, first + count) of states, in the format of the activations.
View rows_of(std::vector<std::byte>& states, int64_t first, int64_t count, Format format) {
  const int64_t width = kState * element_bytes(format);
  return make_view(states.data() + first * width, {count, kState}, format);
}

// A prompt that went through the main model, and the draft pass over it.
struct Prompt {
  std::vector<int32_t> tokens;
  std::vector<int32_t> next;  // token i + 1 of state i
  std::vector<std::byte> states;
  StepResult draft;
};

Prompt run_prompt(ModelRunner& runner, size_t count, uint64_t seed) {
  Prompt p;
  p.tokens = some_tokens(count, seed);
  p.next.assign(p.tokens.begin() + 1, p.tokens.end());
  p.states = runner.prefill(p.tokens).hidden;
  const auto rows = static_cast<int64_t>(p.next.size());
  const View hidden = rows_of(p.states, 0, rows, runner.model().options().activations);
  const auto pages = ModelRunner::page_list(0, 4);
  p.draft = runner.step({{.tokens = p.next, .pages = pages, .slot = 0, .logits = LogitRows::kAll}},
                        {}, nullptr, &hidden);
  return p;
}

// Longer than a block of 128 tokens, and than what the ring of the window takes in one piece.
constexpr size_t kLong = 150;

TEST(V4Oracle, MainModelMatches) {
  const V4Checkpoint checkpoint;
  oracle::ReferenceV4 reference(checkpoint.path());
  ModelRunner runner(checkpoint.path(), f32_options());
  const auto tokens = some_tokens(kLong, 1);

  const StepResult result = runner.prefill(tokens);

  const oracle::Matrix expected = reference.streams(tokens);
  EXPECT_LE(difference(as_floats(result.hidden), expected.v), 1e-4);
  EXPECT_LE(difference(result.logits, reference.logits(expected).v), 1e-4);
}

TEST(V4Oracle, DraftMatches) {
  const V4Checkpoint checkpoint;
  oracle::ReferenceV4 reference(checkpoint.path());
  ModelRunner runner(checkpoint.path(), f32_options());
  ASSERT_TRUE(runner.model().has_draft());

  const Prompt p = run_prompt(runner, kLong, 2);

  oracle::Matrix states = reference.streams(p.tokens);
  states.rows = static_cast<int64_t>(p.next.size());
  states.v.resize(static_cast<size_t>(states.rows * states.cols));
  const oracle::Matrix expected = reference.draft_streams(p.next, states);
  EXPECT_LE(difference(as_floats(p.draft.hidden), expected.v), 1e-4);
  EXPECT_LE(difference(p.draft.logits, reference.draft_logits(expected).v), 1e-4);
}

// What quantize writes of both, against the oracle on the values that its codes and scales have.
TEST(V4Oracle, QuantisedMainModelAndDraftMatch) {
  const V4Checkpoint checkpoint;
  for (const Format format : {Format::kNvfp4, Format::kMxfp4, Format::kFp8BlockUe8m0}) {
    const TempDir target;
    QuantizeOptions options;
    options.format = format;
    options.scope = QuantScope::kAllLinear;
    const Checkpoint source = Checkpoint::open(checkpoint.path()).value();
    const auto report = quantize_checkpoint(source, target.file("q"), options);
    ASSERT_TRUE(report.ok()) << report.status().message();
    oracle::ReferenceV4 reference(target.file("q"));
    ModelRunner runner(target.file("q"), f32_options());
    ASSERT_TRUE(runner.model().has_draft());

    const Prompt p = run_prompt(runner, 40, 2);

    oracle::Matrix states = reference.streams(p.tokens);
    EXPECT_LE(difference(as_floats(p.states), states.v), 1e-4) << format_name(format);
    states.rows = static_cast<int64_t>(p.next.size());
    states.v.resize(static_cast<size_t>(states.rows * states.cols));
    const oracle::Matrix expected = reference.draft_streams(p.next, states);
    EXPECT_LE(difference(p.draft.logits, reference.draft_logits(expected).v), 1e-4)
        << format_name(format);
  }
}

// The draft's own streams go in again, with the token that was drafted.
TEST(V4Oracle, SecondDraftStepMatches) {
  const V4Checkpoint checkpoint;
  oracle::ReferenceV4 reference(checkpoint.path());
  ModelRunner runner(checkpoint.path(), f32_options());
  Prompt p = run_prompt(runner, 20, 3);
  const auto rows = static_cast<int64_t>(p.next.size()) - 1;
  const std::vector<int32_t> after(p.next.begin() + 1, p.next.end());
  const View hidden = rows_of(p.draft.hidden, 0, rows, Format::kF32);
  const auto pages = ModelRunner::page_list(0, 4);

  const StepResult second =
      runner.step({{.tokens = after, .pages = pages, .slot = 1, .logits = LogitRows::kAll}}, {},
                  nullptr, &hidden);

  oracle::Matrix states = reference.streams(p.tokens);
  states.rows = static_cast<int64_t>(p.next.size());
  states.v.resize(static_cast<size_t>(states.rows * states.cols));
  states = reference.draft_streams(p.next, states);
  states.rows = rows;
  states.v.resize(static_cast<size_t>(rows * states.cols));
  const oracle::Matrix expected = reference.draft_streams(after, states);
  EXPECT_LE(difference(second.logits, reference.draft_logits(expected).v), 1e-4);
}

TEST(V4Draft, PiecesAndSingleTokensGiveWhatOnePassGives) {
  const V4Checkpoint checkpoint;
  ModelRunner runner(checkpoint.path(), f32_options());
  Prompt p = run_prompt(runner, kLong, 4);
  const auto pages = ModelRunner::page_list(0, 4);
  std::vector<float> logits;
  std::vector<std::byte> states;

  // Pieces of a prompt, then three tokens at once, then one after the other.
  int64_t at = 0;
  for (const int64_t count : {1, 40, 17, 80, 3, 1, 1, 1, 1, 1, 1, 1, 1}) {
    const View hidden = rows_of(p.states, at, count, Format::kF32);
    SequenceStep step{
        .tokens = std::span(p.next).subspan(static_cast<size_t>(at), static_cast<size_t>(count)),
        .cached = at,
        .pages = pages,
        .slot = 2,
        .logits = LogitRows::kAll};
    const StepResult r = count > 3 ? runner.step({step}, {}, nullptr, &hidden)
                                   : runner.step({}, {step}, nullptr, &hidden);
    logits.insert(logits.end(), r.logits.begin(), r.logits.end());
    states.insert(states.end(), r.hidden.begin(), r.hidden.end());
    at += count;
  }

  ASSERT_EQ(at, static_cast<int64_t>(p.next.size()));
  EXPECT_LE(difference(logits, p.draft.logits), 1e-5);
  EXPECT_LE(difference(as_floats(states), as_floats(p.draft.hidden)), 1e-5);
}

TEST(V4Draft, SeveralRequestsGiveWhatEachGivesAlone) {
  const V4Checkpoint checkpoint;
  ModelRunner runner(checkpoint.path(), f32_options());
  std::vector<Prompt> alone;
  for (const size_t count : {30, 12, 25})
    alone.push_back(run_prompt(runner, count, count));
  // Two are in their last tokens, after passes over those before; the third is a prompt.
  const int64_t first_tokens[] = {27, 9};
  std::vector<std::vector<int32_t>> pages;
  for (int32_t i = 0; i < 3; ++i)
    pages.push_back(ModelRunner::page_list(4 * i, 4));
  for (size_t i = 0; i < 2; ++i) {
    const View hidden = rows_of(alone[i].states, 0, first_tokens[i], Format::kF32);
    runner.step({{.tokens = std::span(alone[i].next).first(static_cast<size_t>(first_tokens[i])),
                  .pages = pages[i],
                  .slot = static_cast<int32_t>(i)}},
                {}, nullptr, &hidden);
  }
  std::vector<std::byte> states(alone[2].states.begin(), alone[2].states.begin() + 24 * kState * 4);
  std::vector<SequenceStep> decode;
  std::vector<float> expected = alone[2].draft.logits;
  for (size_t i = 0; i < 2; ++i) {
    const auto skip = static_cast<size_t>(first_tokens[i]);
    const auto tokens = std::span(alone[i].next).subspan(skip);
    decode.push_back({.tokens = tokens,
                      .cached = first_tokens[i],
                      .pages = pages[i],
                      .slot = static_cast<int32_t>(i),
                      .logits = LogitRows::kAll});
    const auto from = alone[i].states.begin() + first_tokens[i] * kState * 4;
    states.insert(states.end(), from, from + static_cast<int64_t>(tokens.size()) * kState * 4);
    expected.insert(expected.end(),
                    alone[i].draft.logits.begin() + static_cast<int64_t>(skip) * kVocab,
                    alone[i].draft.logits.end());
  }
  const View hidden = rows_of(states, 0, 24 + 2 + 2, Format::kF32);

  const StepResult together = runner.step(
      {{.tokens = alone[2].next, .pages = pages[2], .slot = 2, .logits = LogitRows::kAll}}, decode,
      nullptr, &hidden);

  EXPECT_LE(difference(together.logits, expected), 1e-5);
}

TEST(V4Draft, Bf16IsNearF32) {
  const V4Checkpoint checkpoint;
  ModelRunner exact(checkpoint.path(), f32_options());
  ModelRunner rounded(checkpoint.path());
  const Prompt p = run_prompt(exact, 8, 5);
  const View states = rows_of(const_cast<std::vector<std::byte>&>(p.states), 0, 7, Format::kF32);
  std::vector<Bf16> rows;
  for (int64_t i = 0; i < states.numel(); ++i)
    rows.push_back(bf16_from_float(states.as<float>()[i]));
  const View hidden = make_view(rows.data(), {7, kState}, Format::kBf16);
  const auto pages = ModelRunner::page_list(0, 1);

  const StepResult draft =
      rounded.step({{.tokens = p.next, .pages = pages, .slot = 0, .logits = LogitRows::kAll}}, {},
                   nullptr, &hidden);

  double error = 0;
  double size = 0;
  for (size_t i = 0; i < draft.logits.size(); ++i) {
    error += std::pow(static_cast<double>(draft.logits[i]) - p.draft.logits[i], 2);
    size += std::pow(p.draft.logits[i], 2);
  }
  EXPECT_LE(std::sqrt(error / size), 0.03);
}

TEST(V4Draft, NamesOfTransformersGiveTheSameBits) {
  const V4Checkpoint official;
  const V4Checkpoint renamed(transformers_name);
  const V4Checkpoint copied([](const std::string& name) {
    return name.starts_with("mtp.") ? name : transformers_name(name);
  });
  ModelRunner of_official(official.path(), f32_options());
  const Prompt expected = run_prompt(of_official, 20, 6);

  for (const V4Checkpoint* other : {&renamed, &copied}) {
    ModelRunner runner(other->path(), f32_options());
    const Prompt p = run_prompt(runner, 20, 6);
    EXPECT_EQ(p.draft.logits, expected.draft.logits);
  }
  EXPECT_EQ(transformers_name("mtp.0.attn.wq_a.weight"), "mtp.0.self_attn.q_a_proj.weight");
  EXPECT_EQ(transformers_name("mtp.0.hc_head_fn"), "mtp.0.hc_head.hc_fn");
  EXPECT_EQ(transformers_name("mtp.0.e_proj.weight"), "mtp.0.e_proj.weight");
}

TEST(V4Draft, IsAbsentWithoutItsTensorsOrByTheOptions) {
  const V4Checkpoint without(
      [](const std::string& name) { return name.starts_with("mtp.") ? std::string() : name; });
  const V4Checkpoint with;
  ModelOptions no_draft = f32_options();
  no_draft.draft = false;
  ModelRunner a(without.path(), f32_options());
  ModelRunner b(with.path(), no_draft);
  ModelRunner c(with.path(), f32_options());
  const auto tokens = some_tokens(20, 7);

  for (const ModelRunner* runner : {&a, &b}) {
    EXPECT_FALSE(runner->model().has_draft());
    EXPECT_EQ(runner->model().cache_layout().groups[0].layers.size(), 4u);
  }
  EXPECT_EQ(c.model().cache_layout().groups[0].layers.size(), 5u);
  EXPECT_EQ(a.prefill(tokens).logits, c.prefill(tokens).logits);
  EXPECT_EQ(b.prefill(tokens).logits, c.prefill(tokens).logits);
}

// Any of its tensors, the layer's own and those of the draft alone.
TEST(V4Draft, APartOfItIsRefusedByName) {
  for (const std::string missing :
       {"mtp.0.e_proj.weight", "mtp.0.h_proj.weight", "mtp.0.enorm.weight", "mtp.0.hnorm.weight",
        "mtp.0.norm.weight", "mtp.0.hc_head_scale", "mtp.0.attn.attn_sink", "mtp.0.ffn.gate.bias",
        "mtp.0.ffn.experts.7.w2.weight", "mtp.0.attn_norm.weight"}) {
    const V4Checkpoint checkpoint(
        [&](const std::string& name) { return name == missing ? std::string() : name; });
    OpenOptions open;
    open.weights = WeightOrigin::kNone;

    const auto model = open_model(ModelSource::open(checkpoint.path()).value(), {}, open);

    ASSERT_FALSE(model.ok()) << missing;
    EXPECT_THAT(model.status().message(), HasSubstr("1 tensor is missing: " + missing));
  }
}

TEST(V4Draft, StatesOfAnotherWidthAreRefused) {
  const V4Checkpoint checkpoint;
  OpenOptions open;
  open.weights = WeightOrigin::kNone;
  const auto model = open_model(ModelSource::open(checkpoint.path()).value(), {}, open).value();
  BatchBuffer buffer(model->cache_layout());
  const int32_t token = 1;
  const int32_t page = 0;
  const Batch batch =
      buffer
          .build({},
                 std::vector<SequenceStep>{{.tokens = {&token, 1}, .pages = {&page, 1}, .slot = 0}})
          .value();
  Exec ex;
  ForwardOut out;

  const Status status = model->draft(ex, batch, make_view(nullptr, {1, 64}, Format::kBf16), out);

  EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
  EXPECT_THAT(status.message(), HasSubstr("[1, 64] bf16, expected the streams [1, 256]"));
}

TEST(V4Draft, DryRunTakesMemoryForItsTokens) {
  const V4Checkpoint checkpoint;
  OpenOptions open;
  open.weights = WeightOrigin::kNone;
  const auto model = open_model(ModelSource::open(checkpoint.path()).value(), {}, open).value();
  BatchShape shape;
  shape.decode = {.count = 3, .new_tokens = 2, .cached = 40};

  const auto needs = dry_run(*model, shape, {.pass = DryPass::kDraft});

  ASSERT_TRUE(needs.ok()) << needs.status().message();
  // At least the streams, and what they are made of: a half of the token and one of its streams.
  EXPECT_GE(needs->activation_bytes, 6 * kState * 2 * 3);
}

}  // namespace
}  // namespace fathom
