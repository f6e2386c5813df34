#include "fathom/text/json.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "fathom/text/json_writer.h"

namespace fathom {
namespace {

using ::testing::HasSubstr;

Result<Json> parse(std::string_view text, const JsonLimits& limits = {}) {
  return parse_json(text, limits, "doc.json");
}

std::string error_of(std::string_view text, const JsonLimits& limits = {}) {
  const auto result = parse(text, limits);
  if (result.ok()) return "accepted";
  EXPECT_EQ(result.status().code(), StatusCode::kCorrupt);
  return result.status().message();
}

TEST(Json, KeepsKindsAndValues) {
  const auto json =
      parse(R"({"a":[1,-2,1.5,true,false,null,"x"],"b":{},"c":[],"big":18446744073709551615})");

  ASSERT_TRUE(json.ok()) << json.status().message();
  const auto& a = json->find("a")->items();
  ASSERT_EQ(a.size(), 7u);
  EXPECT_EQ(a[0].as_int(), 1);
  EXPECT_EQ(a[1].as_int(), -2);
  EXPECT_EQ(a[2].as_double(), 1.5);
  EXPECT_TRUE(a[3].as_bool());
  EXPECT_FALSE(a[4].as_bool());
  EXPECT_TRUE(a[5].is_null());
  EXPECT_EQ(a[6].as_string(), "x");
  EXPECT_TRUE(json->find("b")->members().empty());
  EXPECT_TRUE(json->find("c")->items().empty());
  EXPECT_FALSE(json->find("big")->is_int());
  EXPECT_EQ(json->find("big")->as_uint(), UINT64_MAX);
  EXPECT_EQ(json->find("missing"), nullptr);
}

TEST(Json, KeepsOrderOfKeys) {
  const auto json = parse(R"({"z":1,"a":2,"m":3})");

  ASSERT_TRUE(json.ok());
  EXPECT_EQ(json->members()[0].first, "z");
  EXPECT_EQ(json->members()[1].first, "a");
  EXPECT_EQ(json->members()[2].first, "m");
}

TEST(Json, IntegersStayIntegers) {
  const auto json = parse("[1, 1.0, 1e3, -9223372036854775808, 9223372036854775807, -0]");

  ASSERT_TRUE(json.ok());
  EXPECT_TRUE(json->items()[0].is_int());
  EXPECT_FALSE(json->items()[1].is_int());
  EXPECT_FALSE(json->items()[2].is_int());
  EXPECT_EQ(json->items()[3].as_int(), INT64_MIN);
  EXPECT_EQ(json->items()[4].as_int(), INT64_MAX);
  EXPECT_EQ(json->items()[5].as_int(), 0);
}

TEST(Json, RefusesIntegersBeyond64Bits) {
  EXPECT_THAT(error_of("[1, 18446744073709551616]"),
              HasSubstr("the integer 18446744073709551616 does not fit 64 bits"));
  EXPECT_THAT(error_of("[-9223372036854775809]"), HasSubstr("does not fit 64 bits"));
}

TEST(Json, RoundsBigIntegersOnRequest) {
  JsonLimits limits;
  limits.big_integer = JsonLimits::BigInteger::kRound;

  const auto json = parse("1000000000000000019884624838656", limits);

  ASSERT_TRUE(json.ok()) << json.status().message();
  EXPECT_FALSE(json->is_int());
  EXPECT_EQ(json->as_double(), 1e30);
}

TEST(Json, NamesDocumentAndOffset) {
  EXPECT_EQ(error_of("{\"a\": tru}"),
            "doc.json: byte 10: syntax error while parsing value - invalid literal; last read: "
            "'\"a\": tru}'");
}

TEST(Json, RefusesWhatIsNotJson) {
  for (const char* text : {"",
                           " ",
                           "{",
                           "}",
                           "[1,]",
                           "{\"a\":1,}",
                           "{a:1}",
                           "'a'",
                           "NaN",
                           "[NaN]",
                           "Infinity",
                           "-Infinity",
                           "01",
                           "+1",
                           "1.",
                           ".5",
                           "1e",
                           "0x10",
                           "\"a",
                           "\"\\x\"",
                           "\"\\u12\"",
                           "\"\n\"",
                           "[1 2]",
                           "{\"a\" 1}",
                           "/* c */ 1",
                           "1 // c",
                           "nul",
                           "[1]]",
                           "{} {}",
                           "1 x",
                           "\"\x01\"",
                           "\"\\ud800\"",
                           "\"\\udc00\"",
                           "\"\\ud800\\ud800\"",
                           "\"\\ud83d\"x"}) {
    EXPECT_NE(error_of(text), "accepted") << text;
  }
}

TEST(Json, RefusesNumbersBeyondDouble) {
  EXPECT_THAT(error_of("[1e999]"), HasSubstr("number overflow"));
  EXPECT_NE(error_of("[-1e999]"), "accepted");
}

TEST(Json, RefusesInvalidUtf8) {
  for (const char* text : {"\"\xFF\"", "\"\xC0\x80\"", "\"\xED\xA0\x80\"", "\"\xF4\x90\x80\x80\"",
                           "\"\xE2\x82\"", "\"\xC3"}) {
    EXPECT_NE(error_of(text), "accepted") << text;
  }
}

TEST(Json, RefusesNulAndByteOrderMark) {
  EXPECT_EQ(error_of(std::string_view{"{}\0x", 4}),
            "doc.json: byte 2: a NUL byte is not allowed in JSON");
  EXPECT_EQ(error_of("\xEF\xBB\xBF{}"),
            "doc.json: byte 0: a byte order mark is not allowed in JSON");
}

TEST(Json, DecodesEscapes) {
  const auto json = parse(R"("\"\\\/\b\f\n\r\t\u0041\u00e9\u4e00\ud83d\ude00\u0000")");

  ASSERT_TRUE(json.ok()) << json.status().message();
  std::string expected = "\"\\/\b\f\n\r\tA\u00e9\u4e00\U0001F600";
  expected.push_back('\0');
  EXPECT_EQ(json->as_string(), expected);
}

TEST(Json, RefusesDuplicateKeysAtAnyLevel) {
  EXPECT_THAT(error_of(R"({"a":1,"a":2})"), HasSubstr("byte 13: the key \"a\" appears twice"));
  EXPECT_THAT(error_of(R"([{"x":{"b":1,"c":2,"b":3}}])"), HasSubstr("the key \"b\" appears twice"));
  EXPECT_NE(error_of(R"({"\u0061":1,"a":2})"), "accepted");
  EXPECT_EQ(error_of(R"({"a":{"a":{"a":1}}})"), "accepted");
}

TEST(Json, FindsDuplicatesAmongManyKeys) {
  for (const int num_keys : {2, 7, 8, 9, 10, 1000}) {
    for (const int twice : {0, num_keys / 2, num_keys - 1}) {
      std::string text = "{";
      for (int i = 0; i < num_keys; ++i) {
        text += str_cat("\"a long common prefix ", i, "\":0,");
      }
      const std::string unique = text + "\"last\":0}";
      const std::string repeated = str_cat(text, "\"a long common prefix ", twice, "\":0}");

      EXPECT_EQ(error_of(unique), "accepted");
      EXPECT_THAT(error_of(repeated),
                  HasSubstr(str_cat("\"a long common prefix ", twice, "\" appears twice")));
    }
  }
}

TEST(Json, TreatsPrefixAndZeroPaddedKeysAsDifferent) {
  EXPECT_EQ(error_of(R"({"a":1,"a\u0000":2,"":3,"b":4,"c":5,"d":6,"e":7,"f":8,"g":9})"),
            "accepted");
}

TEST(Json, EnforcesDepth) {
  const auto nested = [](int depth) { return std::string(depth, '[') + std::string(depth, ']'); };

  EXPECT_EQ(error_of(nested(64)), "accepted");
  EXPECT_EQ(error_of(nested(65)), "doc.json: byte 65: nesting is deeper than 64 levels");
  EXPECT_THAT(error_of(std::string(100'000, '[')), HasSubstr("deeper than 64 levels"));
  std::string objects;
  for (int i = 0; i < 100'000; ++i)
    objects += "{\"a\":";
  EXPECT_THAT(error_of(objects), HasSubstr("deeper than 64 levels"));
}

TEST(Json, EnforcesSizes) {
  JsonLimits limits;
  limits.max_bytes = 10;
  EXPECT_EQ(error_of("[1,2,3,45]", limits), "accepted");
  EXPECT_EQ(error_of("[1,2,3,456]", limits),
            "doc.json: the JSON document has 11 bytes, more than the limit of 10");

  limits = {};
  limits.max_string_bytes = 3;
  EXPECT_EQ(error_of("{\"abc\":\"abc\"}", limits), "accepted");
  EXPECT_THAT(error_of("{\"abc\":\"abcd\"}", limits), HasSubstr("a string has 4 bytes"));
  EXPECT_THAT(error_of("{\"abcd\":\"abc\"}", limits), HasSubstr("a string has 4 bytes"));

  limits = {};
  limits.max_keys = 2;
  EXPECT_EQ(error_of(R"({"a":1,"b":{"a":1,"b":2}})", limits), "accepted");
  EXPECT_THAT(error_of(R"({"a":1,"b":2,"c":3})", limits), HasSubstr("more than 2 keys"));
}

TEST(Json, MessagesAreShortAndValid) {
  const std::string message = error_of(str_cat("\"", std::string(1 << 20, 'x'), "\xFF"));

  EXPECT_LT(message.size(), 300u);
}

TEST(Json, CopiesAreDeep) {
  Json original = *parse(R"({"a":[1,{"b":"text"}],"c":2.5})");
  Json copy = original;

  copy.members()[0].second.items()[1].members()[0].second = Json::string("changed");

  EXPECT_EQ(dump_json(original), R"({"a":[1,{"b":"text"}],"c":2.5})");
  EXPECT_EQ(dump_json(copy), R"({"a":[1,{"b":"changed"}],"c":2.5})");
}

TEST(Json, AssignsFromItsOwnPart) {
  Json json = *parse(R"({"a":[1,2]})");

  json = json.members()[0].second;
  EXPECT_EQ(dump_json(json), "[1,2]");
  json = std::move(json.items()[1]);
  EXPECT_EQ(dump_json(json), "2");
}

TEST(Json, ComparesByValue) {
  const char* text = R"({"a":[1,-1,2.5,"s",null,true,18446744073709551615]})";

  EXPECT_EQ(*parse(text), *parse(text));
  EXPECT_FALSE(*parse("1") == *parse("1.0"));
  EXPECT_FALSE(*parse(R"({"a":1,"b":2})") == *parse(R"({"b":2,"a":1})"));
  EXPECT_FALSE(*parse("[1]") == *parse("[1,2]"));
}

TEST(Json, NamesItsKind) {
  EXPECT_EQ(parse("{}")->kind_name(), "an object");
  EXPECT_EQ(parse("1")->kind_name(), "an integer");
  EXPECT_EQ(parse("null")->kind_name(), "null");
}

}  // namespace
}  // namespace fathom
