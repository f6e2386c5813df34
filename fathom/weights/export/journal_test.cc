#include "fathom/weights/export/journal.h"

#include <gtest/gtest.h>
#include <string>

#include "fathom/base/str_cat.h"
#include "fathom/os/sha256.h"
#include "tests/support/temp_dir.h"
#include "tests/support/write_safetensors.h"

namespace fathom {
namespace {

const std::string kDigest = to_hex(sha256("x"));

std::string whole_journal() {
  return str_cat(journal_first_line("source \"1\"", "--format nvfp4", kDigest), "\n",
                 journal_file_line({"model-00001-of-00002.safetensors", 12, kDigest}), "\n",
                 journal_file_line({"config.json", 0, kDigest}), "\n", journal_last_line(2), "\n");
}

std::string error_of(std::string_view text) {
  const auto journal = parse_journal(text, "J");
  return journal.ok() ? "accepted" : journal.status().message();
}

TEST(Journal, LinesReadBack) {
  const auto journal = parse_journal(whole_journal(), "J");

  ASSERT_TRUE(journal.ok()) << journal.status().message();
  EXPECT_EQ(journal->source, "source \"1\"");
  EXPECT_EQ(journal->options, "--format nvfp4");
  EXPECT_EQ(journal->plan, kDigest);
  ASSERT_EQ(journal->files.size(), 2u);
  EXPECT_EQ(journal->files[0], (FileDigest{"model-00001-of-00002.safetensors", 12, kDigest}));
  EXPECT_TRUE(journal->finished);
  EXPECT_EQ(journal->valid_bytes, static_cast<int64_t>(whole_journal().size()));
}

TEST(Journal, EveryCutIsAnUnfinishedJournalOfWholeLines) {
  const std::string whole = whole_journal();
  for (size_t cut = 0; cut < whole.size(); ++cut) {
    const auto journal = parse_journal(std::string_view(whole).substr(0, cut), "J");
    ASSERT_TRUE(journal.ok()) << "cut at " << cut;
    EXPECT_FALSE(journal->finished) << "cut at " << cut;
    const size_t last_line = whole.rfind('\n', cut == 0 ? 0 : cut - 1);
    const size_t valid = cut == 0 || last_line == std::string::npos ? 0 : last_line + 1;
    EXPECT_EQ(journal->valid_bytes, static_cast<int64_t>(valid)) << "cut at " << cut;
  }
}

TEST(Journal, LinesThatDoNotFitAreCorrupt) {
  const std::string first = journal_first_line("s", "o", kDigest) + "\n";
  EXPECT_EQ(error_of("{}\n"),
            "J: line 1: expected journal version 1 with source, options and plan");
  EXPECT_EQ(
      error_of(str_cat(R"({"journal":2,"source":"","options":"","plan":")", kDigest, "\"}\n")),
      "J: line 1: expected journal version 1 with source, options and plan");
  EXPECT_EQ(error_of(first + first),
            "J: line 2: expected a file, or the end with the number of files before it");
  EXPECT_EQ(error_of(first + journal_last_line(1) + "\n"),
            "J: line 2: expected a file, or the end with the number of files before it");
  EXPECT_EQ(error_of(first + journal_last_line(0) + "\n" + journal_last_line(0) + "\n"),
            "J: line 3: expected nothing after the last line");
  EXPECT_EQ(error_of(first + journal_file_line({"../x", 1, kDigest}) + "\n"),
            "J: line 2: expected a plain file name, bytes and sha256");
  EXPECT_EQ(error_of(first + journal_file_line({"x", -1, kDigest}) + "\n"),
            "J: line 2: expected a plain file name, bytes and sha256");
  EXPECT_EQ(error_of(first + journal_file_line({"x", 1, "abc"}) + "\n"),
            "J: line 2: expected a plain file name, bytes and sha256");
  EXPECT_EQ(parse_journal(first + "garbage\n", "J").status().code(), StatusCode::kCorrupt);
}

TEST(Journal, PlainNamesHaveOnePartAndNoDots) {
  for (const char* name : {"a", "model-00001-of-00002.safetensors", "A_b-c.0"}) {
    EXPECT_TRUE(is_plain_file_name(name)) << name;
  }
  for (const char* name :
       {"", ".", "..", ".a", "a/b", "/a", "a..b", "a b", "a\n", "\xc3\xa4", "a\\b"}) {
    EXPECT_FALSE(is_plain_file_name(name)) << name;
  }
  EXPECT_TRUE(is_plain_file_name(std::string(255, 'a')));
  EXPECT_FALSE(is_plain_file_name(std::string(256, 'a')));
}

TEST(DigestFile, HashesFilesLongerThanOnePiece) {
  const TempDir dir;
  for (const size_t size :
       {size_t{0}, size_t{1}, size_t{1} << 20, (size_t{1} << 20) + 1, (size_t{3} << 20) + 7}) {
    std::string text(size, 'q');
    if (size > 0) text.back() = 'e';
    write_bytes(dir.file("f"), text);

    const auto digest = digest_file(dir.path(), "f");

    ASSERT_TRUE(digest.ok());
    EXPECT_EQ(*digest, (FileDigest{"f", static_cast<int64_t>(size), to_hex(sha256(text))}));
  }
  EXPECT_EQ(digest_file(dir.path(), "none").status().code(), StatusCode::kNotFound);
}

}  // namespace
}  // namespace fathom
