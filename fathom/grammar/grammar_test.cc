#include "fathom/grammar/grammar.h"

#include <bit>
#include <chrono>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <set>
#include <thread>

#include "fathom/text/json.h"
#include "tests/support/golden_tokenizer.h"
#include "tests/support/grammar_walk.h"

namespace fathom {
namespace {

using Kind = GrammarSpec::Kind;
using ::testing::HasSubstr;

constexpr int64_t kWidth = 4160;

class Grammar : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!grammar_available()) GTEST_SKIP() << "built without constrained decoding";
    auto tokenizer = Tokenizer::load(golden_tokenizer("tiny-v3"));
    ASSERT_TRUE(tokenizer.ok()) << tokenizer.status().message();
    tokenizer_ = *std::move(tokenizer);
    limits_.compile_seconds = 60;
    make();
  }

  void make() {
    auto compiler = GrammarCompiler::create(tokenizer_, kWidth, {kEnd}, limits_);
    ASSERT_TRUE(compiler.ok()) << compiler.status().message();
    compiler_ = *std::move(compiler);
  }

  std::unique_ptr<TokenConstraint> start(const GrammarSpec& spec) {
    const auto grammar = compiler_->compile(spec);
    if (!grammar.ok()) {
      ADD_FAILURE() << grammar.status().message();
      return nullptr;
    }
    return (*grammar)->start();
  }

  std::string refusal(const GrammarSpec& spec) {
    const auto grammar = compiler_->compile(spec);
    if (grammar.ok()) return "compiled";
    EXPECT_EQ(grammar.status().code(), StatusCode::kInvalidArgument);
    return grammar.status().message();
  }

  static GrammarSpec of(Kind kind, std::string text) {
    GrammarSpec spec;
    spec.kind = kind;
    spec.text = std::move(text);
    return spec;
  }

  // Whether the grammar takes exactly this text, by the tokens of the tokenizer.
  bool takes(const GrammarSpec& spec, std::string_view text) {
    const auto constraint = start(spec);
    for (const int32_t id : tokenizer_.encode(text)) {
      std::vector<uint32_t> mask((kWidth + 31) / 32, 0);
      constraint->next(mask);
      const bool is_allowed = (mask[id / 32] >> (id % 32) & 1) != 0;
      EXPECT_EQ(constraint->accept(id), is_allowed) << text;
      if (!is_allowed) return false;
    }
    return constraint->accept(kEnd);
  }

  std::string walk(const GrammarSpec& spec, uint64_t seed, int64_t num_random) {
    const auto constraint = start(spec);
    if (constraint == nullptr) return {};
    GrammarWalk walk{tokenizer_, kWidth, kEnd, seed};
    const auto ids = walk.walk(*constraint, num_random, 6000);
    EXPECT_TRUE(walk.ended) << "seed " << seed << ": " << tokenizer_.decode(ids).substr(0, 500);
    EXPECT_EQ(walk.problem, "") << "seed " << seed;
    return tokenizer_.decode(ids);
  }

  static constexpr int32_t kEnd = 1;
  Tokenizer tokenizer_;
  GrammarLimits limits_;
  std::unique_ptr<GrammarCompiler> compiler_;
};

TEST_F(Grammar, JsonIsAnObjectAndNothingElse) {
  for (uint64_t seed = 0; seed < 30; ++seed) {
    const std::string text = walk({}, seed, static_cast<int64_t>(seed));
    EXPECT_TRUE(is_json(text)) << text;
    EXPECT_EQ(text.front(), '{');
  }
  EXPECT_TRUE(takes({}, R"({"a": [1, 2.5e3, null], "b": {"c": "ü\n"}})"));
  EXPECT_TRUE(takes({}, "{\n  \"a\": true\n}"));
  EXPECT_FALSE(takes({}, "[1]"));
  EXPECT_FALSE(takes({}, "{\"a\": }"));
  EXPECT_FALSE(takes({}, "{} "));
}

struct SchemaCase {
  const char* name;
  const char* schema;
};

class GrammarOfSchema : public Grammar, public ::testing::WithParamInterface<SchemaCase> {};

TEST_P(GrammarOfSchema, RandomAnswersValidate) {
  const auto schema = parse_json(GetParam().schema, {}, "schema");
  ASSERT_TRUE(schema.ok()) << schema.status().message();
  const SchemaOracle oracle{*schema};
  for (uint64_t seed = 0; seed < 40; ++seed) {
    const std::string text =
        walk(of(Kind::kJsonSchema, GetParam().schema), seed, static_cast<int64_t>(seed % 25));
    JsonLimits limits;
    limits.big_integer = JsonLimits::BigInteger::kRound;
    const auto value = parse_json(text, limits, "answer");
    // A context-free grammar does not see that an open object has a key twice.
    if (!value.ok() && value.status().message().find("appears twice") != std::string::npos) {
      EXPECT_TRUE(is_json(text)) << text;
      continue;
    }
    ASSERT_TRUE(value.ok()) << value.status().message() << ": " << text;
    EXPECT_TRUE(oracle.allows(*value)) << "seed " << seed << ": " << text;
  }
}

INSTANTIATE_TEST_SUITE_P(
    All,
    GrammarOfSchema,
    ::testing::Values(
        SchemaCase{"closed", R"({"type":"object","properties":{"name":{"type":"string"},
          "age":{"type":"integer","minimum":0,"maximum":130},"ok":{"type":"boolean"}},
          "required":["name","age"],"additionalProperties":false})"},
        SchemaCase{"open", R"({"type":"object","properties":{"n":{"type":"integer"}},
          "required":["n"]})"},
        SchemaCase{"typed_rest", R"({"type":"object","properties":{"n":{"type":"integer"}},
          "additionalProperties":{"type":"boolean"}})"},
        SchemaCase{"array", R"({"type":"array","items":{"type":"number"},"minItems":2,
          "maxItems":4})"},
        SchemaCase{"tuple", R"({"type":"array","prefixItems":[{"type":"string"},
          {"type":"integer"}],"items":false,"minItems":2})"},
        SchemaCase{"lengths", R"({"type":"string","minLength":3,"maxLength":5})"},
        SchemaCase{"range", R"({"type":"number","exclusiveMinimum":-2.5,"maximum":17})"},
        SchemaCase{"integer_range",
                   R"({"type":"integer","exclusiveMinimum":-25,"exclusiveMaximum":117})"},
        SchemaCase{"multiple", R"({"type":"integer","multipleOf":7})"},
        SchemaCase{"enum", R"({"enum":["a/b","ü",3,null,true,{"x":[1]}]})"},
        SchemaCase{"const", R"({"const":{"k":"v"}})"},
        SchemaCase{"any_of", R"({"anyOf":[{"type":"string","maxLength":2},{"type":"null"},
          {"type":"object","properties":{"q":{"const":1}},"required":["q"]}]})"},
        SchemaCase{"one_of", R"({"oneOf":[{"type":"string"},{"type":"integer"}]})"},
        SchemaCase{"types", R"({"type":["string","null","integer"],"maxLength":3,"minimum":5})"},
        SchemaCase{"sizes", R"({"type":"object","additionalProperties":{"type":"null"},
          "minProperties":1,"maxProperties":3})"},
        SchemaCase{"references", R"({"type":"object","properties":{"tree":{"$ref":"#/$defs/node"}},
          "required":["tree"],"$defs":{"node":{"type":"object","properties":{
          "v":{"type":"integer"},"next":{"anyOf":[{"$ref":"#/$defs/node"},{"type":"null"}]}},
          "required":["v","next"],"additionalProperties":false}}})"},
        SchemaCase{"recursive", R"({"type":"object","properties":{"x":{"type":"array",
          "items":{"$ref":"#"}}},"additionalProperties":false})"},
        SchemaCase{"any", R"({})"}),
    [](const auto& param) { return std::string{param.param.name}; });

TEST_F(Grammar, PropertiesComeInTheOrderOfTheSchema) {
  const auto spec = of(Kind::kJsonSchema, R"({"type":"object","properties":{"b":{"type":"integer"},
    "a":{"type":"integer"}},"required":["b"],"additionalProperties":false})");
  EXPECT_TRUE(takes(spec, R"({"b": 1, "a": 2})"));
  EXPECT_TRUE(takes(spec, R"({"b":1})"));
  EXPECT_FALSE(takes(spec, R"({"a": 2, "b": 1})"));
  EXPECT_FALSE(takes(spec, R"({"b": 1, "c": 2})"));
  EXPECT_FALSE(takes(spec, R"({})"));
}

TEST_F(Grammar, PatternsAndFormatsAreEnforced) {
  const auto pattern = of(Kind::kJsonSchema, R"({"type":"string","pattern":"^[A-Z]{2}-\\d+$"})");
  EXPECT_TRUE(takes(pattern, R"("AB-12")"));
  EXPECT_FALSE(takes(pattern, R"("AB12")"));
  const auto date = of(Kind::kJsonSchema, R"({"type":"string","format":"date"})");
  EXPECT_TRUE(takes(date, R"("2026-11-25")"));
  EXPECT_FALSE(takes(date, R"("2026-13-25")"));
  const auto keys =
      of(Kind::kJsonSchema, R"({"type":"object","patternProperties":{"^x_":{"type":"integer"}}})");
  EXPECT_FALSE(takes(keys, R"({"y": 1})"));
  EXPECT_TRUE(takes(keys, R"({})"));
}

TEST_F(Grammar, RegexTakesTheWholeTextOnly) {
  const auto spec = of(Kind::kRegex, "(red|green)( \\d{1,3})?");
  for (const char* good : {"red", "green", "red 1", "green 123"})
    EXPECT_TRUE(takes(spec, good)) << good;
  for (const char* bad : {"", "blue", "redd", "red ", "red 1234", " red"})
    EXPECT_FALSE(takes(spec, bad)) << bad;
  std::set<std::string> seen;
  for (uint64_t seed = 0; seed < 60; ++seed)
    seen.insert(walk(of(Kind::kRegex, "[ab]{2}"), seed, 8));
  EXPECT_EQ(seen, (std::set<std::string>{"aa", "ab", "ba", "bb"}));
}

TEST_F(Grammar, ChoiceGivesEachChoiceAndNoOther) {
  GrammarSpec spec;
  spec.kind = Kind::kChoice;
  spec.choices = {"yes", "no", "no way", "ja \"wohl\" ü"};
  std::set<std::string> seen;
  for (uint64_t seed = 0; seed < 80; ++seed)
    seen.insert(walk(spec, seed, 30));
  EXPECT_EQ(seen, (std::set<std::string>{spec.choices.begin(), spec.choices.end()}));
  EXPECT_FALSE(takes(spec, "n"));
  EXPECT_FALSE(takes(spec, "no w"));
}

TEST_F(Grammar, EbnfFollowsItsRules) {
  const auto spec = of(Kind::kEbnf, "root ::= \"(\" root \")\" | digit\ndigit ::= [0-9]+\n");
  EXPECT_TRUE(takes(spec, "((7))"));
  EXPECT_FALSE(takes(spec, "((7)"));
  EXPECT_FALSE(takes(spec, "()"));
}

TEST_F(Grammar, StructuralTagsHoldSchemasAndFreeText) {
  const std::string tag = R"({"type":"structural_tag","format":{"type":"triggered_tags",
    "triggers":["<f>"],"tags":[{"type":"tag","begin":"<f>","content":{"type":"json_schema",
    "json_schema":{"type":"object","properties":{"x":{"type":"integer"}},"required":["x"],
    "additionalProperties":false}},"end":"</f>"}]}})";
  EXPECT_TRUE(takes(of(Kind::kStructuralTag, tag), "free <f>{\"x\": 1}</f> text"));
  EXPECT_FALSE(takes(of(Kind::kStructuralTag, tag), "free <f>{\"y\": 1}</f>"));
  const std::string old = R"({"type":"structural_tag","structures":[{"begin":"<f>","schema":
    {"type":"array"},"end":"</f>"}],"triggers":["<f"]})";
  EXPECT_TRUE(takes(of(Kind::kStructuralTag, old), "a<f>[1, \"b\"]</f>"));
  EXPECT_FALSE(takes(of(Kind::kStructuralTag, old), "a<f>1</f>"));
  EXPECT_THAT(refusal(of(Kind::kStructuralTag, R"({"format":{"type":"token","token":4092}})")),
              HasSubstr("the format 'token' is not for clients"));
}

TEST_F(Grammar, NoGrammarOfAClientLetsAddedTokensThrough) {
  const auto user = *tokenizer_.token_to_id("<｜User｜>");
  const auto constraint = start(of(Kind::kEbnf, "root ::= Token(4092) | [a-z]"));
  std::vector<uint32_t> mask((kWidth + 31) / 32, 0);
  constraint->next(mask);
  EXPECT_EQ(mask[user / 32] >> (user % 32) & 1, 0u);
  EXPECT_FALSE(constraint->accept(user));
}

TEST_F(Grammar, EndsOnlyWhereTheAnswerMayEnd) {
  const auto constraint = start(of(Kind::kRegex, "ab?"));
  std::vector<uint32_t> mask((kWidth + 31) / 32, 0);
  const auto ends = [&] {
    EXPECT_EQ(constraint->next(mask), ConstraintPlace::kPayload);
    return (mask[0] >> kEnd & 1) != 0;
  };
  EXPECT_FALSE(ends());
  EXPECT_FALSE(constraint->accept(kEnd));
  ASSERT_TRUE(constraint->accept(*tokenizer_.token_to_id("a")));
  EXPECT_TRUE(ends());
  ASSERT_TRUE(constraint->accept(*tokenizer_.token_to_id("b")));
  EXPECT_TRUE(ends());
  EXPECT_TRUE(constraint->accept(kEnd));
  EXPECT_FALSE(constraint->accept(*tokenizer_.token_to_id("b")));
}

TEST_F(Grammar, RollbackGivesTheSameMasksAgain) {
  const auto spec = of(Kind::kJsonSchema, R"({"type":"array","items":{"type":"string"}})");
  const auto constraint = start(spec);
  GrammarWalk walk{tokenizer_, kWidth, kEnd, 3};
  std::vector<uint32_t> before((kWidth + 31) / 32);
  std::vector<uint32_t> after((kWidth + 31) / 32);
  for (int round = 0; round < 40; ++round) {
    constraint->next(before);
    int64_t taken = 0;
    for (; taken < 1 + round % 7; ++taken) {
      const int32_t id = walk.pick(*constraint, true);
      ASSERT_TRUE(constraint->accept(id));
      if (id == kEnd) {
        ++taken;
        break;
      }
    }
    constraint->rollback(taken);
    constraint->next(after);
    ASSERT_EQ(before, after) << "round " << round;
    const int32_t id = walk.pick(*constraint, true);
    if (id != kEnd) {
      ASSERT_TRUE(constraint->accept(id));
    }
  }
}

TEST_F(Grammar, ReasoningIsFreeUpToItsEnd) {
  auto spec = of(Kind::kChoice, "");
  spec.choices = {"yes"};
  spec.free_until = *tokenizer_.token_to_id("</think>");
  const auto constraint = start(spec);
  std::vector<uint32_t> mask((kWidth + 31) / 32, 0);
  // Anything but the end of an answer that has not begun, ids beyond the vocabulary too.
  const auto is_free = [&] {
    if (constraint->next(mask) != ConstraintPlace::kPayload) return false;
    int64_t allowed = 0;
    for (const uint32_t word : mask)
      allowed += std::popcount(word);
    return allowed == kWidth - 1 && (mask[0] >> kEnd & 1) == 0;
  };
  for (const int32_t id : tokenizer_.encode("what { now"))
    ASSERT_TRUE(is_free() && constraint->accept(id));
  ASSERT_TRUE(is_free());
  EXPECT_FALSE(constraint->accept(kEnd));
  ASSERT_TRUE(constraint->accept(*spec.free_until));
  ASSERT_EQ(constraint->next(mask), ConstraintPlace::kPayload);
  EXPECT_FALSE(is_free());
  constraint->rollback(1);
  ASSERT_TRUE(is_free());
  ASSERT_TRUE(constraint->accept(*spec.free_until));
  EXPECT_FALSE(constraint->accept(kEnd));
  for (const int32_t id : tokenizer_.encode("\n\nyes"))
    ASSERT_TRUE(constraint->accept(id));
  EXPECT_TRUE(constraint->accept(kEnd));
}

TEST_F(Grammar, RefusesWhatIsNoGrammar) {
  EXPECT_THAT(refusal(of(Kind::kJsonSchema, "{")), HasSubstr("invalid_schema: "));
  EXPECT_THAT(refusal(of(Kind::kJsonSchema, "3")), HasSubstr("expected a schema"));
  EXPECT_THAT(refusal(of(Kind::kJsonSchema, "")), HasSubstr("is empty"));
  EXPECT_THAT(refusal(of(Kind::kJsonSchema, R"({"$ref":"#/$defs/none"})")),
              HasSubstr("invalid_schema: "));
  EXPECT_THAT(refusal(of(Kind::kRegex, "(")), HasSubstr("invalid_schema: "));
  EXPECT_THAT(refusal(of(Kind::kRegex, "a(?=b)")), HasSubstr("invalid_schema: "));
  EXPECT_THAT(refusal(of(Kind::kEbnf, "root ::= missing")), HasSubstr("invalid_schema: "));
  EXPECT_THAT(refusal(of(Kind::kEbnf, "other ::= \"a\"")), HasSubstr("invalid_schema: "));
  EXPECT_THAT(refusal(of(Kind::kStructuralTag, "{}")), HasSubstr("no 'format'"));
  EXPECT_THAT(refusal(of(Kind::kChoice, "")), HasSubstr("no choice"));
  EXPECT_EQ(compiler_->stats().refused, 10);
  EXPECT_EQ(compiler_->stats().compiled, 0);
}

TEST_F(Grammar, LimitsHoldAtTheirValue) {
  limits_.max_schema_bytes = 100;
  limits_.max_pattern_bytes = 10;
  limits_.max_schema_depth = 3;
  make();
  const auto nested = [](int depth) {
    std::string schema = "{}";
    for (int i = 1; i < depth; ++i)
      schema = str_cat(R"({"type":"array","items":)", schema, "}");
    return schema;
  };
  EXPECT_EQ(refusal(of(Kind::kJsonSchema, nested(3))), "compiled");
  EXPECT_THAT(refusal(of(Kind::kJsonSchema, nested(4))), HasSubstr("grammar_too_complex: "));
  EXPECT_EQ(refusal(of(Kind::kRegex, std::string(10, 'a'))), "compiled");
  EXPECT_THAT(refusal(of(Kind::kRegex, std::string(11, 'a'))),
              HasSubstr("the expression has 11 bytes, at most 10"));
  EXPECT_EQ(refusal(of(Kind::kJsonSchema, R"({"type":"string","pattern":"aaaaaaaaaa"})")),
            "compiled");
  EXPECT_THAT(refusal(of(Kind::kJsonSchema, R"({"type":"string","pattern":"aaaaaaaaaaa"})")),
              HasSubstr("'pattern' has 11 bytes, at most 10"));
  const std::string grammar = "root ::= \"" + std::string(89, 'a') + "\"";
  EXPECT_EQ(refusal(of(Kind::kEbnf, grammar)), "compiled");
  EXPECT_THAT(refusal(of(Kind::kEbnf, grammar + " ")), HasSubstr("has 101 bytes, at most 100"));
}

TEST_F(Grammar, TheDeepestSchemaIsFollowed) {
  std::string schema = R"({"type":"object","additionalProperties":false})";
  std::string text = "{}";
  for (int i = 1; i < limits_.max_schema_depth; ++i) {
    schema = str_cat(R"({"type":"object","properties":{"a":)", schema,
                     R"(},"required":["a"],"additionalProperties":false})");
    text = str_cat(R"({"a": )", text, "}");
  }
  EXPECT_TRUE(takes(of(Kind::kJsonSchema, schema), text));
  EXPECT_FALSE(takes(of(Kind::kJsonSchema, schema), str_cat(R"({"a": )", text, "}")));
  EXPECT_THAT(refusal(of(Kind::kJsonSchema, str_cat(R"({"items":)", schema, "}"))),
              HasSubstr("is nested deeper than 32 schemas"));
  EXPECT_THAT(refusal(of(Kind::kJsonSchema, std::string(97, '['))), HasSubstr("97"));
}

TEST_F(Grammar, StatesAreLimited) {
  limits_.max_states = 40;
  make();
  EXPECT_EQ(refusal(of(Kind::kRegex, "[ab]{2}")), "compiled");
  EXPECT_THAT(refusal(of(Kind::kRegex,
                         "a(b|c)d(e|f)g(h|i|j)k(xyz|uvw)0123456789012345678901234567890123456789")),
              HasSubstr("states, at most 40"));
}

TEST_F(Grammar, ACompileBeyondItsTimeIsRefusedAndDoesNotPileUp) {
  limits_.compile_seconds = 0.0;
  make();
  const auto schema = [](int i) {
    return of(Kind::kJsonSchema, str_cat(R"({"type":"object","properties":{"p)", i,
                                         R"(":{"type":"array","items":{"type":"object"}}}})"));
  };
  EXPECT_THAT(refusal(schema(0)), HasSubstr("grammar_too_complex: the grammar takes more than"));
  int64_t refused_at_once = 0;
  for (int i = 1; i < 40; ++i) {
    const std::string why = refusal(schema(i));
    if (why.find("still compile") != why.npos) ++refused_at_once;
  }
  EXPECT_GT(refused_at_once, 0);
  // What was refused for its time is there once it is done.
  for (int i = 0; i < 600 && !compiler_->compile(schema(0)).ok(); ++i)
    std::this_thread::sleep_for(std::chrono::milliseconds{50});
  EXPECT_TRUE(compiler_->compile(schema(0)).ok());
}

TEST_F(Grammar, EqualSpecsAreCompiledOnce) {
  const auto spec = of(Kind::kRegex, "abc");
  const auto first = compiler_->compile(spec);
  const auto second = compiler_->compile(spec);
  ASSERT_TRUE(first.ok() && second.ok());
  EXPECT_EQ(first->get(), second->get());
  EXPECT_EQ(compiler_->stats().compiled, 1);
  EXPECT_EQ(compiler_->stats().hits, 1);
  auto other = spec;
  other.free_until = 4095;
  ASSERT_TRUE(compiler_->compile(other).ok());
  EXPECT_EQ(compiler_->stats().compiled, 2);

  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i)
    threads.emplace_back([&] { EXPECT_TRUE(compiler_->compile(of(Kind::kRegex, "xyz+")).ok()); });
  for (std::thread& thread : threads)
    thread.join();
  EXPECT_EQ(compiler_->stats().compiled, 3);
}

TEST_F(Grammar, TheCacheForgetsTheOldest) {
  ASSERT_TRUE(compiler_->compile(of(Kind::kRegex, "a")).ok());
  limits_.cache_bytes = compiler_->stats().cached_bytes * 5 / 2;
  make();
  for (const char* text : {"a", "b", "a", "c"})
    ASSERT_TRUE(compiler_->compile(of(Kind::kRegex, text)).ok());
  EXPECT_LE(compiler_->stats().cached_bytes, limits_.cache_bytes);
  EXPECT_EQ(compiler_->stats().hits, 1);
  ASSERT_TRUE(compiler_->compile(of(Kind::kRegex, "a")).ok());  // used after b
  EXPECT_EQ(compiler_->stats().hits, 2);
  ASSERT_TRUE(compiler_->compile(of(Kind::kRegex, "b")).ok());
  EXPECT_EQ(compiler_->stats().hits, 2);
  EXPECT_EQ(compiler_->stats().compiled, 4);
}

TEST_F(Grammar, ACompilerNeedsAFittingModel) {
  EXPECT_THAT(GrammarCompiler::create(tokenizer_, 4095, {kEnd}).status().message(),
              HasSubstr("width of 4095"));
  EXPECT_THAT(GrammarCompiler::create(tokenizer_, kWidth, {}).status().message(),
              HasSubstr("needs an end token"));
  EXPECT_THAT(GrammarCompiler::create(tokenizer_, kWidth, {4096}).status().message(),
              HasSubstr("4096 is not in the vocabulary"));
}

}  // namespace
}  // namespace fathom
