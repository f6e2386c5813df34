#include "fathom/text/csv_records.h"

#include <charconv>
#include <cmath>

namespace fathom {
namespace {

constexpr size_t kMaxFieldBytes = 1 << 16;

}  // namespace

void append_csv_field(std::string& out, std::string_view text) {
  if (text.find_first_of(",\"\r\n") == std::string_view::npos) {
    out += text;
    return;
  }
  out += '"';
  for (char c : text) {
    if (c == '"') out += '"';
    out += c;
  }
  out += '"';
}

void append_csv_record(std::string& out, const std::vector<std::string>& fields) {
  for (size_t i = 0; i < fields.size(); ++i) {
    if (i > 0) out += ',';
    append_csv_field(out, fields[i]);
  }
  out += '\n';
}

Result<std::vector<std::string>> CsvRecords::next() {
  std::vector<std::string> fields(1);
  bool quoted = false;
  for (; !done(); ++at_) {
    const char c = text_[at_];
    std::string& field = fields.back();
    if (c == '\n') ++line_;
    if (quoted) {
      if (c != '"') {
        field += c;
      } else if (at_ + 1 < text_.size() && text_[at_ + 1] == '"') {
        field += c;
        ++at_;
      } else {
        quoted = false;
      }
    } else if (c == '"') {
      quoted = true;
    } else if (c == ',') {
      fields.emplace_back();
    } else if (c == '\n') {
      ++at_;
      return fields;
    } else if (c != '\r') {
      field += c;
    }
    if (fields.back().size() > kMaxFieldBytes) {
      return corrupt(str_cat("a field has more than ", kMaxFieldBytes, " bytes"));
    }
  }
  if (quoted) return corrupt("a quoted field does not end");
  return fields;
}

Result<double> parse_csv_number(std::string_view text) {
  double value = 0;
  const auto end = std::from_chars(text.data(), text.data() + text.size(), value);
  if (end.ec != std::errc{} || end.ptr != text.data() + text.size()) {
    return corrupt(str_cat("'", text.substr(0, 40), "' is no number"));
  }
  if (!std::isfinite(value)) return corrupt(str_cat("'", text.substr(0, 40), "' is not finite"));
  return value;
}

}  // namespace fathom
