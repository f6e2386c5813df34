#include "fathom/models/dry/one_form.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "fathom/kernels/norm/rmsnorm/rmsnorm.h"
#include "fathom/models/registry.h"
#include "tests/support/cpu_kernels.h"

namespace fathom {
namespace {

using testing::HasSubstr;

std::unique_ptr<Model> dry_model() {
  OpenOptions dry;
  dry.weights = WeightOrigin::kNone;
  dry.model.attention.always_absorbed = true;
  dry.model.batch_invariant = true;
  Preset preset = find_preset("deepseek-v2-lite").value();
  preset.config.num_hidden_layers = 2;
  return open_model(ModelSource::describe(preset), {}, dry).value();
}

Status norm_nothing(Exec&, const RmsNorm::Args&) {
  return {};
}

TEST(OneForm, IsFoundWhereNoKernelCountsRows) {
  const Status status = check_one_form(*dry_model(), {.kernels = &cpu_kernels()});

  EXPECT_TRUE(status.ok()) << status.message();
}

TEST(OneForm, NamesTheOpWhoseVariantFollowsTheNumberOfRows) {
  const VariantTable<RmsNorm> table{{"few", Isa::kPortable, "T<=4", kBatchInvariant, norm_nothing},
                                    {"many", Isa::kPortable, "", kBatchInvariant, norm_nothing}};
  const KernelSet kernels = cpu_kernels().with<RmsNorm>(table);

  const Status status = check_one_form(*dry_model(), {.kernels = &kernels});

  ASSERT_FALSE(status.ok());
  EXPECT_EQ(status.code(), StatusCode::kUnsupported);
  EXPECT_THAT(status.message(), HasSubstr("norm: steps of few rows run few, others many"));
}

}  // namespace
}  // namespace fathom
