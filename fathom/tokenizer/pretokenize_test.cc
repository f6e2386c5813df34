#include "fathom/tokenizer/pretokenize.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "fathom/os/file.h"
#include "fathom/text/json_writer.h"
#include "fathom/tokenizer/tokenizer.h"

namespace fathom {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

Json parse(std::string_view text) {
  auto json = parse_json(text, {}, "test");
  EXPECT_TRUE(json.ok()) << json.status().message();
  return *std::move(json);
}

std::string text_of(const char* path) {
  auto text = read_file(path, 8 << 20);
  EXPECT_TRUE(text.ok()) << text.status().message();
  return *std::move(text);
}

const Json& golden() {
  static const Json json = parse(text_of(FATHOM_UNPACKED_TOKENIZERS "/pieces.json"));
  return json;
}

const Json& list_of(const char* name) {
  return *golden().find("lists")->find(name)->find("pre_tokenizer");
}

Pretokenizer make(const char* name) {
  auto result = Pretokenizer::from_json(list_of(name), "tokenizer.json");
  EXPECT_TRUE(result.ok()) << result.status().message();
  return *std::move(result);
}

std::vector<std::string> pieces_of(const Pretokenizer& pretokenizer, std::string_view text) {
  std::vector<uint32_t> ends;
  pretokenizer.split(text, ends);
  std::vector<std::string> pieces;
  uint32_t begin = 0;
  for (const uint32_t end : ends) {
    pieces.emplace_back(text.substr(begin, end - begin));
    begin = end;
  }
  return pieces;
}

class PretokenizeGolden : public ::testing::TestWithParam<const char*> {};

TEST_P(PretokenizeGolden, CutsLikeTheReference) {
  const Pretokenizer pretokenizer = make(GetParam());
  const auto& strings = golden().find("lists")->find(GetParam())->find("strings")->items();
  ASSERT_EQ(strings.size(), 235u);
  for (const Json& item : strings) {
    std::vector<std::string> expected;
    for (const Json& piece : item.find("pieces")->items())
      expected.push_back(piece.as_string());
    EXPECT_EQ(pieces_of(pretokenizer, item.find("text")->as_string()), expected);
  }
}

// The vocabulary of tiny-v3 with either list gives the reference's ids.
TEST_P(PretokenizeGolden, EncodesLikeTheReference) {
  Json file = parse(text_of(FATHOM_SOURCE_DIR "/tests/golden/tokenizer/tiny-v3/tokenizer.json"));
  for (auto& [key, value] : file.members()) {
    if (key == "pre_tokenizer") value = list_of(GetParam());
  }
  const auto tokenizer = Tokenizer::load_from_json(dump_json(file), "", "");
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status().message();
  for (const Json& item : golden().find("lists")->find(GetParam())->find("strings")->items()) {
    std::vector<int32_t> expected;
    for (const Json& id : item.find("ids")->items()) {
      expected.push_back(static_cast<int32_t>(id.as_int()));
    }
    const std::string& text = item.find("text")->as_string();
    EXPECT_EQ(tokenizer->encode(text, {.added_tokens = AddedTokens::kParse}), expected) << text;
  }
}

INSTANTIATE_TEST_SUITE_P(Lists, PretokenizeGolden, ::testing::Values("v2", "v3"));

TEST(PretokenizeV3, CutsDigitsInThreesFromTheLeft) {
  EXPECT_THAT(pieces_of(make("v3"), "1234567"), ElementsAre("123", "456", "7"));
  EXPECT_THAT(pieces_of(make("v3"), "12a3456"), ElementsAre("12", "a", "345", "6"));
}

TEST(PretokenizeV3, LeavesTheLastSpaceToTheWord) {
  EXPECT_THAT(pieces_of(make("v3"), "a   b"), ElementsAre("a", "  ", " b"));
  EXPECT_THAT(pieces_of(make("v3"), "a   "), ElementsAre("a", "   "));
  EXPECT_THAT(pieces_of(make("v3"), " \n  \n b"), ElementsAre(" \n  \n", " b"));
}

TEST(PretokenizeV3, KeepsUnmatchedCharactersTogether) {
  EXPECT_THAT(pieces_of(make("v3"), "\u200b\u200b!"), ElementsAre("\u200b\u200b", "!"));
}

TEST(PretokenizeV2, CutsWordsAtLettersWithoutCase) {
  EXPECT_THAT(pieces_of(make("v2"), "a\nb 12"), ElementsAre("a", "\n", "b", " ", "1", "2"));
}

TEST(Pretokenize, GivesNoPieceForNoText) {
  EXPECT_TRUE(pieces_of(make("v2"), "").empty());
  EXPECT_TRUE(pieces_of(make("v3"), "").empty());
}

// The pre_tokenizer of tiny-v3 with one value changed.
std::string error_of(const std::string& from, const std::string& to) {
  std::string text = dump_json(list_of("v3"));
  const size_t at = text.find(from);
  EXPECT_NE(at, std::string::npos) << from;
  text.replace(at, from.size(), to);
  const auto result = Pretokenizer::from_json(parse(text), "tokenizer.json");
  return result.ok() ? "accepted" : result.status().message();
}

TEST(Pretokenize, QuotesAnUnknownPattern) {
  EXPECT_EQ(error_of("\\\\p{N}{1,3}", "\\\\d+"),
            "tokenizer.json: the pre-tokenizer pattern \"\\d+\" is not known here");
  EXPECT_THAT(error_of("[A-Za-z]+|", "[A-Z]+|"), HasSubstr("[A-Z]+|"));
  EXPECT_THAT(error_of("\\\\p{N}{1,3}", std::string(5000, 'x')), HasSubstr("xxx...\""));
  EXPECT_LT(error_of("\\\\p{N}{1,3}", std::string(5000, 'x')).size(), 500u);
}

// Its list begins with the split of DeepSeek LLM and DeepSeek-MoE, which are known.
TEST(Pretokenize, RefusesTheListOfTheFirstCoderByItsSecondPattern) {
  const Json list = parse(R"({"type":"Sequence","pretokenizers":[
      {"type":"Split","pattern":{"Regex":"[\r\n]"},"behavior":"Isolated","invert":false},
      {"type":"Split","pattern":{"Regex":"\\s?\\p{L}+"},"behavior":"Isolated","invert":false},
      {"type":"ByteLevel","add_prefix_space":false,"trim_offsets":true,"use_regex":false}]})");

  EXPECT_EQ(Pretokenizer::from_json(list, "tokenizer.json").status().message(),
            "tokenizer.json: the pre-tokenizer pattern \"\\s?\\p{L}+\" is not known here");
}

TEST(Pretokenize, RefusesOtherSettings) {
  EXPECT_THAT(error_of("\"Isolated\"", "\"Removed\""), HasSubstr("another behavior than Isolated"));
  EXPECT_THAT(error_of("\"invert\":false", "\"invert\":true"), HasSubstr("another invert"));
  EXPECT_THAT(error_of("\"add_prefix_space\":false", "\"add_prefix_space\":true"),
              HasSubstr("another add_prefix_space"));
  EXPECT_THAT(error_of("\"use_regex\":false", "\"use_regex\":true"),
              HasSubstr("another use_regex"));
  EXPECT_THAT(error_of(",\"use_regex\":false", ""), HasSubstr("another use_regex"));
  EXPECT_THAT(error_of("\"invert\":false", "\"x\":false"), HasSubstr("another invert"));
  EXPECT_THAT(error_of("\"ByteLevel\"", "\"Metaspace\""), HasSubstr("expected ByteLevel"));
  EXPECT_THAT(error_of("\"Sequence\"", "\"Whitespace\""), HasSubstr("expected a Sequence"));
}

TEST(Pretokenize, RefusesMissingAndSurplusSteps) {
  const auto error_without = [](size_t step) {
    Json list = list_of("v3");
    auto& steps = list.members()[1].second.items();
    steps.erase(steps.begin() + static_cast<std::ptrdiff_t>(step));
    const auto result = Pretokenizer::from_json(list, "f");
    return result.ok() ? "accepted" : result.status().message();
  };

  for (size_t step = 0; step < 4; ++step)
    EXPECT_NE(error_without(step), "accepted") << step;
  Json list = list_of("v3");
  auto& steps = list.members()[1].second.items();
  steps.push_back(steps.back());
  EXPECT_THAT(Pretokenizer::from_json(list, "f").status().message(),
              HasSubstr("has 5 steps, expected 4"));
  steps.clear();
  EXPECT_THAT(Pretokenizer::from_json(list, "f").status().message(), HasSubstr("no steps"));
}

TEST(Pretokenize, RefusesOtherKinds) {
  for (const char* text : {"1", "[]", "{}", "null", R"({"type":1})", R"({"type":"Sequence"})",
                           R"({"type":"Sequence","pretokenizers":[1]})",
                           R"({"type":"Sequence","pretokenizers":[{"type":"Split"}]})",
                           R"({"type":"Sequence","pretokenizers":[{"type":"Digits"}]})"}) {
    EXPECT_FALSE(Pretokenizer::from_json(parse(text), "f").ok()) << text;
  }
}

}  // namespace
}  // namespace fathom
