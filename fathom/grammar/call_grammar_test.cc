// Tool calls by a grammar, read back by the decoder of answers.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "fathom/grammar/grammar.h"
#include "fathom/tokenizer/answer/answer_decoder.h"
#include "fathom/tokenizer/chat/control_tokens.h"
#include "tests/support/golden_tokenizer.h"
#include "tests/support/grammar_walk.h"
#include "tests/support/sanitized.h"

namespace fathom {
namespace {

using Form = AnswerGrammar::ToolCalls;
using ::testing::HasSubstr;

constexpr int32_t kEnd = 1;
constexpr int64_t kWidth = 4160;

constexpr const char* kWeather = R"({"type":"object","properties":{
  "city":{"type":"string"},"days":{"type":"integer","minimum":1,"maximum":14},
  "unit":{"type":"string","enum":["C","F"]},
  "tags":{"type":"array","items":{"$ref":"#/$defs/tag"},"maxItems":2},
  "note":{"anyOf":[{"type":"string","maxLength":4},{"type":"null"}]}},
  "required":["city","days"],"additionalProperties":false,
  "$defs":{"tag":{"type":"object","properties":{"k":{"type":"boolean"}},"required":["k"],
  "additionalProperties":false}}})";

struct FormCase {
  const char* name;
  Form form;
  bool has_tokens;  // markers are tokens of the vocabulary, not text
  ToolGrammar level;
};

class CallGrammar : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!grammar_available()) GTEST_SKIP() << "built without constrained decoding";
  }

  void make(bool has_tokens) {
    const std::string dir = golden_tokenizer("tiny-v3");
    auto tokenizer = has_tokens
                         ? marked_tokenizer(dir, {control::kToolCallsBegin, control::kToolCallsEnd,
                                                  control::kToolCallBegin, control::kToolCallEnd,
                                                  control::kToolSep, control::kDsml})
                         : Tokenizer::load(dir);
    ASSERT_TRUE(tokenizer.ok()) << tokenizer.status().message();
    tokenizer_ = *std::move(tokenizer);
    GrammarLimits limits;
    limits.compile_seconds = 60;
    auto compiler = GrammarCompiler::create(tokenizer_, kWidth, {kEnd}, limits);
    ASSERT_TRUE(compiler.ok()) << compiler.status().message();
    compiler_ = *std::move(compiler);
  }

  static ToolDefinition tool(const char* name, const char* parameters) {
    ToolDefinition tool;
    tool.name = name;
    if (parameters != nullptr) tool.parameters = *parse_json(parameters, {}, name);
    return tool;
  }

  static GrammarSpec calls(Form form, ToolGrammar level) {
    GrammarSpec spec;
    spec.kind = GrammarSpec::Kind::kTools;
    spec.tools = {tool("get_weather", kWeather), tool("now", nullptr),
                  tool("free", R"({"type":"object"})")};
    spec.answer = {.tool_calls = form, .section = "tool_calls"};
    spec.level = level;
    spec.must_call = true;
    return spec;
  }

  struct Call {
    std::string name;
    std::string arguments;
  };

  // The calls of an answer, with what the decoder had to put right.
  std::vector<Call> read(const GrammarSpec& spec, const std::vector<int32_t>& ids) {
    AnswerDecoder decoder{tokenizer_, spec.answer, spec.tools};
    std::vector<Call> calls;
    content_.clear();
    const auto add = [&](const AnswerDelta& delta) {
      content_ += delta.content;
      for (const ToolCallDelta& one : delta.tool_calls) {
        calls.resize(static_cast<size_t>(one.index) + 1);
        calls.back().name += one.name;
        calls.back().arguments += one.arguments;
      }
    };
    for (const int32_t id : ids)
      add(decoder.push(id));
    add(decoder.finish());
    repairs_ = decoder.repairs();
    return calls;
  }

  std::unique_ptr<TokenConstraint> start(const GrammarSpec& spec) {
    const auto grammar = compiler_->compile(spec);
    EXPECT_TRUE(grammar.ok()) << grammar.status().message();
    return grammar.ok() ? (*grammar)->start() : nullptr;
  }

  // A text in which markers are spelled out, by tokens.
  std::vector<int32_t> ids_of(std::string_view text) const {
    return tokenizer_.encode(text, {.added_tokens = AddedTokens::kParse});
  }

  // How many bytes of a text the grammar takes; all, with the end, is one more.
  size_t taken(const GrammarSpec& spec, std::string_view text) {
    const auto constraint = start(spec);
    std::string done;
    for (const int32_t id : ids_of(text)) {
      if (!constraint->accept(id)) return done.size();
      done += tokenizer_.token_bytes(id);
    }
    return done.size() + (constraint->accept(kEnd) ? 1 : 0);
  }

  Tokenizer tokenizer_;
  std::unique_ptr<GrammarCompiler> compiler_;
  std::string content_;
  AnswerRepairs repairs_;
};

class CallGrammarOfForm : public CallGrammar, public ::testing::WithParamInterface<FormCase> {};

TEST_P(CallGrammarOfForm, EveryRandomAnswerIsACallOfADeclaredTool) {
  make(GetParam().has_tokens);
  const bool is_full = GetParam().level == ToolGrammar::kFull;
  const GrammarSpec spec = calls(GetParam().form, GetParam().level);
  const SchemaOracle oracle{spec.tools[0].parameters};
  const Json loose = *parse_json(R"({"type":"object"})", {}, "loose");
  int num_weather = 0;
  constexpr int kSeeds = kSanitized ? 12 : 60;
  for (uint64_t seed = 0; seed < kSeeds; ++seed) {
    const auto constraint = start(spec);
    ASSERT_NE(constraint, nullptr);
    GrammarWalk walk{tokenizer_, kWidth, kEnd, seed};
    const auto ids = walk.walk(*constraint, static_cast<int64_t>(seed % 20), 8000);
    const std::string text = tokenizer_.decode(ids);
    ASSERT_EQ(walk.problem, "") << text;
    ASSERT_TRUE(walk.ended) << "seed " << seed << ": " << text.substr(0, 1000);
    const auto made = read(spec, ids);
    ASSERT_FALSE(made.empty()) << text;
    EXPECT_EQ(content_, "") << text;
    for (const Call& call : made) {
      JsonLimits limits;
      limits.big_integer = JsonLimits::BigInteger::kRound;
      const auto arguments = parse_json(call.arguments, limits, "arguments");
      ASSERT_TRUE(is_json(call.arguments)) << "seed " << seed << ": " << call.arguments << "\n"
                                           << text;
      ASSERT_TRUE(call.name == "get_weather" || call.name == "now" || call.name == "free") << text;
      // Free objects may have a key twice.
      if (!arguments.ok()) continue;
      EXPECT_TRUE(arguments->is_object());
      if (call.name != "get_weather") continue;
      ++num_weather;
      EXPECT_TRUE(oracle.allows(is_full ? spec.tools[0].parameters : loose, *arguments)) << text;
    }
    // What light grammars leave to the decoder: a value that is no JSON after all, a name twice.
    if (is_full) {
      EXPECT_EQ(repairs_, AnswerRepairs{}) << text;
    }
  }
  EXPECT_GT(num_weather, kSeeds / 12);
}

INSTANTIATE_TEST_SUITE_P(
    All,
    CallGrammarOfForm,
    ::testing::Values(FormCase{"fenced_tokens", Form::kFencedJson, true, ToolGrammar::kFull},
                      FormCase{"bare_tokens", Form::kBareJson, true, ToolGrammar::kFull},
                      FormCase{"dsml_tokens", Form::kDsml, true, ToolGrammar::kFull},
                      FormCase{"fenced_text", Form::kFencedJson, false, ToolGrammar::kFull},
                      FormCase{"bare_text", Form::kBareJson, false, ToolGrammar::kFull},
                      FormCase{"dsml_text", Form::kDsml, false, ToolGrammar::kFull},
                      FormCase{"fenced_light", Form::kFencedJson, true, ToolGrammar::kLight},
                      FormCase{"bare_light", Form::kBareJson, true, ToolGrammar::kLight},
                      FormCase{"dsml_light", Form::kDsml, true, ToolGrammar::kLight},
                      FormCase{"dsml_light_text", Form::kDsml, false, ToolGrammar::kLight}),
    [](const auto& param) { return std::string{param.param.name}; });

TEST_F(CallGrammar, FencedCallsAreThoseOfTheTemplate) {
  make(true);
  auto spec = calls(Form::kFencedJson, ToolGrammar::kFull);
  const std::string call =
      "<｜tool▁call▁begin｜>function<｜tool▁sep｜>get_weather\n```json\n"
      "{\"city\": \"Bonn\", \"days\": 3}\n```<｜tool▁call▁end｜>";
  const std::string one = "<｜tool▁calls▁begin｜>" + call + "<｜tool▁calls▁end｜>";
  const std::string two = "<｜tool▁calls▁begin｜>" + call + "\n" + call + "<｜tool▁calls▁end｜>";
  EXPECT_EQ(taken(spec, one), one.size() + 1);
  EXPECT_EQ(taken(spec, two), two.size() + 1);
  spec.parallel_calls = false;
  EXPECT_EQ(taken(spec, one), one.size() + 1);
  EXPECT_LT(taken(spec, two), two.size() - call.size());
  // Markers count as tokens alone.
  const auto constraint = start(spec);
  EXPECT_FALSE(constraint->accept(*tokenizer_.token_to_id("<")));
}

TEST_F(CallGrammar, BareCallsAreThoseOfTheTemplate) {
  make(true);
  const auto spec = calls(Form::kBareJson, ToolGrammar::kFull);
  const std::string call = "<｜tool▁call▁begin｜>now<｜tool▁sep｜>{}<｜tool▁call▁end｜>";
  const std::string text = "<｜tool▁calls▁begin｜>" + call + call + "<｜tool▁calls▁end｜>";
  EXPECT_EQ(taken(spec, text), text.size() + 1);
  EXPECT_LT(taken(spec, "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>never<｜tool▁sep｜>{}"), 70u);
}

TEST_F(CallGrammar, DsmlCallsAreThoseOfTheEncoder) {
  for (const bool has_tokens : {true, false}) {
    make(has_tokens);
    const auto spec = calls(Form::kDsml, ToolGrammar::kFull);
    const std::string good =
        "\n\n<｜DSML｜tool_calls>\n<｜DSML｜invoke name=\"get_weather\">\n"
        "<｜DSML｜parameter name=\"city\" string=\"true\">a </b> \"c\"</｜DSML｜parameter>\n"
        "<｜DSML｜parameter name=\"days\" string=\"false\">12</｜DSML｜parameter>\n"
        "<｜DSML｜parameter name=\"unit\" string=\"true\">C</｜DSML｜parameter>\n"
        "<｜DSML｜parameter name=\"tags\" string=\"false\">[{\"k\": true}]</｜DSML｜parameter>\n"
        "<｜DSML｜parameter name=\"note\" string=\"false\">null</｜DSML｜parameter>\n"
        "</｜DSML｜invoke>\n<｜DSML｜invoke "
        "name=\"now\">\n\n</｜DSML｜invoke>\n</｜DSML｜tool_calls>";
    EXPECT_EQ(taken(spec, good), good.size() + 1);
    const auto read_back = read(spec, ids_of(good));
    ASSERT_EQ(read_back.size(), 2u);
    EXPECT_EQ(
        read_back[0].arguments,
        R"({"city": "a </b> \"c\"", "days": 12, "unit": "C", "tags": [{"k": true}], "note": null})");
    for (const auto& [from, to] : std::vector<std::pair<std::string, std::string>>{
             {">12<", ">15<"},
             {">C<", ">K<"},
             {"{\"k\": true}", "{\"k\": 1}"},
             {"name=\"days\"", "name=\"hours\""},
             {"\"get_weather\"", "\"set_weather\""},
             {"days\" string=\"false\"", "days\" string=\"true\""}}) {
      std::string bad = good;
      bad.replace(bad.find(from), from.size(), to);
      EXPECT_LT(taken(spec, bad), bad.size()) << to;
    }
  }
}

TEST_F(CallGrammar, TextIsFreeUntilASectionOpens) {
  struct Case {
    Form form;
    const char* text;
    const char* section;
  };

  for (const bool has_tokens : {true, false}) {
    make(has_tokens);
    for (const Case& one : {Case{Form::kFencedJson, "Let me < see. ", "<｜tool▁calls▁begin｜>"},
                            Case{Form::kBareJson, "Let me < see. ", "<｜tool▁calls▁begin｜>"},
                            Case{Form::kDsml, "Let me < see.\n\n", "<｜DSML｜"}}) {
      auto spec = calls(one.form, ToolGrammar::kLight);
      spec.must_call = false;
      const auto constraint = start(spec);
      std::vector<uint32_t> mask((kWidth + 31) / 32);
      for (const int32_t id : ids_of(one.text)) {
        ASSERT_EQ(constraint->next(mask), ConstraintPlace::kFree);
        ASSERT_TRUE(constraint->accept(id));
      }
      const auto opening = ids_of(one.section);
      for (const int32_t id : opening) {
        ASSERT_EQ(constraint->next(mask), ConstraintPlace::kFree);
        ASSERT_TRUE(constraint->accept(id));
      }
      EXPECT_EQ(constraint->next(mask), ConstraintPlace::kStructure);
      EXPECT_FALSE(constraint->accept(kEnd));
      constraint->rollback(1);
      EXPECT_EQ(constraint->next(mask), ConstraintPlace::kFree);
      ASSERT_TRUE(constraint->accept(opening.back()));
      EXPECT_FALSE(constraint->accept(kEnd));
      // Behind the calls nothing but the end comes.
      GrammarWalk walk{tokenizer_, kWidth, kEnd, 5};
      auto ids = ids_of(std::string{one.text} + one.section);
      const auto rest = walk.walk(*constraint, 3, 4000);
      ASSERT_TRUE(walk.ended) << walk.problem;
      ids.insert(ids.end(), rest.begin(), rest.end());
      EXPECT_FALSE(read(spec, ids).empty());
      EXPECT_THAT(content_, HasSubstr("Let me < see."));
    }
  }
}

TEST_F(CallGrammar, AnAnswerWithoutCallsMayEndAnywhere) {
  make(true);
  auto spec = calls(Form::kDsml, ToolGrammar::kFull);
  spec.must_call = false;
  const auto constraint = start(spec);
  for (const int32_t id : ids_of("Hello"))
    ASSERT_TRUE(constraint->accept(id));
  EXPECT_TRUE(constraint->accept(kEnd));
}

TEST_F(CallGrammar, ReasoningMayBeAllWhereNothingMustFollow) {
  make(true);
  auto spec = calls(Form::kDsml, ToolGrammar::kLight);
  spec.must_call = false;
  spec.free_until = *tokenizer_.token_to_id("</think>");
  const auto constraint = start(spec);
  std::vector<uint32_t> mask((kWidth + 31) / 32);
  for (const int32_t id : ids_of("I think"))
    ASSERT_TRUE(constraint->next(mask) == ConstraintPlace::kFree && constraint->accept(id));
  EXPECT_TRUE(constraint->accept(kEnd));
}

TEST_F(CallGrammar, ACallComesFirstBehindTheReasoning) {
  make(true);
  auto spec = calls(Form::kDsml, ToolGrammar::kFull);
  spec.free_until = *tokenizer_.token_to_id("</think>");
  const auto constraint = start(spec);
  std::vector<uint32_t> mask((kWidth + 31) / 32);
  // Markers in the reasoning open nothing.
  for (const int32_t id : ids_of("I think <｜DSML｜tool_calls> so</think>")) {
    ASSERT_EQ(constraint->next(mask), ConstraintPlace::kPayload);
    EXPECT_EQ(mask[0] >> kEnd & 1, 0u);
    EXPECT_FALSE(constraint->accept(kEnd));
    ASSERT_TRUE(constraint->accept(id));
  }
  EXPECT_EQ(constraint->next(mask), ConstraintPlace::kStructure);
  EXPECT_FALSE(constraint->accept(*tokenizer_.token_to_id("I")));
  EXPECT_FALSE(constraint->accept(kEnd));
  for (const int32_t id : ids_of("\n\n<｜DSML｜tool_calls>\n"))
    EXPECT_TRUE(constraint->accept(id));
}

constexpr const char* kClosed = R"({"type":"object","properties":{"x":{"type":"integer"}},
  "required":["x"],"additionalProperties":false})";

struct ShapedForm {
  Form form;
  std::string call;  // of the tool "now"
};

const std::vector<ShapedForm>& shaped_forms() {
  static const std::vector<ShapedForm> forms = {
      {Form::kFencedJson,
       "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>now\n```json\n{}\n```"
       "<｜tool▁call▁end｜><｜tool▁calls▁end｜>"},
      {Form::kBareJson,
       "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>now<｜tool▁sep｜>{}<｜tool▁call▁end｜>"
       "<｜tool▁calls▁end｜>"},
      {Form::kDsml,
       "\n\n<｜DSML｜tool_calls>\n<｜DSML｜invoke name=\"now\">\n\n</｜DSML｜invoke>\n"
       "</｜DSML｜tool_calls>"}};
  return forms;
}

GrammarSpec shaped(GrammarSpec spec) {
  spec.kind = GrammarSpec::Kind::kJsonSchema;
  spec.text = kClosed;
  spec.must_call = false;
  return spec;
}

TEST_F(CallGrammar, BesideAShapeComeCallsOrContentOfIt) {
  for (const bool has_tokens : {true, false}) {
    make(has_tokens);
    const int32_t end_think = *tokenizer_.token_to_id("</think>");
    for (const auto& [form, call] : shaped_forms()) {
      for (const ToolGrammar level : {ToolGrammar::kLight, ToolGrammar::kFull}) {
        GrammarSpec spec = shaped(calls(form, level));
        const std::string json = R"({"x": 12})";
        EXPECT_EQ(taken(spec, call), call.size() + 1) << call;
        EXPECT_EQ(taken(spec, json), json.size() + 1) << call;
        EXPECT_EQ(taken(spec, ""), 0u);
        EXPECT_LE(taken(spec, "Hello"), 0u);
        EXPECT_LT(taken(spec, R"({"y": 12})"), 5u);
        EXPECT_LE(taken(spec, json + call), json.size()) << call;
        EXPECT_LE(taken(spec, call + json), call.size()) << call;
        std::string undeclared = call;
        undeclared.replace(undeclared.find("now"), 3, "never");
        EXPECT_LT(taken(spec, undeclared), undeclared.find("never") + 5) << call;

        spec.free_until = end_think;
        for (const std::string& answer : {call, json, "\n\n" + json}) {
          const std::string whole = "so</think>" + answer;
          EXPECT_EQ(taken(spec, whole), whole.size() + 1) << call;
        }
        EXPECT_EQ(taken(spec, "so"), 2u) << "it ends in its reasoning";
      }
    }
  }
}

TEST_F(CallGrammar, BesideAShapeContentIsDrawnAndFramesAreNot) {
  for (const bool has_tokens : {true, false}) {
    make(has_tokens);
    for (const auto& [form, call] : shaped_forms()) {
      const GrammarSpec spec = shaped(calls(form, ToolGrammar::kLight));
      std::vector<uint32_t> mask((kWidth + 31) / 32);
      const auto content = start(spec);
      for (const int32_t id : ids_of(R"({"x": 12})")) {
        EXPECT_EQ(content->next(mask), ConstraintPlace::kPayload);
        ASSERT_TRUE(content->accept(id));
      }
      EXPECT_EQ(content->next(mask), ConstraintPlace::kPayload);

      const auto section = start(spec);
      EXPECT_EQ(section->next(mask), ConstraintPlace::kPayload);
      const std::string opening =
          call.substr(0, call.find(form == Form::kDsml ? "tool_calls>" : "<｜tool▁call▁begin｜>"));
      const auto ids = ids_of(opening);
      for (const int32_t id : ids)
        ASSERT_TRUE(section->accept(id));
      EXPECT_EQ(section->next(mask), ConstraintPlace::kStructure) << opening;
      section->rollback(1);
      EXPECT_EQ(section->next(mask), ConstraintPlace::kPayload) << opening;
    }
  }
}

TEST_F(CallGrammar, BesideAShapeRandomAnswersAreCallsOrOfIt) {
  make(true);
  const Json schema = *parse_json(kClosed, {}, "schema");
  const SchemaOracle oracle{schema};
  for (const auto& [form, call] : shaped_forms()) {
    const GrammarSpec spec = shaped(calls(form, ToolGrammar::kFull));
    int num_calls = 0;
    int num_shaped = 0;
    for (uint64_t seed = 0; seed < 40; ++seed) {
      const auto constraint = start(spec);
      ASSERT_NE(constraint, nullptr);
      GrammarWalk walk{tokenizer_, kWidth, kEnd, seed};
      const auto ids = walk.walk(*constraint, static_cast<int64_t>(seed % 20), 8000);
      ASSERT_TRUE(walk.ended && walk.problem.empty()) << walk.problem << tokenizer_.decode(ids);
      if (!read(spec, ids).empty()) {
        ++num_calls;
        EXPECT_EQ(content_, "");
        continue;
      }
      ++num_shaped;
      const auto value = parse_json(content_, {}, "content");
      ASSERT_TRUE(value.ok()) << content_;
      EXPECT_TRUE(oracle.allows(*value)) << content_;
    }
    EXPECT_GT(num_calls, 0) << call;
    EXPECT_GT(num_shaped, 0) << call;
  }
}

TEST_F(CallGrammar, ArgumentsArePayloadAndAllElseIsStructure) {
  struct Case {
    Form form;
    const char* text;  // payload between ⟦ and ⟧; a value ends with the marker behind "</"
  };

  for (const bool has_tokens : {true, false}) {
    make(has_tokens);
    for (const Case& one :
         {Case{Form::kFencedJson,
               "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>now\n```json\n"
               "⟦{\"a\": \"}\\\"{\"}⟧\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>"},
          Case{Form::kBareJson,
               "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>now<｜tool▁sep｜>⟦{\"a\": [1]}⟧"
               "<｜tool▁call▁end｜><｜tool▁calls▁end｜>"},
          Case{Form::kDsml,
               "<｜DSML｜tool_calls>\n<｜DSML｜invoke name=\"free\">\n"
               "<｜DSML｜parameter name=\"a\" string=\"true\">⟦p > / q</｜DSML｜⟧parameter>\n"
               "<｜DSML｜parameter name=\"b\" string=\"false\">⟦[1]</｜DSML｜⟧parameter>\n"
               "</｜DSML｜invoke>\n</｜DSML｜tool_calls>"}}) {
      std::string text = one.text;
      std::vector<bool> is_payload;
      std::string plain;
      bool inside = false;
      for (size_t i = 0; i < text.size();) {
        const std::string_view rest = std::string_view{text}.substr(i);
        if (rest.starts_with("⟦") || rest.starts_with("⟧")) {
          inside = rest.starts_with("⟦");
          i += 3;
          continue;
        }
        plain += text[i++];
        is_payload.push_back(inside);
      }
      auto spec = calls(one.form, ToolGrammar::kLight);
      const auto constraint = start(spec);
      std::vector<uint32_t> mask((kWidth + 31) / 32);
      size_t at = 0;
      for (const int32_t id : ids_of(plain)) {
        const std::string_view bytes = tokenizer_.token_bytes(id);
        const ConstraintPlace place = constraint->next(mask);
        EXPECT_EQ(place == ConstraintPlace::kPayload, is_payload[at])
            << plain.substr(0, at) << "|" << plain.substr(at);
        ASSERT_TRUE(constraint->accept(id)) << plain.substr(0, at) << "|" << bytes;
        at += bytes.size();
      }
      EXPECT_TRUE(constraint->accept(kEnd));
    }
  }
}

TEST_F(CallGrammar, RollbackAcrossMarkers) {
  make(true);
  const auto spec = calls(Form::kDsml, ToolGrammar::kFull);
  const auto constraint = start(spec);
  const auto ids = ids_of(
      "<｜DSML｜tool_calls>\n<｜DSML｜invoke name=\"get_weather\">\n"
      "<｜DSML｜parameter name=\"city\" string=\"true\">x</｜DSML｜parameter>\n");
  std::vector<std::vector<uint32_t>> masks;
  std::vector<ConstraintPlace> places;
  for (const int32_t id : ids) {
    masks.emplace_back((kWidth + 31) / 32, 0);
    places.push_back(constraint->next(masks.back()));
    ASSERT_TRUE(constraint->accept(id));
  }
  for (size_t i = ids.size(); i-- > 0;) {
    constraint->rollback(1);
    std::vector<uint32_t> mask((kWidth + 31) / 32, 0);
    EXPECT_EQ(constraint->next(mask), places[i]) << i;
    EXPECT_EQ(mask, masks[i]) << i;
  }
}

TEST_F(CallGrammar, RefusesToolsThatCannotBeEnforced) {
  make(true);
  const auto refusal = [&](Form form, ToolGrammar level, ToolDefinition one) {
    GrammarSpec spec = calls(form, level);
    spec.tools = {std::move(one)};
    const auto grammar = compiler_->compile(spec);
    return grammar.ok() ? std::string{"compiled"} : grammar.status().message();
  };
  const char* with_not = R"({"type":"object","properties":{"a":{"not":{}}}})";
  EXPECT_THAT(refusal(Form::kDsml, ToolGrammar::kFull, tool("f", with_not)),
              HasSubstr("tool 'f'.properties.a: 'not' is not supported"));
  EXPECT_EQ(refusal(Form::kDsml, ToolGrammar::kLight, tool("f", with_not)), "compiled");
  EXPECT_THAT(refusal(Form::kBareJson, ToolGrammar::kFull, tool("f", R"({"type":"string"})")),
              HasSubstr("'type' of the parameters is not 'object'"));
  EXPECT_THAT(
      refusal(Form::kDsml, ToolGrammar::kFull, tool("f", R"({"anyOf":[{"type":"object"}]})")),
      HasSubstr("'anyOf' at the top of a schema cannot be written as parameters"));
  EXPECT_THAT(refusal(Form::kDsml, ToolGrammar::kFull, tool("a\"b", nullptr)),
              HasSubstr("without blanks, quotes"));
  EXPECT_THAT(refusal(Form::kNone, ToolGrammar::kFull, tool("f", nullptr)),
              HasSubstr("has no tool calls"));
}

TEST_F(CallGrammar, TheVocabularyOfV3IsServed) {
  auto tokenizer = Tokenizer::load(golden_tokenizer("deepseek-v3"));
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status().message();
  tokenizer_ = *std::move(tokenizer);
  constexpr int64_t kV3Width = 129280;
  GrammarLimits limits;
  limits.compile_seconds = 120;
  auto compiler = GrammarCompiler::create(tokenizer_, kV3Width, {kEnd}, limits);
  ASSERT_TRUE(compiler.ok()) << compiler.status().message();
  compiler_ = *std::move(compiler);
  auto spec = calls(Form::kFencedJson, ToolGrammar::kFull);
  for (uint64_t seed = 0; seed < 4; ++seed) {
    const auto constraint = start(spec);
    ASSERT_NE(constraint, nullptr);
    GrammarWalk walk{tokenizer_, kV3Width, kEnd, seed};
    const auto ids = walk.walk(*constraint, 10, 4000);
    ASSERT_TRUE(walk.ended) << walk.problem;
    ASSERT_EQ(walk.problem, "");
    ASSERT_FALSE(read(spec, ids).empty());
    EXPECT_EQ(repairs_, AnswerRepairs{});
  }
}

}  // namespace
}  // namespace fathom
