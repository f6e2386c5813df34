#include "fathom/base/ascii.h"

#include <gtest/gtest.h>

namespace fathom {
namespace {

TEST(Ascii, LowersLettersAlone) {
  EXPECT_EQ(ascii_lower(std::string_view("AZaz[@`{09 \xC3\x84")), "azaz[@`{09 \xC3\x84");
}

TEST(Ascii, ComparesWithoutCase) {
  EXPECT_TRUE(equal_without_case("Content-TYPE", "content-type"));
  EXPECT_TRUE(equal_without_case("", ""));
  EXPECT_FALSE(equal_without_case("a", "ab"));
  EXPECT_FALSE(equal_without_case("@", "`"));
}

TEST(Ascii, ReadsHexadecimalDigits) {
  const std::string_view digits = "0123456789abcdefABCDEF";
  for (size_t i = 0; i < digits.size(); ++i)
    EXPECT_EQ(hex_value(digits[i]), static_cast<int>(i < 16 ? i : i - 6)) << digits[i];
  for (const char c : std::string_view("/:@G`g \x80"))
    EXPECT_EQ(hex_value(c), -1) << c;
}

TEST(Ascii, TrimsBlanks) {
  EXPECT_EQ(trimmed(" \t\r\na b\n "), "a b");
  EXPECT_EQ(trimmed(" \t\r\n"), "");
  EXPECT_EQ(trimmed(""), "");
  EXPECT_EQ(trimmed("\r a\t", " \t"), "\r a");
}

}  // namespace
}  // namespace fathom
