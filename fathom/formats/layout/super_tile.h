// Sizes of the super-tiles of layout kRows16; tile_layout.h has their diagrams. Constants alone:
// loops that are compiled for an instruction set of their own include this file too.
#pragma once

#include <cstdint>

namespace fathom {

// NVFP4 and MXFP4.
inline constexpr int64_t kSuperTileK = 64;
inline constexpr int64_t kSuperTileScales =
    512;  ///< where the scale bytes begin, behind four tiles
inline constexpr int64_t kSuperTileBytes = kSuperTileScales + kSuperTileK;

// MXFP8: four blocks of 32 k.
inline constexpr int64_t kMxfp8TileK = 128;
inline constexpr int64_t kMxfp8BlockBytes = 512;  ///< of sixteen rows of a block
inline constexpr int64_t kMxfp8Scales = 2048;     ///< where the scale bytes begin
inline constexpr int64_t kMxfp8TileBytes = kMxfp8Scales + 64;

}  // namespace fathom
