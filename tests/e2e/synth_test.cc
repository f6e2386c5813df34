// Random checkpoints through the program: written, described, run.
#include <algorithm>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/e2e/program.h"

namespace fathom::e2e {
namespace {

using testing::HasSubstr;

struct SynthCase {
  const char* version;
  const char* format;
};

class Synth : public testing::TestWithParam<SynthCase> {};

TEST_P(Synth, GeneratesTheSameTokensOnEveryRun) {
  TempFolder folder;
  const std::string model = (folder / "m").string();
  const std::string ids = (folder / "ids.json").string();
  const auto run = [&] {
    const ProgramResult r =
        run_fathom({"run", model, "-p", "Once upon a time there was", "--temperature", "0",
                    "--max-tokens", "8", "--ignore-eos", "--ids-out", ids});
    EXPECT_EQ(r.exit_code, 0) << r.err;
    return read_all(ids);
  };

  const ProgramResult made =
      run_fathom({"synth", model, "--version", GetParam().version, "--format", GetParam().format});
  ASSERT_EQ(made.exit_code, 0) << made.err;
  const std::string first = run();

  EXPECT_EQ(std::count(first.begin(), first.end(), ','), 7) << first;
  EXPECT_EQ(run(), first);
  const ProgramResult described = run_fathom({"inspect", model});
  EXPECT_EQ(described.exit_code, 0) << described.err;
}

INSTANTIATE_TEST_SUITE_P(Formats,
                         Synth,
                         testing::Values(SynthCase{"v1", "bf16"},
                                         SynthCase{"v1", "nvfp4"},
                                         SynthCase{"v3.2", "fp8_block"},
                                         SynthCase{"v4", "bf16"},
                                         SynthCase{"v4", "fp8_block"},
                                         SynthCase{"v4", "nvfp4"},
                                         SynthCase{"v4", "mxfp4"}),
                         [](const auto& p) {
                           std::string name = std::string(p.param.version) + "_" + p.param.format;
                           std::replace(name.begin(), name.end(), '.', '_');
                           return name;
                         });

TEST(Synth, HelpListsVersionsAndFormats) {
  const ProgramResult r = run_fathom({"synth", "--help"});

  EXPECT_THAT(r.out, HasSubstr("v1, v2-lite, v2, v3, r1, v3.2 or v4"));
  EXPECT_THAT(r.out, HasSubstr("bf16, fp8_block, nvfp4 or mxfp4"));
}

}  // namespace
}  // namespace fathom::e2e
