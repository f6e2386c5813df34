// Every kernel, every variant, every case. One test a case, named "conformance/KERNEL.CASE"; it
// runs each variant that takes the case. Cases of real shapes (marked `bench`) take seconds and
// gigabytes and stand in for the small ones when the program is run as
//   kernels_test --real_shapes --gtest_filter='conformance/*'
// --variant NAME runs that variant alone and skips the cases that it does not take.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <set>
#include <string>
#include <string_view>

#include "fathom/kernels/conformance/case_runner.h"
#include "fathom/kernels/conformance/cases.h"
#include "fathom/kernels/core/kernel_set/catalog.h"
#include "tests/support/cpu_kernels.h"
#include "tests/support/sanitized.h"

namespace fathom {
namespace {

constexpr uint64_t kSeed = 20260101;

constexpr int kRepeats = kSanitized ? 1 : 8;  // no wrong access waits for the second run
constexpr int kLargeRepeats = 2;

/// From so much on a case has few repeats: those that are for GPUs take a second each, and what
/// repeats find, they find in the others.
constexpr double kLargeFlops = kSanitized ? 5e6 : 20e6;

bool is_large(const Case& c, CaseInstance& instance) {
  return c.spec.bench || instance.cost().flops >= kLargeFlops;
}

/// A sanitizer looks for wrong accesses, which large cases make where smaller ones do, and would
/// take half a minute for each. Real shapes run where they are asked for. Of the others every
/// second case of a kernel runs: its neighbours differ in a size or a format, and to make them
/// takes most of the time.
bool is_left_out(const Case& c, CaseInstance& instance) {
  return kSanitized && !c.spec.bench && is_large(c, instance);
}

std::string only_variant;

class CaseTest : public testing::Test {
 public:
  explicit CaseTest(const Case& c) : case_(c) {}

  void TestBody() override {
    const KernelEntry* kernel = find_kernel(case_.kernel);
    ASSERT_NE(kernel, nullptr) << case_.kernel << " has cases and no line in kernels.def";
    const std::unique_ptr<CaseInstance> instance = case_.make(kSeed);
    if (const std::optional<double> stated = instance->stated_flops()) {
      EXPECT_EQ(*stated, instance->cost().flops)
          << "flops is \"" << kernel->info.flops << "\" and cost() disagrees at "
          << instance->shape();
    }
    if (is_left_out(case_, *instance)) GTEST_SKIP() << "large, and this is under a sanitizer";
    const int repeats = is_large(case_, *instance) ? kLargeRepeats : kRepeats;
    int ran = 0;
    for (const VariantEntry& variant : kernel->variants(cpu_kernels())) {
      if (!only_variant.empty() && variant.name != only_variant) continue;
      SCOPED_TRACE(str_cat("variant ", variant.name, ", ", instance->shape()));
      CaseRunner runner(cpu_kernels(), 2);
      runner.pin(case_.kernel, variant.name);
      if (!instance->why_not(runner.exec()).empty()) continue;
      ++ran;
      const CheckReport report = runner.run_checked(*instance);
      EXPECT_TRUE(report.passed) << report.why << "\nbudget: " << report.budget;
      EXPECT_EQ(check_traits(cpu_kernels(), *instance, case_.kernel, variant.name, variant.traits,
                             {repeats}),
                "");
    }
    if (ran == 0 && !only_variant.empty()) GTEST_SKIP() << "not for variant " << only_variant;
    CaseRunner runner(cpu_kernels(), 2);
    EXPECT_GT(ran, 0) << "no variant takes " << instance->shape() << ": "
                      << instance->why_not(runner.exec());
  }

 private:
  const Case& case_;
};

enum class Shapes { kSmall, kReal };

void register_cases(Shapes shapes) {
  bool second = false;
  for (const Case& c : all_cases().cases()) {
    if (c.spec.bench != (shapes == Shapes::kReal)) continue;
    if (!c.spec.suite.empty()) continue;  // hundreds, which the benchmark checks as it runs them
    second = !second;
    if (kSanitized && second && shapes == Shapes::kSmall) continue;
    testing::RegisterTest(str_cat("conformance/", c.kernel).c_str(), c.spec.name.c_str(), nullptr,
                          nullptr, __FILE__, __LINE__,
                          [&c]() -> testing::Test* { return new CaseTest(c); });
  }
}

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

TEST(Conformance, EveryKernelStatesItsFlops) {
  for (const KernelEntry& kernel : all_kernels())
    EXPECT_FALSE(kernel.info.flops.empty())
        << kernel.info.name << ": kInfo needs .flops, a formula over its axes or words after '~'";
}

/// The variants of a kernel that no small case runs. Cases are made one after the other until none
/// is left: the large ones are at the end, and their data takes seconds.
std::set<std::string> variants_without_case(const KernelEntry& kernel) {
  std::set<std::string> left;
  for (const VariantEntry& variant : kernel.variants(cpu_kernels()))
    left.emplace(variant.name);
  for (const Case* c : all_cases().of(kernel.info.name)) {
    if (left.empty()) break;
    if (c->spec.bench) continue;
    const auto made = c->make(kSeed);
    if (is_left_out(*c, *made)) continue;
    std::erase_if(left, [&](const std::string& variant) {
      CaseRunner runner(cpu_kernels(), 1);
      runner.pin(kernel.info.name, variant);
      return made->why_not(runner.exec()).empty();
    });
  }
  return left;
}

TEST(Conformance, EveryVariantTakesACase) {
  if (kSanitized) GTEST_SKIP() << "of the list of cases, which other builds hold to it";
  for (const KernelEntry& kernel : all_kernels())
    EXPECT_THAT(variants_without_case(kernel), testing::IsEmpty()) << kernel.info.name;
}

TEST(Conformance, EveryKernelHasAPortableVariantThatIsDeterministicAndBatchInvariant) {
  const KernelSet portable = KernelSet::for_cpu(Isa::kPortable);
  for (const KernelEntry& kernel : all_kernels()) {
    const std::vector<VariantEntry> variants = kernel.variants(portable);
    ASSERT_FALSE(variants.empty()) << kernel.info.name;
    for (const VariantEntry& v : variants) {
      EXPECT_EQ(v.traits & (kDeterministic | kBatchInvariant), kDeterministic | kBatchInvariant)
          << kernel.info.name << " " << v.name;
    }
  }
}

}  // namespace
}  // namespace fathom

// Instead of the main of GoogleTest: cases are registered before it looks at its filters.
int main(int argc, char** argv) {
  fathom::Shapes shapes = fathom::Shapes::kSmall;
  int kept = 1;
  for (int i = 1; i < argc; ++i) {
    if (std::string_view(argv[i]) == "--real_shapes") {
      shapes = fathom::Shapes::kReal;
    } else if (std::string_view(argv[i]) == "--variant" && i + 1 < argc) {
      fathom::only_variant = argv[++i];
    } else {
      argv[kept++] = argv[i];
    }
  }
  fathom::register_cases(shapes);
  testing::InitGoogleTest(&kept, argv);
  return RUN_ALL_TESTS();
}
