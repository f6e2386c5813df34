// Typed, checked access to the members of a JSON object, with messages that name the key.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "fathom/base/status.h"
#include "fathom/text/json.h"

namespace fathom {

/// Reads one object. A key that holds null counts as absent. The first error sticks: later reads
/// return their defaults, so that a reader lists its keys without a branch after each.
class ConfigReader {
 public:
  /// `object` outlives the reader; `what` names it ("config.json: rope_scaling").
  ConfigReader(const Json& object, std::string what);

  bool has(std::string_view key) const;
  const Json* find(std::string_view key) const;

  /// Whether any key begins so.
  bool has_prefix(std::string_view prefix) const;

  /// A required integer in [low, high].
  int64_t integer(std::string_view key, int64_t low, int64_t high);

  /// An integer in [low, high], or `absent`.
  int64_t integer_or(std::string_view key, int64_t low, int64_t high, int64_t absent);

  /// A number in [low, high]; an integer counts as one.
  double number(std::string_view key, double low, double high);
  double number_or(std::string_view key, double low, double high, double absent);

  bool boolean_or(std::string_view key, bool absent);

  std::string text_or(std::string_view key, std::string_view absent);

  /// One id or a list of them, each in [0, high].
  std::vector<int64_t> ids(std::string_view key, int64_t high);

  /// Records an error; the first one stays.
  void fail(Status status);

  /// Corrupt: "WHAT: KEY is FOUND, expected EXPECTED".
  void fail_value(std::string_view key, std::string_view expected);

  const std::string& what() const { return what_; }

  Status take_status() { return std::move(status_); }

 private:
  std::string found(std::string_view key) const;

  const Json& object_;
  std::string what_;
  Status status_;
};

}  // namespace fathom
