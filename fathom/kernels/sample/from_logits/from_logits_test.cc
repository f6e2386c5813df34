#include "fathom/kernels/sample/from_logits/from_logits.h"

#include <gtest/gtest.h>
#include <limits>
#include <vector>

#include "fathom/kernels/core/test_exec.h"
#include "fathom/kernels/sample/argmax/argmax.h"
#include "fathom/kernels/sample/draw/draw.h"
#include "fathom/kernels/sample/renorm/renorm.h"

namespace fathom {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();

/// Rows of logits and what each is sampled with.
struct Rows {
  int64_t count;
  int64_t V;
  std::vector<float> logits, temperature, top_p, min_p, uniform;
  std::vector<int32_t> top_k;

  Rows(int64_t rows, int64_t width, uint64_t seed) : count(rows), V(width) {
    Rng rng(seed);
    for (int64_t i = 0; i < rows * width; ++i)
      logits.push_back(3 * rng.next_normal());
    for (int64_t t = 0; t < rows; ++t) {
      temperature.push_back(t % 7 == 6 ? 0.0f : 0.1f + 2 * rng.next_uniform());
      top_k.push_back(t % 3 == 0 ? 1 << 30 : 1 + static_cast<int32_t>(rng.next_below(2000)));
      top_p.push_back(t % 2 == 0 ? 1.0f : 0.01f + 0.98f * rng.next_uniform());
      min_p.push_back(t % 5 < 3 ? 0.0f : 0.3f * rng.next_uniform());
      uniform.push_back(rng.next_uniform());
    }
  }

  View matrix(std::vector<float>& v) const { return make_view(v.data(), {count, V}, Format::kF32); }

  View each(std::vector<float>& v) const { return make_view(v.data(), {count}, Format::kF32); }

  View each(std::vector<int32_t>& v) const { return make_view(v.data(), {count}, Format::kI32); }

  SampleFromLogits::Args args(std::vector<int32_t>& ids, std::vector<int32_t>& bad) {
    ids.assign(static_cast<size_t>(count), -1);
    bad.assign(static_cast<size_t>(count), -1);
    return {.logits = matrix(logits),
            .temperature = each(temperature),
            .top_k = each(top_k),
            .top_p = each(top_p),
            .min_p = each(min_p),
            .uniform = each(uniform),
            .ids = each(ids),
            .bad = each(bad)};
  }
};

/// Tokens by the kernels that do one step each, all of one instruction set.
std::vector<int32_t> tokens_of_the_chain(TestExec& exec, const std::string& variant, Rows rows) {
  std::vector<float> probs(rows.logits.size());
  std::vector<int32_t> ids(static_cast<size_t>(rows.count)), greedy = ids, bad = ids;
  const View p = rows.matrix(probs);
  FATHOM_EXPECT_OK(launch<Argmax>(
      exec.with("argmax", variant), "sampler",
      {.logits = rows.matrix(rows.logits), .ids = rows.each(greedy), .bad = rows.each(bad)}));
  FATHOM_EXPECT_OK(launch<SoftmaxTemperature>(exec.with("softmax_temperature", variant), "sampler",
                                              {.logits = rows.matrix(rows.logits),
                                               .temperature = rows.each(rows.temperature),
                                               .probs = p}));
  FATHOM_EXPECT_OK(launch<RenormTopK>(exec.with("renorm_top_k", variant), "sampler",
                                      {.probs = p, .k = rows.each(rows.top_k), .y = p}));
  FATHOM_EXPECT_OK(launch<RenormTopP>(exec.with("renorm_top_p", variant), "sampler",
                                      {.probs = p, .p = rows.each(rows.top_p), .y = p}));
  FATHOM_EXPECT_OK(launch<SampleMinP>(exec.with("sample_min_p", variant), "sampler",
                                      {.probs = p,
                                       .min_p = rows.each(rows.min_p),
                                       .uniform = rows.each(rows.uniform),
                                       .ids = rows.each(ids)}));
  for (size_t t = 0; t < ids.size(); ++t) {
    if (rows.temperature[t] == 0) ids[t] = greedy[t];
  }
  return ids;
}

TEST(SampleFromLogits, TokensAreThoseOfTheKernelsOneAfterTheOther) {
  TestExec exec(2);
  for (const std::string& variant : variants_of<SampleFromLogits>()) {
    for (const int64_t V : {1, 5, 63, 1000, 8191, 40000}) {
      for (uint64_t seed = 1; seed <= 3; ++seed) {
        Rows rows(35, V, seed);
        std::vector<int32_t> ids, bad;

        FATHOM_EXPECT_OK(launch<SampleFromLogits>(exec.with("sample_from_logits", variant),
                                                  "sampler", rows.args(ids, bad)));

        EXPECT_EQ(ids, tokens_of_the_chain(exec, variant, rows)) << variant << " V " << V;
        EXPECT_EQ(bad, std::vector<int32_t>(35, 0));
      }
    }
  }
}

TEST(SampleFromLogits, UnusableRowsAreBadAndStillGiveAnId) {
  TestExec exec(1);
  for (const std::string& variant : variants_of<SampleFromLogits>()) {
    for (const float temperature : {0.0f, 1.0f}) {
      Rows rows(4, 50, 9);
      rows.temperature.assign(4, temperature);
      rows.logits[7] = std::numeric_limits<float>::quiet_NaN();
      rows.logits[50 + 20] = kInf;
      std::fill_n(rows.logits.begin() + 100, 50, -kInf);
      std::vector<int32_t> ids, bad;

      FATHOM_EXPECT_OK(launch<SampleFromLogits>(exec.with("sample_from_logits", variant), "sampler",
                                                rows.args(ids, bad)));

      EXPECT_EQ(bad, (std::vector<int32_t>{1, 1, 1, 0})) << variant;
      for (int32_t id : ids)
        EXPECT_TRUE(id >= 0 && id < 50) << id;
      EXPECT_EQ(ids[1], 20);
      EXPECT_EQ(ids[2], 0);
    }
  }
}

TEST(SampleFromLogits, RefusesParametersOutOfRange) {
  TestExec exec(1);
  const auto error = [&](auto change) {
    Rows rows(2, 10, 1);
    std::vector<int32_t> ids, bad;
    change(rows);
    return launch<SampleFromLogits>(*exec, "sampler", rows.args(ids, bad)).message();
  };

  EXPECT_NE(error([](Rows& r) { r.temperature[1] = -1; }).find("temperature[1] is -1"),
            std::string::npos);
  EXPECT_NE(error([](Rows& r) { r.top_k[0] = 0; }).find("top_k[0] is 0, expected at least 1"),
            std::string::npos);
  EXPECT_NE(error([](Rows& r) { r.top_p[1] = 0; }).find("top_p[1] is 0"), std::string::npos);
  EXPECT_NE(error([](Rows& r) { r.min_p[0] = 2; }).find("min_p[0] is 2"), std::string::npos);
  EXPECT_NE(error([](Rows& r) { r.uniform[0] = 1; }).find("uniform[0] is 1"), std::string::npos);
}

}  // namespace
}  // namespace fathom
