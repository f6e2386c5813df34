#include "fathom/serve/responses/custom_input.h"

#include <charconv>

#include "fathom/text/json_writer.h"
#include "fathom/text/utf8.h"

namespace fathom::serve {
namespace {

// Blanks may stand before the first two characters and the last two.
constexpr std::string_view kBegin = "{\"input\":\"";

bool is_blank(char c) {
  return c == ' ' || c == '\t' || c == '\n' || c == '\r';
}

// The character of a short escape; 0 if it is none.
char short_escape(char c) {
  constexpr std::string_view kNames = "\"\\/bfnrt";
  constexpr std::string_view kChars = "\"\\/\b\f\n\r\t";
  const size_t at = kNames.find(c);
  return at == kNames.npos ? '\0' : kChars[at];
}

}  // namespace

std::string custom_arguments(std::string_view input) {
  return dump_json_like_python(Json::object({{"input", Json::string(std::string(input))}}));
}

Json custom_parameters(const Json* format) {
  std::vector<JsonMember> input = {{"type", Json::string("string")}};
  const Json* definition = format == nullptr ? nullptr : format->find("definition");
  const Json* syntax = format == nullptr ? nullptr : format->find("syntax");
  if (definition != nullptr && definition->is_string()) {
    const bool is_named = syntax != nullptr && syntax->is_string();
    input.emplace_back(
        "description",
        Json::string(str_cat("The whole input, as this grammar has it",
                             is_named ? str_cat(" (", syntax->as_string(), ")") : std::string(),
                             ":\n", definition->as_string())));
  }
  return Json::object({{"type", Json::string("object")},
                       {"properties", Json::object({{"input", Json::object(std::move(input))}})},
                       {"required", Json::array({Json::string("input")})}});
}

std::string CustomInput::push(std::string_view arguments) {
  std::string out;
  for (const char c : arguments)
    push_char(c, out);
  return out;
}

void CustomInput::push_char(char c, std::string& out) {
  switch (phase_) {
    case Phase::kBefore:
      return push_before(c, out);
    case Phase::kText:
      return push_text(c, out);
    case Phase::kAfter:
      return;
    case Phase::kOtherForm:
      out += c;
      return;
  }
}

void CustomInput::push_before(char c, std::string& out) {
  before_ += c;
  const bool may_be_blank = matched_ < 2 || matched_ + 2 >= kBegin.size();
  if (c == kBegin[matched_]) {
    if (++matched_ == kBegin.size()) phase_ = Phase::kText;
  } else if (!(may_be_blank && is_blank(c))) {
    phase_ = Phase::kOtherForm;
    out += before_;
  }
}

void CustomInput::push_text(char c, std::string& out) {
  if (in_escape_) return push_escape(c, out);
  if (c == '\\') {
    in_escape_ = true;
    return;
  }
  end_surrogate(out);
  if (c == '"') {
    phase_ = Phase::kAfter;
  } else {
    out += c;
  }
}

void CustomInput::push_escape(char c, std::string& out) {
  escape_ += c;
  if (escape_[0] != 'u') {
    end_surrogate(out);
    const char meant = short_escape(c);
    out += meant == '\0' ? c : meant;
  } else if (escape_.size() == 5) {
    uint32_t code = kReplacementCharacter;
    std::from_chars(escape_.data() + 1, escape_.data() + escape_.size(), code, 16);
    const bool is_low = code >= 0xDC00 && code <= 0xDFFF;
    if (is_low && high_surrogate_ != 0) {
      append_utf8(out, 0x10000 + ((high_surrogate_ - 0xD800) << 10) + (code - 0xDC00));
      high_surrogate_ = 0;
    } else {
      end_surrogate(out);
      if (code >= 0xD800 && code <= 0xDBFF) {
        high_surrogate_ = code;
      } else {
        append_utf8(out, is_low ? kReplacementCharacter : char32_t{code});
      }
    }
  } else {
    return;  // more digits come
  }
  in_escape_ = false;
  escape_.clear();
}

void CustomInput::end_surrogate(std::string& out) {
  if (high_surrogate_ != 0) append_utf8(out, kReplacementCharacter);
  high_surrogate_ = 0;
}

}  // namespace fathom::serve
