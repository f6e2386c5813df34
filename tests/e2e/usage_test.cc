// What a user sees who types something wrong.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/e2e/program.h"

namespace fathom::e2e {
namespace {

using testing::HasSubstr;

TEST(Usage, VersionIsOneLineOnStandardOutput) {
  const ProgramResult r = run_fathom({"version"});

  EXPECT_EQ(r.exit_code, 0);
  EXPECT_THAT(r.out, testing::StartsWith("fathom "));
}

TEST(Usage, EveryCommandHasHelp) {
  for (const char* command :
       {"run", "chat", "inspect", "doctor", "tokenize", "eval", "synth", "quantize", "bench"}) {
    const ProgramResult r = run_fathom({command, "--help"});

    EXPECT_EQ(r.exit_code, 0) << command;
    EXPECT_THAT(r.out, HasSubstr("--")) << command;
  }
}

TEST(Usage, UnknownFlagGetsTheNearestName) {
  const ProgramResult r = run_fathom({"run", shipped_model(), "--temprature", "1"});

  EXPECT_EQ(r.exit_code, 64);
  EXPECT_THAT(r.err, HasSubstr("--temperature"));
}

TEST(Usage, UnknownCommandIsAUsageError) {
  EXPECT_EQ(run_fathom({"dance"}).exit_code, 64);
}

TEST(Usage, MissingModelFolderIsBadInputAndNamed) {
  const ProgramResult r = run_fathom({"run", "/nowhere/model", "-p", "x"});

  EXPECT_EQ(r.exit_code, 65);
  EXPECT_THAT(r.err, HasSubstr("/nowhere/model"));
}

TEST(Usage, UnknownPresetListsTheKnownOnes) {
  const ProgramResult r = run_fathom({"inspect", "--as", "deepseek-r9"});

  EXPECT_EQ(r.exit_code, 64);
  EXPECT_THAT(r.err, HasSubstr("deepseek-r1-nvfp4"));
}

TEST(Usage, ValuesOutOfRangeAreUsageErrors) {
  for (const std::vector<std::string>& flags :
       std::vector<std::vector<std::string>>{{"--temperature", "-1"},
                                             {"--temperature", "nan"},
                                             {"--top-p", "0"},
                                             {"--top-p", "1.5"},
                                             {"--min-p", "2"},
                                             {"--max-tokens", "0"},
                                             {"--dtype", "f64"},
                                             {"--threads", "100000"}}) {
    std::vector<std::string> args{"run", shipped_model(), "-p", "Once"};
    args.insert(args.end(), flags.begin(), flags.end());
    const ProgramResult r = run_fathom(args);

    EXPECT_EQ(r.exit_code, 64) << flags[0] << " " << flags[1] << ": " << r.err;
    EXPECT_EQ(r.out, "") << flags[0];
  }
}

TEST(Usage, ConfigFileKeysThatNobodyKnowsAreNamed) {
  TempFolder folder;
  std::ofstream(folder / "c.yaml") << "temprature: 1\n";

  const ProgramResult r =
      run_fathom({"run", shipped_model(), "-p", "x", "--config", (folder / "c.yaml").string()});

  EXPECT_EQ(r.exit_code, 64);
  EXPECT_THAT(r.err, HasSubstr("temprature"));
}

}  // namespace
}  // namespace fathom::e2e
