#include "fathom/runtime/eval/input_ranges.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "fathom/formats/minifloat.h"
#include "fathom/models/registry.h"
#include "fathom/runtime/forward_session.h"
#include "fathom/weights/export/quant_scope.h"
#include "tests/support/cpu_kernels.h"

namespace fathom {
namespace {

// A model of tests/golden over a few tokens.
struct Watched {
  explicit Watched(const std::string& name, float embedding_scale = 1) {
    const ModelSource source = ModelSource::open(FATHOM_SOURCE_DIR "/tests/golden/" + name).value();
    OpenOptions open;
    open.model.moe.strategy = MoeStrategy::kGrouped;
    open.pool = &pool;
    open.loaded = [&](const WeightPlan& plan) {
      ranges.watch(plan);
      scale_embedding(plan, embedding_scale);
      for (const WeightItem& item : plan.items()) {
        for (const WeightSpec& s : item.sources)
          names.push_back(s.name);
      }
    };
    model = open_model(source, {}, open).value();
    const Compute compute{.pool = &pool, .cpu_kernels = &cpu_kernels()};
    const auto session = ForwardSession::create(*model, compute, {.max_tokens = 64}).value();
    std::vector<int32_t> tokens;
    for (int32_t i = 0; i < 40; ++i)
      tokens.push_back(i * 97 % 4096);
    FATHOM_CHECK(session->prefill(0, tokens, LogitRows::kLast, {}).ok());
  }

  static void scale_embedding(const WeightPlan& plan, float scale) {
    for (const WeightItem& item : plan.items()) {
      if (item.role != WeightRole::kEmbedding || scale == 1) continue;
      const View& table = *item.view_out;
      for (int64_t i = 0; i < table.numel(); ++i) {
        Bf16& value = table.as<Bf16>()[i];
        value = bf16_from_float(scale * to_float(value));
      }
    }
  }

  ThreadPool pool{2, PinThreads::kNo};
  InputRanges ranges;
  std::unique_ptr<Model> model;
  std::vector<std::string> names;
};

class Ranges : public testing::TestWithParam<const char*> {};

TEST_P(Ranges, OfEveryWeightThatQuantizeTakesIsKnown) {
  const Watched run(GetParam());

  const auto amax = run.ranges.by_weight();

  ASSERT_TRUE(amax.ok()) << amax.status().message();
  int weights = 0;
  for (const std::string& name : run.names) {
    if (!in_quant_scope(name, QuantScope::kCompressors)) continue;
    // V3.2 attends by the absorbed copies of kv_b alone.
    if (GetParam() == std::string("micro-v32") && name.ends_with(".kv_b_proj.weight")) {
      EXPECT_FALSE(amax->contains(name)) << name;
      continue;
    }
    ++weights;
    ASSERT_TRUE(amax->contains(name)) << name;
    EXPECT_GT(amax->at(name), 0) << name;
    const std::string partner = fused_partner(name);
    if (partner.empty()) continue;
    EXPECT_EQ(amax->at(name), amax->at(partner)) << name;
  }
  EXPECT_GT(weights, 50);
}

INSTANTIATE_TEST_SUITE_P(Models,
                         Ranges,
                         testing::Values("micro-v3", "micro-v32", "micro-v4"),
                         [](const auto& p) {
                           std::string name = p.param;
                           name.erase(name.find('-'), 1);
                           return name;
                         });

TEST(InputRanges, NamesTheWeightThatReadsWhatIsNotFinite) {
  const Watched run("micro-v3", std::numeric_limits<float>::infinity());

  const Status status = run.ranges.by_weight().status();

  EXPECT_EQ(status.code(), StatusCode::kNumerical);
  EXPECT_THAT(status.message(), testing::HasSubstr("what model.layers.0."));
}

}  // namespace
}  // namespace fathom
