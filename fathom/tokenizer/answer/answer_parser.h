// Splits the text of an answer into reasoning, content and tool calls, while it arrives.
//
//   [<think>] reasoning </think> content <｜tool▁calls▁begin｜> call ... <｜tool▁calls▁end｜>
//
//   call, fenced
//   <｜tool▁call▁begin｜>function<｜tool▁sep｜>NAME\n```json\nARGS\n```<｜tool▁call▁end｜> call,
//   bare     <｜tool▁call▁begin｜>NAME<｜tool▁sep｜>ARGS<｜tool▁call▁end｜>
//
// The parser is total: any text gives an answer. However the text is cut into pieces, the pieces of
// each part add up to the same. A suffix that may become a marker is held back, so markers never
// appear in content or arguments. Time is linear.
#pragma once

#include <bitset>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "fathom/tokenizer/chat/chat.h"

namespace fathom {

/// News about one tool call.
struct ToolCallDelta {
  int index = 0;          ///< of the call in the answer
  std::string name;       ///< in the first delta of a call, and only there
  std::string arguments;  ///< the next piece of JSON text
};

/// What one step adds to the parts of an answer.
struct AnswerDelta {
  std::string reasoning;
  std::string content;
  std::vector<ToolCallDelta> tool_calls;

  bool empty() const { return reasoning.empty() && content.empty() && tool_calls.empty(); }
};

/// How often the text departed from the grammar and was put right. The second half is of DSML alone
/// (dsml_parser.h).
struct AnswerRepairs {
  int missing_section =
      0;                 ///< a call outside of its section or in a misspelt one, or an end left out
  int other_form = 0;    ///< a call in the form of another version
  int stray_marker = 0;  ///< a marker where it means nothing; dropped
  int broken_call = 0;   ///< a call without a name; its text became content
  int unterminated = 0;  ///< the answer ended within a call

  int unclosed_reasoning = 0;   ///< calls began before </think>
  int missing_marker = 0;       ///< a tag without ｜DSML｜
  int missing_end = 0;          ///< a parameter or call without its end
  int missing_type = 0;         ///< a parameter that does not say whether it is a string
  int not_json = 0;             ///< a parameter that is neither a string nor JSON; became a string
  int unwrapped = 0;            ///< arguments within one parameter named arguments or input
  int duplicate_parameter = 0;  ///< dropped

  bool operator==(const AnswerRepairs&) const = default;
};

/// Calls f(kind, count) for each kind of repair, "missing_section" and so on.
template <class F>
void for_each_repair(const AnswerRepairs& r, F&& f) {
  f("missing_section", r.missing_section);
  f("other_form", r.other_form);
  f("stray_marker", r.stray_marker);
  f("broken_call", r.broken_call);
  f("unterminated", r.unterminated);
  f("unclosed_reasoning", r.unclosed_reasoning);
  f("missing_marker", r.missing_marker);
  f("missing_end", r.missing_end);
  f("missing_type", r.missing_type);
  f("not_json", r.not_json);
  f("unwrapped", r.unwrapped);
  f("duplicate_parameter", r.duplicate_parameter);
}

/// The markers that the parser knows.
enum class AnswerMarker {
  kThink,
  kEndThink,
  kCallsBegin,
  kCallsEnd,
  kCallBegin,
  kCallEnd,
  kSep,
  kDsml,  ///< within tags
};
inline constexpr int kNumAnswerMarkers = 8;
using AnswerMarkerSet = std::bitset<kNumAnswerMarkers>;

/// The token of a marker, "<think>".
std::string_view answer_marker_text(AnswerMarker marker);

class AnswerParser {
 public:
  /// `in_text`: the markers to look for in text; others count only through push_marker.
  explicit AnswerParser(AnswerGrammar grammar, AnswerMarkerSet in_text = AnswerMarkerSet{}.set())
      : grammar_(grammar),
        in_text_(in_text),
        phase_(grammar.starts_in_reasoning ? Phase::kReasoning : Phase::kContent),
        part_trims_start_(grammar.starts_in_reasoning) {}

  /// Takes the next piece of text.
  AnswerDelta push(std::string_view text);

  /// Takes a marker that came as a token of its own. What was held back before it is settled.
  AnswerDelta push_marker(AnswerMarker marker);

  /// Ends the answer and settles what was held back. The parser must not be used afterwards.
  AnswerDelta finish();

  /// Whether the answer is within its reasoning now.
  bool in_reasoning() const { return phase_ == Phase::kReasoning; }

  const AnswerRepairs& repairs() const { return repairs_; }

 private:
  enum class Phase {
    kReasoning,
    kContent,
    kBetweenCalls,  // in the section, outside of a call
    kHeader,        // in a call, before its separator
    kName,          // fenced only: behind the separator, up to the end of the line
    kArguments,
  };

  // JSON text without the white space and the fence around it.
  class ArgumentsFilter {
   public:
    void reset() { *this = {}; }

    // Appends to `out` what is certain by now; white space and a fence at the end wait.
    void push(std::string_view text, std::string& out);

   private:
    enum class Start { kFence, kLanguage, kBlanks, kBody };

    bool is_before_body(char c);
    void push_char(char c, std::string& out);

    Start start_ = Start::kFence;
    std::string tail_;        // blanks, then up to three backticks, then blanks
    size_t ticks_begin_ = 0;  // in tail_
    size_t ticks_end_ = 0;
  };

  bool is_live(AnswerMarker marker) const;

  bool at_start_of_part() const { return !part_has_text_; }

  void scan(AnswerDelta& delta);
  void on_text(std::string_view text, AnswerDelta& delta);
  void on_marker(AnswerMarker marker, AnswerDelta& delta);
  void on_marker_outside_calls(AnswerMarker marker);
  void on_marker_inside_call(AnswerMarker marker, AnswerDelta& delta);
  void add_part_text(std::string_view text, std::string& part);
  void on_name_text(std::string_view text, AnswerDelta& delta);
  void on_between_text(std::string_view text, AnswerDelta& delta);
  void begin_part(Phase phase, bool trims_start);
  void begin_call();
  void open_call(std::string_view name, AnswerDelta& delta);
  void add_arguments(std::string_view text, AnswerDelta& delta);
  void end_call(AnswerDelta& delta);

  AnswerGrammar grammar_;
  AnswerMarkerSet in_text_;
  Phase phase_;
  std::string pending_;  // text that may be the beginning of a marker

  // Of the reasoning or content that is being written.
  bool part_has_text_ = false;  // something besides line ends
  bool part_trims_start_;       // of reasoning, and of content behind it
  std::string part_held_;       // line ends that may be the last ones

  bool in_section_ = false;
  std::string header_;
  std::string name_;
  int num_calls_ = 0;
  ArgumentsFilter arguments_;
  AnswerRepairs repairs_;
};

}  // namespace fathom
