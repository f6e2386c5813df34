// NgramIndex: where the end of a growing text stood before, longest match first.
//
//   tokens   a b c d e  a b c d f  b c d       the end "b c d" stood at two places; at the later
//   one
//                    ^        ^                "a b c d" does not match, so both match 3 tokens and
//                                              the later one wins: f may come next
//
// A table has the newest place of each run of kShortest tokens, and each place names the one before
// it with the same hash (the chains of LZ77). A look-up goes along a chain for a bounded number of
// places and compares a bounded number of tokens, so a token costs the same however long the text.
// The table doubles with it.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace fathom {

class NgramIndex {
 public:
  static constexpr int64_t kShortest = 3;  ///< tokens that must match
  static constexpr int64_t kLongest = 32;  ///< tokens that are compared
  static constexpr int kMostPlaces = 16;   ///< of a chain that are looked at

  /// Takes in what is new of a text. It only grows: the tokens of earlier calls come first.
  void follow(std::span<const int32_t> tokens);

  /// Where to go on reading: the index of the token behind an earlier place that ends with the same
  /// tokens as the whole text, as many as can be found; the latest of equally long ones. -1: none.
  /// `tokens` are those of the last follow().
  int64_t find(std::span<const int32_t> tokens) const;

 private:
  void link(int64_t place);

  // A place is the index of the last token of a run.
  std::vector<int32_t> newest_;    // place of each bucket, -1: none; a power of two
  std::vector<int32_t> previous_;  // [place], the place before it in its bucket
  std::vector<uint32_t> hashes_;   // [place], so that a larger table needs no tokens
};

}  // namespace fathom
