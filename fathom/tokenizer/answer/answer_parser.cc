#include "fathom/tokenizer/answer/answer_parser.h"

#include <array>
#include <utility>

#include "fathom/base/ascii.h"
#include "fathom/tokenizer/chat/control_tokens.h"

namespace fathom {
namespace {

constexpr std::array<std::string_view, kNumAnswerMarkers> kMarkerTexts = {
    control::kThink,        control::kEndThink,      control::kToolCallsBegin,
    control::kToolCallsEnd, control::kToolCallBegin, control::kToolCallEnd,
    control::kToolSep,      control::kDsml,
};

bool is_blank(char c) {
  return kAsciiBlanks.find(c) != kAsciiBlanks.npos;
}

}  // namespace

std::string_view answer_marker_text(AnswerMarker marker) {
  return kMarkerTexts[static_cast<size_t>(marker)];
}

// Whether a marker means anything in this phase. Elsewhere it is text like any other.
bool AnswerParser::is_live(AnswerMarker marker) const {
  if (marker == AnswerMarker::kDsml) return false;
  const bool is_thought = marker == AnswerMarker::kThink || marker == AnswerMarker::kEndThink;
  switch (phase_) {
    case Phase::kReasoning:
      return marker == AnswerMarker::kEndThink ||
             (marker == AnswerMarker::kThink && at_start_of_part());
    case Phase::kContent:
      // A model may open its thoughts itself, or close some that the prompt has closed.
      if (is_thought) return grammar_.knows_thinking && num_calls_ == 0 && at_start_of_part();
      return grammar_.tool_calls != AnswerGrammar::ToolCalls::kNone;
    case Phase::kBetweenCalls:
    case Phase::kHeader:
    case Phase::kName:
    case Phase::kArguments:
      return !is_thought;
  }
  return false;
}

AnswerDelta AnswerParser::push(std::string_view text) {
  AnswerDelta delta;
  pending_.append(text);
  scan(delta);
  return delta;
}

AnswerDelta AnswerParser::push_marker(AnswerMarker marker) {
  AnswerDelta delta;
  const std::string held = std::exchange(pending_, {});
  on_text(held, delta);
  if (is_live(marker)) {
    on_marker(marker, delta);
  } else {
    on_text(answer_marker_text(marker), delta);
  }
  return delta;
}

// Takes all of pending_ that is certain.
void AnswerParser::scan(AnswerDelta& delta) {
  const std::string text = std::exchange(pending_, {});
  size_t done = 0;
  size_t at = 0;
  while ((at = text.find('<', at)) != text.npos) {
    const std::string_view rest = std::string_view{text}.substr(at);
    const std::string_view before = std::string_view{text}.substr(done, at - done);
    // What is live depends on the text before, so that goes first where a marker may begin.
    bool may_be_marker = false;
    for (const std::string_view marker : kMarkerTexts) {
      may_be_marker = may_be_marker || rest.starts_with(marker) || marker.starts_with(rest);
    }
    if (!may_be_marker) {
      ++at;
      continue;
    }
    on_text(before, delta);
    done = at;
    for (int i = 0; i < kNumAnswerMarkers; ++i) {
      const auto marker = static_cast<AnswerMarker>(i);
      if (!in_text_[i] || !is_live(marker)) continue;
      if (rest.starts_with(kMarkerTexts[i])) {
        on_marker(marker, delta);
        done = at + kMarkerTexts[i].size();
        break;
      }
      if (kMarkerTexts[i].starts_with(rest)) {
        pending_ = rest;
        return;
      }
    }
    at = done > at ? done : at + 1;
  }
  on_text(std::string_view{text}.substr(done), delta);
}

void AnswerParser::on_text(std::string_view text, AnswerDelta& delta) {
  if (text.empty()) return;
  switch (phase_) {
    case Phase::kReasoning:
      return add_part_text(text, delta.reasoning);
    case Phase::kContent:
      return add_part_text(text, delta.content);
    case Phase::kBetweenCalls:
      return on_between_text(text, delta);
    case Phase::kHeader:
      header_ += text;
      return;
    case Phase::kName:
      return on_name_text(text, delta);
    case Phase::kArguments:
      return add_arguments(text, delta);
  }
}

// Adds to reasoning or content, with line ends at the end held back, and left out at the beginning
// where the part is trimmed.
void AnswerParser::add_part_text(std::string_view text, std::string& part) {
  const size_t first = text.find_first_not_of('\n');
  if (!part_has_text_ && part_trims_start_) {
    if (first == text.npos) return;
    text.remove_prefix(first);
  }
  const size_t last = text.find_last_not_of('\n');
  if (last == text.npos) {
    part_held_ += text;
    return;
  }
  part_has_text_ = true;
  part += part_held_;
  part += text.substr(0, last + 1);
  part_held_ = text.substr(last + 1);
}

// Text between calls is white space, or content that the model could not keep to itself.
void AnswerParser::on_between_text(std::string_view text, AnswerDelta& delta) {
  if (!part_has_text_) {
    const size_t first = text.find_first_not_of(kAsciiBlanks);
    if (first == text.npos) return;
    text.remove_prefix(first);
  }
  add_part_text(text, delta.content);
}

// Behind the separator of a fenced call stands the name, up to the end of the line. A brace there
// begins the arguments of a bare call.
void AnswerParser::on_name_text(std::string_view text, AnswerDelta& delta) {
  const size_t end = text.find('\n');
  const bool is_blank_so_far = trimmed(name_).empty();
  if (is_blank_so_far) {
    const size_t first = text.find_first_not_of(kAsciiBlanks);
    if (first != text.npos && text[first] == '{') {
      if (trimmed(header_).empty()) {
        // Nothing names the call; its text waits in the header for the end.
        phase_ = Phase::kHeader;
        return on_text(text, delta);
      }
      ++repairs_.other_form;
      open_call(header_, delta);
      return add_arguments(text.substr(first), delta);
    }
    if (first == text.npos || first > end) {
      // Blank lines before the name.
      if (first != text.npos) on_name_text(text.substr(first), delta);
      return;
    }
  }
  name_ += text.substr(0, end);
  if (end == text.npos) return;
  open_call(name_, delta);
  add_arguments(text.substr(end + 1), delta);
}

void AnswerParser::begin_part(Phase phase, bool trims_start) {
  phase_ = phase;
  part_has_text_ = false;
  part_trims_start_ = trims_start;
  part_held_.clear();
}

void AnswerParser::begin_call() {
  phase_ = Phase::kHeader;
  header_.clear();
  name_.clear();
  part_held_.clear();
}

void AnswerParser::open_call(std::string_view name, AnswerDelta& delta) {
  delta.tool_calls.push_back({num_calls_, std::string{trimmed(name)}, {}});
  ++num_calls_;
  arguments_.reset();
  phase_ = Phase::kArguments;
}

void AnswerParser::add_arguments(std::string_view text, AnswerDelta& delta) {
  std::string out;
  arguments_.push(text, out);
  if (out.empty()) return;
  const int index = num_calls_ - 1;
  if (delta.tool_calls.empty() || delta.tool_calls.back().index != index) {
    delta.tool_calls.push_back({index, {}, {}});
  }
  delta.tool_calls.back().arguments += out;
}

// Ends the call that is being read, however far it came.
void AnswerParser::end_call(AnswerDelta& delta) {
  switch (phase_) {
    case Phase::kHeader:
      ++repairs_.broken_call;
      // The beginning of what every call begins with is no text that could be lost.
      if (grammar_.tool_calls == AnswerGrammar::ToolCalls::kFencedJson &&
          std::string_view("function").starts_with(trimmed(header_))) {
        header_.clear();
      }
      break;
    case Phase::kName:
      if (!trimmed(name_).empty()) {
        open_call(name_, delta);
        begin_part(Phase::kBetweenCalls, true);
        return;
      }
      ++repairs_.broken_call;
      break;
    case Phase::kArguments:
      // What the filter still holds is white space and a fence.
      begin_part(Phase::kBetweenCalls, true);
      return;
    case Phase::kReasoning:
    case Phase::kContent:
    case Phase::kBetweenCalls:
      return;
  }
  begin_part(Phase::kBetweenCalls, true);
  on_between_text(header_, delta);
}

void AnswerParser::on_marker(AnswerMarker marker, AnswerDelta& delta) {
  switch (phase_) {
    case Phase::kReasoning:
      if (marker == AnswerMarker::kEndThink) begin_part(Phase::kContent, true);
      return;
    case Phase::kContent:
    case Phase::kBetweenCalls:
      return on_marker_outside_calls(marker);
    case Phase::kHeader:
    case Phase::kName:
    case Phase::kArguments:
      return on_marker_inside_call(marker, delta);
  }
}

void AnswerParser::on_marker_outside_calls(AnswerMarker marker) {
  switch (marker) {
    case AnswerMarker::kThink:
      ++repairs_.other_form;
      return begin_part(Phase::kReasoning, true);
    case AnswerMarker::kEndThink:
      ++repairs_.stray_marker;
      return begin_part(Phase::kContent, true);
    case AnswerMarker::kCallsBegin:
      if (in_section_) ++repairs_.stray_marker;
      in_section_ = true;
      return begin_part(Phase::kBetweenCalls, true);
    case AnswerMarker::kCallBegin:
      if (!in_section_) ++repairs_.missing_section;
      return begin_call();
    case AnswerMarker::kCallsEnd:
      if (!in_section_) ++repairs_.stray_marker;
      in_section_ = false;
      if (phase_ == Phase::kBetweenCalls) begin_part(Phase::kContent, true);
      return;
    case AnswerMarker::kCallEnd:
    case AnswerMarker::kSep:
      ++repairs_.stray_marker;
      return;
    case AnswerMarker::kDsml:
      return;
  }
}

void AnswerParser::on_marker_inside_call(AnswerMarker marker, AnswerDelta& delta) {
  switch (marker) {
    case AnswerMarker::kSep: {
      const bool is_bare = grammar_.tool_calls == AnswerGrammar::ToolCalls::kBareJson;
      if (phase_ != Phase::kHeader || (is_bare && trimmed(header_).empty())) {
        ++repairs_.stray_marker;
        return;
      }
      if (is_bare) return open_call(header_, delta);
      phase_ = Phase::kName;
      return;
    }
    case AnswerMarker::kCallEnd:
      return end_call(delta);
    case AnswerMarker::kCallBegin:
      ++repairs_.missing_section;
      end_call(delta);
      return begin_call();
    case AnswerMarker::kCallsEnd:
      ++repairs_.missing_section;
      end_call(delta);
      in_section_ = false;
      return begin_part(Phase::kContent, true);
    case AnswerMarker::kCallsBegin:
      ++repairs_.stray_marker;
      return;
    case AnswerMarker::kThink:
    case AnswerMarker::kEndThink:
    case AnswerMarker::kDsml:
      return;
  }
}

AnswerDelta AnswerParser::finish() {
  AnswerDelta delta;
  const std::string held = std::exchange(pending_, {});
  // A piece of a marker is no text that could be lost. A mere "<" or "</th" may be text.
  const bool in_marker = held.starts_with("<｜");
  if (!in_marker) on_text(held, delta);
  const bool in_call =
      phase_ == Phase::kHeader || phase_ == Phase::kName || phase_ == Phase::kArguments;
  if (in_call || in_marker) ++repairs_.unterminated;
  if (in_call) end_call(delta);
  // The content of a plain answer is left as it is; behind reasoning and calls it is trimmed.
  if (phase_ == Phase::kContent && !part_trims_start_) delta.content += part_held_;
  return delta;
}

void AnswerParser::ArgumentsFilter::push(std::string_view text, std::string& out) {
  for (const char c : text) {
    if (!is_before_body(c)) push_char(c, out);
  }
}

// Whether `c` belongs to the blanks and the fence before the arguments: ``` and a language.
bool AnswerParser::ArgumentsFilter::is_before_body(char c) {
  switch (start_) {
    case Start::kFence:
      if (is_blank(c) && tail_.empty()) return true;
      if (c == '`' && tail_.size() < 2) {
        tail_ += c;
        ticks_end_ = tail_.size();
        return true;
      }
      start_ = c == '`' ? Start::kLanguage : Start::kBody;
      if (c != '`') return false;
      tail_.clear();
      ticks_end_ = 0;
      return true;
    case Start::kLanguage:
      if ((c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z')) return true;
      start_ = Start::kBlanks;
      [[fallthrough]];
    case Start::kBlanks:
      if (is_blank(c)) return true;
      start_ = Start::kBody;
      return false;
    case Start::kBody:
      return false;
  }
  return false;
}

void AnswerParser::ArgumentsFilter::push_char(char c, std::string& out) {
  constexpr size_t kMaxTicks = 3;
  const size_t num_ticks = ticks_end_ - ticks_begin_;
  if (is_blank(c)) {
    tail_ += c;
    if (num_ticks == 0) ticks_begin_ = ticks_end_ = tail_.size();
    return;
  }
  const bool more_ticks = c == '`' && ticks_end_ == tail_.size() && num_ticks < kMaxTicks;
  if (more_ticks) {
    tail_ += c;
    ++ticks_end_;
    return;
  }
  if (c != '`') {
    out += tail_;
    out += c;
    tail_.clear();
    ticks_begin_ = ticks_end_ = 0;
    return;
  }
  // Another backtick: the blanks behind the old ones are the blanks before the new one.
  out.append(tail_, 0, ticks_end_);
  tail_.erase(0, ticks_end_);
  ticks_begin_ = tail_.size();
  tail_ += c;
  ticks_end_ = tail_.size();
}

}  // namespace fathom
