// What `fathom quantize` reports: of shards that an earlier run wrote it claims no error.
#include <fstream>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/e2e/program.h"

namespace fathom::e2e {
namespace {

using testing::HasSubstr;
using testing::Not;

TEST(Quantize, ReportsTheErrorOnlyOfWhatItQuantised) {
  const TempFolder folder;
  const std::vector<std::string> command = {"quantize", FATHOM_SOURCE_DIR "/tests/golden/micro-v3",
                                            (folder / "out").string()};

  const ProgramResult first = run_fathom(command);
  const ProgramResult second = run_fathom(command);

  EXPECT_EQ(first.exit_code, 0) << first.err;
  EXPECT_THAT(first.out, HasSubstr("60 weights quantised to nvfp4 (scope mlp-o), 31 tensors"));
  EXPECT_THAT(first.out, HasSubstr("relative error of the quantised weights 0.0"));
  EXPECT_THAT(first.out, Not(HasSubstr("resumed")));
  EXPECT_EQ(second.exit_code, 0) << second.err;
  EXPECT_THAT(second.out, HasSubstr("60 weights quantised to nvfp4 (scope mlp-o), 31 tensors"));
  EXPECT_THAT(second.out, Not(HasSubstr("relative error")));
  EXPECT_THAT(second.out, HasSubstr("resumed: 1 of 1 shards were intact and kept; their weights "
                                    "are not measured again"));
}

TEST(Quantize, OfNoWeightAtAllIsRefusedAndWritesNothing) {
  const TempFolder folder;

  const ProgramResult r = run_fathom({"quantize", FATHOM_SOURCE_DIR "/tests/golden/micro-v3",
                                      (folder / "out").string(), "--ignore", "*"});

  EXPECT_EQ(r.exit_code, 78) << r.err;
  EXPECT_THAT(r.err, HasSubstr("--ignore leaves out all 60 weights of --scope"));
  EXPECT_EQ(r.out, "");
  EXPECT_FALSE(std::filesystem::exists(folder / "out"));
}

TEST(Quantize, CalibratedWeightsNeedNoGuessForActivationsInNvfp4) {
  const TempFolder folder;
  const std::string out = (folder / "out").string();
  const std::string text = (folder / "text.txt").string();
  std::ofstream(text) << "Once upon a time there was a king who had three sons.";
  const std::vector<std::string> command = {
      "quantize",   FATHOM_SOURCE_DIR "/tests/golden/micro-v3",
      out,          "--scope",
      "all-linear", "--calibrate",
      text,         "--calibrate-tokens",
      "9"};

  const ProgramResult first = run_fathom(command);
  const ProgramResult second = run_fathom(command);
  const ProgramResult score = run_fathom({"eval", out, "--ppl", text, "--activations", "nvfp4"});

  EXPECT_EQ(first.exit_code, 0) << first.err;
  EXPECT_THAT(first.out, HasSubstr("72 of them have an input_scale, of 9 tokens"));
  EXPECT_EQ(second.exit_code, 0) << second.err;
  EXPECT_THAT(second.out, HasSubstr("resumed: 1 of 1 shards"));
  EXPECT_EQ(score.exit_code, 0) << score.err;
  EXPECT_THAT(score.err, Not(HasSubstr("input_scale")));
}

TEST(Quantize, CalibratesForNvfp4Alone) {
  const TempFolder folder;

  const ProgramResult r =
      run_fathom({"quantize", FATHOM_SOURCE_DIR "/tests/golden/micro-v3", (folder / "out").string(),
                  "--format", "fp8_block", "--calibrate", "text.txt"});

  EXPECT_EQ(r.exit_code, 64) << r.err;
  EXPECT_THAT(r.err, HasSubstr("--calibrate is for --format nvfp4"));
  EXPECT_THAT(r.err, HasSubstr("hint: leave --calibrate out"));
}

}  // namespace
}  // namespace fathom::e2e
