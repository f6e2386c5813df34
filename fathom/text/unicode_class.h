// The class of a code point, as pre-tokenizer patterns see it.
#pragma once

#include <cstdint>
#include <span>

namespace fathom {

/// Classes are disjoint: White_Space holds no letter, mark, number, punctuation or symbol.
enum class CharClass : uint8_t {
  kOther,        ///< controls, format characters, surrogates, private use, unassigned
  kLetter,       ///< \p{L}
  kMark,         ///< \p{M}
  kNumber,       ///< \p{N}: decimal digits, letter numbers and other numbers
  kPunctuation,  ///< \p{P}
  kSymbol,       ///< \p{S}
  kSpace,        ///< \s: the property White_Space
};

/// The class by Unicode 16.0, the version of the reference tokenizer.
CharClass char_class(char32_t c);

/// The table behind char_class: sorted runs, first code point << 8 | class. A run ends where the
/// next one begins; the first starts at 0.
std::span<const uint32_t> unicode_class_runs();

}  // namespace fathom
