#include "fathom/tokenizer/answer/dsml/dsml_parser.h"

#include <gtest/gtest.h>
#include <random>

#include "fathom/os/file.h"
#include "fathom/text/json.h"
#include "fathom/tokenizer/answer/answer_decoder.h"
#include "fathom/tokenizer/chat/control_tokens.h"

namespace fathom {
namespace {

AnswerGrammar grammar_of(bool starts_in_reasoning, bool continues_turn = false) {
  return {.tool_calls = AnswerGrammar::ToolCalls::kDsml,
          .knows_thinking = true,
          .starts_in_reasoning = starts_in_reasoning,
          .continues_turn = continues_turn,
          .section = "tool_calls"};
}

const AnswerGrammar kContent = grammar_of(false);
const AnswerGrammar kReasoning = grammar_of(true);

struct Call {
  std::string name;
  std::string arguments;
  bool operator==(const Call&) const = default;
};

void PrintTo(const Call& call, std::ostream* out) {
  *out << call.name << "(" << call.arguments << ")";
}

// The parts of a whole answer, collected from deltas as a client would.
struct Answer {
  std::string reasoning{};
  std::string content{};
  std::vector<Call> calls{};
  bool operator==(const Answer&) const = default;

  void add(const AnswerDelta& delta) {
    reasoning += delta.reasoning;
    content += delta.content;
    for (const ToolCallDelta& call : delta.tool_calls) {
      const auto index = static_cast<size_t>(call.index);
      ASSERT_LE(index, calls.size());
      if (index == calls.size()) {
        calls.push_back({call.name, {}});
      } else {
        ASSERT_EQ(call.name, "") << "a name comes once";
        ASSERT_EQ(index + 1, calls.size()) << "only the last call grows";
      }
      calls[index].arguments += call.arguments;
    }
  }
};

void PrintTo(const Answer& answer, std::ostream* out) {
  *out << "reasoning [" << answer.reasoning << "] content [" << answer.content << "] calls "
       << ::testing::PrintToString(answer.calls);
}

struct Parsed {
  Answer answer;
  AnswerRepairs repairs;
};

Parsed parse_in(const AnswerGrammar& grammar,
                const std::vector<std::string>& pieces,
                const std::vector<ToolDefinition>& tools = {}) {
  DsmlParser parser{grammar, tools};
  Parsed parsed;
  for (const std::string& piece : pieces)
    parsed.answer.add(parser.push(piece));
  parsed.answer.add(parser.finish());
  parsed.repairs = parser.repairs();
  return parsed;
}

// In the tests @ stands for the marker.
std::string marked(std::string_view text) {
  std::string out;
  for (const char c : text) {
    if (c == '@') {
      out += control::kDsml;
    } else {
      out += c;
    }
  }
  return out;
}

ToolDefinition tool(std::string name, std::string_view parameters) {
  ToolDefinition definition{.name = std::move(name)};
  definition.parameters = *parse_json(parameters, {}, "test");
  return definition;
}

const std::vector<ToolDefinition>& tools() {
  static const std::vector<ToolDefinition> made = {
      tool("f", R"({"properties":{"s":{"type":"string"},"n":{"type":"integer"}}})"),
      tool("g", R"({"properties":{"arguments":{"type":"object"}}})")};
  return made;
}

Answer parse(std::string_view text, const AnswerGrammar& grammar = kContent) {
  return parse_in(grammar, {marked(text)}, tools()).answer;
}

AnswerRepairs repairs_of(std::string_view text, const AnswerGrammar& grammar = kContent) {
  return parse_in(grammar, {marked(text)}, tools()).repairs;
}

// A call of f around what stands in it.
std::string call(std::string_view inside) {
  return str_cat("\n\n<@tool_calls>\n<@invoke name=\"f\">\n", inside,
                 "\n</@invoke>\n</@tool_calls>");
}

Answer f(std::string arguments, std::string content = {}) {
  return {.content = std::move(content), .calls = {{"f", std::move(arguments)}}};
}

TEST(DsmlParser, ReadsAWellFormedAnswer) {
  const std::string text =
      "hm\n\nyes</think>Let me see.\n\n<@tool_calls>\n"
      "<@invoke name=\"f\">\n<@parameter name=\"s\" string=\"true\">a\n\"b\" \\ "
      "é\x7f\x01</@parameter>\n"
      "<@parameter name=\"o\" string=\"false\">{\"k\" : [1,2.50] }</@parameter>\n</@invoke>\n"
      "<@invoke name=\"now\">\n\n</@invoke>\n</@tool_calls>";

  EXPECT_EQ(
      parse(text, kReasoning),
      (Answer{"hm\n\nyes",
              "Let me see.",
              {{"f", "{\"s\": \"a\\n\\\"b\\\" \\\\ é\x7f\\u0001\", \"o\": {\"k\" : [1,2.50] }}"},
               {"now", "{}"}}}));
  EXPECT_EQ(repairs_of(text, kReasoning), AnswerRepairs{});
}

TEST(DsmlParser, LeavesOutLineEndsAroundTheParts) {
  EXPECT_EQ(parse("\n\nr\n\nr\n\n</think>\n\nc\n\nc\n\n", kReasoning),
            (Answer{.reasoning = "r\n\nr", .content = "c\n\nc\n\n"}));
  EXPECT_EQ(parse("\n\nc\n"), (Answer{.content = "c\n"}));
  EXPECT_EQ(parse("c\n\n\n" + call("")), f("{}", "c"));
  EXPECT_EQ(parse("\nc", grammar_of(false, true)), (Answer{.content = "\nc"}));
  EXPECT_EQ(parse("\nr\n</think>\nc", grammar_of(true, true)),
            (Answer{.reasoning = "\nr", .content = "c"}));
  EXPECT_EQ(parse("r\n\n", kReasoning), (Answer{.reasoning = "r\n\n"}));
}

TEST(DsmlParser, TakesOtherTextAsItIs) {
  for (const char* text : {"a < b", "<b>x</b>", "<", "</", "<tool", "<invoke name=\"f\">x</invoke>",
                           "a <tool_calls> b", "<tool_calls>", "<tool_calls>\n<b>",
                           "<tool_calls>\n<invoke name=\"unknown\">", "<parameter name=\"x\">",
                           "</tool_calls>", "<think", "x <think> y", "｜DS", "<｜DS"}) {
    EXPECT_EQ(parse(text), (Answer{.content = text}));
    EXPECT_EQ(repairs_of(text), AnswerRepairs{}) << text;
  }
  EXPECT_EQ(parse("a <@parameter name=\"x\"> @ b", kReasoning).reasoning,
            marked("a <@parameter name=\"x\"> @ b"));
}

TEST(DsmlParser, KeepsMarkupOfOthersWithinAValue) {
  const std::string html =
      "<p></p></parameter></invoke>\n<parameter name=\"x\">\n</tool_calls></think>";

  EXPECT_EQ(parse(call("<@parameter name=\"s\" string=\"true\">" + html + "</@parameter>")),
            f("{\"s\": \"<p></p></parameter></invoke>\\n<parameter name=\\\"x\\\">\\n</tool_calls>"
              "</think>\"}"));
}

TEST(DsmlParser, FollowsAModelThatOpensOrClosesThoughtsUnasked) {
  EXPECT_EQ(parse("\n<think>r</think>c"), (Answer{.reasoning = "r", .content = "c"}));
  EXPECT_EQ(parse("<think>r</think>c", kReasoning), (Answer{.reasoning = "r", .content = "c"}));
  EXPECT_EQ(parse("</think>c"), (Answer{.content = "c"}));
  EXPECT_EQ(repairs_of("</think>c").stray_marker, 1);
  EXPECT_EQ(parse("r</think>a</think>b", kReasoning), (Answer{.reasoning = "r", .content = "ab"}));
}

TEST(DsmlParser, TakesTheSectionOfAnotherVersion) {
  const std::string v32 =
      "<@function_calls>\n<@invoke name=\"f\">\n\n</@invoke>\n</@function_calls>";
  const std::string v41 =
      "<@ calls>\n<@ invoke name=\"f\">\n<@ parameter name=\"n\" string=\"false\">1</@ parameter>\n"
      "</@ invoke>\n</@ calls>";

  EXPECT_EQ(parse(v32), f("{}"));
  EXPECT_EQ(repairs_of(v32).other_form, 1);
  EXPECT_EQ(parse(v41), f("{\"n\": 1}"));
  EXPECT_EQ(repairs_of(v41).other_form, 1);
}

TEST(DsmlParser, RepairsSections) {
  const std::string call_alone = "<@invoke name=\"f\">\n\n</@invoke>";

  EXPECT_EQ(parse("c\n\n" + call_alone), f("{}", "c"));
  EXPECT_EQ(repairs_of(call_alone).missing_section, 1);
  EXPECT_EQ(parse("<@tool_cals>\n" + call_alone + "\n</@tool_cals>"), f("{}"));
  EXPECT_EQ(repairs_of("<@tool_cals>\n" + call_alone + "\n</@tool_cals>").missing_section, 1);
  EXPECT_EQ(parse("<@tool_calls>\n" + call_alone), f("{}"));
  EXPECT_EQ(repairs_of("<@tool_calls>\n" + call_alone).unterminated, 1);
  EXPECT_EQ(parse("a</@tool_calls>b</@invoke>c</@parameter>d"), (Answer{.content = "abcd"}));
  EXPECT_EQ(repairs_of("a</@tool_calls>b</@invoke>c</@parameter>d").stray_marker, 3);
}

TEST(DsmlParser, CallsBeforeTheEndOfReasoningEndIt) {
  EXPECT_EQ(parse("hm" + call(""), kReasoning),
            (Answer{.reasoning = "hm", .calls = {{"f", "{}"}}}));
  EXPECT_EQ(repairs_of("hm" + call(""), kReasoning).unclosed_reasoning, 1);
}

TEST(DsmlParser, TakesTagsWithoutMarkers) {
  const std::string bare =
      "c\n\n<tool_calls>\n<invoke name=\"f\">\n<parameter name=\"s\" "
      "string=\"true\">a</parameter>\n"
      "</invoke>\n</tool_calls>";

  EXPECT_EQ(parse(bare), f("{\"s\": \"a\"}", "c"));
  EXPECT_EQ(repairs_of(bare).missing_marker, 6);
  EXPECT_EQ(parse(call("<@parameter name=\"s\" string=\"true\">a</parameter>\n"
                       "<@parameter name=\"n\" string=\"false\">1</parameter>")),
            f("{\"s\": \"a\", \"n\": 1}"));
}

TEST(DsmlParser, TakesMissingEnds) {
  const std::string text =
      "<@tool_calls><@invoke name=\"f\"><@parameter name=\"s\" string=\"true\">a"
      "<@parameter name=\"n\" string=\"false\">1<@invoke name=\"f\"></@tool_calls>";

  EXPECT_EQ(parse(text), (Answer{.calls = {{"f", "{\"s\": \"a\", \"n\": 1}"}, {"f", "{}"}}}));
  EXPECT_EQ(repairs_of(text).missing_end, 4);
}

TEST(DsmlParser, TakesTagsThatEndThemselves) {
  EXPECT_EQ(parse("<@tool_calls><@invoke name=\"f\"/><@invoke name='g' /></@tool_calls>"),
            (Answer{.calls = {{"f", "{}"}, {"g", "{}"}}}));
  EXPECT_EQ(parse(call("<@parameter name=\"s\" string=\"true\"/>")), f("{\"s\": \"\"}"));
}

TEST(DsmlParser, FindsATypeThatIsNotSaid) {
  EXPECT_EQ(parse(call("<@parameter name=\"s\">5</@parameter><@parameter name=\"n\">5</@parameter>"
                       "<@parameter name=\"x\">{\"a\": 1}</@parameter>"
                       "<@parameter name=\"y\">some text</@parameter>")),
            f("{\"s\": \"5\", \"n\": 5, \"x\": {\"a\": 1}, \"y\": \"some text\"}"));
  EXPECT_EQ(repairs_of(call("<@parameter name=\"s\">5</@parameter>")).missing_type, 1);
}

TEST(DsmlParser, MakesAStringOfWhatIsNoJson) {
  const std::string text = call("<@parameter name=\"n\" string=\"false\">{'a': True}</@parameter>");

  EXPECT_EQ(parse(text), f("{\"n\": \"{'a': True}\"}"));
  EXPECT_EQ(repairs_of(text).not_json, 1);
  EXPECT_EQ(parse(call(std::string{"<@parameter name=\"n\" string=\"false\">1"} + '\0' +
                       "2</@parameter>")),
            f("{\"n\": \"1\\u00002\"}"));
}

TEST(DsmlParser, UnwrapsArgumentsThatTheToolDoesNotHave) {
  const std::string wrapped =
      call("<@parameter name=\"arguments\" string=\"false\"> {\"s\": \"a\"}\n</@parameter>");

  EXPECT_EQ(parse(wrapped), f("{\"s\": \"a\"}"));
  EXPECT_EQ(repairs_of(wrapped).unwrapped, 1);
  EXPECT_EQ(parse(call("<@parameter name=\"input\" string=\"true\">{\"s\": 1}</@parameter>")),
            f("{\"s\": 1}"));
  // Of a tool with such a parameter, of one that nobody declared, and of what is no object.
  EXPECT_EQ(parse("<@invoke name=\"g\"><@parameter name=\"arguments\" string=\"false\">{\"s\": 1}"
                  "</@parameter></@invoke>"),
            (Answer{.calls = {{"g", "{\"arguments\": {\"s\": 1}}"}}}));
  EXPECT_EQ(parse("<@invoke name=\"h\"><@parameter name=\"arguments\" string=\"false\">{\"s\": 1}"
                  "</@parameter></@invoke>"),
            (Answer{.calls = {{"h", "{\"arguments\": {\"s\": 1}}"}}}));
  EXPECT_EQ(parse(call("<@parameter name=\"input\" string=\"true\">text</@parameter>")),
            f("{\"input\": \"text\"}"));
  EXPECT_EQ(parse(call("<@parameter name=\"input\" string=\"false\">{}</@parameter>"
                       "<@parameter name=\"n\" string=\"false\">1</@parameter>")),
            f("{\"input\": {}, \"n\": 1}"));
}

TEST(DsmlParser, TakesJsonInPlaceOfParameters) {
  EXPECT_EQ(parse(call("{\"s\": \"a\"}")), f("{\"s\": \"a\"}"));
  EXPECT_EQ(repairs_of(call("{\"s\": \"a\"}")).other_form, 1);
  EXPECT_EQ(parse(call("{broken")), f("{}", "{broken"));
}

TEST(DsmlParser, DropsAParameterThatComesTwice) {
  const std::string text = call(
      "<@parameter name=\"n\" string=\"false\">1</@parameter>"
      "<@parameter name=\"n\" string=\"true\">two</@parameter>");

  EXPECT_EQ(parse(text), f("{\"n\": 1}"));
  EXPECT_EQ(repairs_of(text).duplicate_parameter, 1);
}

TEST(DsmlParser, TurnsACallWithoutANameIntoContentOnce) {
  const std::string text =
      "c\n\n<@tool_calls>\n<@invoke>\n<@parameter name=\"x\" string=\"true\">v</@parameter>\n"
      "</@invoke>\n</@tool_calls>";

  EXPECT_EQ(parse(text), (Answer{.content = "cv"}));
  EXPECT_EQ(repairs_of(text).broken_call, 1);
}

TEST(DsmlParser, KeepsNamesWithQuotes) {
  EXPECT_EQ(parse("<@invoke name=\"a\"b\"><@parameter name=\"q\"\" string=\"true\">v</@parameter>"
                  "</@invoke>"),
            (Answer{.calls = {{"a\"b", "{\"q\\\"\": \"v\"}"}}}));
}

TEST(DsmlParser, KeepsWhatACutAnswerHas) {
  const std::string begin = "c\n\n<@tool_calls>\n<@invoke name=\"f\">\n";

  EXPECT_EQ(parse(begin + "<@parameter name=\"s\" string=\"true\">some te"),
            f("{\"s\": \"some te", "c"));
  EXPECT_EQ(parse(begin + "<@parameter name=\"n\" string=\"false\">[1, 2"),
            f("{\"n\": [1, 2", "c"));
  EXPECT_EQ(parse(begin + "<@parameter name=\"s\" string=\"true\">a</@parameter>\n</@inv"),
            f("{\"s\": \"a\"}", "c"));
  EXPECT_EQ(parse(begin + "<@parameter name=\"s"), f("{}", "c"));
  EXPECT_EQ(repairs_of(begin).unterminated, 1);
  for (const char* cut : {"c\n\n<@", "c\n\n<@tool_ca", "c\n\n<@tool_calls>\n<@invoke name=\"f"})
    EXPECT_EQ(parse(cut), (Answer{.content = "c"})) << cut;
}

TEST(DsmlParser, TextBehindTheCallsIsContent) {
  EXPECT_EQ(parse("a" + call("") + "\n\nb"), f("{}", "ab"));
  EXPECT_EQ(parse("<@tool_calls>\nx\n<@invoke name=\"f\">\n\n</@invoke>\ny\n</@tool_calls>"),
            f("{}", "xy"));
  EXPECT_EQ(parse(call("") + call("")), (Answer{.calls = {{"f", "{}"}, {"f", "{}"}}}));
}

TEST(DsmlParser, HoldsBackWhatMayBecomeATag) {
  DsmlParser parser{kReasoning};

  EXPECT_EQ(parser.push("a</thi").reasoning, "a");
  EXPECT_EQ(parser.push("s\n\n<").reasoning, "</this");
  EXPECT_EQ(parser.push("b").reasoning, "\n\n<b");
  EXPECT_EQ(parser.push("\n</think>c\n\n<｜DSML").content, "c");
  EXPECT_EQ(parser.push("｜tool_calls>\n<｜DSML｜invoke name=\"f\">").tool_calls.at(0).name, "f");
  EXPECT_EQ(parser.push("\n<｜DSML｜parameter name=\"s\" string=\"true\">x\ny")
                .tool_calls.at(0)
                .arguments,
            "{\"s\": \"x\\ny");
  EXPECT_TRUE(parser.push("</｜DSML｜parame").tool_calls.empty());
  EXPECT_EQ(parser.push("ter>").tool_calls.at(0).arguments, "\"");
}

// A text of markers, near-markers and everything that the grammar gives a meaning.
std::string random_answer(std::mt19937& random) {
  static const std::vector<std::string> parts = {"<think>",
                                                 "</think>",
                                                 "<@tool_calls>",
                                                 "</@tool_calls>",
                                                 "<@function_calls>",
                                                 "<@ calls>",
                                                 "<@tool_cals>",
                                                 "<tool_calls>",
                                                 "</tool_calls>",
                                                 "<@invoke name=\"f\">",
                                                 "<@invoke name=\"g\">",
                                                 "<@invoke name=\"h\"/>",
                                                 "<invoke name=\"f\">",
                                                 "<@invoke>",
                                                 "</@invoke>",
                                                 "</invoke>",
                                                 "<@parameter name=\"s\" string=\"true\">",
                                                 "<@parameter name=\"n\" string=\"false\">",
                                                 "<@parameter name=\"x\">",
                                                 "<@parameter name=\"arguments\" string=\"false\">",
                                                 "<parameter name=\"s\">",
                                                 "</@parameter>",
                                                 "</parameter>",
                                                 "@",
                                                 "<",
                                                 "</",
                                                 "<@",
                                                 "<@inv",
                                                 "<para",
                                                 "</@param",
                                                 " name=\"s\"",
                                                 "\"",
                                                 ">",
                                                 "\n",
                                                 "\n\n",
                                                 " ",
                                                 "{\"s\": 1}",
                                                 "1",
                                                 "text",
                                                 "é",
                                                 "😀",
                                                 "\\",
                                                 "\x01"};
  std::string text;
  const int length = static_cast<int>(random() % 30);
  for (int i = 0; i < length; ++i)
    text += parts[random() % parts.size()];
  return marked(text);
}

std::vector<std::string> random_pieces(std::string_view text, std::mt19937& random) {
  std::vector<std::string> pieces;
  while (!text.empty()) {
    const size_t size = std::min<size_t>(1 + random() % (random() % 2 == 0 ? 3 : 15), text.size());
    pieces.emplace_back(text.substr(0, size));
    text.remove_prefix(size);
  }
  return pieces;
}

TEST(DsmlParser, StreamedEqualsWhole) {
  std::mt19937 random{31};
  for (int i = 0; i < 5'000; ++i) {
    const std::string text = random_answer(random);
    for (const AnswerGrammar& grammar : {kContent, kReasoning, grammar_of(true, true)}) {
      const Parsed whole = parse_in(grammar, {text}, tools());
      const Parsed streamed = parse_in(grammar, random_pieces(text, random), tools());
      ASSERT_EQ(streamed.answer, whole.answer) << "case " << i << " of seed 31: " << text;
      ASSERT_EQ(streamed.repairs, whole.repairs) << "case " << i << " of seed 31: " << text;
    }
  }
}

TEST(DsmlParser, MarkupNeverReachesContentOrArguments) {
  std::mt19937 random{32};
  for (int i = 0; i < 5'000; ++i) {
    const std::string text = random_answer(random);
    const Parsed parsed = parse_in(i % 2 == 0 ? kContent : kReasoning, {text}, tools());
    ASSERT_EQ(parsed.answer.content.find(control::kDsml), std::string::npos) << text;
    for (const Call& made : parsed.answer.calls) {
      ASSERT_EQ(made.arguments.find(control::kDsml), std::string::npos) << text;
      ASSERT_NE(made.name, "") << text;
    }
  }
}

TEST(DsmlParser, FinishedArgumentsAreAnObject) {
  std::mt19937 random{33};
  for (int i = 0; i < 5'000; ++i) {
    // An end for whatever may be open.
    const std::string text =
        random_answer(random) + marked("\n</@parameter></@invoke></@tool_calls>");
    for (const Call& made : parse_in(kContent, {text}, tools()).answer.calls) {
      ASSERT_TRUE(is_json(made.arguments) && made.arguments.starts_with('{'))
          << made.arguments << " of " << text;
    }
  }
}

// With quadratic time these would take minutes.
TEST(DsmlParser, AcceptsLongRunsOfWhatMayBecomeATag) {
  const std::string begin = marked(call("<@parameter name=\"s\" string=\"true\">"));
  for (const char* unit : {"\n", "<", "</parameter> ", "<tool_calls>\n", "｜", "\""}) {
    std::string text = begin.substr(0, begin.find("true\">") + 6);
    for (int i = 0; i < 20'000; ++i)
      text += unit;
    std::vector<std::string> bytes;
    for (const char c : text)
      bytes.emplace_back(1, c);

    EXPECT_EQ(parse_in(kContent, bytes).answer, parse_in(kContent, {text}).answer) << unit;
  }
}

TEST(DsmlDecoder, CountsMarkersOnlyAsTokensWhereTheVocabularyHasThem) {
  // tiny-v3 has the markers of thinking, but not this one.
  std::string vocabulary =
      *read_file(FATHOM_SOURCE_DIR "/tests/golden/tokenizer/tiny-v3/tokenizer.json", 4 << 20);
  const std::string_view list = "\"added_tokens\": [";
  ASSERT_NE(vocabulary.find(list), std::string::npos);
  vocabulary.insert(vocabulary.find(list) + list.size(),
                    R"({"id":4096,"content":"｜DSML｜","single_word":false,"lstrip":false,)"
                    R"("rstrip":false,"normalized":false,"special":true},)");
  const auto tokenizer = Tokenizer::load_from_json(vocabulary, "", "");
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status().message();
  const auto answer_of = [&](std::string_view answer, AddedTokens added) {
    AnswerDecoder decoder{*tokenizer, kReasoning, tools()};
    Answer parts;
    for (const int32_t id : tokenizer->encode(answer, {.added_tokens = added}))
      parts.add(decoder.push(id));
    parts.add(decoder.finish());
    return parts;
  };
  const std::string answer =
      marked("r</think>c" + call("<@parameter name=\"s\" string=\"true\">v</@parameter>"));

  EXPECT_EQ(answer_of(answer, AddedTokens::kParse),
            (Answer{.reasoning = "r", .content = "c", .calls = {{"f", "{\"s\": \"v\"}"}}}));
  EXPECT_EQ(answer_of(answer, AddedTokens::kAsText), (Answer{.reasoning = answer}));
}

}  // namespace
}  // namespace fathom
