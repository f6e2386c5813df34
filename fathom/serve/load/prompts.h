// Prompts made of nothing: seeded ids and seeded words.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "fathom/base/rng.h"

namespace fathom::serve {

/// Ids that are ordinary tokens: from an eighth to seven eighths of the vocabulary, since control
/// tokens stand at its ends.
std::vector<int32_t> random_ids(Rng& rng, int64_t count, int64_t vocab_size);

/// English words with blanks between them; about 1.1 tokens a word in usual vocabularies.
std::string random_words(Rng& rng, int64_t count);

/// Lengths of random prompts and answers.
struct RandomLengths {
  int64_t input = 1024;
  int64_t output = 128;
  double range_ratio = 0;  ///< [0, 1): lengths are uniform from L (1 - r) to L (1 + r)
};

struct PromptShape {
  int64_t input = 0;
  int64_t output = 0;
};

/// Both lengths at least 1.
std::vector<PromptShape> random_shapes(const RandomLengths& lengths, int64_t count, uint64_t seed);

}  // namespace fathom::serve
