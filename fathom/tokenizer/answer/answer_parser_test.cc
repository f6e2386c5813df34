#include "fathom/tokenizer/answer/answer_parser.h"

#include <gtest/gtest.h>
#include <random>

#include "fathom/tokenizer/answer/answer_decoder.h"
#include "fathom/tokenizer/chat/control_tokens.h"

namespace fathom {
namespace {

using ToolCalls = AnswerGrammar::ToolCalls;

constexpr AnswerGrammar kPlain{};
constexpr AnswerGrammar kV3{.tool_calls = ToolCalls::kFencedJson, .knows_thinking = true};
constexpr AnswerGrammar kR1{
    .tool_calls = ToolCalls::kFencedJson, .knows_thinking = true, .starts_in_reasoning = true};
constexpr AnswerGrammar kV31{.tool_calls = ToolCalls::kBareJson, .knows_thinking = true};
constexpr AnswerGrammar kV31Thinking{
    .tool_calls = ToolCalls::kBareJson, .knows_thinking = true, .starts_in_reasoning = true};

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

Answer parse(const AnswerGrammar& grammar, std::string_view text) {
  AnswerParser parser{grammar};
  Answer answer;
  answer.add(parser.push(text));
  answer.add(parser.finish());
  return answer;
}

AnswerRepairs repairs_of(const AnswerGrammar& grammar, std::string_view text) {
  AnswerParser parser{grammar};
  parser.push(text);
  parser.finish();
  return parser.repairs();
}

const std::string kTwoFencedCalls =
    "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>get_weather\n```json\n"
    "{\"city\": "
    "\"Tokyo\"}\n```<｜tool▁call▁end｜>\n<｜tool▁call▁begin｜>function<｜tool▁sep｜>now\n"
    "```json\n{}\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>";
const std::string kTwoBareCalls =
    "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>get_weather<｜tool▁sep｜>{\"city\": \"Tokyo\"}"
    "<｜tool▁call▁end｜><｜tool▁call▁begin｜>now<｜tool▁sep｜>{}<｜tool▁call▁end｜><"
    "｜tool▁calls▁end｜>";
const std::vector<Call> kTwoCalls = {{"get_weather", "{\"city\": \"Tokyo\"}"}, {"now", "{}"}};

TEST(AnswerParser, LeavesPlainContentAsItIs) {
  EXPECT_EQ(parse(kPlain, "\n a <b>\n\n"), (Answer{.content = "\n a <b>\n\n"}));
  EXPECT_EQ(parse(kPlain, "<think>x</think><｜tool▁calls▁begin｜>"),
            (Answer{.content = "<think>x</think><｜tool▁calls▁begin｜>"}));
  EXPECT_EQ(parse(kV3, "\n\nHello\n"), (Answer{.content = "\n\nHello\n"}));
  EXPECT_EQ(parse(kV3, ""), Answer{});
}

TEST(AnswerParser, SplitsReasoningFromContent) {
  const Answer expected{.reasoning = "hm,\n\nyes", .content = "42\n\nindeed"};

  EXPECT_EQ(parse(kR1, "hm,\n\nyes\n</think>\n\n42\n\nindeed\n"), expected);
  EXPECT_EQ(parse(kR1, "<think>\nhm,\n\nyes\n</think>\n\n42\n\nindeed"), expected);
  EXPECT_EQ(parse(kR1, "\n<think>hm,\n\nyes</think>42\n\nindeed"), expected);
  EXPECT_EQ(parse(kV31Thinking, "hm,\n\nyes</think>42\n\nindeed"), expected);
}

TEST(AnswerParser, TakesAllForReasoningWithoutItsEnd) {
  EXPECT_EQ(parse(kR1, "still thinking\n"), (Answer{.reasoning = "still thinking"}));
  EXPECT_EQ(parse(kR1, "a </thin"), (Answer{.reasoning = "a </thin"}));
  EXPECT_EQ(parse(kR1, "</think>"), Answer{});
}

TEST(AnswerParser, SeesThinkOnlyAtTheBeginning) {
  EXPECT_EQ(parse(kR1, "a <think> b</think>c <think> d </think>"),
            (Answer{.reasoning = "a <think> b", .content = "c <think> d </think>"}));
}

TEST(AnswerParser, FollowsAModelThatOpensOrClosesThoughtsUnasked) {
  EXPECT_EQ(parse(kV3, "\n<think>r</think>c"), (Answer{.reasoning = "r", .content = "c"}));
  EXPECT_EQ(parse(kV31, "</think>c"), (Answer{.content = "c"}));
  EXPECT_EQ(repairs_of(kV31, "</think>c").stray_marker, 1);
}

TEST(AnswerParser, ReadsFencedCalls) {
  EXPECT_EQ(parse(kV3, kTwoFencedCalls), (Answer{.calls = kTwoCalls}));
  EXPECT_EQ(parse(kV3, "Let me see.\n\n" + kTwoFencedCalls),
            (Answer{.content = "Let me see.", .calls = kTwoCalls}));
  EXPECT_EQ(parse(kR1, "hm\n</think>\n\nok\n" + kTwoFencedCalls),
            (Answer{.reasoning = "hm", .content = "ok", .calls = kTwoCalls}));
  const AnswerRepairs repairs = repairs_of(kV3, kTwoFencedCalls);
  EXPECT_EQ(repairs.missing_section + repairs.other_form + repairs.stray_marker +
                repairs.broken_call + repairs.unterminated,
            0);
}

TEST(AnswerParser, ReadsBareCalls) {
  EXPECT_EQ(parse(kV31, kTwoBareCalls), (Answer{.calls = kTwoCalls}));
  EXPECT_EQ(parse(kV31, "Ok." + kTwoBareCalls), (Answer{.content = "Ok.", .calls = kTwoCalls}));
}

TEST(AnswerParser, KeepsBackticksAndBlanksWithinArguments) {
  const std::string arguments = "{\"code\": \"```py\\n``  `x` ``` \\n```\", \"b\":\n\n 1}";
  EXPECT_EQ(
      parse(kV3, "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>run\n```json\n" +
                     arguments + "\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>"),
      (Answer{.calls = {{"run", arguments}}}));
}

TEST(AnswerParser, ToolMarkersWithinReasoningAreText) {
  EXPECT_EQ(parse(kR1, "a<｜tool▁calls▁begin｜>b</think>c"),
            (Answer{.reasoning = "a<｜tool▁calls▁begin｜>b", .content = "c"}));
}

TEST(AnswerParser, RepairsAMissingSection) {
  const std::string call = "<｜tool▁call▁begin｜>function<｜tool▁sep｜>now\n```json\n{}\n```";

  EXPECT_EQ(parse(kV3, "x" + call + "<｜tool▁call▁end｜>"),
            (Answer{.content = "x", .calls = {{"now", "{}"}}}));
  EXPECT_EQ(repairs_of(kV3, call + "<｜tool▁call▁end｜>").missing_section, 1);
  EXPECT_EQ(parse(kV3, "<｜tool▁calls▁begin｜>" + call + "<｜tool▁calls▁end｜>y"),
            (Answer{.content = "y", .calls = {{"now", "{}"}}}));
  EXPECT_EQ(parse(kV3, "<｜tool▁calls▁begin｜>" + call + call),
            (Answer{.calls = {{"now", "{}"}, {"now", "{}"}}}));
}

TEST(AnswerParser, RepairsTheFormOfAnotherVersion) {
  EXPECT_EQ(parse(kV3, kTwoBareCalls), (Answer{.calls = kTwoCalls}));
  EXPECT_EQ(repairs_of(kV3, kTwoBareCalls).other_form, 2);
}

TEST(AnswerParser, KeepsWhatAnUnfinishedCallHas) {
  const std::string begin = "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>now";

  EXPECT_EQ(parse(kV3, begin + "\n```json\n{\"a\": 1"), (Answer{.calls = {{"now", "{\"a\": 1"}}}));
  EXPECT_EQ(parse(kV3, begin), (Answer{.calls = {{"now", ""}}}));
  EXPECT_EQ(parse(kV3, "a<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>func"),
            (Answer{.content = "a"}));
  EXPECT_EQ(repairs_of(kV3, begin).unterminated, 1);
}

TEST(AnswerParser, APieceOfAMarkerIsNoContent) {
  const std::string begin =
      "a<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>now\n";

  EXPECT_EQ(parse(kV3, "a<｜tool▁calls▁begin"), (Answer{.content = "a"}));
  EXPECT_EQ(parse(kV3, "a<｜tool▁calls▁begin｜><｜tool▁call▁"), (Answer{.content = "a"}));
  EXPECT_EQ(parse(kV3, begin + "```json\n{}\n```<｜tool"),
            (Answer{.content = "a", .calls = {{"now", "{}"}}}));
  EXPECT_EQ(parse(kV3, "a <"), (Answer{.content = "a <"}));
  EXPECT_EQ(repairs_of(kV3, "a<｜tool▁calls▁begin").unterminated, 1);
}

TEST(AnswerParser, TurnsACallWithoutANameIntoContentOnce) {
  EXPECT_EQ(
      parse(kV31, "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>{\"name\": 1}<｜tool▁call▁end｜>"),
      (Answer{.content = "{\"name\": 1}"}));
  EXPECT_EQ(parse(kV31, "<｜tool▁call▁begin｜><｜tool▁sep｜>{}<｜tool▁call▁end｜>"),
            (Answer{.content = "{}"}));
  EXPECT_EQ(repairs_of(kV31, "<｜tool▁call▁begin｜>x<｜tool▁call▁end｜>").broken_call, 1);
}

TEST(AnswerParser, DropsStrayMarkers) {
  EXPECT_EQ(parse(kV3, "a<｜tool▁calls▁end｜>b<｜tool▁sep｜>c<｜tool▁call▁end｜>d"),
            (Answer{.content = "abcd"}));
  EXPECT_EQ(
      repairs_of(kV3, "a<｜tool▁calls▁end｜>b<｜tool▁sep｜>c<｜tool▁call▁end｜>d").stray_marker, 3);
}

TEST(AnswerParser, HoldsBackWhatMayBecomeAMarker) {
  AnswerParser parser{kR1};

  EXPECT_EQ(parser.push("a</thi").reasoning, "a");
  EXPECT_EQ(parser.push("s").reasoning, "</this");
  EXPECT_EQ(parser.push("</think").reasoning, "");
  EXPECT_TRUE(parser.in_reasoning());
  const AnswerDelta delta = parser.push(">b");
  EXPECT_EQ(delta.reasoning, "");
  EXPECT_EQ(delta.content, "b");
  EXPECT_FALSE(parser.in_reasoning());
}

TEST(AnswerParser, StreamsArgumentsAsTheyCome) {
  AnswerParser parser{kV31};
  parser.push("<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>f<｜tool▁sep｜>");

  EXPECT_EQ(parser.push("{\"a\":").tool_calls.at(0).arguments, "{\"a\":");
  EXPECT_EQ(parser.push(" 1}").tool_calls.at(0).arguments, " 1}");
}

// A text of markers, near-markers and everything that the grammar gives a meaning.
std::string random_answer(std::mt19937& random) {
  static const std::vector<std::string> parts = {"<think>",
                                                 "</think>",
                                                 "<｜tool▁calls▁begin｜>",
                                                 "<｜tool▁calls▁end｜>",
                                                 "<｜tool▁call▁begin｜>",
                                                 "<｜tool▁call▁end｜>",
                                                 "<｜tool▁sep｜>",
                                                 "<｜tool▁outputs▁begin｜>",
                                                 "<",
                                                 "<｜",
                                                 "<｜tool▁call",
                                                 "</",
                                                 "function",
                                                 "get_x",
                                                 "\n",
                                                 "\n\n",
                                                 " ",
                                                 "\t",
                                                 "`",
                                                 "``",
                                                 "```",
                                                 "```json\n",
                                                 "```json",
                                                 "{",
                                                 "}",
                                                 "{\"a\": 1}",
                                                 "é",
                                                 "😀",
                                                 "text",
                                                 "\n```"};
  std::string text;
  const int length = static_cast<int>(random() % 30);
  for (int i = 0; i < length; ++i)
    text += parts[random() % parts.size()];
  return text;
}

TEST(AnswerParser, StreamedEqualsWhole) {
  std::mt19937 random{21};
  for (int i = 0; i < 20'000; ++i) {
    const std::string text = random_answer(random);
    for (const AnswerGrammar& grammar : {kPlain, kV3, kR1, kV31, kV31Thinking}) {
      const Answer whole = parse(grammar, text);
      AnswerParser parser{grammar};
      Answer streamed;
      for (size_t at = 0; at < text.size();) {
        const size_t length = 1 + random() % (random() % 2 == 0 ? 3 : 12);
        streamed.add(parser.push(std::string_view{text}.substr(at, length)));
        at += length;
      }
      streamed.add(parser.finish());
      ASSERT_EQ(streamed, whole) << "case " << i << " of seed 21: " << text;
    }
  }
}

TEST(AnswerParser, ToolMarkersNeverReachContentOrArguments) {
  std::mt19937 random{22};
  for (int i = 0; i < 20'000; ++i) {
    const std::string text = random_answer(random);
    for (const AnswerGrammar& grammar : {kV3, kR1, kV31, kV31Thinking}) {
      const Answer answer = parse(grammar, text);
      for (const auto marker :
           {AnswerMarker::kCallsBegin, AnswerMarker::kCallsEnd, AnswerMarker::kCallBegin,
            AnswerMarker::kCallEnd, AnswerMarker::kSep}) {
        ASSERT_EQ(answer.content.find(answer_marker_text(marker)), std::string::npos) << text;
        for (const Call& call : answer.calls) {
          ASSERT_EQ(call.arguments.find(answer_marker_text(marker)), std::string::npos) << text;
          ASSERT_NE(call.name, "") << text;
        }
      }
    }
  }
}

TEST(AnswerDecoder, CountsMarkersOnlyAsTokensWhereTheVocabularyHasThem) {
  auto tokenizer = Tokenizer::load(FATHOM_SOURCE_DIR "/tests/golden/tokenizer/tiny-v3");
  ASSERT_TRUE(tokenizer.ok());
  const auto answer_of = [&](const std::vector<int32_t>& ids) {
    AnswerDecoder decoder{*tokenizer, kR1};
    Answer answer;
    for (const int32_t id : ids)
      answer.add(decoder.push(id));
    answer.add(decoder.finish());
    return answer;
  };
  // tiny-v3 has <think> and </think>, but no tool markers.
  const std::string text = "<think>a😀</think>b" + kTwoFencedCalls + "<｜end▁of▁sentence｜>";

  EXPECT_EQ(answer_of(tokenizer->encode(text, {.added_tokens = AddedTokens::kParse})),
            (Answer{.reasoning = "a😀", .content = "b", .calls = kTwoCalls}));
  EXPECT_EQ(answer_of(tokenizer->encode("a</think>b")), (Answer{.reasoning = "a</think>b"}));
}

TEST(AnswerDecoder, EndsAnIncompleteCharacterAtAMarker) {
  auto tokenizer = Tokenizer::load(FATHOM_SOURCE_DIR "/tests/golden/tokenizer/tiny-v3");
  ASSERT_TRUE(tokenizer.ok());
  AnswerDecoder decoder{*tokenizer, kR1};
  Answer answer;

  answer.add(decoder.push(*tokenizer->token_to_id("ð")));  // the byte F0
  answer.add(decoder.push(*tokenizer->token_to_id("</think>")));
  answer.add(decoder.push(*tokenizer->token_to_id("b")));
  answer.add(decoder.finish());

  EXPECT_EQ(answer, (Answer{.reasoning = "\uFFFD", .content = "b"}));
}

}  // namespace
}  // namespace fathom
