// Every bad input ends in the exit code and with the message that docs/bad-input.md promises.
#include "tests/e2e/bad_input.h"

#include <algorithm>
#include <cctype>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sstream>

namespace fathom::e2e {
namespace {

std::vector<std::string> lines_of(const std::string& text) {
  std::vector<std::string> lines;
  std::istringstream in(text);
  for (std::string line; std::getline(in, line);)
    lines.push_back(line);
  return lines;
}

const std::vector<std::string>& document() {
  static const auto lines = lines_of(read_all(FATHOM_SOURCE_DIR "/docs/bad-input.md"));
  return lines;
}

const std::vector<BadCase>& all_cases() {
  static const auto cases = [] {
    std::vector<BadCase> all;
    for (auto group : {bad_weight_cases, bad_shard_cases, bad_scale_cases, bad_v4_cases,
                       bad_config_cases, bad_tokenizer_cases, bad_prompt_cases, bad_output_cases}) {
      for (BadCase& c : group())
        all.push_back(std::move(c));
    }
    return all;
  }();
  return cases;
}

// As code of Markdown; a text that holds '|' is escaped.
std::string code_of(const std::string& text) {
  std::string cell;
  for (const char byte : text)
    cell += byte == '|' ? std::string("\\|") : std::string(1, byte);
  const std::string fence = cell.find('`') == cell.npos ? "`" : "``";
  const std::string pad = cell.starts_with('`') || cell.ends_with('`') ? " " : "";
  return fence + pad + cell + pad + fence;
}

// The row of the document for what the program printed.
std::string row_of(const BadCase& c,
                   int exit_code,
                   const std::string& message,
                   const std::string& hint) {
  return "| " + c.name + " | " + std::to_string(exit_code) + " | " + code_of(message) +
         (hint.empty() ? "" : ", hint: " + code_of(hint)) + " |";
}

// What the document says once for all rows: where the flags are, and what to do with a bad file.
bool is_general(const std::string& hint) {
  return hint.ends_with(" --help` lists the flags") ||
         hint == "fetch the file again; `fathom verify MODEL` says what else is damaged";
}

class BadInput : public testing::TestWithParam<size_t> {};

TEST_P(BadInput, EndsAsTheDocumentSays) {
  const BadCase& c = all_cases()[GetParam()];
  Scene scene(c.fixture);

  const ProgramResult r = c.run(scene);

  if (r.exit_code == kCannotRun) GTEST_SKIP() << r.err;
  const std::string prefix = c.only_warns ? "fathom: warning: " : "fathom: error: ";
  const std::vector<std::string> lines = lines_of(scene.without_paths(r.err));
  std::vector<std::string> messages;
  std::string hint;
  for (size_t i = 0; i < lines.size(); ++i) {
    if (!lines[i].starts_with(prefix)) continue;
    messages.push_back(lines[i]);
    if (i + 1 < lines.size() && lines[i + 1].starts_with("hint: ")) hint = lines[i + 1].substr(6);
  }
  // Whatever the system refuses, somebody can do something about.
  const bool of_the_system = messages.size() == 1 && messages[0].starts_with(prefix + "cannot ");
  EXPECT_FALSE(of_the_system && hint.empty()) << r.err;
  if (is_general(hint)) hint.clear();
  EXPECT_EQ(r.exit_code, c.exit_code) << r.err;
  ASSERT_EQ(messages.size(), 1u) << r.err;
  EXPECT_TRUE(c.only_warns || r.out.empty()) << r.out;
  const std::string row = row_of(c, r.exit_code, messages[0].substr(prefix.size()), hint);
  EXPECT_TRUE(std::ranges::count(document(), row) == 1) << "row: " << row;
}

std::string identifier_of(const BadCase& c) {
  std::string name;
  for (const char byte : c.name)
    name += std::isalnum(static_cast<unsigned char>(byte)) != 0 ? byte : '_';
  return name;
}

INSTANTIATE_TEST_SUITE_P(Case,
                         BadInput,
                         testing::Range<size_t>(0, all_cases().size()),
                         [](const auto& param) { return identifier_of(all_cases()[param.param]); });

TEST(BadInputDocument, HasNoRowWithoutACase) {
  for (const std::string& line : document()) {
    if (!line.starts_with("| ") || !line.ends_with("` |")) continue;
    const bool known = std::ranges::any_of(
        all_cases(), [&](const BadCase& c) { return line.starts_with("| " + c.name + " | "); });

    EXPECT_TRUE(known) << line;
  }
}

TEST(BadInputDocument, GoodInputOfEveryFixtureEndsWell) {
  const std::pair<const char*, const char*> inputs[] = {
      {"micro-v3", ""},      {"micro-v3", "fp8_block"}, {"micro-v3", "nvfp4"},
      {"micro-v4", ""},      {"micro-v4", "mxfp4"},     {"micro-v4", "fp8_block_ue8m0"},
      {"micro-v4", "nvfp4"},
  };
  for (const auto& [fixture, format] : inputs) {
    const Scene scene(fixture);
    if (*format != 0) scene.quantize(format);

    const ProgramResult r = scene.run();

    EXPECT_EQ(r.exit_code, 0) << fixture << format << r.err;
    EXPECT_THAT(r.err, testing::Not(testing::ContainsRegex("error|warning"))) << fixture << format;
  }
}

}  // namespace
}  // namespace fathom::e2e
