#include "fathom/text/figures.h"

#include <gtest/gtest.h>

namespace fathom {
namespace {

TEST(Figures, BytesHaveThreeDigitsAndAUnit) {
  EXPECT_EQ(format_bytes(0), "0 B");
  EXPECT_EQ(format_bytes(999), "999 B");
  EXPECT_EQ(format_bytes(1000), "1.00 kB");
  EXPECT_EQ(format_bytes(12'340), "12.3 kB");
  EXPECT_EQ(format_bytes(999'500), "1.00 MB");
  EXPECT_EQ(format_bytes(345'000'000), "345 MB");
}

TEST(Figures, MemoryIsInPowersOfTwoWithTwoDecimals) {
  EXPECT_EQ(format_memory(0), "0 bytes");
  EXPECT_EQ(format_memory(1023), "1023 bytes");
  EXPECT_EQ(format_memory(1024), "1.00 KiB");
  EXPECT_EQ(format_memory(1536), "1.50 KiB");
  EXPECT_EQ(format_memory((1 << 20) - 1), "1024.00 KiB");
  EXPECT_EQ(format_memory(5ll << 40), "5.00 TiB");
}

TEST(Figures, PrefixesCoverSmallAndLarge) {
  EXPECT_EQ(format_si(0), "0");
  EXPECT_EQ(format_si(7), "7.00");
  EXPECT_EQ(format_si(12.34), "12.3");
  EXPECT_EQ(format_si(999.5), "1.00 k");
  EXPECT_EQ(format_si(75.497e6), "75.5 M");
  EXPECT_EQ(format_si(2.3e12), "2.30 T");
}

TEST(Figures, CountsAreGrouped) {
  EXPECT_EQ(format_count(7), "7");
  EXPECT_EQ(format_count(1234), "1,234");
  EXPECT_EQ(format_count(-671026419200), "-671,026,419,200");
}

TEST(Figures, FixedRoundsToDecimals) {
  EXPECT_EQ(format_fixed(2.345, 2), "2.35");  // the double lies above
  EXPECT_EQ(format_fixed(-0.5, 0), "-0");
  EXPECT_EQ(format_fixed(1e20, 1), "100000000000000000000.0");
}

TEST(MarkdownTable, AlignsColumnsAndPutsNumbersRight) {
  MarkdownTable table({"name", "n"});
  table.add({"a", "1"});
  table.add({"é|b", "20"});

  EXPECT_EQ(table.str(),
            "| name |   n |\n"
            "|------|----:|\n"
            "| a    |   1 |\n"
            "| é\\|b |  20 |\n");
}

TEST(MarkdownTable, LeavesWideColumnsAsTheyAre) {
  const std::string prose(MarkdownTable::kWidestAligned + 1, 'x');
  MarkdownTable table({"what", "n"});
  table.add({prose, "1"});
  table.add({"a", "20"});

  EXPECT_EQ(table.str(),
            "| what |   n |\n"
            "|-----|----:|\n"
            "| " +
                prose +
                " |   1 |\n"
                "| a   |  20 |\n");
}

TEST(MarkdownTable, IsEmptyWithAHeaderAlone) {
  MarkdownTable table({"a"});
  EXPECT_TRUE(table.empty());
  table.add({"x"});
  EXPECT_FALSE(table.empty());
}

}  // namespace
}  // namespace fathom
