// Equalities that a model keeps whatever the weights are: of attention forms, of the way a prompt
// is cut, of cached and cold prefixes, of neighbours, of expert strategies, of threads.
#include <algorithm>
#include <cmath>
#include <gtest/gtest.h>

#include "fathom/base/rng.h"
#include "tests/support/model_runner.h"

namespace fathom {
namespace {

const std::string kModel = FATHOM_SOURCE_DIR "/tests/golden/micro-v3";
const std::string kLite = FATHOM_SOURCE_DIR "/tests/golden/micro-v2-lite";

std::vector<int32_t> some_tokens(int64_t count, uint64_t seed = 5) {
  Rng rng(seed);
  std::vector<int32_t> tokens;
  for (int64_t i = 0; i < count; ++i)
    tokens.push_back(static_cast<int32_t>(rng.next_below(4096)));
  return tokens;
}

// Small pages and chunks, so that a short prompt has many of both.
ModelOptions small_chunks(Format activations, Format kv) {
  ModelOptions o;
  o.activations = activations;
  o.kv_format = kv;
  o.page_size = 16;
  o.attention.prefill_chunk = 64;
  return o;
}

// A prompt in steps of these sizes (the last one repeats); logits of every position.
std::vector<float> in_steps(ModelRunner& runner,
                            const std::vector<int32_t>& tokens,
                            const std::vector<int64_t>& sizes,
                            const std::vector<int32_t>& pages) {
  std::vector<float> logits;
  int64_t done = 0;
  for (size_t i = 0; done < static_cast<int64_t>(tokens.size()); ++i) {
    const int64_t size =
        std::min(sizes[std::min(i, sizes.size() - 1)], static_cast<int64_t>(tokens.size()) - done);
    const StepResult r = runner.step(
        {{.tokens = std::span(tokens).subspan(static_cast<size_t>(done), static_cast<size_t>(size)),
          .cached = done,
          .pages = pages,
          .logits = LogitRows::kAll}},
        {});
    logits.insert(logits.end(), r.logits.begin(), r.logits.end());
    done += size;
  }
  return logits;
}

std::vector<float> decode_all(ModelRunner& runner, const std::vector<int32_t>& tokens) {
  std::vector<float> logits;
  for (size_t i = 0; i < tokens.size(); ++i) {
    const StepResult r = runner.decode(tokens[i], static_cast<int64_t>(i));
    logits.insert(logits.end(), r.logits.begin(), r.logits.end());
  }
  return logits;
}

bool all_finite(const std::vector<float>& v) {
  for (float x : v) {
    if (!std::isfinite(x)) return false;
  }
  return true;
}

// |a - b| / |b| of the median row: rounding lets a few tokens of a random model choose other
// experts, and those rows differ by order 1 in two correct computations.
double row_difference(const std::vector<float>& a, const std::vector<float>& b) {
  constexpr size_t kVocab = 4096;
  FATHOM_CHECK(a.size() == b.size() && a.size() % kVocab == 0 && !a.empty());
  std::vector<double> rows;
  for (size_t row = 0; row < a.size(); row += kVocab) {
    double error = 0;
    double size = 0;
    for (size_t i = row; i < row + kVocab; ++i) {
      const double d = static_cast<double>(a[i]) - static_cast<double>(b[i]);
      error += d * d;
      size += static_cast<double>(b[i]) * static_cast<double>(b[i]);
    }
    rows.push_back(std::sqrt(error / size));
  }
  std::nth_element(rows.begin(), rows.begin() + static_cast<int64_t>(rows.size() / 2), rows.end());
  return rows[rows.size() / 2];
}

struct FormatCase {
  Format activations;
  Format kv;
};

class Equality : public testing::TestWithParam<FormatCase> {
 protected:
  ModelOptions options() const { return small_chunks(GetParam().activations, GetParam().kv); }

  // What rounding of activations costs two orders of the same arithmetic, twice what was measured.
  double gate() const {
    return GetParam().activations == Format::kF32 ? 2e-6 : 0.03;  // measured: 7e-7, 0.016
  }
};

TEST_P(Equality, PromptInStepsHasTheBitsOfOneStep) {
  ModelRunner runner(kModel, options());
  const auto tokens = some_tokens(211);
  const auto pages = ModelRunner::page_list(0, 14);
  const auto whole = in_steps(runner, tokens, {211}, pages);
  ASSERT_TRUE(all_finite(whole));

  for (const std::vector<int64_t>& sizes : std::vector<std::vector<int64_t>>{
           {1, 210}, {64}, {63, 65, 83}, {7, 1, 120, 2}, {128, 83}, {200, 1}}) {
    runner.poison_pages();
    EXPECT_EQ(in_steps(runner, tokens, sizes, pages), whole) << "first step " << sizes[0];
  }
}

TEST_P(Equality, CachedPrefixGivesTheBitsOfAColdOne) {
  ModelRunner runner(kModel, options());
  const auto prefix = some_tokens(96);
  auto one = prefix;
  auto two = prefix;
  for (int32_t t : some_tokens(41, 1))
    one.push_back(t);
  for (int32_t t : some_tokens(50, 2))
    two.push_back(t);
  const auto cold = runner.prefill(two).logits;
  runner.poison_pages();
  runner.prefill(one);  // leaves the pages of the prefix: 96 tokens are six of them

  const std::vector<float> warm = runner.prefill(two, 96).logits;

  EXPECT_TRUE(std::equal(warm.begin(), warm.end(), cold.end() - static_cast<int64_t>(warm.size())));
}

TEST_P(Equality, PagesMayLieAnywhere) {
  ModelRunner runner(kModel, options());
  const auto tokens = some_tokens(100);
  const auto straight = in_steps(runner, tokens, {40}, ModelRunner::page_list(0, 7));
  runner.poison_pages();

  const auto scattered = in_steps(runner, tokens, {40}, {33, 2, 61, 7, 8, 19, 0});

  EXPECT_EQ(straight, scattered);
}

TEST_P(Equality, RequestsDoNotDependOnTheirNeighbours) {
  ModelRunner runner(kModel, options());
  const auto a = some_tokens(30, 1);
  const auto b = some_tokens(71, 2);
  const auto c = some_tokens(9, 3);
  const auto pages_a = ModelRunner::page_list(0, 2);
  const auto pages_b = ModelRunner::page_list(10, 5);
  const auto pages_c = ModelRunner::page_list(20, 1);
  const auto step_of = [](const std::vector<int32_t>& t, int64_t cached,
                          const std::vector<int32_t>& pages) {
    return SequenceStep{.tokens = std::span(t).subspan(static_cast<size_t>(cached)),
                        .cached = cached,
                        .pages = pages};
  };
  std::vector<int32_t> first_c(c.begin(), c.end() - 1);
  const auto alone_a = runner.step({step_of(a, 0, pages_a)}, {}).logits;
  const auto alone_b = runner.step({step_of(b, 0, pages_b)}, {}).logits;
  runner.step({step_of(first_c, 0, pages_c)}, {});
  const auto alone_c = runner.step({}, {step_of(c, 8, pages_c)}).logits;

  const StepResult mixed =
      runner.step({step_of(a, 0, pages_a), step_of(b, 0, pages_b)}, {step_of(c, 8, pages_c)});

  EXPECT_EQ(mixed.row(0), alone_a);
  EXPECT_EQ(mixed.row(1), alone_b);
  EXPECT_EQ(mixed.row(2), alone_c);
}

TEST_P(Equality, AbsorbedFormAgreesWithExpandedForm) {
  ModelRunner expanded(kModel, options());
  ModelOptions absorbed_options = options();
  absorbed_options.attention.always_absorbed = true;
  ModelRunner absorbed(kModel, absorbed_options);
  const auto tokens = some_tokens(90);

  const auto a = expanded.prefill(tokens).logits;
  const auto b = absorbed.prefill(tokens).logits;

  EXPECT_LE(row_difference(a, b), gate());
}

TEST_P(Equality, AbsorbedPrefillHasTheBitsOfDecoding) {
  ModelOptions o = options();
  o.attention.always_absorbed = true;
  ModelRunner runner(kModel, o);
  const auto tokens = some_tokens(35);
  const auto prefilled = runner.prefill(tokens).logits;
  runner.poison_pages();

  EXPECT_EQ(decode_all(runner, tokens), prefilled);
}

TEST_P(Equality, SeveralQueriesPerRequestHaveTheBitsOfSingleOnes) {
  ModelRunner runner(kModel, options());
  const auto a = some_tokens(40, 1);
  const auto b = some_tokens(23, 2);
  const auto pages_a = ModelRunner::page_list(0, 3);
  const auto pages_b = ModelRunner::page_list(10, 2);
  const auto part = [](const std::vector<int32_t>& t, int64_t begin, int64_t count,
                       const std::vector<int32_t>& pages) {
    return SequenceStep{
        .tokens = std::span(t).subspan(static_cast<size_t>(begin), static_cast<size_t>(count)),
        .cached = begin,
        .pages = pages,
        .logits = LogitRows::kAll};
  };
  runner.step({part(a, 0, 37, pages_a), part(b, 0, 20, pages_b)}, {});
  std::vector<float> single_a;
  std::vector<float> single_b;
  for (int i = 0; i < 3; ++i) {
    const StepResult r =
        runner.step({}, {part(a, 37 + i, 1, pages_a), part(b, 20 + i, 1, pages_b)});
    const auto row_a = r.row(0);
    const auto row_b = r.row(1);
    single_a.insert(single_a.end(), row_a.begin(), row_a.end());
    single_b.insert(single_b.end(), row_b.begin(), row_b.end());
  }

  const auto even = runner.step({}, {part(a, 37, 3, pages_a), part(b, 20, 3, pages_b)}).logits;
  const auto uneven = runner.step({}, {part(a, 37, 3, pages_a), part(b, 22, 1, pages_b)}).logits;

  EXPECT_EQ(std::vector<float>(even.begin(), even.begin() + 3 * 4096), single_a);
  EXPECT_EQ(std::vector<float>(even.begin() + 3 * 4096, even.end()), single_b);
  EXPECT_EQ(std::vector<float>(uneven.begin(), uneven.begin() + 3 * 4096), single_a);
  EXPECT_EQ(std::vector<float>(uneven.begin() + 3 * 4096, uneven.end()),
            std::vector<float>(single_b.end() - 4096, single_b.end()));
}

TEST_P(Equality, FusedPreparationAgreesWithSeparateKernels) {
  ModelRunner separate(kModel, options());
  ModelOptions o = options();
  o.attention.fused_rope = true;
  ModelRunner fused(kModel, o);
  const auto tokens = some_tokens(20);

  const auto a = decode_all(separate, tokens);
  const auto b = decode_all(fused, tokens);

  if (GetParam().kv == GetParam().activations) {
    EXPECT_EQ(a, b);  // rotation rounds once either way
  } else {
    EXPECT_LE(row_difference(a, b), gate());  // a quantised key is rounded once, not twice
  }
}

TEST_P(Equality, ResultsDoNotDependOnTheNumberOfThreads) {
  const auto tokens = some_tokens(70);
  ModelRunner one(kModel, options(), 1);
  const auto prefilled = one.prefill(tokens).logits;
  const auto decoded = one.decode(17, 70).logits;

  for (int threads : {2, 3, 5}) {
    ModelRunner many(kModel, options(), threads);
    EXPECT_EQ(many.prefill(tokens).logits, prefilled) << threads;
    EXPECT_EQ(many.decode(17, 70).logits, decoded) << threads;
  }
}

TEST_P(Equality, StrategiesOfTheExpertsAgree) {
  for (const std::string& model : {kModel, kLite}) {
    ModelOptions o = options();
    o.moe.strategy = MoeStrategy::kGrouped;
    ModelRunner grouped(model, o);
    const auto tokens = some_tokens(50);
    const auto prefilled = grouped.prefill(tokens).logits;
    const auto decoded = grouped.decode(3, 50).logits;
    for (const MoeStrategy strategy : {MoeStrategy::kSorted, MoeStrategy::kFused}) {
      o.moe.strategy = strategy;
      ModelRunner other(model, o);

      EXPECT_LE(row_difference(other.prefill(tokens).logits, prefilled), gate())
          << model << ", strategy " << static_cast<int>(strategy);
      EXPECT_LE(row_difference(other.decode(3, 50).logits, decoded), gate())
          << model << ", strategy " << static_cast<int>(strategy);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Formats,
                         Equality,
                         testing::Values(FormatCase{Format::kF32, Format::kF32},
                                         FormatCase{Format::kBf16, Format::kBf16},
                                         FormatCase{Format::kBf16, Format::kE4m3}),
                         [](const auto& p) {
                           return str_cat(format_name(p.param.activations), "_kv_",
                                          format_name(p.param.kv));
                         });

TEST(Prefill, ChunkSizeAboveThePromptGivesTheOneChunkResult) {
  // The form without reading keys back and the one with it give the same bits.
  ModelOptions o = small_chunks(Format::kBf16, Format::kBf16);
  o.attention.prefill_chunk = 1024;
  ModelRunner runner(kModel, o);
  const auto tokens = some_tokens(300);
  const auto pages = ModelRunner::page_list(0, 19);
  const auto whole = in_steps(runner, tokens, {300}, pages);
  runner.poison_pages();

  EXPECT_EQ(in_steps(runner, tokens, {129, 171}, pages), whole);
}

TEST(Forward, ComputesOnlyTheLogitsThatAreAsked) {
  ModelRunner runner(kModel);
  const auto tokens = some_tokens(12);
  const auto pages = ModelRunner::page_list(0, 1);
  const StepResult all = runner.prefill(tokens);

  const StepResult last = runner.step({{.tokens = tokens, .pages = pages}}, {});
  const StepResult none =
      runner.step({{.tokens = tokens, .pages = pages, .logits = LogitRows::kNone}}, {});

  EXPECT_EQ(last.logits, all.row(11));
  EXPECT_TRUE(none.logits.empty());
  EXPECT_EQ(none.hidden, all.hidden);
}

TEST(Forward, RandomWeightsGiveFiniteLogits) {
  ThreadPool pool(2, PinThreads::kNo);
  for (const char* format : {"bf16", "fp8_block", "nvfp4", "fp8", "int8", "w4a8"}) {
    Preset preset = find_preset("deepseek-v3").value();
    preset.formats = preset_formats(format, preset.config).value();
    ModelConfig& c = preset.config;
    c.hidden_size = 256;
    c.num_hidden_layers = 4;
    c.num_attention_heads = 4;
    c.q_lora_rank = 128;
    c.kv_lora_rank = 128;
    // No multiple of 64 or 128; QServe packs 32 columns.
    c.intermediate_size = std::string_view(format) == "w4a8" ? 288 : 272;
    c.moe_intermediate_size = 128;
    c.n_routed_experts = 16;
    c.num_experts_per_tok = 4;
    c.vocab_size = 500;
    OpenOptions open;
    open.weights = WeightOrigin::kRandom;
    open.pool = &pool;
    open.model.max_positions = 128;
    const auto model = open_model(ModelSource::describe(preset), {}, open);
    ASSERT_TRUE(model.ok()) << model.status().message();
    const auto needs =
        dry_run(**model, {.prefill = {.count = 1, .new_tokens = 20}}, {.num_threads = pool.size()});
    ASSERT_TRUE(needs.ok()) << needs.status().message();

    // The dry run's figures are what a real step takes: arenas of exactly that size suffice.
    Arena activations(
        Buffer::allocate(DeviceKind::kCpu, needs->activation_bytes, "activations").value());
    Arena scratch(Buffer::allocate(DeviceKind::kCpu, needs->scratch_bytes, "scratch").value());
    Exec ex;
    ex.kernels = &cpu_kernels();
    ex.pool = &pool;
    ex.num_threads = pool.size();
    ex.activations = &activations;
    ex.scratch = &scratch;
    const CacheLayout layout = (*model)->cache_layout();
    BatchBuffer buffer(layout);
    std::vector<int32_t> tokens(20, 7);
    const auto pages = ModelRunner::page_list(0, 1);
    Batch batch = buffer.build({{{.tokens = tokens, .pages = pages}}}, {}).value();
    std::vector<std::byte> memory(static_cast<size_t>(cache_bytes(layout, 1, 0).value()));
    const std::vector<GroupRows> cache = cache_views(layout, memory.data(), 1, 0, false);
    batch.cache = cache;
    ForwardOut out;
    const Status status = (*model)->forward(ex, batch, out);
    ASSERT_TRUE(status.ok()) << status.message();
    EXPECT_EQ(activations.high_water(), needs->activation_bytes);
    double size = 0;
    for (int64_t i = 0; i < 500; ++i) {
      const float x = out.logits.as<float>()[i];
      ASSERT_TRUE(std::isfinite(x)) << format;
      size += static_cast<double>(x) * static_cast<double>(x);
    }
    EXPECT_GT(size, 1.0) << format;  // the weights have unit gain
    EXPECT_LT(size, 500.0 * 100.0);
  }
}

TEST(Forward, RefusesATokenOutsideTheVocabulary) {
  ThreadPool pool(1, PinThreads::kNo);
  OpenOptions open;
  open.pool = &pool;
  const auto model = open_model(ModelSource::open(kModel).value(), {}, open);
  ASSERT_TRUE(model.ok());
  Arena activations(Buffer::allocate(DeviceKind::kCpu, 64 << 20, "test").value());
  Arena scratch(Buffer::allocate(DeviceKind::kCpu, 64 << 20, "test").value());
  Exec ex;
  ex.kernels = &cpu_kernels();
  ex.pool = &pool;
  ex.activations = &activations;
  ex.scratch = &scratch;
  BatchBuffer buffer((*model)->cache_layout());
  const std::vector<int32_t> tokens{1, 4096};
  const auto pages = ModelRunner::page_list(0, 1);
  const Batch batch = buffer.build({{{.tokens = tokens, .pages = pages}}}, {}).value();
  ForwardOut out;

  const Status status = (*model)->forward(ex, batch, out);

  EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
  EXPECT_NE(status.message().find("4096"), std::string::npos) << status.message();
}

}  // namespace
}  // namespace fathom
