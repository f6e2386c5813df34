#include "fathom/bench/suites/suites.h"

#include <gtest/gtest.h>
#include <set>

#include "fathom/bench/suites/plan.h"
#include "fathom/kernels/conformance/cases.h"
#include "fathom/kernels/core/kernel_set/catalog.h"

namespace fathom {
namespace {

TEST(Suites, AllHoldsEveryKernelOfTheCatalogue) {
  EXPECT_EQ(find_suite("all").value().kernels.size(), all_kernels().size());
}

TEST(Suites, Reference23HoldsTwentyThreeNamesAndTheirCompanions) {
  const Suite suite = find_suite("reference23").value();

  const size_t companions = companion_kernels().size();
  EXPECT_EQ(suite.kernels.size(), 23u + companions);
  std::set<std::string_view> kernels;
  for (const std::string& name : suite.kernels) {
    ASSERT_NE(find_kernel(name), nullptr) << name;
    kernels.insert(find_kernel(name)->info.name);
  }
  EXPECT_EQ(kernels.size(), 23u + companions);
}

TEST(Suites, StreamingWalksThroughMoreThanCachesHold) {
  BenchKernelOptions options;
  options.suite = "streaming";
  std::set<std::string_view> kernels;
  const std::vector<BenchPlanEntry> plan = plan_kernel_bench(options).value().entries;
  for (const BenchPlanEntry& entry : plan)
    kernels.insert(entry.kernel->info.name);

  for (const char* kernel :
       {"rmsnorm", "silu_mul", "rope_inplace", "token_quant_fp8", "permute_rows", "argmax",
        "renorm_top_p", "topk_softmax", "topk_rows", "concat_k"})
    EXPECT_EQ(kernels.count(kernel), 1u) << kernel;
}

TEST(Suites, UnknownSuiteNamesTheKnownOnes) {
  EXPECT_EQ(find_suite("fast").status().code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(find_suite("fast").status().message(),
            "no suite 'fast'; known are all, decode, prefill, streaming, reference23");
}

TEST(Suites, TimedCasesHaveAPhase) {
  const std::set<std::string> phases = {"decode", "prefill", "draft", "verify"};
  for (const Case& c : all_cases().cases()) {
    if (!c.spec.bench) continue;
    EXPECT_EQ(phases.count(c.spec.phase), 1u)
        << c.kernel << " " << c.spec.name << " has phase '" << c.spec.phase << "'";
  }
}

TEST(Pattern, WithoutWildcardsMatchesAnywhere) {
  EXPECT_TRUE(matches_pattern("norm", "add_rmsnorm/t1"));
  EXPECT_TRUE(matches_pattern("", "anything"));
  EXPECT_FALSE(matches_pattern("gemm", "add_rmsnorm/t1"));
}

TEST(Pattern, WithWildcardsMatchesTheWhole) {
  EXPECT_TRUE(matches_pattern("*gemm*", "nvfp4_gemm/t1"));
  EXPECT_TRUE(matches_pattern("*/t1", "nvfp4_gemm/t1"));
  EXPECT_FALSE(matches_pattern("*/t1", "nvfp4_gemm/t128"));
  EXPECT_TRUE(matches_pattern("*/t1*", "nvfp4_gemm/t128"));
  EXPECT_TRUE(matches_pattern("?mm", "gmm"));
  EXPECT_FALSE(matches_pattern("?mm", "mm"));
  EXPECT_TRUE(matches_pattern("a*b*c", "aXbYbZc"));
  EXPECT_FALSE(matches_pattern("a*b*c", "aXbYbZ"));
  EXPECT_TRUE(matches_pattern("*", ""));
  EXPECT_FALSE(matches_pattern("?", ""));
  EXPECT_TRUE(matches_pattern("*b", "*ab"));
}

TEST(Pattern, TakesLinearTimeOnManyStars) {
  const std::string text(20000, 'a');
  EXPECT_FALSE(matches_pattern("*a*a*a*a*a*a*b", text));
}

}  // namespace
}  // namespace fathom
