#include "fathom/text/csv_records.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace fathom {
namespace {

using testing::ElementsAre;

TEST(CsvRecords, ReadBackWhatWasWritten) {
  const std::vector<std::string> fields = {"plain", "a,b", "say \"so\"", "two\nlines", ""};
  std::string text;
  append_csv_record(text, fields);
  append_csv_record(text, {"next"});

  CsvRecords records(text);

  EXPECT_EQ(records.next().value(), fields);
  EXPECT_EQ(records.line(), 3);  // the line break within a field counts
  EXPECT_THAT(records.next().value(), ElementsAre("next"));
  EXPECT_TRUE(records.done());
}

TEST(CsvRecords, TakeBothLineEndsAndAMissingLastOne) {
  CsvRecords records("a,b\r\nc,");

  EXPECT_THAT(records.next().value(), ElementsAre("a", "b"));
  EXPECT_THAT(records.next().value(), ElementsAre("c", ""));
  EXPECT_TRUE(records.done());
}

TEST(CsvRecords, RefuseQuotesWithoutEndAndEndlessFields) {
  EXPECT_EQ(CsvRecords("\"a").next().status().message(), "a quoted field does not end");
  const std::string endless(70'000, 'x');
  EXPECT_EQ(CsvRecords(endless).next().status().code(), StatusCode::kCorrupt);
}

TEST(ParseCsvNumber, TakesWholeFiniteNumbersAlone) {
  EXPECT_EQ(parse_csv_number("-1.5e3").value(), -1500);
  for (const char* text : {"", "1x", " 1", "nan", "inf", "1e999", "0x10"})
    EXPECT_FALSE(parse_csv_number(text).ok()) << text;
}

}  // namespace
}  // namespace fathom
