// DeepSeek-MoE against the float64 oracle: heads of their own, shared heads, one head; prompts
// whole, in pieces, token by token, beside others, behind a prefix.
#include <algorithm>
#include <cmath>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "fathom/base/rng.h"
#include "fathom/models/synth.h"
#include "fathom/os/atomic_file.h"
#include "fathom/os/file.h"
#include "tests/support/model_runner.h"
#include "tests/support/reference_model.h"
#include "tests/support/temp_dir.h"

namespace fathom {
namespace {

using oracle::relative_difference;

constexpr int64_t kVocab = 320;

std::vector<int32_t> some_tokens(int64_t count, uint64_t seed = 11) {
  Rng rng(seed);
  std::vector<int32_t> tokens;
  for (int64_t i = 0; i < count; ++i)
    tokens.push_back(static_cast<int32_t>(rng.next_below(kVocab)));
  return tokens;
}

double largest_difference(const std::vector<float>& a, const std::vector<double>& b) {
  FATHOM_CHECK(a.size() == b.size() && !a.empty());
  double most = 0;
  for (size_t i = 0; i < a.size(); ++i)
    most = std::max(most, std::abs(static_cast<double>(a[i]) - b[i]));
  return most;
}

ModelOptions small_pages(Format activations) {
  ModelOptions o;
  o.activations = activations;
  o.page_size = 16;
  o.attention.prefill_chunk = 64;
  return o;
}

// Prompts of this length in float32 keep every choice of experts of the oracle.
constexpr double kGate = 1e-4;

class V1Model : public testing::TestWithParam<int64_t> {
 protected:
  V1Model() {
    SynthOptions options;
    options.version = "v1";
    options.layers = 3;
    options.hidden = 128;
    options.kv_heads = GetParam();
    const auto report = synthesize_checkpoint(dir_.path(), options);
    FATHOM_CHECK(report.ok(), report.ok() ? "" : report.status().message());
  }

  std::vector<double> expected(const std::vector<int32_t>& tokens) const {
    oracle::ReferenceModel reference(dir_.path());
    return reference.logits(reference.hidden(tokens)).v;
  }

  TempDir dir_;
};

TEST_P(V1Model, PrefillMatchesTheOracle) {
  ModelRunner runner(dir_.path(), small_pages(Format::kF32));
  const auto tokens = some_tokens(83);

  EXPECT_LE(largest_difference(runner.prefill(tokens).logits, expected(tokens)), kGate);
}

TEST_P(V1Model, PiecesAndSingleTokensHaveTheBitsOfOnePrefill) {
  for (const Format activations : {Format::kF32, Format::kBf16}) {
    ModelRunner runner(dir_.path(), small_pages(activations));
    const auto tokens = some_tokens(83);
    const auto pages = ModelRunner::page_list(3, 6);
    const std::vector<float> whole = runner.prefill(tokens).logits;
    for (const int64_t size : {1, 16, 33, 64}) {
      runner.poison_pages();
      std::vector<float> parts;
      for (int64_t done = 0; done < 83; done += size) {
        const auto count = static_cast<size_t>(std::min<int64_t>(size, 83 - done));
        const SequenceStep step{
            .tokens = std::span(tokens).subspan(static_cast<size_t>(done), count),
            .cached = done,
            .pages = pages,
            .logits = LogitRows::kAll};
        const StepResult r = size == 1 ? runner.step({}, {step}) : runner.step({step}, {});
        parts.insert(parts.end(), r.logits.begin(), r.logits.end());
      }
      EXPECT_EQ(parts, whole) << format_name(activations) << " in pieces of " << size;
    }
  }
}

TEST_P(V1Model, RequestsOfAStepMatchTheOracleEachByItself) {
  ModelRunner runner(dir_.path(), small_pages(Format::kF32));
  const auto a = some_tokens(40, 1), b = some_tokens(21, 2), c = some_tokens(18, 3);
  const auto pages_a = ModelRunner::page_list(0, 3), pages_b = ModelRunner::page_list(3, 2),
             pages_c = ModelRunner::page_list(5, 2);
  // Of a and b all but the last tokens are cached: 1 and 3 of them are decoded, as in a
  // verification; c is prefilled beside them.
  runner.step({{.tokens = std::span(a).first(39), .pages = pages_a},
               {.tokens = std::span(b).first(18), .pages = pages_b}},
              {});

  const StepResult r =
      runner.step({{.tokens = c, .pages = pages_c, .logits = LogitRows::kAll}},
                  {{.tokens = std::span(a).last(1), .cached = 39, .pages = pages_a},
                   {.tokens = std::span(b).last(3),
                    .cached = 18,
                    .pages = pages_b,
                    .logits = LogitRows::kAll}});

  const auto tail = [&](const std::vector<int32_t>& tokens, int64_t rows) {
    std::vector<double> all = expected(tokens);
    return std::vector<double>(all.end() - rows * kVocab, all.end());
  };
  std::vector<double> all = tail(c, 18);
  for (const auto& rows : {tail(a, 1), tail(b, 3)})
    all.insert(all.end(), rows.begin(), rows.end());
  EXPECT_LE(largest_difference(r.logits, all), kGate);
}

TEST_P(V1Model, CachedPrefixGivesTheBitsOfAColdOne) {
  ModelRunner runner(dir_.path(), small_pages(Format::kBf16));
  auto one = some_tokens(32, 4);
  auto two = one;
  for (const int32_t t : some_tokens(30, 5))
    one.push_back(t);
  for (const int32_t t : some_tokens(50, 6))
    two.push_back(t);
  const auto cold = runner.prefill(two).logits;
  runner.poison_pages();
  runner.prefill(one);  // leaves the two pages of the prefix

  const std::vector<float> warm = runner.prefill(two, 32).logits;

  EXPECT_TRUE(std::equal(warm.begin(), warm.end(), cold.end() - static_cast<int64_t>(warm.size())));
}

TEST_P(V1Model, RoundedCachesAndActivationsStayNearTheOracle) {
  const auto tokens = some_tokens(61);
  const std::vector<double> exact = expected(tokens);
  // Median over rows: rounding lets a few tokens choose other experts.
  const auto median = [&](const std::vector<float>& logits) {
    std::vector<double> rows;
    for (size_t at = 0; at < logits.size(); at += kVocab) {
      rows.push_back(relative_difference({logits.begin() + static_cast<int64_t>(at),
                                          logits.begin() + static_cast<int64_t>(at + kVocab)},
                                         {exact.begin() + static_cast<int64_t>(at),
                                          exact.begin() + static_cast<int64_t>(at + kVocab)}));
    }
    std::nth_element(rows.begin(), rows.begin() + static_cast<int64_t>(rows.size() / 2),
                     rows.end());
    return rows[rows.size() / 2];
  };
  ModelRunner bf16(dir_.path(), small_pages(Format::kBf16));
  EXPECT_LE(median(bf16.prefill(tokens).logits), 0.03);
  ModelOptions codes = small_pages(Format::kF32);
  codes.kv_format = Format::kE4m3;
  ModelRunner e4m3(dir_.path(), codes);
  EXPECT_LE(median(e4m3.prefill(tokens).logits), 0.05);
}

TEST_P(V1Model, LinearScalingOfRotationMatchesTheOracle) {
  const auto tokens = some_tokens(83);
  const std::vector<double> plain = expected(tokens);
  const std::string path = dir_.file("config.json");
  std::string config = read_file(path, 1 << 20).value();
  const std::string none = "\"rope_scaling\": null";
  const size_t at = config.find(none);
  ASSERT_NE(at, std::string::npos) << config;
  config.replace(at, none.size(), R"("rope_scaling": {"type": "linear", "factor": 3.0})");
  ASSERT_TRUE(write_file(path, config).ok());
  ASSERT_TRUE(remove_file(dir_.file("fathom-journal.jsonl")).ok());

  ModelRunner runner(dir_.path(), small_pages(Format::kF32));
  const std::vector<float> logits = runner.prefill(tokens).logits;

  EXPECT_LE(largest_difference(logits, expected(tokens)), kGate);
  EXPECT_GT(largest_difference(logits, plain), 100 * kGate) << "the factor changes nothing";
}

INSTANTIATE_TEST_SUITE_P(Heads, V1Model, testing::Values(1, 2, 4), [](const auto& p) {
  return str_cat("of_keys_", p.param);
});

TEST(V1Layout, RowsAreTheKeysAndValuesOfAToken) {
  const auto model = create_model(find_preset("deepseek-moe-16b")->config, {}).value();
  const CacheLayout layout = model->cache_layout();

  ASSERT_EQ(layout.groups.size(), 1u);
  EXPECT_EQ(layout.groups[0].layers.size(), 28u);
  EXPECT_EQ(layout.groups[0].codec.row_bytes(), 2 * 16 * 128 * 2);
  EXPECT_FALSE(layout.has_slots());
  EXPECT_FALSE(model->has_draft());
}

}  // namespace
}  // namespace fathom
