#include "fathom/bench/suites/suites.h"

#include <algorithm>
#include <gtest/gtest.h>
#include <set>
#include <vector>

#include "fathom/bench/suites/plan.h"
#include "fathom/kernels/conformance/cases.h"
#include "fathom/kernels/core/kernel_set/catalog.h"
#include "fathom/models/config/presets.h"

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
            "no suite 'fast'; known are all, decode, prefill, streaming, reference23, v4, v32");
}

class SuiteOfSteps : public testing::TestWithParam<const char*> {};

TEST_P(SuiteOfSteps, HoldsTheDistinctCallsOfItsPresetsAndNothingElse) {
  BenchKernelOptions options;
  options.suite = GetParam();
  options.kv_len = {4096};
  options.batch = {1, 8};  // and no prefill but of one request
  options.seq = {1, 2048};
  const BenchPlan plan = plan_kernel_bench(options).value();
  const Suite suite = find_suite(GetParam()).value();
  ASSERT_TRUE(is_suite_of_steps(GetParam()));

  std::set<std::string_view> kernels;
  std::vector<const PresetCall*> distinct;
  std::vector<std::vector<PresetStep>> graphs;
  for (const std::string_view preset : suite.step_presets) {
    graphs.push_back(
        preset_steps(find_preset(preset).value(), {.points = {{"decode", 1, 1, 4096},
                                                              {"decode", 8, 1, 4096},
                                                              {"prefill", 1, 2048, 4096}}})
            .value());
  }
  for (const std::vector<PresetStep>& steps : graphs) {
    for (const PresetStep& step : steps) {
      for (const PresetCall& c : step.calls) {
        kernels.insert(c.kernel());
        const bool known = std::any_of(distinct.begin(), distinct.end(),
                                       [&](const PresetCall* k) { return same_call(*k, c); });
        if (!known) distinct.push_back(&c);
      }
    }
  }
  std::set<std::string_view> found;
  for (const BenchPlanEntry& entry : plan.entries) {
    EXPECT_TRUE(entry.bench_case.has_value()) << entry.name() << ": " << entry.why;
    found.insert(entry.kernel->info.name);
  }
  EXPECT_EQ(found, kernels);
  EXPECT_EQ(plan.entries.size(), distinct.size());
  EXPECT_TRUE(plan.steps.empty());
}

TEST_P(SuiteOfSteps, KernelsOfTheseModelsComeFirstEachInOneRun) {
  BenchKernelOptions options;
  options.suite = GetParam();
  options.phase = "prefill";
  const BenchPlan plan = plan_kernel_bench(options).value();

  EXPECT_EQ(plan.entries.front().kernel->info.name, "sparse_mla_decode");
  std::set<std::string_view> seen;
  int rank = 0;
  for (size_t i = 0; i < plan.entries.size(); ++i) {
    const std::string_view kernel = plan.entries[i].kernel->info.name;
    EXPECT_LE(rank, step_suite_rank(kernel)) << kernel;
    rank = step_suite_rank(kernel);
    if (i > 0 && plan.entries[i - 1].kernel->info.name == kernel) continue;
    EXPECT_TRUE(seen.insert(kernel).second) << kernel << " is in two places";
  }
}

INSTANTIATE_TEST_SUITE_P(Suites, SuiteOfSteps, testing::Values("v4", "v32"));

TEST(Suites, OfStepsTakeKernelsOfTheirGraphsAlone) {
  BenchKernelOptions options;
  options.suite = "v32";
  options.phase = "decode";
  options.batch = {1};
  options.kernels = {"sparse_mla_decode"};
  // The window of the context does not show in the operands but the pool does: a row a context, and
  // the one of a cache in FP8.
  EXPECT_EQ(plan_kernel_bench(options).value().entries.size(), 4u);

  options.kernels = {"compress_pool"};
  EXPECT_EQ(plan_kernel_bench(options).status().message(),
            "kernel 'compress_pool' is not in suite v32");
  options.kernels = {};
  options.batch = {7};
  EXPECT_EQ(plan_kernel_bench(options).status().code(), StatusCode::kInvalidArgument);
}

TEST(Suites, OfStepsHaveRowsForWhatHasATarget) {
  const auto names = [](const char* suite) {
    BenchKernelOptions options;
    options.suite = suite;
    const BenchPlan plan = plan_kernel_bench(options).value();
    std::set<std::string> out;
    for (const BenchPlanEntry& entry : plan.entries)
      EXPECT_TRUE(out.insert(entry.name()).second) << entry.name() << " twice";
    return out;
  };
  const std::set<std::string> v32 = names("v32");
  for (const int batch : {1, 8, 32, 128}) {
    for (const std::string& name :
         {str_cat("index_logits_paged/deepseek-v3.2_sparse.index_logits_decode_b", batch,
                  "_kv65536"),
          str_cat("topk_rows/deepseek-v3.2_sparse.index_topk_decode_b", batch, "_kv65536"),
          str_cat("sparse_mla_decode/v32_t", batch)})
      EXPECT_EQ(v32.count(name), 1u) << name;
  }
  const std::set<std::string> v4 = names("v4");
  for (const char* name : {"mhc_pre/deepseek-v4-flash_model.hc_pre_prefill_b1_s4096_kv4096",
                           "fp8_block_gemm/deepseek-v4-flash_attn.wo_b_prefill_b1_s1024_kv4096",
                           "topk_rows/deepseek-v4-flash_attn.index_topk_decode_b128_kv65536",
                           "sparse_mla_decode/v4_flash_t32", "mhc_chain/v4_flash_t32"})
    EXPECT_EQ(v4.count(name), 1u) << name;
  EXPECT_EQ(v4.count("rmsnorm/deepseek-v4-flash_attn.q_norm_prefill_b1_s4096_kv4096"), 0u);
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
