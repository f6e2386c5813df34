// Finds added tokens ("<｜User｜>") in raw text.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace fathom {

/// A set of texts with ids. Matches are leftmost, and the longest of those that begin there. The
/// time for one start is bounded by the length of the longest text, so a search is linear.
class AddedTokenMatcher {
 public:
  struct Match {
    size_t begin;
    size_t end;
    int32_t id;
  };

  /// Adds a text, which is not empty. Texts are unique.
  void add(std::string text, int32_t id);

  /// Call once, after the last add.
  void finish();

  bool empty() const { return tokens_.empty(); }

  /// The first match at or after `from`.
  std::optional<Match> find(std::string_view text, size_t from) const;

 private:
  struct Token {
    std::string text;
    int32_t id;
  };

  std::optional<Match> match_at(std::string_view text, size_t begin) const;

  std::vector<Token> tokens_;            // sorted by bytes
  std::array<bool, 256> begins_with_{};  // bytes that begin a text
};

}  // namespace fathom
