// Sizes of an NVFP4 super-tile of layout kRows16; tile_layout.h has its diagram. Constants alone:
// loops that are compiled for an instruction set of their own include this file too.
#pragma once

#include <cstdint>

namespace fathom {

inline constexpr int64_t kSuperTileK = 64;
inline constexpr int64_t kSuperTileScales =
    512;  ///< where the scale bytes begin, behind four tiles
inline constexpr int64_t kSuperTileBytes = kSuperTileScales + kSuperTileK;

}  // namespace fathom
