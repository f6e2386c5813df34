// What adding a kernel takes: its folder, a line in kernels.def, a line in kernels.h, and its
// caller, which is this test. CMakeLists.txt adds the two lines to copies of the lists; everything
// else is the tree as it is.
#include <gtest/gtest.h>
#include <vector>

#include "fathom/kernels/conformance/case_runner.h"
#include "fathom/kernels/core/kernel_set/catalog.h"
#include "fathom/kernels/core/launch.h"
#include "fathom/kernels/kernels.h"

namespace fathom {
namespace {

TEST(AddKernel, ItIsInTheCatalogueByBothNames) {
  const KernelEntry* entry = find_kernel("doubled");
  ASSERT_NE(entry, nullptr);

  EXPECT_EQ(find_kernel("reference_doubled"), entry);
  EXPECT_EQ(entry->family, "act");
  EXPECT_EQ(entry->group, "doubled");
  EXPECT_TRUE(entry->cpu);
  EXPECT_FALSE(entry->cuda);
  EXPECT_EQ(entry->signature->num_operands, 2);
  EXPECT_NE(find_kernel("rmsnorm"), nullptr) << "and so are the others";
}

TEST(AddKernel, EverySetOfTheCpuHasItsVariantsAndNoneOfAGpu) {
  const KernelEntry& entry = *find_kernel("doubled");

  const auto variants = entry.variants(KernelSet::for_cpu(Isa::kPortable));

  ASSERT_EQ(variants.size(), 1u);
  EXPECT_EQ(variants[0].name, "portable");
  EXPECT_TRUE(entry.variants(KernelSet::for_cuda(90)).empty());
}

TEST(AddKernel, ItsCallerLaunchesAndRecordsIt) {
  const KernelSet kernels = KernelSet::for_cpu(best_isa());
  const auto pool = ThreadPool::create(1, PinThreads::kNo).value();
  Arena scratch;
  Recorder recorder(RecordLevel::kShapes, 1);
  Exec ex;
  ex.kernels = &kernels;
  ex.pool = pool.get();
  ex.scratch = &scratch;
  ex.recorder = &recorder;
  std::vector<float> x = {1, 2, 3};
  std::vector<float> y(3);

  const Status status = launch<Doubled>(ex, "twice",
                                        {.x = make_view(x.data(), {1, 3}, Format::kF32),
                                         .y = make_view(y.data(), {1, 3}, Format::kF32)});

  ASSERT_TRUE(status.ok()) << status.message();
  EXPECT_EQ(y, (std::vector<float>{2, 4, 6}));
  EXPECT_STREQ(recorder.records()[0].kernel, "doubled");
  EXPECT_STREQ(recorder.records()[0].variant, "portable");
  EXPECT_EQ(recorder.records()[0].cost.flops, 3);
}

TEST(AddKernel, ConformanceRunsItsCases) {
  const KernelSet kernels = KernelSet::for_cpu(best_isa());
  const std::vector<const Case*> cases = all_cases().of("doubled");
  ASSERT_EQ(cases.size(), 1u);
  const auto instance = cases[0]->make(1);
  CaseRunner runner(kernels, 2);

  const CheckReport report = runner.run_checked(*instance);

  EXPECT_TRUE(report.passed) << report.why;
  EXPECT_EQ(check_traits(kernels, *instance, "doubled", "", kDeterministic | kBatchInvariant,
                         {.repeats = 2}),
            "");
}

}  // namespace
}  // namespace fathom
