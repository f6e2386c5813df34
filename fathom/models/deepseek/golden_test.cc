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

INSTANTIATE_TEST_SUITE_P(Micro,
                         GoldenModel,
                         testing::Values("micro-v2-lite", "micro-v2", "micro-v3"),
                         [](const auto& p) {
                           std::string name = p.param;
                           std::replace(name.begin(), name.end(), '-', '_');
                           return name;
                         });

}  // namespace
}  // namespace fathom
