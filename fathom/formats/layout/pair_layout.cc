#include "fathom/formats/layout/pair_layout.h"

#include <cstring>

#include "fathom/base/check.h"

namespace fathom {
namespace {

using Words = std::array<uint32_t, 4>;

static_assert(paired_word<true>(paired_word(0x12345678u)) == 0x12345678u);

/// Byte j of word i becomes byte i of word j: the pairs of a lane into its word, and back.
constexpr Words transposed(const Words& w) {
  Words out{};
  for (size_t i = 0; i < 4; ++i) {
    for (size_t j = 0; j < 4; ++j)
      out[j] |= (w[i] >> (8 * j) & 0xFFu) << (8 * i);
  }
  return out;
}

template <class F>
void for_each_group(std::span<std::byte> rows, F&& change) {
  FATHOM_CHECK(rows.size() % kPairedBytes == 0, "rows of a multiple of 32 codes");
  Words words;
  static_assert(sizeof(words) == kPairedBytes);
  for (size_t at = 0; at < rows.size(); at += kPairedBytes) {
    std::memcpy(words.data(), rows.data() + at, kPairedBytes);
    words = change(words);
    std::memcpy(rows.data() + at, words.data(), kPairedBytes);
  }
}

}  // namespace

void pair_codes(std::span<std::byte> rows) {
  for_each_group(rows, [](const Words& natural) {
    Words words = transposed(natural);
    for (uint32_t& w : words)
      w = paired_word(w);
    return words;
  });
}

void unpair_codes(std::span<std::byte> rows) {
  for_each_group(rows, [](Words words) {
    for (uint32_t& w : words)
      w = paired_word<true>(w);
    return transposed(words);
  });
}

}  // namespace fathom
