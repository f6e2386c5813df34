#include "fathom/tokenizer/answer/dsml/dsml_tags.h"

#include <array>

#include "fathom/tokenizer/answer/dsml/folded_markers.h"

namespace fathom {
namespace {

using State = DsmlTagMatch::State;

constexpr size_t kMaxTagBytes = 2048;
constexpr size_t kMaxWordBytes = 32;

struct Word {
  std::string_view text;
  DsmlTag::Kind kind;
};

constexpr std::array<Word, 5> kWords = {{{"tool_calls", DsmlTag::Kind::kSection},
                                         {"function_calls", DsmlTag::Kind::kSection},
                                         {"calls", DsmlTag::Kind::kSection},
                                         {"invoke", DsmlTag::Kind::kInvoke},
                                         {"parameter", DsmlTag::Kind::kParameter}}};

bool is_blank(char c) {
  return c == ' ' || c == '\t' || c == '\r' || c == '\n';
}

bool is_word(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_';
}

bool equals_ignoring_case(std::string_view text, std::string_view lower) {
  if (text.size() != lower.size()) return false;
  for (size_t i = 0; i < text.size(); ++i) {
    const char c = text[i] >= 'A' && text[i] <= 'Z' ? static_cast<char>(text[i] + 32) : text[i];
    if (c != lower[i]) return false;
  }
  return true;
}

// Each step returns kTag where it took its part and the match goes on.
class Matcher {
 public:
  explicit Matcher(std::string_view text) : text_(text.substr(0, kMaxTagBytes)) {
    is_cut_ = text_.size() < text.size();
  }

  DsmlTagMatch match() {
    State state = match_begin();
    if (state == State::kTag) state = match_word();
    if (state == State::kTag) state = match_attributes();
    if (state == State::kMore && is_cut_) state = State::kNo;
    tag_.size = at_;
    return {state, tag_};
  }

 private:
  bool at_end() const { return at_ == text_.size(); }

  bool take(char c) {
    if (at_end() || text_[at_] != c) return false;
    ++at_;
    return true;
  }

  void skip_blanks() {
    while (!at_end() && is_blank(text_[at_]))
      ++at_;
  }

  State match_begin() {
    if (!take('<')) return State::kNo;
    tag_.is_end = take('/');
    tag_.is_marked = take(kFoldedDsml);
    if (tag_.is_marked) skip_blanks();
    return at_end() ? State::kMore : State::kTag;
  }

  State match_word() {
    const size_t begin = at_;
    while (!at_end() && is_word(text_[at_]))
      ++at_;
    tag_.word = text_.substr(begin, at_ - begin);
    if (tag_.word.size() > kMaxWordBytes) return State::kNo;
    bool may_become_known = false;
    for (const Word& word : kWords) {
      if (word.text == tag_.word) tag_.kind = word.kind;
      may_become_known = may_become_known || word.text.starts_with(tag_.word);
    }
    if (at_end()) return tag_.is_marked || may_become_known ? State::kMore : State::kNo;
    if (tag_.word.empty()) return State::kNo;
    return tag_.is_marked || tag_.kind != DsmlTag::Kind::kOther ? State::kTag : State::kNo;
  }

  State match_attributes() {
    for (;;) {
      skip_blanks();
      if (at_end()) return State::kMore;
      if (take('>')) return State::kTag;
      if (!tag_.is_end && take('/')) {
        if (at_end()) return State::kMore;
        tag_.ends_itself = true;
        return take('>') ? State::kTag : State::kNo;
      }
      if (tag_.is_end) return State::kNo;
      const State state = match_attribute();
      if (state != State::kTag) return state;
    }
  }

  State match_attribute() {
    const size_t begin = at_;
    while (!at_end() && is_word(text_[at_]))
      ++at_;
    const std::string_view key = text_.substr(begin, at_ - begin);
    skip_blanks();
    if (at_end()) return State::kMore;
    if (key.empty() || !take('=')) return State::kNo;
    skip_blanks();
    if (at_end()) return State::kMore;
    const char quote = text_[at_];
    if (quote != '"' && quote != '\'') return State::kNo;
    ++at_;
    std::string_view value;
    const State state = match_value(quote, value);
    if (state != State::kTag) return state;
    if (key == "name") tag_.name = value;
    if (key == "string" && equals_ignoring_case(value, "true")) tag_.type = DsmlTag::Type::kString;
    if (key == "string" && equals_ignoring_case(value, "false")) tag_.type = DsmlTag::Type::kJson;
    return State::kTag;
  }

  // Names are written as they are, so a quote ends one only before a blank or the end of the tag.
  State match_value(char quote, std::string_view& value) {
    const size_t begin = at_;
    while (!at_end()) {
      const char c = text_[at_];
      if (is_folded_marker(c)) return State::kNo;
      if (c == quote) {
        if (at_ + 1 == text_.size()) return State::kMore;
        const char next = text_[at_ + 1];
        if (is_blank(next) || next == '>' || next == '/') {
          value = text_.substr(begin, at_ - begin);
          ++at_;
          return State::kTag;
        }
      }
      ++at_;
    }
    return State::kMore;
  }

  std::string_view text_;
  bool is_cut_ = false;
  size_t at_ = 0;
  DsmlTag tag_;
};

}  // namespace

DsmlTagMatch match_dsml_tag(std::string_view text) {
  return Matcher{text}.match();
}

}  // namespace fathom
