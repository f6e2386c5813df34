#include "fathom/base/log.h"

#include <gtest/gtest.h>
#include <string>

namespace fathom {
namespace {

std::string printed(const std::string& message) {
  testing::internal::CaptureStderr();
  log_error(message);
  return testing::internal::GetCapturedStderr();
}

TEST(Log, ControlCharactersOfAMessageAreWrittenOut) {
  EXPECT_EQ(printed("a\x1b[31mb\tc\rd\x7f"), "fathom: error: a\\x1b[31mb\\x09c\\x0dd\\x7f\n");
  EXPECT_EQ(printed("two\nlines, Größe"), "fathom: error: two\nlines, Größe\n");
}

TEST(Log, EndlessMessagesAreCut) {
  EXPECT_EQ(printed(std::string(4096, 'x')), "fathom: error: " + std::string(4096, 'x') + "\n");
  EXPECT_EQ(printed(std::string(4097, 'x')), "fathom: error: " + std::string(4096, 'x') + "...\n");
}

}  // namespace
}  // namespace fathom
