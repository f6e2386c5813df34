// Numbers and sizes as text for people.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace fathom {

/// "1.23 GB", "345 MB", "12.0 kB", "7 B": powers of ten, for files, traffic and rates.
std::string format_bytes(int64_t bytes);

/// "1.50 GiB", "640.00 MiB", "7 bytes": powers of two, for memory that is there or is taken.
std::string format_memory(int64_t bytes);

/// Three significant digits with a prefix of powers of ten: "1.23 G", "345 M", "12.0 k", "7.00".
std::string format_si(double value);

/// Digits in groups: 671,026,419,200.
std::string format_count(int64_t value);

/// Fixed number of decimals.
std::string format_fixed(double value, int decimals);

/// A table of text cells as Markdown, columns aligned but for those wider than kWidestAligned.
class MarkdownTable {
 public:
  static constexpr size_t kWidestAligned = 40;

  explicit MarkdownTable(std::vector<std::string> header) : rows_{std::move(header)} {}

  /// One cell for each column of the header.
  void add(std::vector<std::string> cells) { rows_.push_back(std::move(cells)); }

  bool empty() const { return rows_.size() < 2; }

  /// Columns whose cells are all numbers are aligned to the right. Bars within cells are escaped.
  std::string str() const;

 private:
  std::vector<std::vector<std::string>> rows_;
};

}  // namespace fathom
