// Signatures of thinking blocks: they show, when a block comes back in a history, that this server
// wrote it and that it was not changed.
#pragma once

#include <string>
#include <string_view>

namespace fathom::serve {

/// Immutable, so safe to share between threads.
class ThinkingSigner {
 public:
  /// A key that nobody can guess; signatures of other processes do not hold.
  ThinkingSigner();

  explicit ThinkingSigner(std::string key) : key_(std::move(key)) {}

  /// HMAC-SHA-256 of the text, as 64 hexadecimal digits.
  std::string sign(std::string_view thinking) const;

  bool holds(std::string_view thinking, std::string_view signature) const;

 private:
  std::string key_;
};

}  // namespace fathom::serve
