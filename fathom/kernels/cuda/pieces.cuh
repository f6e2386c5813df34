// Rows cut into pieces of 32 * kEach items (most often eight elements), a warp for each: a thread
// takes kEach items of one row, a constant distance apart, so that it finds its place once, and all
// its loads are under way before the first use.
#pragma once

#include <cstdint>

#include "fathom/base/checked_math.h"
#include "fathom/base/str_cat.h"
#include "fathom/kernels/cuda/device_code.cuh"
#include "fathom/kernels/cuda/flat.cuh"
#include "fathom/kernels/cuda/launch_cuda.h"

namespace fathom::cuda {

struct PiecePlace {
  int64_t row;
  uint32_t first;  ///< item of the piece, within the row
  bool exists;     ///< false past the end; the same in all lanes
};

/// Pieces of all rows.
struct RowPieces {
  uint32_t total = 0;
  int items_per_row = 0;
  FastDivide per_row;

  /// The piece of this warp.
  template <int kEach>
  __device__ PiecePlace mine() const {
    const uint32_t number = blockIdx.x * (kFlatThreads / 32) + static_cast<uint32_t>(warp_id());
    const uint32_t row = per_row.of(number);
    const uint32_t piece = number - row * per_row.divisor;
    return {row, piece * (32 * kEach), number < total};
  }

  /// Items from this one on to the end of the row; not positive past it.
  __device__ int left(uint32_t item) const { return items_per_row - static_cast<int>(item); }
};

/// Calls f.template operator()<kEach>(pieces, shape): one item a thread while the GPU has room for
/// all of them at once, else kMost. No result depends on it. Errors: InvalidArgument for 2^31
/// pieces or as many items of a row.
template <int kMost, class F>
Status with_row_pieces(const Exec& ex, int64_t num_rows, int64_t items_per_row, F&& f) {
  const auto call = [&]<int kEach>() -> Status {
    const int64_t per_row = ceil_div<int64_t>(items_per_row, 32 * kEach);
    const int64_t total = num_rows * per_row;
    if (total >> 31 != 0 || items_per_row >> 31 != 0) {
      return invalid_argument(str_cat(num_rows, " rows of ", items_per_row,
                                      " items are more than a launch takes; split the call"));
    }
    const RowPieces pieces{static_cast<uint32_t>(total), static_cast<int>(items_per_row),
                           FastDivide(per_row)};
    constexpr int64_t kWarps = kFlatThreads / 32;
    return f.template operator()<kEach>(
        pieces, LaunchShape{.blocks = ceil_div(total, kWarps), .threads = kFlatThreads});
  };
  constexpr int64_t kThreadsOfSm = 2048;
  const bool has_room = num_rows * items_per_row <= ex.device->num_sms * kThreadsOfSm;
  return has_room ? call.template operator()<1>() : call.template operator()<kMost>();
}

}  // namespace fathom::cuda
