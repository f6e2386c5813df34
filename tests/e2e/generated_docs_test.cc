// The pages under docs/generated are what the program prints: a change of a shape, a kernel or a
// call site shows up as a difference in review.
#include <algorithm>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <set>
#include <sstream>

#include "tests/e2e/program.h"

namespace fathom::e2e {
namespace {

namespace fs = std::filesystem;

// Tables for programs are not kept.
std::set<std::string> pages_in(const fs::path& folder) {
  std::set<std::string> names;
  for (const auto& entry : fs::directory_iterator(folder)) {
    if (entry.path().extension() != ".csv") names.insert(entry.path().filename().string());
  }
  return names;
}

class GeneratedDocs : public testing::TestWithParam<const char*> {};

TEST_P(GeneratedDocs, AreThePagesInTheRepository) {
  const fs::path kept = fs::path(FATHOM_SOURCE_DIR) / "docs/generated" / GetParam();
  TempFolder folder;
  const fs::path made = folder / "t";

  const ProgramResult r = run_fathom({"trace", "--dry", "--as", GetParam(), "--isa", "avx512",
                                      "--source-links", "../../..", "--out-dir", made.string()});

  ASSERT_EQ(r.exit_code, 0) << r.err;
  EXPECT_EQ(pages_in(made), pages_in(kept));
  for (const std::string& name : pages_in(made)) {
    EXPECT_TRUE(read_all(made / name) == read_all(kept / name))
        << kept / name << " is out of date; run ./dev docs";
  }
}

INSTANTIATE_TEST_SUITE_P(
    Presets,
    GeneratedDocs,
    testing::Values("deepseek-r1-nvfp4", "deepseek-v3.2", "deepseek-v4-flash", "deepseek-v4-pro"),
    [](const auto& p) {
      std::string name(p.param);
      std::replace_if(
          name.begin(), name.end(), [](char c) { return c == '-' || c == '.'; }, '_');
      return name;
    });

/// Lines "[1]: target" as "](target)".
std::string with_links_in_place(const std::string& page) {
  std::istringstream lines(page);
  std::string out;
  for (std::string line; std::getline(lines, line);) {
    const size_t colon = line.find("]: ");
    const bool is_target =
        line.starts_with("[") && colon != line.npos &&
        std::all_of(line.begin() + 1, line.begin() + static_cast<std::ptrdiff_t>(colon),
                    [](char c) { return c >= '0' && c <= '9'; });
    out += is_target ? "](" + line.substr(colon + 3) + ")\n" : line + "\n";
  }
  return out;
}

// Every relative link of a page, in place or at its end, leads to a file.
TEST(GeneratedDocs, LinksLeadToFiles) {
  int links = 0;
  for (const auto& entry : fs::recursive_directory_iterator(fs::path(FATHOM_SOURCE_DIR) / "docs")) {
    if (entry.path().extension() != ".md") continue;
    const std::string text = with_links_in_place(read_all(entry.path()));
    for (size_t at = text.find("]("); at != std::string::npos; at = text.find("](", at + 1)) {
      const size_t end = text.find_first_of(")# \n", at + 2);
      const std::string target = text.substr(at + 2, end - at - 2);
      if (target.empty() || target.starts_with("http") || text[end] == ' ' || text[end] == '\n')
        continue;
      ++links;
      EXPECT_TRUE(fs::exists(entry.path().parent_path() / target))
          << entry.path() << ": " << target;
    }
  }
  EXPECT_GT(links, 100);
}

}  // namespace
}  // namespace fathom::e2e
