// The kinds of layers of DeepSeek-V4.
#pragma once

#include <cstdint>

namespace fathom {

/// What a layer attends to besides its window; the number is that of tokens of a row.
enum class CompressRatio : uint8_t {
  kNone = 0,     ///< nothing ("sliding attention")
  kSparse = 4,   ///< rows that an indexer chooses (CSA)
  kHeavy = 128,  ///< every row (HCA)
};

}  // namespace fathom
