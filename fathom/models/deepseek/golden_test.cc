// Whole models against the outputs of an independent implementation (transformers, float32).
#include <algorithm>
#include <cmath>
#include <cstring>
#include <gtest/gtest.h>
#include <map>

#include "tests/support/model_runner.h"

namespace fathom {
namespace {

// Two correct float32 implementations differ by 3e-5 in these logits.
constexpr float kLogitTolerance = 5e-5f;

std::string model_dir(const std::string& name) {
  // A directory outside the repository can be named for a run by hand.
  return name.starts_with("/") ? name : str_cat(FATHOM_SOURCE_DIR "/tests/golden/", name);
}

ModelOptions f32_options() {
  ModelOptions o;
  o.activations = Format::kF32;
  o.indexer_format = Format::kF32;  // of models that have one
  return o;
}

// Everything a probe saw, by "name.layer".
struct Taps {
  std::map<std::string, std::vector<std::byte>> seen;
  Probe probe{.tap =
                  [](void* self, std::string_view name, int layer, const View& v) {
                    auto& bytes = static_cast<Taps*>(self)->seen[str_cat(name, ".", layer)];
                    const auto* data = static_cast<const std::byte*>(v.data);
                    bytes.assign(data, data + v.numel() * element_bytes(v.format));
                  },
              .self = this};

  template <class T>
  std::vector<T> get(const std::string& name) const {
    const auto it = seen.find(name);
    FATHOM_CHECK(it != seen.end(), name);
    std::vector<T> out(it->second.size() / sizeof(T));
    std::memcpy(out.data(), it->second.data(), it->second.size());
    return out;
  }
};

float max_difference(const std::vector<float>& a, const std::vector<float>& b) {
  FATHOM_CHECK(a.size() == b.size(), str_cat(static_cast<int64_t>(a.size()), " and ",
                                             static_cast<int64_t>(b.size()), " numbers"));
  float worst = 0.0f;
  for (size_t i = 0; i < a.size(); ++i) {
    const float d = std::fabs(a[i] - b[i]);
    if (!(d <= worst)) worst = d;  // NaN sticks
  }
  return worst;
}

class GoldenModel : public testing::TestWithParam<const char*> {
 protected:
  std::string dir_ = model_dir(GetParam());
  Golden golden_{dir_ + "/golden.safetensors"};
};

TEST_P(GoldenModel, LogitsOfEveryPromptMatch) {
  ModelRunner runner(dir_, f32_options());
  for (int p = 0; p < 4; ++p) {
    const auto tokens = golden_.ints(str_cat("p", p, ".input_ids"));
    const auto rows = golden_.ints(str_cat("p", p, ".logits_rows"));
    const auto expected = golden_.floats(str_cat("p", p, ".logits"));
    runner.poison_pages();

    const StepResult result = runner.prefill(tokens);

    std::vector<float> found;
    for (int32_t r : rows) {
      const auto row = result.row(r);
      found.insert(found.end(), row.begin(), row.end());
    }
    EXPECT_LE(max_difference(found, expected), kLogitTolerance) << "prompt " << p;
  }
}

TEST_P(GoldenModel, TopLogitsOfEveryPositionMatch) {
  ModelRunner runner(dir_, f32_options());
  const auto tokens = golden_.ints("p3.input_ids");
  const auto ids = golden_.ints("p3.top_ids");
  const auto expected = golden_.floats("p3.top_logits");

  const StepResult result = runner.prefill(tokens);

  std::vector<float> found;
  for (size_t i = 0; i < ids.size(); ++i) {
    const auto row = static_cast<int64_t>(i / 16);
    found.push_back(result.logits[static_cast<size_t>(row * result.vocab + ids[i])]);
  }
  EXPECT_LE(max_difference(found, expected), kLogitTolerance);
}

TEST_P(GoldenModel, HiddenStatesAndExpertsOfEveryLayerMatch) {
  ModelRunner runner(dir_, f32_options());
  const ModelConfig& config = runner.model().config();
  const auto tokens = golden_.ints("p2.input_ids");
  Taps taps;

  runner.prefill(tokens, 0, &taps.probe);

  const auto layers = static_cast<int>(config.num_hidden_layers);
  EXPECT_LE(max_difference(taps.get<float>("layer.input.0"), golden_.floats("hidden.embed")), 0.0f);
  for (int l = 0; l < layers; ++l) {
    const std::string tap =
        l + 1 < layers ? str_cat("layer.input.", l + 1) : str_cat("final.input.", layers);
    EXPECT_LE(max_difference(taps.get<float>(tap), golden_.floats(str_cat("hidden.layer", l))),
              3e-5f)
        << "layer " << l;
    if (!config.is_moe_layer(l)) continue;
    // Golden choices are sorted by expert; so are ours before they are compared.
    auto ids = taps.get<int32_t>(str_cat("router.ids.", l));
    auto weights = taps.get<float>(str_cat("router.weights.", l));
    const auto K = static_cast<size_t>(config.num_experts_per_tok);
    for (size_t t = 0; t < tokens.size(); ++t) {
      std::vector<std::pair<int32_t, float>> row;
      for (size_t k = 0; k < K; ++k)
        row.emplace_back(ids[t * K + k], weights[t * K + k]);
      std::sort(row.begin(), row.end());
      for (size_t k = 0; k < K; ++k)
        std::tie(ids[t * K + k], weights[t * K + k]) = row[k];
    }
    EXPECT_EQ(ids, golden_.ints(str_cat("router.layer", l, ".ids"))) << "layer " << l;
    EXPECT_LE(max_difference(weights, golden_.floats(str_cat("router.layer", l, ".weights"))),
              1e-5f)
        << "layer " << l;
  }
  EXPECT_LE(max_difference(taps.get<float>(str_cat("final.norm.", layers)),
                           golden_.floats("hidden.final_norm")),
            5e-5f);
}

TEST_P(GoldenModel, GreedyDecodingFollowsTheGoldenTokens) {
  ModelRunner runner(dir_, f32_options());
  for (int p = 0; p < 3; ++p) {
    auto tokens = golden_.ints(str_cat("p", p, ".input_ids"));
    const auto expected = golden_.ints(str_cat("p", p, ".greedy_ids"));
    const auto gaps = golden_.floats(str_cat("p", p, ".greedy_gap"));
    const auto best = golden_.floats(str_cat("p", p, ".greedy_logit"));
    StepResult result = runner.prefill(tokens);
    std::vector<float> row = result.row(static_cast<int64_t>(tokens.size()) - 1);
    for (size_t i = 0; i < expected.size() && gaps[i] > 2 * kLogitTolerance; ++i) {
      const auto chosen =
          static_cast<int32_t>(std::max_element(row.begin(), row.end()) - row.begin());
      ASSERT_EQ(chosen, expected[i]) << "prompt " << p << ", token " << i;
      EXPECT_NEAR(row[static_cast<size_t>(chosen)], best[i], kLogitTolerance);
      result = runner.decode(chosen, static_cast<int64_t>(tokens.size()));
      tokens.push_back(chosen);
      row = result.row(0);
    }
  }
}

// ---- DeepSeek-V3.2 ----

/// Prompt 3: 300 tokens, of which 32 are chosen.
class SparseGolden : public testing::Test {
 protected:
  std::string dir_ = model_dir("micro-v32");
  Golden golden_{dir_ + "/golden.safetensors"};
  std::vector<int32_t> tokens_ = golden_.ints("p3.input_ids");
};

TEST_F(SparseGolden, KeysOfEveryTokenAreThoseOfTheReference) {
  ModelRunner runner(dir_, f32_options());
  const ModelConfig& config = runner.model().config();
  const auto topk = static_cast<size_t>(config.index_topk);
  Taps taps;
  runner.prefill(tokens_, 0, &taps.probe);
  for (int l = 0; l < static_cast<int>(config.num_hidden_layers); ++l) {
    // The runner's pages are in order, so a slot is a position.
    auto slots = taps.get<int32_t>(str_cat("indexer.slots.", l));
    auto expected = golden_.ints(str_cat("indexer.layer", l, ".ids"));
    ASSERT_EQ(slots.size(), tokens_.size() * topk);
    // Rows with fewer keys than are chosen are filled up by each in its own way.
    const auto first = static_cast<int64_t>((topk - 1) * topk);
    slots.erase(slots.begin(), slots.begin() + first);
    expected.erase(expected.begin(), expected.begin() + first);
    EXPECT_EQ(slots, expected) << "layer " << l;
  }
}

TEST_F(SparseGolden, EveryCutOfThePromptGivesTheSameLogits) {
  ModelRunner runner(dir_, f32_options());
  const auto whole = runner.prefill(tokens_).row(static_cast<int64_t>(tokens_.size()) - 1);
  const auto pages = ModelRunner::page_list(0, ModelRunner::kPages);
  const std::span all(tokens_);
  for (size_t cut = 1; cut < tokens_.size(); cut += 7) {
    runner.poison_pages();
    runner.step({{.tokens = all.first(cut), .cached = 0, .pages = pages}}, {});
    const StepResult rest = runner.prefill(tokens_, static_cast<int64_t>(cut));
    EXPECT_LE(max_difference(rest.row(static_cast<int64_t>(tokens_.size() - cut) - 1), whole),
              1e-4f)
        << "cut at " << cut;
  }
}

TEST_F(SparseGolden, ATokenAtATimeGivesTheLogitsOfThePrompt) {
  ModelRunner runner(dir_, f32_options());
  const StepResult whole = runner.prefill(tokens_);
  runner.poison_pages();
  float worst = 0;
  for (size_t i = 0; i < 80; ++i) {
    const StepResult one = runner.decode(tokens_[i], static_cast<int64_t>(i));
    worst = std::max(worst, max_difference(one.row(0), whole.row(static_cast<int64_t>(i))));
  }
  EXPECT_LE(worst, 1e-4f);
}

TEST_F(SparseGolden, BatchInvariantStepsHaveTheSameBitsHoweverTheyAreCut) {
  ModelOptions options;  // bf16, indexer in e4m3
  options.attention.always_absorbed = true;
  ModelRunner runner(dir_, options);
  const auto last = static_cast<int64_t>(tokens_.size()) - 1;
  const auto whole = runner.prefill(tokens_).row(last);
  const auto pages = ModelRunner::page_list(0, ModelRunner::kPages);
  for (const size_t cut : {1u, 31u, 33u, 64u, 200u, 299u}) {
    runner.poison_pages();
    runner.step({{.tokens = std::span(tokens_).first(cut), .cached = 0, .pages = pages}}, {});
    const StepResult rest = runner.prefill(tokens_, static_cast<int64_t>(cut));
    EXPECT_EQ(rest.row(last - static_cast<int64_t>(cut)), whole) << "cut at " << cut;
  }
}

// One request above index_topk and one below, in either range: each gets the bits that it has
// alone.
TEST_F(SparseGolden, NeighboursOfOtherLengthsChangeNothing) {
  ModelRunner runner(dir_, f32_options());
  const auto long_pages = ModelRunner::page_list(0, 8);
  const auto short_pages = ModelRunner::page_list(8, 8);
  const std::span all(tokens_);
  const SequenceStep long_prompt{.tokens = all, .cached = 0, .pages = long_pages};
  const SequenceStep short_prompt{.tokens = all.first(20), .cached = 0, .pages = short_pages};
  const auto long_alone = runner.step({long_prompt}, {}).row(0);
  const auto short_alone = runner.step({short_prompt}, {}).row(0);
  runner.poison_pages();
  const StepResult both = runner.step({long_prompt, short_prompt}, {});
  EXPECT_EQ(both.row(0), long_alone);
  EXPECT_LE(max_difference(both.row(1), short_alone), 1e-5f);

  const int32_t next = tokens_[20];
  const auto last = static_cast<int64_t>(tokens_.size());
  const SequenceStep long_next{.tokens = {&next, 1}, .cached = last, .pages = long_pages};
  const SequenceStep short_next{.tokens = {&next, 1}, .cached = 20, .pages = short_pages};
  const auto long_decoded = runner.step({}, {long_next}).row(0);
  const auto short_decoded = runner.step({}, {short_next}).row(0);
  const StepResult decoded = runner.step({}, {short_next, long_next});
  EXPECT_EQ(decoded.row(0), short_decoded);
  EXPECT_EQ(decoded.row(1), long_decoded);
}

// What the checkpoints were trained with: Hadamard transform and e4m3 in the indexer. Its scores
// are off by some hundredths, so near ties fall the other way; with random weights logits then
// differ widely, choices do not.
TEST_F(SparseGolden, QuantisedIndexerChoosesNearlyTheSameKeys) {
  ModelOptions options = f32_options();
  options.indexer_format = Format::kE4m3;
  ModelRunner runner(dir_, options);
  const auto topk = static_cast<size_t>(runner.model().config().index_topk);
  Taps taps;
  runner.prefill(tokens_, 0, &taps.probe);
  // The first layer, whose input does not depend on choices.
  const auto slots = taps.get<int32_t>("indexer.slots.0");
  const auto expected = golden_.ints("indexer.layer0.ids");
  size_t same = 0;
  const size_t first = topk - 1;
  for (size_t t = first; t < tokens_.size(); ++t) {
    const auto row = std::span(expected).subspan(t * topk, topk);
    for (size_t k = 0; k < topk; ++k)
      same += std::ranges::binary_search(row, slots[t * topk + k]) ? 1 : 0;
  }
  const size_t all = (tokens_.size() - first) * topk;
  EXPECT_GE(same, all * 95 / 100);
  EXPECT_LT(same, all);
}

// ---- DeepSeek-V4 ----

/// Prompt 3: 300 tokens, a window of 32, 16 chosen rows of 4 tokens, 2 rows of 128.
class CompressedGolden : public testing::Test {
 protected:
  static SequenceStep part(std::span<const int32_t> tokens,
                           int64_t cached,
                           std::span<const int32_t> pages,
                           int32_t slot = 0) {
    return {.tokens = tokens, .cached = cached, .pages = pages, .slot = slot};
  }

  std::string dir_ = model_dir("micro-v4");
  Golden golden_{dir_ + "/golden.safetensors"};
  std::vector<int32_t> tokens_ = golden_.ints("p3.input_ids");
  std::vector<int32_t> pages_ = ModelRunner::page_list(0, ModelRunner::kPages);
};

TEST_F(CompressedGolden, RowsOfEveryTokenAreThoseOfTheReference) {
  ModelRunner runner(dir_, f32_options());
  const ModelConfig& config = runner.model().config();
  const auto topk = static_cast<size_t>(config.index_topk);
  Taps taps;
  runner.prefill(tokens_, 0, &taps.probe);
  int layers = 0;
  for (int l = 0; l < static_cast<int>(config.num_hidden_layers); ++l) {
    if (config.compress_ratio(l) != CompressRatio::kSparse) continue;
    ++layers;
    // The runner's pages are in order, so a slot is a row; -1 stands last here, first there.
    auto slots = taps.get<int32_t>(str_cat("indexer.slots.", l));
    ASSERT_EQ(slots.size(), tokens_.size() * topk);
    for (size_t t = 0; t < tokens_.size(); ++t)
      std::ranges::sort(std::span(slots).subspan(t * topk, topk));
    EXPECT_EQ(slots, golden_.ints(str_cat("indexer.layer", l, ".ids"))) << "layer " << l;
  }
  EXPECT_GT(layers, 0);
}

// A cut leaves rows of 4 and of 128 tokens half pooled, and the window in the middle of its ring.
TEST_F(CompressedGolden, EveryCutOfThePromptGivesTheSameLogits) {
  ModelRunner runner(dir_, f32_options());
  const auto whole = runner.prefill(tokens_).row(static_cast<int64_t>(tokens_.size()) - 1);
  const std::span all(tokens_);
#ifdef FATHOM_SANITIZED
  constexpr size_t kStep = 7;  // every cut takes a minute there
#else
  constexpr size_t kStep = 1;
#endif
  for (size_t cut = 1; cut < tokens_.size(); cut += kStep) {
    runner.poison_pages();
    runner.step({part(all.first(cut), 0, pages_)}, {});
    const StepResult rest =
        runner.step({part(all.subspan(cut), static_cast<int64_t>(cut), pages_)}, {});
    EXPECT_LE(max_difference(rest.row(0), whole), 1e-4f) << "cut at " << cut;
  }
}

// Up to 129 tokens of a request attend by way of the window's ring, rows of longer steps stand side
// by side: in each format of the cache with the bits that the ring would have, and the ring holds
// them afterwards. A fresh prompt, parts behind others, and both in one step.
TEST_F(CompressedGolden, LongStepsHaveTheBitsOfShortOnes) {
  using Cuts = std::vector<size_t>;
  const std::span all(tokens_);
  for (const Format format : {Format::kBf16, Format::kF32, Format::kE4m3, Format::kNvfp4}) {
    ModelOptions options;
    options.activations = format == Format::kF32 ? Format::kF32 : Format::kBf16;
    options.kv_format = format;
    options.attention.always_absorbed = true;
    ModelRunner runner(dir_, options);
    const auto logits_of = [&](const Cuts& cuts) {
      runner.poison_pages();
      std::vector<float> logits;
      size_t at = 0;
      for (const size_t count : cuts) {
        SequenceStep step = part(all.subspan(at, count), static_cast<int64_t>(at), pages_);
        step.logits = LogitRows::kAll;
        const StepResult r = runner.step({step}, {});
        logits.insert(logits.end(), r.logits.begin(), r.logits.end());
        at += count;
      }
      return logits;
    };
    const auto expected = logits_of({100, 100, 100});
    for (const Cuts& cuts : {Cuts{300}, Cuts{130, 129, 41}, Cuts{1, 299}, Cuts{20, 150, 130},
                             Cuts{160, 20, 120}, Cuts{299, 1}})
      EXPECT_EQ(logits_of(cuts), expected) << format_name(format) << ", first " << cuts[0];

    std::vector<std::vector<int32_t>> pages;
    for (int32_t i = 0; i < 4; ++i)
      pages.push_back(ModelRunner::page_list(4 * i, 4));
    runner.poison_pages();
    runner.step({part(all.first(100), 0, pages[0], 0), part(all.first(60), 0, pages[3], 3)}, {});
    const StepResult together =
        runner.step({part(all.first(150), 0, pages[1], 1), part(all.subspan(100), 100, pages[0], 0),
                     part(all.first(9), 0, pages[2], 2), part(all.subspan(60, 9), 60, pages[3], 3)},
                    {});
    const auto row = [&](size_t token) {
      const auto begin = expected.begin() + static_cast<int64_t>(token) * together.vocab;
      return std::vector<float>(begin, begin + together.vocab);
    };
    EXPECT_EQ(together.row(0), row(149)) << format_name(format);
    EXPECT_EQ(together.row(1), row(299)) << format_name(format);
    EXPECT_EQ(together.row(2), row(8)) << format_name(format);
    EXPECT_EQ(together.row(3), row(68)) << format_name(format);
  }
}

TEST_F(CompressedGolden, ATokenAtATimeGivesTheLogitsOfThePrompt) {
  ModelRunner runner(dir_, f32_options());
  const StepResult whole = runner.prefill(tokens_);
  runner.poison_pages();
  float worst = 0;
  for (size_t i = 0; i < tokens_.size(); ++i) {
    const StepResult one = runner.decode(tokens_[i], static_cast<int64_t>(i));
    worst = std::max(worst, max_difference(one.row(0), whole.row(static_cast<int64_t>(i))));
  }
  EXPECT_LE(worst, 1e-4f);
}

// Two requests in one step, with pages and rings of their own, prefilled and decoded: each gets
// what it has alone.
TEST_F(CompressedGolden, NeighboursOfOtherLengthsChangeNothing) {
  ModelRunner runner(dir_, f32_options());
  const auto long_pages = ModelRunner::page_list(0, 4);
  const auto short_pages = ModelRunner::page_list(4, 4);
  const std::span all(tokens_);
  const SequenceStep long_prompt = part(all.first(299), 0, long_pages, 2);
  const SequenceStep short_prompt = part(all.subspan(100, 21), 0, short_pages, 1);
  const auto long_alone = runner.step({long_prompt}, {}).row(0);
  const auto short_alone = runner.step({short_prompt}, {}).row(0);
  runner.poison_pages();
  const StepResult both = runner.step({long_prompt, short_prompt}, {});
  EXPECT_LE(max_difference(both.row(0), long_alone), 1e-5f);
  EXPECT_LE(max_difference(both.row(1), short_alone), 1e-5f);

  const int32_t next = tokens_[20];
  const SequenceStep long_next = part({&next, 1}, 299, long_pages, 2);
  const SequenceStep short_next = part({&next, 1}, 21, short_pages, 1);
  const auto long_decoded = runner.step({}, {long_next}).row(0);
  const auto short_decoded = runner.step({}, {short_next}).row(0);
  const StepResult decoded = runner.step({}, {short_next, long_next});
  EXPECT_LE(max_difference(decoded.row(0), short_decoded), 1e-5f);
  EXPECT_LE(max_difference(decoded.row(1), long_decoded), 1e-5f);
}

// A step that is taken back leaves no trace: the rings still hold what lies behind it.
TEST_F(CompressedGolden, TokensTakenBackChangeNothing) {
  ModelRunner runner(dir_, f32_options());
  const std::span all(tokens_);
  for (const size_t kept : {63u, 126u, 130u, 255u}) {
    runner.poison_pages();
    runner.step({part(all.first(kept), 0, pages_)}, {});
    const auto right = runner.decode(tokens_[kept], static_cast<int64_t>(kept)).row(0);
    // Eight wrong tokens, then the right one in place of the first of them.
    runner.step({part(all.first(8), static_cast<int64_t>(kept), pages_)}, {});
    const auto again = runner.decode(tokens_[kept], static_cast<int64_t>(kept)).row(0);
    EXPECT_EQ(again, right) << kept << " tokens kept";
  }
}

INSTANTIATE_TEST_SUITE_P(
    Micro,
    GoldenModel,
    testing::Values("micro-v2-lite", "micro-v2", "micro-v3", "micro-v32", "micro-v4"),
    [](const auto& p) {
      std::string name = p.param;
      std::replace(name.begin(), name.end(), '-', '_');
      return name;
    });

}  // namespace
}  // namespace fathom
