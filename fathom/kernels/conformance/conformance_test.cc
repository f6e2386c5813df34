// Every kernel, every variant, every case. One test a case, named "conformance/KERNEL.CASE"; it
// runs each variant that takes the case. Real shapes (cases marked `bench`) are registered as
// disabled tests, because they take seconds and gigabytes: run them in a release build with
//   kernels_test --gtest_also_run_disabled_tests --gtest_filter='conformance/*DISABLED_*'
#include <gtest/gtest.h>

#include "fathom/kernels/conformance/case_runner.h"
#include "fathom/kernels/conformance/cases.h"
#include "fathom/kernels/core/catalog.h"
#include "fathom/kernels/core/variants.h"

namespace fathom {
namespace {

constexpr uint64_t kSeed = 20260101;

#ifdef FATHOM_SANITIZED
constexpr bool kRealShapes = false;
constexpr int kRepeats = 3;
#else
constexpr bool kRealShapes = true;
constexpr int kRepeats = 20;
#endif

void bind_kernels() {
  static const bool bound = (install_cpu_kernels(best_isa()), true);
  (void)bound;
}

class CaseTest : public testing::Test {
 public:
  explicit CaseTest(const Case& c) : case_(c) {}

  void TestBody() override {
    bind_kernels();
    const KernelEntry* kernel = find_kernel(case_.kernel);
    ASSERT_NE(kernel, nullptr) << case_.kernel << " has cases and no line in kernels.def";
    const std::unique_ptr<CaseInstance> instance = case_.make(kSeed);
    int ran = 0;
    for (const VariantEntry& variant : kernel->variants(Backend::kCpu)) {
      SCOPED_TRACE(str_cat("variant ", variant.name, ", ", instance->shape()));
      CaseRunner runner(2);
      runner.pin(case_.kernel, variant.name);
      if (!instance->why_not(runner.exec()).empty()) continue;
      ++ran;
      const CheckReport report = runner.run_checked(*instance);
      EXPECT_TRUE(report.passed) << report.why << "\nbudget: " << report.budget;
      const int repeats = case_.spec.bench ? 2 : kRepeats;
      EXPECT_EQ(check_traits(*instance, case_.kernel, variant.name, variant.traits, {repeats}), "");
    }
    CaseRunner runner(2);
    EXPECT_GT(ran, 0) << "no variant takes " << instance->shape() << ": "
                      << instance->why_not(runner.exec());
  }

 private:
  const Case& case_;
};

const bool kRegistered = [] {
  for (const Case& c : all_cases().cases()) {
    if (c.spec.bench && !kRealShapes) continue;
    const std::string name = str_cat(c.spec.bench ? "DISABLED_" : "", c.spec.name);
    testing::RegisterTest(str_cat("conformance/", c.kernel).c_str(), name.c_str(), nullptr, nullptr,
                          __FILE__, __LINE__, [&c]() -> testing::Test* { return new CaseTest(c); });
  }
  return true;
}();

TEST(Conformance, EveryKernelHasCasesForTestsAndForBenchmarks) {
  for (const KernelEntry& kernel : all_kernels()) {
    int small = 0;
    int real = 0;
    for (const Case* c : all_cases().of(kernel.info.name))
      ++(c->spec.bench ? real : small);
    EXPECT_GT(small, 0) << kernel.info.name;
    EXPECT_GT(real, 0) << kernel.info.name;
  }
}

TEST(Conformance, EveryVariantTakesACase) {
  bind_kernels();
  for (const KernelEntry& kernel : all_kernels()) {
    for (const VariantEntry& variant : kernel.variants(Backend::kCpu)) {
      bool taken = false;
      for (const Case* c : all_cases().of(kernel.info.name)) {
        if (taken || c->spec.bench) continue;
        CaseRunner runner(1);
        runner.pin(kernel.info.name, variant.name);
        taken = c->make(kSeed)->why_not(runner.exec()).empty();
      }
      EXPECT_TRUE(taken) << kernel.info.name << ": no small case runs variant " << variant.name;
    }
  }
}

TEST(Conformance, EveryKernelHasAPortableVariantThatIsDeterministicAndBatchInvariant) {
  install_cpu_kernels(Isa::kPortable);
  for (const KernelEntry& kernel : all_kernels()) {
    const std::vector<VariantEntry> variants = kernel.variants(Backend::kCpu);
    ASSERT_FALSE(variants.empty()) << kernel.info.name;
    for (const VariantEntry& v : variants) {
      EXPECT_EQ(v.traits & (kDeterministic | kBatchInvariant), kDeterministic | kBatchInvariant)
          << kernel.info.name << " " << v.name;
    }
  }
  install_cpu_kernels(best_isa());
}

}  // namespace
}  // namespace fathom
