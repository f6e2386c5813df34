#include "fathom/text/json_writer.h"

#include <charconv>
#include <cmath>

#include "fathom/base/check.h"
#include "fathom/base/str_cat.h"
#include "fathom/text/utf8.h"

namespace fathom {
namespace {

void append_unicode_escape(std::string& out, unsigned unit) {
  constexpr char kHex[] = "0123456789abcdef";
  out.append("\\u");
  for (int shift = 12; shift >= 0; shift -= 4)
    out.push_back(kHex[unit >> shift & 15u]);
}

void append_escaped_beyond_ascii(std::string& out, char32_t c) {
  if (c < 0x10000) return append_unicode_escape(out, c);
  append_unicode_escape(out, 0xD800u + ((c - 0x10000u) >> 10));
  append_unicode_escape(out, 0xDC00u + ((c - 0x10000u) & 0x3FFu));
}

void append_escaped_ascii(std::string& out, char c, JsonCharset charset) {
  switch (c) {
    case '"':
      out.append("\\\"");
      return;
    case '\\':
      out.append("\\\\");
      return;
    case '\b':
      out.append("\\b");
      return;
    case '\f':
      out.append("\\f");
      return;
    case '\n':
      out.append("\\n");
      return;
    case '\r':
      out.append("\\r");
      return;
    case '\t':
      out.append("\\t");
      return;
    default:
      break;
  }
  const auto byte = static_cast<unsigned char>(c);
  // Python escapes DEL only together with what lies beyond ASCII.
  if (byte < 0x20 || (byte == 0x7F && charset == JsonCharset::kAscii)) {
    append_unicode_escape(out, byte);
  } else {
    out.push_back(c);
  }
}

}  // namespace

void append_json_string(std::string& out, std::string_view value, JsonCharset charset) {
  out.push_back('"');
  for (size_t offset = 0; offset < value.size();) {
    if (static_cast<unsigned char>(value[offset]) < 0x80) {
      append_escaped_ascii(out, value[offset], charset);
      ++offset;
      continue;
    }
    const Utf8Step step = decode_utf8(value, offset);
    offset += step.length;
    if (charset == JsonCharset::kAscii) {
      append_escaped_beyond_ascii(out, step.code_point);
    } else {
      append_utf8(out, step.code_point);
    }
  }
  out.push_back('"');
}

void append_json_number(std::string& out, double value) {
  if (!std::isfinite(value)) {
    out.append("null");
    return;
  }
  if (std::signbit(value)) {
    out.push_back('-');
    value = -value;
  }
  // Shortest digits as D.DDDe+XX, laid out by Python's rule: an exponent below 1e-4 and from 1e16.
  char buffer[40];
  const auto end =
      std::to_chars(buffer, buffer + sizeof buffer, value, std::chars_format::scientific);
  const std::string_view text{buffer, static_cast<size_t>(end.ptr - buffer)};
  const size_t e = text.find('e');
  int exponent = 0;
  const size_t exponent_begin = text[e + 1] == '+' ? e + 2 : e + 1;
  std::from_chars(text.data() + exponent_begin, text.data() + text.size(), exponent);
  if (exponent < -4 || exponent >= 16) {
    out.append(text);
    return;
  }
  std::string digits{text.substr(0, 1)};
  if (e > 2) digits.append(text.substr(2, e - 2));
  if (exponent < 0) {
    out.append("0.");
    out.append(static_cast<size_t>(-exponent - 1), '0');
    out.append(digits);
    return;
  }
  const auto num_whole = static_cast<size_t>(exponent) + 1;
  if (digits.size() <= num_whole) {
    out.append(digits);
    out.append(num_whole - digits.size(), '0');
    out.append(".0");
    return;
  }
  out.append(digits, 0, num_whole);
  out.push_back('.');
  out.append(digits, num_whole);
}

void JsonWriter::new_line() {
  out_.push_back('\n');
  out_.append(levels_.size() * (style_ == JsonStyle::kIndented4 ? 4 : 2), ' ');
}

void JsonWriter::separate(Level& level) {
  if (!level.is_empty) out_.append(style_ == JsonStyle::kPython ? ", " : ",");
  level.is_empty = false;
  if (is_indented()) new_line();
}

void JsonWriter::before_value() {
  if (levels_.empty()) {
    FATHOM_CHECK(out_.empty(), "a JSON document holds one value");
    return;
  }
  Level& level = levels_.back();
  if (level.is_object) {
    FATHOM_CHECK(level.has_key, "a value in a JSON object needs a key");
    level.has_key = false;
  } else {
    separate(level);
  }
}

JsonWriter& JsonWriter::open(bool is_object) {
  before_value();
  out_.push_back(is_object ? '{' : '[');
  levels_.push_back({.is_object = is_object, .is_empty = true, .has_key = false});
  return *this;
}

JsonWriter& JsonWriter::close(bool is_object) {
  FATHOM_CHECK(!levels_.empty() && levels_.back().is_object == is_object && !levels_.back().has_key,
               "this JSON container is not open or lacks a value");
  const bool is_empty = levels_.back().is_empty;
  levels_.pop_back();
  if (!is_empty && is_indented()) new_line();
  out_.push_back(is_object ? '}' : ']');
  return *this;
}

JsonWriter& JsonWriter::begin_object() {
  return open(true);
}

JsonWriter& JsonWriter::end_object() {
  return close(true);
}

JsonWriter& JsonWriter::begin_array() {
  return open(false);
}

JsonWriter& JsonWriter::end_array() {
  return close(false);
}

JsonWriter& JsonWriter::key(std::string_view name) {
  FATHOM_CHECK(!levels_.empty() && levels_.back().is_object && !levels_.back().has_key,
               "a JSON key belongs into an object, before its value");
  separate(levels_.back());
  append_json_string(out_, name, charset_);
  out_.append(style_ == JsonStyle::kCompact ? ":" : ": ");
  levels_.back().has_key = true;
  return *this;
}

JsonWriter& JsonWriter::null() {
  before_value();
  out_.append("null");
  return *this;
}

JsonWriter& JsonWriter::boolean(bool value) {
  before_value();
  str_append(out_, value);
  return *this;
}

JsonWriter& JsonWriter::integer(int64_t value) {
  before_value();
  str_append(out_, value);
  return *this;
}

JsonWriter& JsonWriter::unsigned_integer(uint64_t value) {
  before_value();
  str_append(out_, value);
  return *this;
}

JsonWriter& JsonWriter::number(double value) {
  before_value();
  append_json_number(out_, value);
  return *this;
}

JsonWriter& JsonWriter::string(std::string_view value) {
  before_value();
  append_json_string(out_, value, charset_);
  return *this;
}

JsonWriter& JsonWriter::json(const Json& value) {
  switch (value.kind()) {
    case Json::Kind::kNull:
      return null();
    case Json::Kind::kBool:
      return boolean(value.as_bool());
    case Json::Kind::kInt:
      return integer(value.as_int());
    case Json::Kind::kUint:
      return unsigned_integer(value.as_uint());
    case Json::Kind::kDouble:
      return number(value.as_double());
    case Json::Kind::kString:
      return string(value.as_string());
    case Json::Kind::kArray:
      begin_array();
      for (const Json& item : value.items())
        json(item);
      return end_array();
    case Json::Kind::kObject:
      begin_object();
      for (const auto& [name, member] : value.members())
        key(name).json(member);
      return end_object();
  }
  return *this;
}

std::string JsonWriter::take() {
  FATHOM_CHECK(levels_.empty(), "a JSON container is still open");
  std::string text = std::move(out_);
  out_.clear();
  return text;
}

std::string dump_json(const Json& value, JsonStyle style, JsonCharset charset) {
  JsonWriter writer{style, charset};
  writer.json(value);
  return writer.take();
}

std::string dump_json_like_python(const Json& value) {
  return dump_json(value, JsonStyle::kPython);
}

}  // namespace fathom
