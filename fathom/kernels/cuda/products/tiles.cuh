// Matrices cut into vectors of eight elements, one a thread, for kernels whose elements or rows are
// independent. Wide rows take whole blocks, narrow rows share a block; no thread divides.
#pragma once

#include <cstdint>

#include "fathom/kernels/cuda/launch_cuda.h"

namespace fathom::cuda {

inline constexpr int kTileThreads = 256;

struct VectorPlace {
  int64_t row;
  int vector;   ///< within the row
  bool exists;  ///< false for threads past the end
};

/// How rows of `num_vectors` vectors lie over blocks of kTileThreads threads.
struct RowTiles {
  int64_t num_rows = 0;
  int num_vectors = 0;
  int log2_lanes = 0;  ///< threads that one row takes in a block, a power of two
  int pieces = 1;      ///< blocks that one row takes

  __device__ VectorPlace place() const {
    const int tid = static_cast<int>(threadIdx.x);
    const int lane = tid & ((1 << log2_lanes) - 1);
    if (pieces > 1) {
      const auto block = static_cast<unsigned>(blockIdx.x);
      const unsigned row = block / static_cast<unsigned>(pieces);
      const int vector =
          static_cast<int>(block - row * static_cast<unsigned>(pieces)) * kTileThreads + lane;
      return {row, vector, vector < num_vectors};
    }
    const int64_t row = int64_t{blockIdx.x} * (kTileThreads >> log2_lanes) + (tid >> log2_lanes);
    return {row, lane, row < num_rows && lane < num_vectors};
  }
};

/// Rows of `num_vectors` vectors each.
inline RowTiles row_tiles(int64_t num_rows, int64_t num_vectors) {
  RowTiles tiles;
  tiles.num_rows = num_rows;
  tiles.num_vectors = static_cast<int>(num_vectors);
  tiles.pieces = static_cast<int>((num_vectors + kTileThreads - 1) / kTileThreads);
  while ((1 << tiles.log2_lanes) < kTileThreads && (1 << tiles.log2_lanes) < num_vectors)
    ++tiles.log2_lanes;
  return tiles;
}

inline LaunchShape shape_of(const RowTiles& tiles) {
  if (tiles.num_rows == 0 || tiles.num_vectors == 0) return {};
  const int rows_per_block = kTileThreads >> tiles.log2_lanes;
  const int64_t blocks = tiles.pieces > 1 ? tiles.num_rows * tiles.pieces
                                          : (tiles.num_rows + rows_per_block - 1) / rows_per_block;
  return {.blocks = blocks, .threads = kTileThreads};
}

}  // namespace fathom::cuda
