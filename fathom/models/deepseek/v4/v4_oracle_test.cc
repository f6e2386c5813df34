// DeepSeek-V4 and its draft layer against the float64 oracle, on random weights: of every kind of
// layer, with every tensor filled, so that one that is forgotten shows.
#include <algorithm>
#include <cmath>
#include <fstream>
#include <functional>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "fathom/base/rng.h"
#include "fathom/formats/minifloat.h"
#include "fathom/models/deepseek/v4/v4_names.h"
#include "fathom/models/dry/dry_records.h"
#include "fathom/weights/export/quantizer.h"
#include "tests/support/model_runner.h"
#include "tests/support/reference_v4.h"
#include "tests/support/temp_dir.h"
#include "tests/support/v4_checkpoint.h"

namespace fathom {
namespace {

using testing::HasSubstr;

constexpr int64_t kVocab = V4Checkpoint::kVocab;
constexpr int64_t kState = V4Checkpoint::kState;

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

// Longer than a block of 128 tokens, and than what attends by way of the window's ring.
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

// On a CPU the kernels are their parts in their order, so that no bit may differ.
TEST(V4Oracle, StreamsChainedAndARouterInOneKernelGiveTheSameBits) {
  const V4Checkpoint checkpoint;
  ModelOptions chained = f32_options();
  chained.chain_streams = true;
  chained.moe.join_router = true;
  ModelRunner apart(checkpoint.path(), f32_options());
  ModelRunner together(checkpoint.path(), chained);
  for (const size_t count : {1, 30, 40}) {  // 40: more than are chained
    const auto tokens = some_tokens(count, 5);
    const StepResult expected = apart.prefill(tokens);
    const StepResult found = together.prefill(tokens);
    EXPECT_EQ(found.hidden, expected.hidden) << count;
    EXPECT_EQ(found.logits, expected.logits) << count;
  }
  EXPECT_EQ(run_prompt(together, 20, 6).draft.logits, run_prompt(apart, 20, 6).draft.logits);
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
    options.scope = QuantScope::kCompressors;
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

// However long it is; behind others the tokens that look at them make a call of their own.
TEST(V4Attention, APromptAttendsInOneCallALayer) {
  OpenOptions open;
  open.weights = WeightOrigin::kNone;
  const auto model =
      open_model(ModelSource::describe(find_preset("deepseek-v4-flash").value()), {}, open).value();
  const auto calls = [&](const BatchShape& shape) {
    const std::vector<OpRecord> records = dry_records(*model, shape, {}).value();
    return std::ranges::count_if(records, [](const OpRecord& r) {
      return std::string_view(r.kernel) == "sparse_mla_decode";
    });
  };
  BatchShape fresh;
  fresh.prefill = {.count = 1, .new_tokens = 8192};
  fresh.more_prefill = {.count = 2, .new_tokens = 500};
  BatchShape behind;
  behind.prefill = {.count = 1, .new_tokens = 8192, .cached = 8192};

  EXPECT_EQ(calls(fresh), model->config().num_hidden_layers);
  EXPECT_EQ(calls(behind), 2 * model->config().num_hidden_layers);
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
