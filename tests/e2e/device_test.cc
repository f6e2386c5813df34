// --device cuda, on machines with a GPU and on those without.
#include <algorithm>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/e2e/program.h"

namespace fathom::e2e {
namespace {

using testing::HasSubstr;

TEST(Device, CudaWithoutAGpuSaysWhyAndWhatToDo) {
  TempFolder folder;
  const std::vector<std::vector<std::string>> commands = {
      {"run", shipped_model(), "-p", "Once", "-n", "2", "--device", "cuda"},
      {"eval", shipped_model(), "--ids", "nothing.json", "--logits-out", "x", "--device", "cuda"},
      {"bench", "model", shipped_model(), "--device", "cuda", "-p", "4", "-n", "2"},
      {"trace", shipped_model(), "-p", "Once", "--device", "cuda", "--out-dir",
       (folder / "t").string()}};
  for (const auto& command : commands) {
    SCOPED_TRACE(command[0]);
    const ProgramResult r = run_fathom(command);

    if (r.exit_code != 69) {
      EXPECT_THAT(r.err, testing::Not(HasSubstr("--device cuda: ")));
      continue;
    }
    EXPECT_THAT(r.err, HasSubstr("--device cuda: "));
    EXPECT_THAT(r.err, HasSubstr("--device cpu"));
    EXPECT_EQ(std::count(r.err.begin(), r.err.end(), '\n'), 2);  // error and hint
    EXPECT_EQ(r.out, "");
  }
}

TEST(Device, UnknownOneIsAUsageErrorThatNamesTheKnown) {
  const ProgramResult r = run_fathom({"run", shipped_model(), "-p", "x", "--device", "tpu"});

  EXPECT_EQ(r.exit_code, 64);
  EXPECT_THAT(r.err, HasSubstr("cuda"));
}

}  // namespace
}  // namespace fathom::e2e
