#include "fathom/tokenizer/added_tokens.h"

#include <algorithm>

#include "fathom/base/check.h"

namespace fathom {

void AddedTokenMatcher::add(std::string text, int32_t id) {
  FATHOM_CHECK(!text.empty(), "an added token is empty");
  begins_with_[static_cast<unsigned char>(text.front())] = true;
  tokens_.push_back({std::move(text), id});
}

void AddedTokenMatcher::finish() {
  std::sort(tokens_.begin(), tokens_.end(),
            [](const Token& a, const Token& b) { return a.text < b.text; });
}

std::optional<AddedTokenMatcher::Match> AddedTokenMatcher::match_at(std::string_view text,
                                                                    size_t begin) const {
  // The tokens that agree with the text so far lie side by side; each byte narrows them down.
  auto low = tokens_.begin();
  auto high = tokens_.end();
  std::optional<Match> longest;
  for (size_t depth = 0; begin + depth < text.size() && low != high; ++depth) {
    const auto byte = static_cast<unsigned char>(text[begin + depth]);
    const auto byte_of = [depth](const Token& token) {
      return static_cast<unsigned char>(token.text[depth]);
    };
    // A token that ends here sorts before those that go on, and was noted already.
    if (low->text.size() == depth) ++low;
    low = std::partition_point(low, high, [&](const Token& t) { return byte_of(t) < byte; });
    high = std::partition_point(low, high, [&](const Token& t) { return byte_of(t) == byte; });
    if (low != high && low->text.size() == depth + 1) {
      longest = Match{begin, begin + depth + 1, low->id};
    }
  }
  return longest;
}

std::optional<AddedTokenMatcher::Match> AddedTokenMatcher::find(std::string_view text,
                                                                size_t from) const {
  if (tokens_.empty()) return std::nullopt;
  for (size_t begin = from; begin < text.size(); ++begin) {
    if (!begins_with_[static_cast<unsigned char>(text[begin])]) continue;
    if (const auto match = match_at(text, begin)) return match;
  }
  return std::nullopt;
}

}  // namespace fathom
