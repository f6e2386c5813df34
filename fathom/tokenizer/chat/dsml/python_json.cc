#include "fathom/tokenizer/chat/dsml/python_json.h"

#include <algorithm>
#include <charconv>
#include <cstdint>
#include <map>
#include <system_error>

#include "fathom/text/json_writer.h"
#include "fathom/text/utf8.h"

namespace fathom {
namespace {

constexpr int kMaxDepth = 200;
constexpr size_t kMaxIntegerDigits = 4300;  // of Python's int()

bool is_digit(char c) {
  return c >= '0' && c <= '9';
}

// Prints while it reads. Each function leaves at_ behind what it took and says whether that was
// well formed.
class Reader {
 public:
  explicit Reader(std::string_view text) : text_(text) {}

  bool document(std::vector<PythonMember>& members) {
    skip_blanks();
    if (!take('{') || !object_body(members)) return false;
    skip_blanks();
    return at_ == text_.size();
  }

 private:
  char peek() const { return at_ < text_.size() ? text_[at_] : '\0'; }

  bool take(char c) {
    if (peek() != c || at_ >= text_.size()) return false;
    ++at_;
    return true;
  }

  bool take_word(std::string_view word) {
    if (!text_.substr(at_).starts_with(word)) return false;
    at_ += word.size();
    return true;
  }

  void skip_blanks() {
    while (at_ < text_.size() &&
           (peek() == ' ' || peek() == '\t' || peek() == '\n' || peek() == '\r'))
      ++at_;
  }

  // Behind the opening brace.
  bool object_body(std::vector<PythonMember>& members) {
    std::map<std::string, size_t, std::less<>> places;
    skip_blanks();
    if (take('}')) return true;
    for (;;) {
      skip_blanks();
      PythonMember member;
      if (!take('"') || !string_body(member.key)) return false;
      skip_blanks();
      if (!take(':')) return false;
      skip_blanks();
      member.is_string = peek() == '"';
      if (member.is_string) {
        ++at_;
        if (!string_body(member.text)) return false;
      } else if (!value(member.text)) {
        return false;
      }
      const auto [place, is_new] = places.try_emplace(member.key, members.size());
      if (is_new) {
        members.push_back(std::move(member));
      } else {
        members[place->second] = std::move(member);
      }
      skip_blanks();
      if (take('}')) return true;
      if (!take(',')) return false;
    }
  }

  bool value(std::string& out) {
    switch (peek()) {
      case '{':
        return nested([&] { return object(out); });
      case '[':
        return nested([&] { return array(out); });
      case '"': {
        ++at_;
        std::string text;
        if (!string_body(text)) return false;
        append_json_string(out, text, JsonCharset::kUtf8);
        return true;
      }
      case 't':
        return word("true", out);
      case 'f':
        return word("false", out);
      case 'n':
        return word("null", out);
      default:
        return number(out);
    }
  }

  template <typename Read>
  bool nested(const Read& read) {
    if (++depth_ > kMaxDepth) return false;
    ++at_;
    const bool is_good = read();
    --depth_;
    return is_good;
  }

  bool object(std::string& out) {
    std::vector<PythonMember> members;
    if (!object_body(members)) return false;
    out += '{';
    for (const PythonMember& member : members) {
      if (&member != members.data()) out += ", ";
      append_json_string(out, member.key, JsonCharset::kUtf8);
      out += ": ";
      if (member.is_string) {
        append_json_string(out, member.text, JsonCharset::kUtf8);
      } else {
        out += member.text;
      }
    }
    out += '}';
    return true;
  }

  bool array(std::string& out) {
    out += '[';
    skip_blanks();
    if (!take(']')) {
      for (;;) {
        skip_blanks();
        if (!value(out)) return false;
        skip_blanks();
        if (take(']')) break;
        if (!take(',')) return false;
        out += ", ";
      }
    }
    out += ']';
    return true;
  }

  bool word(std::string_view text, std::string& out) {
    if (!take_word(text)) return false;
    out += text;
    return true;
  }

  size_t take_digits() {
    const size_t begin = at_;
    while (is_digit(peek()))
      ++at_;
    return at_ - begin;
  }

  bool number(std::string& out) {
    const size_t begin = at_;
    const bool is_negative = take('-');
    const bool starts_with_zero = peek() == '0';
    const size_t digits = take_digits();
    if (digits == 0 || (starts_with_zero && digits > 1)) return false;
    bool is_integer = true;
    if (take('.')) {
      is_integer = false;
      if (take_digits() == 0) return false;
    }
    if (peek() == 'e' || peek() == 'E') {
      is_integer = false;
      ++at_;
      if (!take('+')) take('-');
      if (take_digits() == 0) return false;
    }
    const std::string_view text = text_.substr(begin, at_ - begin);
    if (!is_integer) return real(text, out);
    if (digits > kMaxIntegerDigits) return false;
    // Minus zero is an integer to Python.
    out += is_negative && starts_with_zero ? "0" : text;
    return true;
  }

  static bool real(std::string_view text, std::string& out) {
    double parsed = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), parsed);
    if (error == std::errc::result_out_of_range) {
      // Too small is zero, too large is no JSON number.
      if (is_beyond_one(text)) return false;
      parsed = text.starts_with('-') ? -0.0 : 0.0;
    } else if (error != std::errc{} || end != text.data() + text.size()) {
      return false;
    }
    append_json_number(out, parsed);
    return true;
  }

  // Of a number that double does not hold: whether it is too large rather than too small.
  static bool is_beyond_one(std::string_view text) {
    const std::string_view mantissa = text.substr(0, text.find_first_of("eE"));
    const size_t first = mantissa.find_first_of("123456789");
    if (first == mantissa.npos) return false;
    // The first digit that counts stands for a power of ten.
    const auto point = static_cast<int64_t>(std::min(mantissa.find('.'), mantissa.size()));
    const int64_t power = point - static_cast<int64_t>(first);
    if (mantissa.size() == text.size()) return power > 0;
    std::string_view exponent = text.substr(mantissa.size() + 1);
    const bool is_negative = exponent.starts_with('-');
    if (is_negative || exponent.starts_with('+')) exponent.remove_prefix(1);
    int64_t size = 0;
    const auto [end, error] =
        std::from_chars(exponent.data(), exponent.data() + exponent.size(), size);
    if (error != std::errc{} || end == exponent.data()) return !is_negative;
    return (is_negative ? -size : size) + power > 0;
  }

  // Behind the opening quote.
  bool string_body(std::string& out) {
    while (at_ < text_.size()) {
      const char c = text_[at_++];
      if (c == '"') return true;
      if (static_cast<unsigned char>(c) < 0x20) return false;
      if (c != '\\') {
        out += c;
      } else if (!escape(out)) {
        return false;
      }
    }
    return false;
  }

  bool escape(std::string& out) {
    if (at_ >= text_.size()) return false;
    const char c = text_[at_++];
    constexpr std::string_view kNames = "\"\\/bfnrt";
    constexpr std::string_view kMeanings = "\"\\/\b\f\n\r\t";
    if (c == 'u') return unicode_escape(out);
    const size_t name = kNames.find(c);
    if (name == kNames.npos) return false;
    out += kMeanings[name];
    return true;
  }

  bool unicode_escape(std::string& out) {
    uint32_t unit = 0;
    if (!hex4(unit)) return false;
    if (unit >= 0xDC00 && unit <= 0xDFFF) return false;
    if (unit >= 0xD800 && unit <= 0xDBFF) {
      uint32_t low = 0;
      if (!take_word("\\u") || !hex4(low) || low < 0xDC00 || low > 0xDFFF) return false;
      unit = 0x10000 + ((unit - 0xD800) << 10) + (low - 0xDC00);
    }
    append_utf8(out, unit);
    return true;
  }

  bool hex4(uint32_t& unit) {
    if (text_.size() - at_ < 4) return false;
    const char* begin = text_.data() + at_;
    const auto [end, error] = std::from_chars(begin, begin + 4, unit, 16);
    at_ += 4;
    return error == std::errc{} && end == begin + 4;
  }

  std::string_view text_;
  size_t at_ = 0;
  int depth_ = 0;
};

}  // namespace

std::optional<std::vector<PythonMember>> read_python_object(std::string_view text) {
  std::vector<PythonMember> members;
  if (!Reader{text}.document(members)) return std::nullopt;
  return members;
}

}  // namespace fathom
