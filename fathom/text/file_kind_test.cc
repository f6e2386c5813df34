#include "fathom/text/file_kind.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace fathom {
namespace {

using testing::HasSubstr;
using std::string_view_literals::operator""sv;

TEST(FileKind, NamesWhatDownloadsLeave) {
  EXPECT_THAT(
      foreign_file("version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 12\n"),
      HasSubstr("Git LFS pointer"));
  EXPECT_THAT(foreign_file("<!DOCTYPE html><html><body>401</body></html>"), HasSubstr("HTML"));
  EXPECT_THAT(foreign_file("\n  <HTML lang=\"en\">"), HasSubstr("HTML"));
  EXPECT_THAT(foreign_file("\xEF\xBB\xBF<html>"), HasSubstr("HTML"));
  EXPECT_THAT(foreign_file("\x1F\x8B\x08\x00"sv), HasSubstr("compressed"));
}

TEST(FileKind, NamesFormatsOfOtherPrograms) {
  EXPECT_THAT(foreign_file("PK\x03\x04\x00\x00"sv), HasSubstr("PyTorch"));
  EXPECT_THAT(foreign_file("\x80\x02}q\x00"sv), HasSubstr("PyTorch"));
  EXPECT_THAT(foreign_file("GGUF\x03\x00\x00\x00"sv), HasSubstr("GGUF"));
  EXPECT_THAT(foreign_file("\x89HDF\r\n\x1A\n"), HasSubstr("HDF5"));
}

TEST(FileKind, SaysNothingOfOthers) {
  for (const std::string_view text :
       {""sv, "{}"sv, "   "sv, "<think>"sv, "\x80\x27\x00\x00\x00\x00\x00\x00{"sv, "version 1"sv,
        "PK"sv, "plain text"sv})
    EXPECT_EQ(foreign_file(text), "") << text;
}

TEST(FileKind, JsonFilesSayWhatTheyAreInstead) {
  EXPECT_TRUE(parse_json_file("{}", {}, "a.json").ok());
  EXPECT_EQ(parse_json_file("PK\x03\x04", {}, "d/a.json").status().code(), StatusCode::kCorrupt);
  EXPECT_THAT(parse_json_file("<html>", {}, "d/a.json").status().message(),
              testing::StartsWith("d/a.json: is a page of HTML"));
  EXPECT_EQ(parse_json_file("{", {}, "d/a.json").status().message(),
            parse_json("{", {}, "d/a.json").status().message());
}

}  // namespace
}  // namespace fathom
