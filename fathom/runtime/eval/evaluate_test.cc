#include "fathom/runtime/eval/evaluate.h"

#include <cmath>
#include <filesystem>
#include <fstream>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "fathom/models/registry.h"
#include "fathom/weights/checkpoint/checkpoint.h"
#include "tests/support/cpu_kernels.h"
#include "tests/support/temp_dir.h"

namespace fathom {
namespace {

using testing::Contains;
using testing::ElementsAre;
using testing::IsEmpty;

constexpr const char* kFixture = FATHOM_SOURCE_DIR "/tests/golden/micro-v3/";

// The fixture against its reference outputs; the first number of `broken`, in bf16, is NaN.
VectorComparison compare(const std::string& broken) {
  const TempDir dir;
  for (const char* name : {"config.json", "model.safetensors"})
    std::filesystem::copy(kFixture + std::string(name), dir.file(name));
  if (!broken.empty()) {
    const Checkpoint checkpoint = Checkpoint::open(dir.path()).value();
    std::fstream file(dir.file("model.safetensors"),
                      std::ios::in | std::ios::out | std::ios::binary);
    file.seekp(checkpoint.get(broken).value()->entry.begin) << "\xC0\x7F";
  }
  ThreadPool pool(2, PinThreads::kNo);
  OpenOptions open;
  open.model.activations = Format::kF32;
  open.pool = &pool;
  const std::unique_ptr<Model> model =
      open_model(ModelSource::open(dir.path()).value(), {}, open).value();
  const auto session =
      ForwardSession::create(*model, {.pool = &pool, .cpu_kernels = &cpu_kernels()},
                             {.max_tokens = 400, .prefill_logits = LogitRows::kAll})
          .value();
  return compare_vectors(*model, *session, kFixture + std::string("golden.safetensors"), {})
      .value();
}

TEST(CompareVectors, FindsNothingWhereTheModelIsTheReference) {
  const VectorComparison c = compare("");

  EXPECT_THAT(check_vectors(c, {}, true), IsEmpty());
  EXPECT_GT(c.min_cosine(), 0.9999);
  EXPECT_GT(c.max_abs_hidden, 0.0);
  EXPECT_LT(c.max_abs_hidden, 1e-3);
}

TEST(CompareVectors, NaNOfTheModelIsTheLargestDifferenceThereIs) {
  const VectorComparison c = compare("model.norm.weight");

  EXPECT_EQ(c.max_abs_hidden, INFINITY);
  EXPECT_EQ(c.max_abs_logit(), INFINITY);
  EXPECT_EQ(c.min_cosine(), -1.0);
  EXPECT_EQ(c.mean_kl(), INFINITY);
  EXPECT_THAT(check_vectors(c, {}, true), Contains("the hidden states are not finite"));
  EXPECT_THAT(check_vectors(c, {}, true),
              Contains("p0: largest logit difference inf exceeds 0.002"));
  EXPECT_THAT(check_vectors(c, {}, false), Contains("cosine nan is below 0.9995"));
}

TEST(CheckVectors, JudgesQuantisedRunsOfSparseModelsByKlAndFirstChoices) {
  const VectorBudget budget{.min_cosine = 0, .max_kl = 1e-3, .min_top1_share = 0.96};
  VectorComparison c;
  c.prompts.push_back({.name = "p0", .kl_sum = 4e-3, .rows = 4, .same_top1 = 96, .positions = 100});

  EXPECT_THAT(check_vectors(c, budget, false), IsEmpty());
  c.prompts[0].kl_sum = 4.1e-3;
  c.prompts[0].same_top1 = 95;
  EXPECT_THAT(check_vectors(c, budget, false),
              ElementsAre("mean KL 0.001025 nats exceeds 0.001 (--max-kl)",
                          "first choices agree in 95 % of the positions, expected 96 % "
                          "(--min-top1)"));
}

// One token whose logits are not stored may be the one that is wrong.
TEST(CheckVectors, RefusesStatesThatAreNotFiniteWhateverTheLogits) {
  VectorComparison c;
  c.prompts.push_back({.name = "p2",
                       .tokens = 1,
                       .dot = 1,
                       .found_norm = 1,
                       .expected_norm = 1,
                       .same_top1 = 1,
                       .positions = 1});
  for (const bool float32 : {false, true}) {
    VectorComparison hidden = c;
    hidden.max_abs_hidden = INFINITY;
    VectorComparison router = c;
    router.max_abs_router_weight = INFINITY;

    EXPECT_THAT(check_vectors(c, {}, float32), IsEmpty());
    EXPECT_THAT(check_vectors(hidden, {}, float32),
                ElementsAre("the hidden states are not finite"));
    EXPECT_THAT(check_vectors(router, {}, float32),
                ElementsAre("the weights of the router are not finite"));
  }
}

}  // namespace
}  // namespace fathom
