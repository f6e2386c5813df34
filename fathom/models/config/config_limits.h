// What the readers of a configuration share: the largest sizes, and how contradictions are told.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "fathom/base/status.h"

namespace fathom {

// What is refused beyond, so that no size of a matrix overflows.
inline constexpr int64_t kMaxLayers = 1024;
inline constexpr int64_t kMaxHidden = 65'536;
inline constexpr int64_t kMaxHeads = 1024;
inline constexpr int64_t kMaxVocab = 1'048'576;
inline constexpr int64_t kMaxHeadDim = 4096;
inline constexpr int64_t kMaxIndexHeadDim = 1024;  // a row of the indexer's kernels
inline constexpr int64_t kMaxIntermediate = 1'048'576;
inline constexpr int64_t kMaxPositions = 1ll << 24;
inline constexpr int64_t kMaxRotaryNumbers = 1ll << 28;  // of the table: 1 GiB in float32

template <class T>
Status contradiction(std::string_view what,
                     std::string_view key,
                     const T& found,
                     std::string_view expected) {
  return corrupt(str_cat(what, ": ", key, " is ", found, ", expected ", expected));
}

}  // namespace fathom
