// docs/tour.md shows what its commands print, and `./dev run` names commands that there are.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/e2e/program.h"

namespace fathom::e2e {
namespace {

const std::string kSource = FATHOM_SOURCE_DIR;

#ifdef FATHOM_WITH_SERVER
TEST(RecordedTour, IsWhatItsCommandsPrint) {
  const ProgramResult r = run_shell("python3 '" + kSource + "/scripts/record_tour.py' '" +
                                    FATHOM_PROGRAM + "' --check");

  EXPECT_EQ(r.exit_code, 0) << r.out << r.err;
}
#endif

TEST(RecordedTour, WhatDevRunSuggestsWorks) {
  const std::string script = read_all(kSource + "/dev");
  const std::string begin = "dev: worth typing next:\n";
  const size_t at = script.find(begin);
  ASSERT_NE(at, std::string::npos);
  std::istringstream lines(script.substr(at + begin.size(), script.find("TEXT", at) - at));
  int commands = 0;
  const std::string program = "  build/release/fathom ";
  for (std::string line; std::getline(lines, line) && line.starts_with(program); ++commands) {
    const std::string words = line.substr(program.size(), line.find('#') - program.size());
    const ProgramResult r = run_shell("fathom --print-config " + words);
    EXPECT_EQ(r.exit_code, 0) << words << r.err;
    EXPECT_THAT(r.out, testing::HasSubstr("log-level: ")) << words;
  }
  EXPECT_EQ(commands, 3);
}

}  // namespace
}  // namespace fathom::e2e
