#include "fathom/runtime/draft/ngram_index.h"

#include <algorithm>

#include "fathom/base/check.h"

namespace fathom {
namespace {

uint32_t hash_of(const int32_t* last) {
  uint64_t h = 0;
  for (int64_t i = 0; i < NgramIndex::kShortest; ++i)
    h = (h ^ static_cast<uint32_t>(last[-i])) * 0x9E3779B97F4A7C15u;
  return static_cast<uint32_t>(h >> 32);
}

int64_t equal_tokens(const int32_t* a, const int32_t* b, int64_t most) {
  int64_t n = 0;
  while (n < most && a[-n] == b[-n])
    ++n;
  return n;
}

}  // namespace

void NgramIndex::link(int64_t place) {
  int32_t& newest = newest_[hashes_[static_cast<size_t>(place)] & (newest_.size() - 1)];
  previous_[static_cast<size_t>(place)] = newest;
  newest = static_cast<int32_t>(place);
}

void NgramIndex::follow(std::span<const int32_t> tokens) {
  const auto size = static_cast<int64_t>(tokens.size());
  auto place = static_cast<int64_t>(hashes_.size());
  FATHOM_CHECK(place <= size, "a text only grows");
  hashes_.resize(tokens.size());
  previous_.resize(tokens.size(), -1);
  if (newest_.size() < tokens.size()) {
    size_t buckets = std::max<size_t>(2 * newest_.size(), 256);
    while (buckets < tokens.size())
      buckets *= 2;
    newest_.assign(buckets, -1);
    for (int64_t p = kShortest - 1; p < place; ++p)
      link(p);
  }
  for (; place < size; ++place) {
    if (place < kShortest - 1) continue;
    hashes_[static_cast<size_t>(place)] = hash_of(&tokens[static_cast<size_t>(place)]);
    link(place);
  }
}

int64_t NgramIndex::find(std::span<const int32_t> tokens) const {
  const auto size = static_cast<int64_t>(tokens.size());
  FATHOM_CHECK(tokens.size() == hashes_.size(), "the text that was followed");
  if (size < kShortest + 1) return -1;
  const int32_t* const last = &tokens.back();
  int64_t best = -1;
  int64_t longest = kShortest - 1;
  int32_t place = previous_.back();
  int matches = 0;  // other runs in the same bucket cost a step, but no place
  for (int i = 0; i < 4 * kMostPlaces && matches < kMostPlaces && place >= 0; ++i) {
    const int64_t most = std::min<int64_t>(kLongest, place + 1);
    const int64_t n = equal_tokens(last, &tokens[static_cast<size_t>(place)], most);
    matches += n >= kShortest ? 1 : 0;
    if (n > longest) {
      longest = n;
      best = place;
    }
    place = previous_[static_cast<size_t>(place)];
  }
  return best < 0 ? -1 : best + 1;
}

}  // namespace fathom
