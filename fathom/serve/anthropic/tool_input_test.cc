#include "fathom/serve/anthropic/tool_input.h"

#include <gtest/gtest.h>

#include "fathom/text/json_writer.h"

namespace fathom::serve {
namespace {

std::string input(std::string_view arguments) {
  return dump_json(tool_input(arguments));
}

TEST(ToolInput, IsTheValueOfWholeArguments) {
  EXPECT_EQ(input("{}"), "{}");
  EXPECT_EQ(input(" {\"b\": 1, \"a\": [true, null, -2.5, \"x\"]} "),
            R"({"b":1,"a":[true,null,-2.5,"x"]})");
}

TEST(ToolInput, KeepsWhatIsWholeOfArgumentsThatWereCut) {
  EXPECT_EQ(input(""), "{}");
  EXPECT_EQ(input("{"), "{}");
  EXPECT_EQ(input(R"({"a)"), "{}");
  EXPECT_EQ(input(R"({"a")"), "{}");
  EXPECT_EQ(input(R"({"a":)"), "{}");
  EXPECT_EQ(input(R"({"a":1)"), "{}");
  EXPECT_EQ(input(R"({"a":1,)"), R"({"a":1})");
  EXPECT_EQ(input(R"({"a":"x")"), R"({"a":"x"})");
  EXPECT_EQ(input(R"({"a":"x\")"), "{}");
  EXPECT_EQ(input(R"({"a":"}]","b)"), R"({"a":"}]"})");
  EXPECT_EQ(input(R"({"a":[1,{"b":tr)"), R"({"a":[1,{}]})");
  EXPECT_EQ(input(R"({"a":[1,2],"c":{"d":[)"), R"({"a":[1,2],"c":{"d":[]}})");
}

TEST(ToolInput, EveryPrefixIsAnObject) {
  constexpr std::string_view kWhole =
      R"({"a": "x\"y\\", "b": [1, 2.5, {"c": null}], "d": {"e": "é", "f": []}})";
  for (size_t n = 0; n <= kWhole.size(); ++n)
    EXPECT_TRUE(tool_input(kWhole.substr(0, n)).is_object()) << n;
}

TEST(ToolInput, IsEmptyWhereNothingCanBeRead) {
  EXPECT_EQ(input("no JSON"), "{}");
  EXPECT_EQ(input("}"), "{}");
  EXPECT_EQ(input("]]]]"), "{}");
  EXPECT_EQ(input(std::string(100, '{')), "{}");
}

TEST(ToolInput, RoundsNumbersBeyondIntegers) {
  EXPECT_EQ(input(R"({"n":123456789012345678901234567890})"), R"({"n":1.2345678901234568e+29})");
}

}  // namespace
}  // namespace fathom::serve
