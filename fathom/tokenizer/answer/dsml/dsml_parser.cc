#include "fathom/tokenizer/answer/dsml/dsml_parser.h"

#include <algorithm>
#include <utility>

#include "fathom/base/ascii.h"

namespace fathom {
namespace {

using Kind = DsmlTag::Kind;
using State = DsmlTagMatch::State;

constexpr size_t kMaxBlanksBetweenTags = 64;

// The tag behind some blanks; kNo for anything else.
DsmlTagMatch match_next_tag(std::string_view text) {
  const size_t begin = text.find_first_not_of(kAsciiBlanks);
  if (std::min(begin, text.size()) > kMaxBlanksBetweenTags) return {State::kNo};
  if (begin == text.npos) return {State::kMore};
  if (text[begin] != '<') return {State::kNo};
  return match_dsml_tag(text.substr(begin));
}

// Whether a tag that is not complete may still turn out to have a marker.
bool may_get_marker(const DsmlTag& tag) {
  return !tag.is_marked && tag.word.empty();
}

// What may follow a value within a section.
bool follows_value(const DsmlTag& tag) {
  switch (tag.kind) {
    case Kind::kInvoke:
      return true;
    case Kind::kParameter:
      return !tag.is_end;
    case Kind::kSection:
      return tag.is_end;
    case Kind::kOther:
      return false;
  }
  return false;
}

}  // namespace

DsmlParser::DsmlParser(AnswerGrammar grammar,
                       std::vector<ToolDefinition> tools,
                       AnswerMarkerSet in_text)
    : grammar_(grammar),
      tools_(std::move(tools)),
      folder_(in_text),
      phase_(grammar.starts_in_reasoning ? Phase::kReasoning : Phase::kContent),
      part_trims_start_(!grammar.continues_turn) {}

AnswerDelta DsmlParser::push(std::string_view text) {
  AnswerDelta delta;
  folder_.push(text, pending_);
  run(delta);
  return delta;
}

AnswerDelta DsmlParser::push_marker(AnswerMarker marker) {
  AnswerDelta delta;
  folder_.push_marker(marker, pending_);
  run(delta);
  return delta;
}

AnswerDelta DsmlParser::finish() {
  AnswerDelta delta;
  folder_.flush(pending_);
  is_finished_ = true;
  run(delta);
  switch (phase_) {
    case Phase::kReasoning:
      flush_part_lines(delta.reasoning);
      break;
    case Phase::kContent:
      flush_part_lines(delta.content);
      break;
    case Phase::kSection:
      if (in_section_) ++repairs_.unterminated;
      break;
    case Phase::kCall:
      ++repairs_.unterminated;
      close_call(delta);
      break;
    case Phase::kValue: {
      ++repairs_.unterminated;
      std::string rest;
      if (arguments_) arguments_->cut(rest);
      add_arguments(rest, delta);
      break;
    }
  }
  return delta;
}

// Takes all of pending_ that is settled.
void DsmlParser::run(AnswerDelta& delta) {
  const std::string text = std::exchange(pending_, {});
  std::string_view rest = text;
  while (!rest.empty()) {
    const size_t at = std::min(rest.find_first_of("<\xFF\xFE\xFD"), rest.size());
    take_text(rest.substr(0, at), delta);
    rest.remove_prefix(at);
    if (rest.empty()) return;
    const size_t taken =
        rest.front() == '<' ? step_tag(rest, delta) : step_marker(rest.front(), delta);
    if (taken == 0) {
      pending_ = rest;
      return;
    }
    rest.remove_prefix(taken);
  }
}

size_t DsmlParser::step_marker(char marker, AnswerDelta& delta) {
  const bool is_at_start = !part_has_text_ && num_calls_ == 0;
  switch (phase_) {
    case Phase::kReasoning:
      if (marker == kFoldedEndThink) {
        begin_part(Phase::kContent, true);
      } else if (marker == kFoldedDsml || part_has_text_) {
        take_text(folded_marker_text(marker), delta);
      }  // else the model repeats what the prompt has opened
      return 1;
    case Phase::kContent:
      if (marker == kFoldedThink && is_at_start) {
        ++repairs_.other_form;
        begin_part(Phase::kReasoning, true);
      } else if (marker == kFoldedThink) {
        take_text(folded_marker_text(marker), delta);
      } else {
        ++repairs_.stray_marker;
      }
      return 1;
    case Phase::kSection:
    case Phase::kCall:
      ++repairs_.stray_marker;
      return 1;
    case Phase::kValue:
      if (marker == kFoldedDsml) {
        ++repairs_.stray_marker;
      } else {
        take_text(folded_marker_text(marker), delta);
      }
      return 1;
  }
  return 1;
}

size_t DsmlParser::step_tag(std::string_view rest, AnswerDelta& delta) {
  const DsmlTagMatch match = match_tag(rest);
  const DsmlTag& tag = match.tag;
  const bool drops_markers = tag.is_marked && phase_ != Phase::kReasoning;
  switch (match.state) {
    case State::kMore:
      return is_finished_ ? drop_cut_tag(rest, tag, delta) : 0;
    case State::kNo:
      if (!drops_markers) break;
      ++repairs_.stray_marker;
      return tag.is_end ? 3 : 2;  // with the bracket
    case State::kTag:
      if (is_live(tag)) {
        take_tag(tag, delta);
        return tag.size;
      }
      if (!drops_markers) break;
      ++repairs_.stray_marker;
      return tag.size;
  }
  take_text("<", delta);
  return 1;
}

// A tag that the end of the answer cuts: without a marker it is text, where text is expected.
size_t DsmlParser::drop_cut_tag(std::string_view rest, const DsmlTag& tag, AnswerDelta& delta) {
  const bool is_between = phase_ == Phase::kSection || phase_ == Phase::kCall;
  if (tag.is_marked) part_lines_ = 0;  // as before a whole one
  if (tag.is_marked || is_between) return rest.size();
  take_text("<", delta);
  return 1;
}

// The tag at the beginning of `rest`, as far as it may mean something here.
DsmlTagMatch DsmlParser::match_tag(std::string_view rest) const {
  const DsmlTagMatch match = match_dsml_tag(rest);
  if (match.state == State::kNo || match.tag.is_marked) return match;
  if (!may_matter_without_marker(match.tag)) {
    const bool waits = match.state == State::kMore && may_get_marker(match.tag);
    return {waits ? State::kMore : State::kNo};
  }
  if (match.state == State::kMore) return match;
  if (phase_ == Phase::kContent) return match_section_without_marker(rest, match);
  if (phase_ == Phase::kValue && value_has_marker_) {
    return match_end_of_value_without_marker(rest, match);
  }
  return match;
}

// Whether a tag without a marker, perhaps not complete, may be more than text.
bool DsmlParser::may_matter_without_marker(const DsmlTag& tag) const {
  const auto may_be = [&](std::string_view word) {
    return !tag.word.empty() && word.starts_with(tag.word);
  };
  switch (phase_) {
    case Phase::kReasoning:
      return false;
    case Phase::kContent:
      return !tag.is_end && (!part_has_text_ || part_lines_ > 0) &&
             (may_be("tool_calls") || may_be("function_calls"));
    case Phase::kSection:
    case Phase::kCall:
      return true;
    case Phase::kValue:
      return tag.is_end && may_be("parameter");
  }
  return false;
}

// A section without a marker counts if a call follows that has one or names a declared tool.
DsmlTagMatch DsmlParser::match_section_without_marker(std::string_view rest,
                                                      DsmlTagMatch section) const {
  const DsmlTagMatch next = match_next_tag(rest.substr(section.tag.size));
  const DsmlTag& call = next.tag;
  if (next.state == State::kMore && !is_finished_) {
    const bool may_be_call =
        may_get_marker(call) || std::string_view{"invoke"}.starts_with(call.word);
    return {may_be_call ? State::kMore : State::kNo};
  }
  const bool is_call = next.state == State::kTag && call.kind == Kind::kInvoke && !call.is_end &&
                       (call.is_marked || find_tool(call.name) != nullptr);
  return is_call ? section : DsmlTagMatch{State::kNo};
}

// </parameter> may be part of a value that began with a marked tag. It ends the value if a marked
// tag or nothing follows.
DsmlTagMatch DsmlParser::match_end_of_value_without_marker(std::string_view rest,
                                                           DsmlTagMatch end) const {
  const DsmlTagMatch next = match_next_tag(rest.substr(end.tag.size));
  const bool has_marker = next.tag.is_marked;
  switch (next.state) {
    case State::kNo:
      return {State::kNo};
    case State::kMore:
      if (is_finished_) return end;
      return {has_marker || may_get_marker(next.tag) ? State::kMore : State::kNo};
    case State::kTag:
      return has_marker && follows_value(next.tag) ? end : DsmlTagMatch{State::kNo};
  }
  return {State::kNo};
}

bool DsmlParser::is_live(const DsmlTag& tag) const {
  switch (phase_) {
    case Phase::kReasoning:
      return !tag.is_end && (tag.kind == Kind::kSection || tag.kind == Kind::kInvoke);
    case Phase::kContent:
      return !tag.is_end && tag.kind != Kind::kParameter;
    case Phase::kSection:
    case Phase::kCall:
      return true;
    case Phase::kValue:
      return follows_value(tag) || tag.kind == Kind::kParameter;
  }
  return false;
}

const ToolDefinition* DsmlParser::find_tool(std::string_view name) const {
  for (const ToolDefinition& tool : tools_) {
    if (tool.name == name) return &tool;
  }
  return nullptr;
}

void DsmlParser::take_text(std::string_view text, AnswerDelta& delta) {
  if (text.empty()) return;
  switch (phase_) {
    case Phase::kReasoning:
      return add_part_text(text, delta.reasoning);
    case Phase::kContent:
      return add_part_text(text, delta.content);
    case Phase::kSection:
      return add_text_between(text, delta);
    case Phase::kCall:
      body_ += text;
      return;
    case Phase::kValue: {
      if (!arguments_) return add_text_between(text, delta);
      std::string out;
      arguments_->add_value(text, out);
      return add_arguments(out, delta);
    }
  }
}

void DsmlParser::take_tag(const DsmlTag& tag, AnswerDelta& delta) {
  if (!tag.is_marked) ++repairs_.missing_marker;
  switch (phase_) {
    case Phase::kReasoning:
      ++repairs_.unclosed_reasoning;
      [[fallthrough]];
    case Phase::kContent:
      if (tag.kind != Kind::kInvoke) return open_section(tag);
      ++repairs_.missing_section;
      return open_call(tag, delta);
    case Phase::kSection:
      return take_tag_of_section(tag, delta);
    case Phase::kCall:
      return take_tag_of_call(tag, delta);
    case Phase::kValue: {
      const bool is_end = tag.kind == Kind::kParameter && tag.is_end;
      if (!is_end) ++repairs_.missing_end;
      close_parameter(delta);
      if (!is_end) take_tag_of_call(tag, delta);
      return;
    }
  }
}

void DsmlParser::take_tag_of_section(const DsmlTag& tag, AnswerDelta& delta) {
  switch (tag.kind) {
    case Kind::kInvoke:
      if (!tag.is_end) return open_call(tag, delta);
      break;
    case Kind::kSection:
    case Kind::kOther:
      if (tag.is_end && in_section_) return close_section();
      if (!tag.is_end && !in_section_) return open_section(tag);
      break;
    case Kind::kParameter:
      break;
  }
  ++repairs_.stray_marker;
}

void DsmlParser::take_tag_of_call(const DsmlTag& tag, AnswerDelta& delta) {
  switch (tag.kind) {
    case Kind::kParameter:
      if (!tag.is_end) return open_parameter(tag, delta);
      break;
    case Kind::kInvoke:
      if (!tag.is_end) ++repairs_.missing_end;
      close_call(delta);
      if (!tag.is_end) open_call(tag, delta);
      return;
    case Kind::kSection:
      if (!tag.is_end) break;
      ++repairs_.missing_end;
      close_call(delta);
      return close_section();
    case Kind::kOther:
      break;
  }
  ++repairs_.stray_marker;
}

void DsmlParser::begin_part(Phase phase, bool trims_start) {
  phase_ = phase;
  part_has_text_ = false;
  part_trims_start_ = trims_start;
  part_lines_ = 0;
}

// Adds to reasoning or content, with line ends at the end held back, and left out at the beginning
// where the part is trimmed.
void DsmlParser::add_part_text(std::string_view text, std::string& part) {
  const size_t first = std::min(text.find_first_not_of('\n'), text.size());
  if (part_has_text_ || !part_trims_start_) part_lines_ += first;
  text.remove_prefix(first);
  if (text.empty()) return;
  flush_part_lines(part);
  part_has_text_ = true;
  const size_t size = text.find_last_not_of('\n') + 1;
  part += text.substr(0, size);
  part_lines_ = text.size() - size;
}

// Text between calls is white space, or content that the model could not keep to itself.
void DsmlParser::add_text_between(std::string_view text, AnswerDelta& delta) {
  if (!part_has_text_)
    text.remove_prefix(std::min(text.find_first_not_of(kAsciiBlanks), text.size()));
  if (!text.empty()) add_part_text(text, delta.content);
}

void DsmlParser::flush_part_lines(std::string& part) {
  part.append(std::exchange(part_lines_, 0), '\n');
}

void DsmlParser::open_section(const DsmlTag& tag) {
  if (tag.kind == Kind::kOther) {
    ++repairs_.missing_section;
  } else if (tag.word != grammar_.section) {
    ++repairs_.other_form;
  }
  in_section_ = true;
  begin_part(Phase::kSection, true);
  if (tag.ends_itself) close_section();
}

void DsmlParser::close_section() {
  in_section_ = false;
  begin_part(Phase::kContent, true);
}

void DsmlParser::open_call(const DsmlTag& tag, AnswerDelta& delta) {
  begin_part(Phase::kCall, true);
  body_.clear();
  arguments_.reset();
  if (tag.name.empty()) {
    ++repairs_.broken_call;
  } else {
    delta.tool_calls.push_back({num_calls_, std::string{tag.name}, {}});
    ++num_calls_;
    arguments_.emplace(find_tool(tag.name), repairs_);
  }
  if (tag.ends_itself) close_call(delta);
}

void DsmlParser::close_call(AnswerDelta& delta) {
  const std::string body = std::exchange(body_, {});
  const std::string_view object = trimmed(body);
  const bool is_arguments =
      arguments_ && !arguments_->has_parameters() && object.starts_with('{') && is_json(object);
  if (is_arguments) {
    ++repairs_.other_form;
    add_arguments(object, delta);
  } else if (arguments_) {
    std::string out;
    arguments_->end(out);
    add_arguments(out, delta);
  }
  arguments_.reset();
  begin_part(Phase::kSection, true);
  if (!is_arguments) add_text_between(object, delta);
}

void DsmlParser::open_parameter(const DsmlTag& tag, AnswerDelta& delta) {
  phase_ = Phase::kValue;
  value_has_marker_ = tag.is_marked;
  if (arguments_) {
    std::string out;
    arguments_->begin_parameter(tag.name, tag.type, out);
    add_arguments(out, delta);
  }
  if (tag.ends_itself) close_parameter(delta);
}

void DsmlParser::close_parameter(AnswerDelta& delta) {
  phase_ = Phase::kCall;
  if (!arguments_) return;
  std::string out;
  arguments_->end_parameter(out);
  add_arguments(out, delta);
}

void DsmlParser::add_arguments(std::string_view text, AnswerDelta& delta) {
  if (text.empty()) return;
  const int index = num_calls_ - 1;
  if (delta.tool_calls.empty() || delta.tool_calls.back().index != index) {
    delta.tool_calls.push_back({index, {}, {}});
  }
  delta.tool_calls.back().arguments += text;
}

}  // namespace fathom
