// Comma-separated values as records of fields (RFC 4180): quoting, and places for messages.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "fathom/base/status.h"

namespace fathom {

/// Appends one field, in quotes where commas, quotes or line breaks ask for them.
void append_csv_field(std::string& out, std::string_view text);

/// Appends fields as one record, line break included.
void append_csv_record(std::string& out, const std::vector<std::string>& fields);

/// Splits a text into records, one at a time. The text outlives the reader.
class CsvRecords {
 public:
  explicit CsvRecords(std::string_view text) : text_(text) {}

  bool done() const { return at_ >= text_.size(); }

  /// The line on which the next record begins, from 1.
  int64_t line() const { return line_; }

  /// The fields of the next record, at least one. Errors: Corrupt for a quoted field without end
  /// and for a field above 65,536 bytes. Never throws, whatever the bytes.
  Result<std::vector<std::string>> next();

 private:
  std::string_view text_;
  size_t at_ = 0;
  int64_t line_ = 1;
};

/// A finite number, the whole of `text`. Errors: Corrupt quoting what was found.
Result<double> parse_csv_number(std::string_view text);

}  // namespace fathom
