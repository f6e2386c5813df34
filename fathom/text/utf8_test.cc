#include "fathom/text/utf8.h"

#include <algorithm>
#include <gtest/gtest.h>
#include <random>
#include <vector>

namespace fathom {
namespace {

// A second way to the same answer: find the longest prefix of a well-formed sequence by listing the
// rows of table 3-7 of the Unicode standard.
struct Row {
  unsigned first_low, first_high;
  std::vector<std::pair<unsigned, unsigned>> tail;
};

const std::vector<Row>& well_formed() {
  static const std::vector<Row> rows = {
      {0x00, 0x7F, {}},
      {0xC2, 0xDF, {{0x80, 0xBF}}},
      {0xE0, 0xE0, {{0xA0, 0xBF}, {0x80, 0xBF}}},
      {0xE1, 0xEC, {{0x80, 0xBF}, {0x80, 0xBF}}},
      {0xED, 0xED, {{0x80, 0x9F}, {0x80, 0xBF}}},
      {0xEE, 0xEF, {{0x80, 0xBF}, {0x80, 0xBF}}},
      {0xF0, 0xF0, {{0x90, 0xBF}, {0x80, 0xBF}, {0x80, 0xBF}}},
      {0xF1, 0xF3, {{0x80, 0xBF}, {0x80, 0xBF}, {0x80, 0xBF}}},
      {0xF4, 0xF4, {{0x80, 0x8F}, {0x80, 0xBF}, {0x80, 0xBF}}},
  };
  return rows;
}

std::string naive_lossy(std::string_view text) {
  std::string out;
  for (size_t i = 0; i < text.size();) {
    const auto byte = [&](size_t k) { return static_cast<unsigned char>(text[k]); };
    size_t taken = 1;
    bool whole = false;
    for (const Row& row : well_formed()) {
      if (byte(i) < row.first_low || byte(i) > row.first_high) continue;
      while (taken <= row.tail.size() && i + taken < text.size() &&
             byte(i + taken) >= row.tail[taken - 1].first &&
             byte(i + taken) <= row.tail[taken - 1].second) {
        ++taken;
      }
      whole = taken == row.tail.size() + 1;
    }
    out += whole ? std::string(text.substr(i, taken)) : "\xEF\xBF\xBD";
    i += taken;
  }
  return out;
}

std::string random_bytes(std::mt19937& random) {
  static const unsigned char kInteresting[] = {'a',  ' ',  0x7F, 0x80, 0x8F, 0x90, 0x9F, 0xA0, 0xBF,
                                               0xC0, 0xC1, 0xC2, 0xDF, 0xE0, 0xE1, 0xEC, 0xED, 0xEE,
                                               0xEF, 0xF0, 0xF1, 0xF3, 0xF4, 0xF5, 0xFF};
  std::string text;
  const int length = static_cast<int>(random() % 24);
  for (int i = 0; i < length; ++i) {
    text.push_back(static_cast<char>(kInteresting[random() % sizeof kInteresting]));
  }
  return text;
}

TEST(Utf8, EveryCodePointRoundTrips) {
  for (char32_t c = 0; c <= 0x10FFFF; ++c) {
    if (c >= 0xD800 && c <= 0xDFFF) continue;
    std::string text;
    append_utf8(text, c);
    const Utf8Step step = decode_utf8(text, 0);
    ASSERT_EQ(step.kind, Utf8Step::Kind::kCodePoint);
    ASSERT_EQ(step.code_point, c);
    ASSERT_EQ(static_cast<size_t>(step.length), text.size());
  }
}

TEST(Utf8, EncodesAtTheBorders) {
  std::string text;
  for (const char32_t c : {0x7F, 0x80, 0x7FF, 0x800, 0xFFFF, 0x10000, 0x10FFFF}) {
    append_utf8(text, c);
  }

  EXPECT_EQ(text, "\x7F\xC2\x80\xDF\xBF\xE0\xA0\x80\xEF\xBF\xBF\xF0\x90\x80\x80\xF4\x8F\xBF\xBF");
}

TEST(Utf8, FindsTheFirstInvalidByte) {
  EXPECT_EQ(find_invalid_utf8(""), std::nullopt);
  EXPECT_EQ(find_invalid_utf8("plain ascii, long enough for whole words"), std::nullopt);
  EXPECT_EQ(find_invalid_utf8("é一😀"), std::nullopt);
  EXPECT_EQ(find_invalid_utf8("0123456789\xFF"), 10u);
  EXPECT_EQ(find_invalid_utf8("é\xE2\x82"), 2u);
  EXPECT_EQ(find_invalid_utf8("\xED\xA0\x80"), 0u);
  EXPECT_FALSE(is_valid_utf8("\xC0\x80"));
}

// The expected strings are what CPython's bytes.decode("utf-8", "replace") gives.
TEST(Utf8, ReplacesMaximalSubparts) {
  EXPECT_EQ(utf8_lossy("a\xF0\x9F\x98z"), "a\uFFFDz");
  EXPECT_EQ(utf8_lossy("\xE2\x82"), "\uFFFD");
  EXPECT_EQ(utf8_lossy("\xE2\x28\xA1"), "\uFFFD(\uFFFD");
  EXPECT_EQ(utf8_lossy("\xED\xA0\x80"), "\uFFFD\uFFFD\uFFFD");
  EXPECT_EQ(utf8_lossy("\xC0\xAF"), "\uFFFD\uFFFD");
  EXPECT_EQ(utf8_lossy("\xF4\x90\x80\x80"), "\uFFFD\uFFFD\uFFFD\uFFFD");
  EXPECT_EQ(utf8_lossy("\xF1\x80\x80\xF1\x80\xC3"), "\uFFFD\uFFFD\uFFFD");
}

TEST(Utf8, LossyEqualsTheTableOfWellFormedSequences) {
  std::mt19937 random{11};
  for (int i = 0; i < 50'000; ++i) {
    const std::string text = random_bytes(random);
    const std::string expected = naive_lossy(text);
    ASSERT_EQ(utf8_lossy(text), expected) << "case " << i << " of seed 11";
    ASSERT_TRUE(is_valid_utf8(expected));
    ASSERT_EQ(is_valid_utf8(text), text == expected);
  }
}

TEST(Utf8Decoder, SplitStreamEqualsWholeText) {
  std::mt19937 random{12};
  for (int i = 0; i < 20'000; ++i) {
    const std::string text = random_bytes(random);
    Utf8Decoder decoder;
    std::string joined;
    for (size_t at = 0; at < text.size();) {
      const size_t length = std::min<size_t>(random() % 4, text.size() - at);
      const std::string piece = decoder.push(std::string_view{text}.substr(at, length));
      ASSERT_TRUE(is_valid_utf8(piece));
      ASSERT_LE(decoder.pending().size(), 3u);
      joined += piece;
      at += length;
    }
    joined += decoder.flush();
    ASSERT_EQ(joined, utf8_lossy(text)) << "case " << i << " of seed 12";
    ASSERT_TRUE(decoder.pending().empty());
  }
}

TEST(Utf8Decoder, HoldsBackAnIncompleteSequence) {
  Utf8Decoder decoder;

  EXPECT_EQ(decoder.push("a\xF0\x9F"), "a");
  EXPECT_EQ(decoder.pending(), "\xF0\x9F");
  EXPECT_EQ(decoder.push("\x98"), "");
  EXPECT_EQ(decoder.push("\x80z"), "😀z");
  EXPECT_EQ(decoder.push("\xE2\x82"), "");
  EXPECT_EQ(decoder.flush(), "\uFFFD");
  EXPECT_EQ(decoder.flush(), "");
}

}  // namespace
}  // namespace fathom
