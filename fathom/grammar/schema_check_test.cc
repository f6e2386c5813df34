#include "fathom/grammar/schema_check.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "fathom/text/json_writer.h"

namespace fathom {
namespace {

using ::testing::HasSubstr;

std::string checked(const char* text) {
  const auto schema = parse_json(text, {}, "schema");
  EXPECT_TRUE(schema.ok()) << schema.status().message();
  const auto result = checked_schema(*schema, {1000, 4, 20}, "s");
  return result.ok() ? dump_json(*result) : result.status().message();
}

TEST(SchemaCheck, LeavesAnnotationsOutAndWritesOutWhatIsImplied) {
  EXPECT_EQ(checked(R"({"type":"object","title":"t","x-y":1,"properties":{"a":{"type":"array",
                       "description":"d","default":[]}},"required":["a"]})"),
            R"({"type":"object","properties":{"a":{"type":"array","items":true}},"required":["a"],)"
            R"("additionalProperties":true})");
  EXPECT_EQ(checked(R"({"type":"object","additionalProperties":false})"),
            R"({"type":"object","additionalProperties":false})");
  EXPECT_EQ(checked(R"({"type":"object","patternProperties":{"^x":{}}})"),
            R"({"type":"object","patternProperties":{"^x":{}},"additionalProperties":false})");
  EXPECT_EQ(checked(R"({"const":{"minLength":1,"title":"t"},"title":"t"})"),
            R"({"const":{"minLength":1,"title":"t"}})");
  EXPECT_EQ(checked("true"), "true");
}

TEST(SchemaCheck, RefusesByNameWhatIsNotEnforced) {
  for (const char* keyword : {"not", "if", "then", "else", "dependentRequired", "dependentSchemas",
                              "dependencies", "contains", "minContains", "maxContains",
                              "additionalItems", "$dynamicRef", "$recursiveRef"}) {
    const std::string schema = std::string{R"({"properties":{"a":{")"} + keyword + R"(":{}}}})";
    EXPECT_EQ(checked(schema.c_str()), std::string{"invalid_schema: s.properties.a: '"} + keyword +
                                           "' is not supported by constrained decoding");
  }
  EXPECT_THAT(checked(R"({"type":"array","uniqueItems":true})"), HasSubstr("'uniqueItems'"));
  EXPECT_EQ(checked(R"({"type":"array","uniqueItems":false})"), R"({"type":"array","items":true})");
}

TEST(SchemaCheck, RefusesKeywordsThatWouldBeIgnored) {
  const std::pair<const char*, const char*> cases[] = {
      {R"({"$ref":"#","type":"object"})", "'type' beside '$ref'"},
      {R"({"$ref":"http://x"})", "expected one of this schema"},
      {R"({"anyOf":[{}],"properties":{}})", "'properties' beside 'anyOf'"},
      {R"({"type":"object","anyOf":[{"type":"string"}]})", "'type' beside 'anyOf'"},
      {R"({"allOf":[{},{}]})", "'allOf' with more than one"},
      {R"({"enum":[1,"a"],"type":"string"})", "'enum' has a value of another 'type'"},
      {R"({"enum":["a"],"minLength":1})", "'minLength' beside 'enum'"},
      {R"({"minLength":1})", "'minLength' needs a 'type'"},
      {R"({"required":["a"]})", "'required' needs a 'type'"},
      {R"({"type":"object","required":["a"]})", "names 'a', which is not in 'properties'"},
      {R"({"type":"number","multipleOf":2})", "'multipleOf' is supported for integers only"},
      {R"({"type":"string","pattern":"a","minLength":1})", "beside 'pattern'"},
      {R"({"type":"string","pattern":"a","format":"date"})", "'pattern' beside 'format'"},
      {R"({"type":"object","patternProperties":{"a":{},"b":{}}})", "other than one pattern"},
      {R"({"type":"object","patternProperties":{"a":{}},"properties":{}})", "'properties' beside"},
      {R"({"type":"strng"})", "\"strng\""},
      {R"({"type":"string","minLength":3,"maxLength":2})", "greater than 'maxLength'"},
      {R"({"type":"string","minLength":-1})", "not negative"}};
  for (const auto& [schema, why] : cases)
    EXPECT_THAT(checked(schema), ::testing::AllOf(HasSubstr("invalid_schema: s"), HasSubstr(why)));
}

TEST(SchemaCheck, DepthCountsSchemasAndNothingElse) {
  const std::pair<const char*, int64_t> cases[] = {
      {"true", 0},
      {"{}", 1},
      {R"({"enum":[{"properties":{"a":{}}}],"title":"t"})", 1},
      {R"({"properties":{},"additionalProperties":false})", 1},
      {R"({"properties":{"a":{},"properties":{"type":"string"}}})", 2},
      {R"({"items":{"items":{}}})", 3},
      {R"({"items":[{},{"items":{}}]})", 3},
      {R"({"anyOf":[{},{"prefixItems":[{}]}]})", 3},
      {R"({"$defs":{"a":{"not":{}}},"if":{}})", 3},
      {R"({"dependentSchemas":{"a":{"contains":{}}}})", 3}};
  for (const auto& [schema, depth] : cases)
    EXPECT_EQ(schema_depth(*parse_json(schema, {}, "s")), depth) << schema;
}

TEST(SchemaCheck, LimitsHoldAtTheirValue) {
  EXPECT_EQ(checked(R"({"type":"string","pattern":"aaaaaaaaaaaaaaaaaaaa"})"),
            R"({"type":"string","pattern":"aaaaaaaaaaaaaaaaaaaa"})");
  EXPECT_THAT(checked(R"({"type":"string","pattern":"aaaaaaaaaaaaaaaaaaaaa"})"),
              HasSubstr("grammar_too_complex: s: 'pattern' has 21 bytes, at most 20"));
  EXPECT_THAT(checked(R"({"type":"string","maxLength":128})"), HasSubstr("{0,128}"));
  EXPECT_THAT(checked(R"({"type":"string","maxLength":129})"),
              HasSubstr("grammar_too_complex: s: a length of 129, at most 128"));
  EXPECT_THAT(checked(R"({"type":"string","pattern":"a{3,128}"})"), HasSubstr("a{3,128}"));
  EXPECT_THAT(checked(R"({"type":"string","pattern":"a{3,129}"})"), HasSubstr("129 repetitions"));
  EXPECT_EQ(checked(R"({"anyOf":[{"anyOf":[{"anyOf":[{}]}]}]})"),
            R"({"anyOf":[{"anyOf":[{"anyOf":[{}]}]}]})");
  EXPECT_THAT(checked(R"({"anyOf":[{"anyOf":[{"anyOf":[{"anyOf":[{}]}]}]}]})"),
              HasSubstr("is nested deeper than 4 schemas"));
  // What closes an object is no schema of its own.
  EXPECT_EQ(
      checked(R"({"anyOf":[{"anyOf":[{"anyOf":[{"type":"object",)"
              R"("additionalProperties":false}]}]}]})"),
      R"({"anyOf":[{"anyOf":[{"anyOf":[{"type":"object","additionalProperties":false}]}]}]})");
}

}  // namespace
}  // namespace fathom
