#include "fathom/grammar/dsml_parameters.h"

#include <gtest/gtest.h>

#include "fathom/base/str_cat.h"
#include "fathom/grammar/grammar.h"

namespace fathom {
namespace {

Result<Json> format_of(const std::string& parameters) {
  Result<Json> json = parse_json(parameters, {}, "parameters");
  EXPECT_TRUE(json.ok()) << parameters;
  ToolDefinition tool;
  tool.name = "f";
  tool.parameters = std::move(json).value();
  const GrammarLimits limits;
  return dsml_parameters_format(tool, ToolGrammar::kFull,
                                {.max_bytes = limits.max_schema_bytes,
                                 .max_depth = limits.max_schema_depth,
                                 .max_pattern_bytes = limits.max_pattern_bytes},
                                std::nullopt);
}

TEST(DsmlParameters, ReferencesToWhatIsNoSchemaAreRefusedOrLeftToTheLibrary) {
  for (const char* place : {"#/required", "#/properties", "#/properties/x", "#/$defs", "#/type",
                            "#/$defs/missing", "#/$defs/a/b"}) {
    const Result<Json> made =
        format_of(str_cat(R"({"type":"object","required":["x"],"$defs":{"a":{"type":"string"}},)"
                          R"("properties":{"x":{"$ref":")",
                          place, R"("}}})"));
    if (!made.ok()) {
      EXPECT_EQ(made.status().code(), StatusCode::kInvalidArgument) << place;
    }
  }
}

TEST(DsmlParameters, BranchesThatReferToEachOtherEnd) {
  std::string branches = R"({"type":"string"})";
  for (int i = 0; i < 100; ++i)
    branches += R"(,{"$ref":"#/$defs/a"})";
  const Result<Json> made = format_of(
      str_cat(R"({"type":"object","properties":{"x":{"$ref":"#/$defs/a"}},"$defs":{"a":{"anyOf":[)",
              branches, "]}}}"));
  ASSERT_FALSE(made.ok());
  EXPECT_EQ(made.status().code(), StatusCode::kInvalidArgument);
}

TEST(DsmlParameters, ManyReferencesToOneSchemaAreBounded) {
  std::string properties;
  for (int i = 0; i < 1500; ++i)
    properties += str_cat(i == 0 ? "" : ",", "\"a", i, R"(":{"$ref":"#/$defs/d"})");
  const Result<Json> made = format_of(str_cat(R"({"type":"object","properties":{)", properties,
                                              R"(},"$defs":{"d":{"type":"integer"}}})"));
  ASSERT_FALSE(made.ok());
  EXPECT_NE(made.status().message().find("grammar_too_complex"), std::string::npos)
      << made.status().message();
}

TEST(DsmlParameters, AFewReferencesHold) {
  const Result<Json> made =
      format_of(R"({"type":"object","properties":{"x":{"$ref":"#/$defs/a"}},"required":["x"],)"
                R"("$defs":{"a":{"type":"integer"}}})");
  ASSERT_TRUE(made.ok()) << made.status().message();
}

}  // namespace
}  // namespace fathom
