// Dry runs with a plan, and what a record says of its call.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <vector>

#include "fathom/kernels/core/launch.h"
#include "fathom/kernels/norm/rmsnorm/rmsnorm.h"
#include "fathom/trace/scope.h"

namespace fathom {
namespace {

using testing::HasSubstr;

class Plan : public testing::Test {
 protected:
  Plan() : recorder_(RecordLevel::kShapes, 8) {
    ex_.backend = Backend::kDry;
    ex_.scratch = &scratch_;
    ex_.recorder = &recorder_;
  }

  // A layer's function, which names the op and leaves the launch to another.
  Status norm(Op op, int64_t rows) {
    return launch<RmsNorm>(ex_, op,
                           {.x = make_view(nullptr, {rows, 64}, Format::kBf16, "T,H"),
                            .w = make_view(nullptr, {64}, Format::kBf16, "H"),
                            .y = make_view(nullptr, {rows, 64}, Format::kBf16, "T,H"),
                            .eps = 1e-6f});
  }

  std::string variant() const {
    const char* name = recorder_.records().back().variant;
    return name == nullptr ? "" : name;
  }

  Arena scratch_;
  Recorder recorder_;
  Exec ex_;
};

TEST_F(Plan, WithoutOneADryRunNamesNoVariant) {
  ASSERT_TRUE(norm("n", 2).ok());

  EXPECT_EQ(variant(), "");
}

TEST_F(Plan, ADryRunNamesTheVariantOfThePlannedInstructionSet) {
  const KernelSet portable = KernelSet::planned_for_cpu(Isa::kPortable);
  ex_.kernels = &portable;
  ASSERT_TRUE(norm("n", 2).ok());
  EXPECT_EQ(variant(), "portable");

  // Also where this machine could not run it.
  const KernelSet amx = KernelSet::planned_for_cpu(Isa::kAmx);
  ex_.kernels = &amx;
  ASSERT_TRUE(norm("n", 2).ok());
  EXPECT_EQ(variant(), "avx512");
}

TEST_F(Plan, ARecordKnowsWhereTheOpIsNamedAndWhereItIsLaunched) {
  ASSERT_TRUE(norm("n", 2).ok());

  const OpRecord r = recorder_.records().back();
  EXPECT_THAT(r.op.function, HasSubstr("TestBody"));
  EXPECT_STREQ(r.launch.function, "norm");
  EXPECT_EQ(project_path(r.launch.file), "fathom/kernels/core/plan_test.cc");
  EXPECT_GT(r.op.line, r.launch.line);
}

TEST_F(Plan, AScopeKnowsWhatOpenedIt) {
  Scope scope(&recorder_, "layer", 3);
  ASSERT_TRUE(norm("n", 2).ok());

  const OpRecord r = recorder_.records().back();
  EXPECT_THAT(r.scopes[0].site.function, HasSubstr("TestBody"));
  EXPECT_EQ(r.scopes[0].index, 3);
}

TEST(ProjectPath, BeginsAtTheLibraryWhereverItWasCompiled) {
  EXPECT_EQ(project_path("/home/a/fathom/fathom/layers/norm.cc"), "fathom/layers/norm.cc");
  EXPECT_EQ(project_path("fathom/layers/norm.cc"), "fathom/layers/norm.cc");
  EXPECT_EQ(project_path("/x/main.cc"), "/x/main.cc");
}

TEST(Probed, RecordsKeepStatisticsOfWhatWasWritten) {
  const KernelSet kernels = KernelSet::for_cpu(Isa::kPortable);
  std::vector<float> x = {3, 4, 0, 0};
  std::vector<float> w = {1, 1, 1, 1};
  std::vector<float> y(4);
  const auto pool = ThreadPool::create(1, PinThreads::kNo).value();
  Arena scratch;
  Recorder recorder(RecordLevel::kProbed, 4);
  Exec ex;
  ex.kernels = &kernels;
  ex.pool = pool.get();
  ex.scratch = &scratch;
  ex.recorder = &recorder;

  ASSERT_TRUE(launch<RmsNorm>(ex, "n",
                              {.x = make_view(x.data(), {1, 4}, Format::kF32),
                               .w = make_view(w.data(), {4}, Format::kF32),
                               .y = make_view(y.data(), {1, 4}, Format::kF32),
                               .eps = 0.0f})
                  .ok());

  ASSERT_EQ(recorder.statistics().size(), 1u);
  EXPECT_EQ(recorder.records().back().statistics, 0);
  EXPECT_NEAR(recorder.statistics()[0].max, 1.6, 1e-6);
  EXPECT_NEAR(recorder.statistics()[0].l2, 2.0, 1e-6);  // sqrt(D) after normalising
  EXPECT_GT(recorder.records().back().end_ns, recorder.records().back().start_ns);
}

}  // namespace
}  // namespace fathom
