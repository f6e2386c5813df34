// What `fathom bench kernel` prints without running a kernel.
#include <algorithm>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/e2e/program.h"

namespace fathom::e2e {
namespace {

using testing::ContainsRegex;
using testing::HasSubstr;
using testing::Not;

TEST(BenchList, ReferenceTableHasALineForEachOfTheSixtyNames) {
  const ProgramResult r = run_fathom({"bench", "kernel", "--list", "--reference"});

  EXPECT_EQ(r.exit_code, 0);
  EXPECT_EQ(std::count(r.out.begin(), r.out.end(), '\n'), 62);
  EXPECT_THAT(r.out,
              ContainsRegex("cutlass_scaled_fp4_mm +. nvfp4_gemm +. kernels/gemm/nvfp4_gemm +. "
                            "cpu, cuda +. covered "));
  EXPECT_THAT(r.out, ContainsRegex("weak_ref_tensor .*View, by construction"));
  EXPECT_THAT(r.out, ContainsRegex("cutlass_mla_get_workspace_size .*MlaDecode::workspace"));
  EXPECT_THAT(r.out, Not(HasSubstr("missing")));
}

TEST(BenchList, AReferenceNameChoosesItsKernel) {
  const ProgramResult r =
      run_fathom({"bench", "kernel", "--list", "--kernels", "cutlass_scaled_fp4_mm"});

  EXPECT_EQ(r.exit_code, 0);
  EXPECT_THAT(r.out, testing::StartsWith("nvfp4_gemm  "));
}

TEST(BenchList, CatalogueIsThePageInTheRepository) {
  const ProgramResult r = run_fathom({"bench", "kernel", "--catalogue"});

  EXPECT_EQ(r.exit_code, 0);
  EXPECT_TRUE(r.out == read_all(FATHOM_SOURCE_DIR "/docs/generated/kernel_catalogue.md"))
      << "docs/generated/kernel_catalogue.md is out of date; run ./dev docs";
}

}  // namespace
}  // namespace fathom::e2e
