#include "fathom/serve/load/prompts.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <string_view>

namespace fathom::serve {
namespace {

constexpr std::array<std::string_view, 128> kWords = {
    "time",    "water",   "people",  "house",  "night",  "light",  "world",  "story",  "green",
    "river",   "small",   "large",   "under",  "above",  "before", "after",  "first",  "second",
    "third",   "paper",   "table",   "window", "garden", "street", "market", "school", "letter",
    "number",  "answer",  "reason",  "moment", "minute", "hour",   "week",   "month",  "year",
    "summer",  "winter",  "spring",  "autumn", "north",  "south",  "east",   "west",   "mountain",
    "island",  "forest",  "stone",   "metal",  "glass",  "wood",   "fire",   "earth",  "wind",
    "storm",   "cloud",   "rain",    "snow",   "sand",   "road",   "bridge", "train",  "engine",
    "wheel",   "machine", "power",   "energy", "signal", "sound",  "voice",  "music",  "picture",
    "color",   "blue",    "red",     "black",  "white",  "yellow", "brown",  "silver", "gold",
    "bread",   "apple",   "sugar",   "salt",   "coffee", "milk",   "field",  "farm",   "horse",
    "bird",    "fish",    "dog",     "cat",    "child",  "mother", "father", "sister", "brother",
    "friend",  "doctor",  "teacher", "writer", "worker", "leader", "king",   "city",   "country",
    "village", "law",     "order",   "peace",  "money",  "price",  "value",  "trade",  "travel",
    "learn",   "teach",   "build",   "carry",  "follow", "listen", "speak",  "write",  "read",
    "think",   "know"};

int64_t spread_length(Rng& rng, int64_t length, double ratio) {
  const double exact = static_cast<double>(length);
  const auto low = static_cast<int64_t>(std::floor(exact * (1 - ratio)));
  const auto high = static_cast<int64_t>(std::ceil(exact * (1 + ratio)));
  const auto choices = static_cast<uint32_t>(std::min<int64_t>(high - low + 1, UINT32_MAX));
  return std::max<int64_t>(low + rng.next_below(choices), 1);
}

}  // namespace

std::vector<int32_t> random_ids(Rng& rng, int64_t count, int64_t vocab_size) {
  const int64_t low = vocab_size / 8;
  const auto choices = static_cast<uint32_t>(std::max<int64_t>(vocab_size - 2 * low, 1));
  std::vector<int32_t> ids(static_cast<size_t>(count));
  for (int32_t& id : ids)
    id = static_cast<int32_t>(low + rng.next_below(choices));
  return ids;
}

std::string random_words(Rng& rng, int64_t count) {
  std::string text;
  for (int64_t i = 0; i < count; ++i) {
    if (i > 0) text += ' ';
    text += kWords[rng.next_below(kWords.size())];
  }
  return text;
}

std::vector<PromptShape> random_shapes(const RandomLengths& lengths, int64_t count, uint64_t seed) {
  constexpr uint64_t kStream = 1;
  Rng rng(seed, kStream);
  std::vector<PromptShape> shapes(static_cast<size_t>(count));
  for (PromptShape& shape : shapes) {
    shape.input = spread_length(rng, lengths.input, lengths.range_ratio);
    shape.output = spread_length(rng, lengths.output, lengths.range_ratio);
  }
  return shapes;
}

}  // namespace fathom::serve
