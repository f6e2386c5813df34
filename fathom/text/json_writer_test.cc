#include "fathom/text/json_writer.h"

#include <bit>
#include <charconv>
#include <cmath>
#include <gtest/gtest.h>
#include <limits>
#include <random>

namespace fathom {
namespace {

Json parse(std::string_view text) {
  auto result = parse_json(text, {}, "test");
  EXPECT_TRUE(result.ok()) << result.status().message();
  return *std::move(result);
}

std::string number(double value) {
  std::string out;
  append_json_number(out, value);
  return out;
}

std::string quoted(std::string_view text, JsonCharset charset = JsonCharset::kUtf8) {
  std::string out;
  append_json_string(out, text, charset);
  return out;
}

TEST(JsonWriter, WritesInTheOrderOfTheCalls) {
  JsonWriter writer;

  writer.begin_object().key("z").integer(-3).key("a").begin_array();
  writer.unsigned_integer(UINT64_MAX).number(0.5).boolean(true).null().string("x").end_array();
  writer.key("o").begin_object().end_object().key("j").json(parse("[1,{\"k\":[]}]")).end_object();

  EXPECT_EQ(writer.take(),
            R"({"z":-3,"a":[18446744073709551615,0.5,true,null,"x"],"o":{},"j":[1,{"k":[]}]})");
}

// The expected texts of the next tests are what CPython 3.11's json.dumps prints.
TEST(JsonWriter, PrintsLikePython) {
  const Json json = parse(R"({"b":[1,2.0,{"c":null}],"a":{"x":true},"e":[],"o":{},"s":"é\n"})");

  EXPECT_EQ(dump_json_like_python(json),
            R"({"b": [1, 2.0, {"c": null}], "a": {"x": true}, "e": [], "o": {}, "s": "é\n"})");
}

TEST(JsonWriter, IndentsLikePython) {
  const Json json = parse(R"({"b":[1,{"c":null}],"e":[],"o":{}})");

  EXPECT_EQ(dump_json(json, JsonStyle::kIndented),
            "{\n  \"b\": [\n    1,\n    {\n      \"c\": null\n    }\n  ],\n  \"e\": [],\n"
            "  \"o\": {}\n}");
  EXPECT_EQ(dump_json(parse("[1,{\"a\":2}]"), JsonStyle::kIndented4),
            "[\n    1,\n    {\n        \"a\": 2\n    }\n]");
}

TEST(JsonWriter, EscapesLikePython) {
  EXPECT_EQ(quoted("\"\\/\b\f\n\r\t"), R"("\"\\/\b\f\n\r\t")");
  EXPECT_EQ(quoted(std::string_view{"\0\x01\x1f\x7f", 4}), "\"\\u0000\\u0001\\u001f\x7f\"");
  EXPECT_EQ(quoted("é一😀"), "\"é一😀\"");
  EXPECT_EQ(quoted("é一😀\x7f", JsonCharset::kAscii), R"("\u00e9\u4e00\ud83d\ude00\u007f")");
  EXPECT_EQ(quoted("\u2028\uFFFF", JsonCharset::kAscii), R"("\u2028\uffff")");
}

TEST(JsonWriter, ReplacesInvalidUtf8) {
  EXPECT_EQ(quoted("a\xFF\xE2\x82z"), "\"a\uFFFD\uFFFDz\"");
  EXPECT_EQ(quoted("\xF0\x9F\x98", JsonCharset::kAscii), "\"\\ufffd\"");
}

TEST(JsonWriter, PrintsDoublesLikePython) {
  EXPECT_EQ(number(0.0), "0.0");
  EXPECT_EQ(number(-0.0), "-0.0");
  EXPECT_EQ(number(1.0), "1.0");
  EXPECT_EQ(number(-12.5), "-12.5");
  EXPECT_EQ(number(0.1), "0.1");
  EXPECT_EQ(number(1.0 / 3), "0.3333333333333333");
  EXPECT_EQ(number(0.0001), "0.0001");
  EXPECT_EQ(number(0.00001), "1e-05");
  EXPECT_EQ(number(0.000123), "0.000123");
  EXPECT_EQ(number(1e15), "1000000000000000.0");
  EXPECT_EQ(number(1e16), "1e+16");
  EXPECT_EQ(number(1234567890123456.0), "1234567890123456.0");
  EXPECT_EQ(number(9007199254740993.0), "9007199254740992.0");
  EXPECT_EQ(number(1.5e300), "1.5e+300");
  EXPECT_EQ(number(5e-324), "5e-324");
  EXPECT_EQ(number(1.7976931348623157e308), "1.7976931348623157e+308");
}

TEST(JsonWriter, PrintsNonFiniteAsNull) {
  EXPECT_EQ(number(std::numeric_limits<double>::quiet_NaN()), "null");
  EXPECT_EQ(number(-std::numeric_limits<double>::infinity()), "null");
}

TEST(JsonWriter, DoublesReadBackTheSame) {
  constexpr uint64_t kSeed = 7;
  std::mt19937_64 random{kSeed};
  for (int i = 0; i < 20'000; ++i) {
    const auto value = std::bit_cast<double>(random());
    if (!std::isfinite(value)) continue;
    const std::string text = number(value);
    double back = 0;
    std::from_chars(text.data(), text.data() + text.size(), back);
    ASSERT_EQ(std::bit_cast<uint64_t>(back), std::bit_cast<uint64_t>(value)) << text;
    ASSERT_EQ(std::bit_cast<uint64_t>(parse(text).as_double()), std::bit_cast<uint64_t>(value));
  }
}

TEST(JsonWriter, DumpsReadBackEqualInEveryStyle) {
  const Json json =
      parse(R"([{"a":[1,2.5,"\u0007é😀\\"],"":{}},[[],[{}]],-1,18446744073709551615])");

  for (const auto style : {JsonStyle::kCompact, JsonStyle::kPython, JsonStyle::kIndented}) {
    for (const auto charset : {JsonCharset::kUtf8, JsonCharset::kAscii}) {
      EXPECT_EQ(parse(dump_json(json, style, charset)), json);
    }
  }
}

TEST(JsonWriterDeath, RefusesBrokenSequences) {
  EXPECT_DEATH(JsonWriter{}.begin_object().integer(1), "needs a key");
  EXPECT_DEATH(JsonWriter{}.begin_array().key("a"), "belongs into an object");
  EXPECT_DEATH(JsonWriter{}.begin_array().end_object(), "not open");
  EXPECT_DEATH(JsonWriter{}.integer(1).integer(2), "one value");
  EXPECT_DEATH(JsonWriter{}.begin_array().take(), "still open");
}

}  // namespace
}  // namespace fathom
