#include "fathom/tokenizer/chat/dsml/python_json.h"

#include <gtest/gtest.h>

#include "fathom/base/str_cat.h"

namespace fathom {
namespace {

// The value of the only member, as Python prints it.
std::string printed(std::string_view value) {
  const auto members = read_python_object(str_cat("{\"k\":", value, "}"));
  if (!members) return "refused";
  return members->size() == 1 && !members->front().is_string ? members->front().text : "other";
}

// Expected texts are those of Python 3.11: json.dumps(json.loads(x), ensure_ascii=False).
TEST(PythonJson, PrintsValuesAsPythonDoes) {
  EXPECT_EQ(printed("[1,2.50,1e5,-0.0,-0,1E-7,1e16,5e-324,1e22,0.1]"),
            "[1, 2.5, 100000.0, -0.0, 0, 1e-07, 1e+16, 5e-324, 1e+22, 0.1]");
  EXPECT_EQ(printed("123456789012345678901234567890"), "123456789012345678901234567890");
  EXPECT_EQ(printed("-18446744073709551616"), "-18446744073709551616");
  EXPECT_EQ(printed("{ \"a\" :\n[ ] , \"b\":{ } , \"c\":[true,false,null] }"),
            R"({"a": [], "b": {}, "c": [true, false, null]})");
  EXPECT_EQ(printed(R"(["\u00e9\ud83d\ude00\/\u0001\u007f\u2028\"\\\b\f\n\r\t"])"),
            "[\"é😀/\\u0001\x7f\u2028\\\"\\\\\\b\\f\\n\\r\\t\"]");
  EXPECT_EQ(printed("1e-400"), "0.0");
  EXPECT_EQ(printed("-0.00001e-400"), "-0.0");
}

TEST(PythonJson, OfEqualKeysKeepsThePlaceOfTheFirstAndTheValueOfTheLast) {
  EXPECT_EQ(printed(R"({"a":1,"b":2,"a":3})"), R"({"a": 3, "b": 2})");
  const auto members = read_python_object(R"({"a":1,"b":2,"\u0061":"x"})");
  ASSERT_TRUE(members.has_value());
  ASSERT_EQ(members->size(), 2u);
  EXPECT_EQ((*members)[0].key, "a");
  EXPECT_TRUE((*members)[0].is_string);
  EXPECT_EQ((*members)[0].text, "x");
}

TEST(PythonJson, StringsComeWithoutQuotesAndEscapes) {
  const auto members = read_python_object(" {\"\": \"a\\n\\\"b\\\" \\u00e9\"} \n");
  ASSERT_TRUE(members.has_value());
  EXPECT_EQ(members->front().key, "");
  EXPECT_EQ(members->front().text, "a\n\"b\" é");
}

TEST(PythonJson, RefusesWhatIsNoObject) {
  for (const char* text : {"", " ", "null", "[1]", "\"a\"", "1", "{", "{}x", "{}{}", "{\"a\"}",
                           "{\"a\":}", "{\"a\":1,}", "{a:1}", "{'a':1}", "{\"a\":1 \"b\":2}"}) {
    EXPECT_FALSE(read_python_object(text).has_value()) << text;
  }
  for (const char* value : {"NaN",
                            "Infinity",
                            "-Infinity",
                            "1e999",
                            "-1e400",
                            "0.1e309000000000000000000",
                            "01",
                            "1.",
                            ".5",
                            "+1",
                            "1e",
                            "0x1",
                            "tru",
                            "[1,]",
                            "[,]",
                            "\"\\ud800\"",
                            "\"\\ud800\\u0041\"",
                            "\"\\udc00\"",
                            "\"\\x\"",
                            "\"\\u12g4\"",
                            "\"\\u+123\"",
                            "\"a\nb\"",
                            "\"a"}) {
    EXPECT_EQ(printed(value), "refused") << value;
  }
}

TEST(PythonJson, LimitsDepthAndDigits) {
  const auto nested = [](size_t depth) {
    return std::string(depth, '[') + std::string(depth, ']');
  };

  EXPECT_EQ(printed(nested(200)), nested(200));
  EXPECT_EQ(printed(nested(201)), "refused");
  EXPECT_EQ(printed(std::string(4300, '9')), std::string(4300, '9'));
  EXPECT_EQ(printed(std::string(4301, '9')), "refused");
}

}  // namespace
}  // namespace fathom
