#include "fathom/base/str_cat.h"

#include <cstdint>
#include <gtest/gtest.h>
#include <limits>
#include <string>

namespace fathom {
namespace {

TEST(StrCat, JoinsNothingToAnEmptyText) {
  EXPECT_EQ(str_cat(), "");
}

TEST(StrCat, JoinsTextOfEveryKind) {
  const std::string text = "b";
  const char* pointer = "c";
  EXPECT_EQ(str_cat("a", text, pointer, std::string_view("d"), 'e'), "abcde");
}

TEST(StrCat, KeepsNulBytesOfStrings) {
  EXPECT_EQ(str_cat(std::string("a\0b", 3), "c"), std::string("a\0bc", 4));
}

TEST(StrCat, WritesIntegersOfEveryWidthInFull) {
  EXPECT_EQ(str_cat(int8_t{-128}, ' ', uint8_t{255}), "-128 255");
  EXPECT_EQ(str_cat(std::numeric_limits<int64_t>::min()), "-9223372036854775808");
  EXPECT_EQ(str_cat(std::numeric_limits<uint64_t>::max()), "18446744073709551615");
  EXPECT_EQ(str_cat(0), "0");
}

TEST(StrCat, WritesBooleansAsWords) {
  EXPECT_EQ(str_cat(true, ',', false), "true,false");
}

TEST(StrCat, WritesTheShortestTextThatReadsBackAsTheSameFloat) {
  EXPECT_EQ(str_cat(0.1f), "0.1");
  EXPECT_EQ(str_cat(0.1), "0.1");
  EXPECT_EQ(str_cat(static_cast<double>(0.1f)), "0.10000000149011612");
  EXPECT_EQ(str_cat(-2.5e30), "-2.5e+30");
  EXPECT_EQ(str_cat(std::numeric_limits<double>::infinity()), "inf");
  EXPECT_EQ(str_cat(std::numeric_limits<float>::quiet_NaN()), "nan");
}

TEST(StrAppend, AppendsInPlace) {
  std::string out = "x = ";
  str_append(out, 3);
  EXPECT_EQ(out, "x = 3");
}

}  // namespace
}  // namespace fathom
