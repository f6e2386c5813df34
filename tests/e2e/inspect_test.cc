// `fathom inspect` of models that are not here.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/e2e/program.h"

namespace fathom::e2e {
namespace {

using testing::AllOf;
using testing::AnyOf;
using testing::ContainsRegex;
using testing::HasSubstr;

// Weights, caches by group and scratch of one sequence at 4k, 128k and 1M tokens, in powers of two.
// At 4k the rows of CSA are 30 layers x 1024 rows x 1024 bytes, those of HCA 31 layers x 32 rows.
TEST(Inspect, PlansAV4ProAtThreeLengthsOfContext) {
  const ProgramResult r = run_fathom({"inspect", "--as", "deepseek-v4-pro"});

  ASSERT_EQ(r.exit_code, 0) << r.err;
  EXPECT_THAT(r.out, ContainsRegex("one sequence of +\\| +4096 tokens \\| +131072 tokens \\| +"
                                   "1048576 tokens"));
  EXPECT_THAT(r.out, ContainsRegex("cache of csa +\\| +30.00 MiB \\| +960.00 MiB \\| +7.50 GiB"));
  EXPECT_THAT(r.out, ContainsRegex("cache of hca +\\| +992.00 KiB \\| +31.00 MiB \\| +248.00 MiB"));
  EXPECT_THAT(r.out, ContainsRegex("cache of index +\\| +1.99 MiB \\| +63.75 MiB \\| +510.00 MiB"));
  EXPECT_THAT(r.out,
              ContainsRegex("cache of hca state +\\| +34.88 MiB \\| +34.88 MiB \\| +34.88 MiB"));
  EXPECT_THAT(r.out, ContainsRegex("scratch +\\|"));
}

// The machine of the plan, and whose kernels are listed: this CPU's where the build has none for
// it.
TEST(Inspect, NamesTheMachineThatItPlansFor) {
  const ProgramResult preset = run_fathom({"inspect", "--as", "deepseek-r1-nvfp4"});
  const ProgramResult cpu = run_fathom({"inspect", "--as", "deepseek-r1-nvfp4", "--device", "cpu"});
  const ProgramResult model = run_fathom({"inspect", shipped_model()});

  EXPECT_THAT(preset.out, HasSubstr("Planned for 8xh200 (the default of --as; --device plans for "
                                    "another), 1.03 TiB of memory."));
  EXPECT_THAT(preset.out, AnyOf(HasSubstr("variant on h200"),
                                AllOf(HasSubstr("built without CUDA and has no kernels for h200"),
                                      HasSubstr("variant on this CPU ("))));
  EXPECT_THAT(cpu.out, HasSubstr("Planned for this machine's CPU, "));
  EXPECT_THAT(cpu.out, HasSubstr("variant on this CPU ("));
  EXPECT_THAT(model.out, HasSubstr("Planned for this machine's CPU (the default; --device plans "
                                   "for another), "));
}

// Where an op has another kernel at the larger batch, either row says at which it is called.
TEST(Inspect, CallsAreCountedAtBothBatches) {
  const ProgramResult r = run_fathom({"inspect", "--as", "deepseek-r1-nvfp4", "--device", "cpu"});

  EXPECT_THAT(r.out, HasSubstr("0 calls at a batch: another kernel runs the op there."));
  EXPECT_THAT(r.out, ContainsRegex("\\| gate +\\| +58 \\| +0 \\| router_gemm"));
  EXPECT_THAT(r.out, ContainsRegex("\\| gate +\\| +0 \\| +58 \\| bf16_gemm"));
}

TEST(Inspect, CacheFormatsOfV4AreAskedForByName) {
  const ProgramResult r = run_fathom({"inspect", "--as", "deepseek-v4-flash", "--kv-cache-dtype",
                                      "nvfp4", "--indexer-dtype", "fp8_e4m3"});

  ASSERT_EQ(r.exit_code, 0) << r.err;
  EXPECT_THAT(r.out, HasSubstr("row nvfp4 512/64, 21 layers x"));
  EXPECT_THAT(r.out, HasSubstr("indexer key e4m3, 21 layers x"));
}

TEST(Inspect, SaysWhichFlagDoesNothingForTheModel) {
  const ProgramResult keys =
      run_fathom({"inspect", "--as", "deepseek-v3", "--indexer-dtype", "fp8_e4m3"});

  EXPECT_EQ(keys.exit_code, 0) << keys.err;
  EXPECT_THAT(keys.err, HasSubstr("--indexer-dtype does nothing: the attention of "
                                  "DeepseekV3ForCausalLM is not sparse"));
}

TEST(Inspect, CacheFormatsOfV4AreRefusedForOtherModels) {
  const ProgramResult rows =
      run_fathom({"inspect", "--as", "deepseek-v3", "--kv-cache-dtype", "nvfp4"});
  const ProgramResult keys =
      run_fathom({"inspect", "--as", "deepseek-v3.2", "--indexer-dtype", "mxfp4"});

  EXPECT_NE(rows.exit_code, 0);
  EXPECT_THAT(
      rows.err,
      HasSubstr("the KV cache format (--kv-cache-dtype) is nvfp4, expected bf16, f32 or fp8_e4m3"));
  EXPECT_NE(keys.exit_code, 0);
  EXPECT_THAT(keys.err,
              HasSubstr("the format of the indexer's keys (--indexer-dtype) is mxfp4, expected"));
}

}  // namespace
}  // namespace fathom::e2e
