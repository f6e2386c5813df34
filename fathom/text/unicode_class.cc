#include "fathom/text/unicode_class.h"

#include <algorithm>
#include <array>

namespace fathom {
namespace {

// Text below U+0800 (Latin, Greek, Cyrillic, Hebrew, Arabic) skips the search.
constexpr char32_t kDirectLimit = 0x800;

CharClass search(char32_t c) {
  const auto runs = unicode_class_runs();
  // The last run that begins at or before c: the largest class value is below 0xFF.
  const auto after = std::upper_bound(runs.begin(), runs.end(), c << 8 | 0xFFu);
  return static_cast<CharClass>(*(after - 1) & 0xFFu);
}

std::array<CharClass, kDirectLimit> make_direct_table() {
  std::array<CharClass, kDirectLimit> table{};
  for (char32_t c = 0; c < kDirectLimit; ++c)
    table[c] = search(c);
  return table;
}

}  // namespace

CharClass char_class(char32_t c) {
  static const auto direct = make_direct_table();
  return c < kDirectLimit ? direct[c] : search(c);
}

}  // namespace fathom
