// Matrices cut into items of equal size (most often eight elements) that are counted through all
// rows, several a thread: every load of a thread is under way before its first use, and no thread
// is idle however wide a row is.
#pragma once

#include <cstdint>

#include "fathom/base/checked_math.h"
#include "fathom/base/str_cat.h"
#include "fathom/kernels/cuda/device_code.cuh"
#include "fathom/kernels/cuda/launch_cuda.h"

namespace fathom::cuda {

inline constexpr int kFlatThreads = 256;
inline constexpr int64_t kThreadsOfSm = 2048;  ///< that a multiprocessor has room for

/// Division of numbers below 2^31 by one that the host knows: a product and a shift.
///
///   n / d = (n * m) >> (31 + s),   s = ceil(log2 d),   m = ceil(2^(31+s) / d)
///
/// m d exceeds 2^(31+s) by less than d <= 2^s, so the quotient exceeds n / d by less than 1/d.
struct FastDivide {
  uint32_t divisor = 1;
  uint32_t multiplier = 1u << 31;
  int shift = 31;

  FastDivide() = default;

  explicit FastDivide(int64_t d) : divisor(static_cast<uint32_t>(d < 1 ? 1 : d)) {
    int log2 = 0;
    while ((int64_t{1} << log2) < divisor)
      ++log2;
    shift = 31 + log2;
    multiplier = static_cast<uint32_t>(((uint64_t{1} << shift) + divisor - 1) / divisor);
  }

  __device__ uint32_t of(uint32_t n) const {
    return static_cast<uint32_t>((uint64_t{n} * multiplier) >> shift);
  }
};

struct ItemPlace {
  int64_t row;
  int item;     ///< within the row
  bool exists;  ///< false past the end
};

/// Items of all rows.
struct FlatItems {
  int64_t total = 0;
  FastDivide per_row;

  __device__ ItemPlace place(int64_t number) const {
    if (total < (int64_t{1} << 31)) {
      const uint32_t row = per_row.of(static_cast<uint32_t>(number));
      const uint32_t item = static_cast<uint32_t>(number) - row * per_row.divisor;
      return {row, static_cast<int>(item), number < total};
    }
    const int64_t row = number / per_row.divisor;
    return {row, static_cast<int>(number - row * per_row.divisor), number < total};
  }

  /// Item i of this thread, of kEach.
  template <int kEach>
  __device__ ItemPlace mine(int i) const {
    return place(int64_t{blockIdx.x} * (kFlatThreads * kEach) + i * kFlatThreads + threadIdx.x);
  }
};

inline FlatItems flat_items(int64_t num_rows, int64_t items_per_row) {
  return {num_rows * items_per_row, FastDivide(items_per_row)};
}

/// A thread for each item.
inline LaunchShape one_item_each(const FlatItems& items) {
  return {.blocks = (items.total + kFlatThreads - 1) / kFlatThreads, .threads = kFlatThreads};
}

/// Calls f.template operator()<kEach>(shape): one item a thread while the GPU has room for all of
/// them at once, else kMost. No result depends on it.
template <int kMost = 4, class F>
Status with_items_each(const Exec& ex, const FlatItems& items, F&& f) {
  const auto shape = [&](int64_t each) {
    return LaunchShape{.blocks = (items.total + kFlatThreads * each - 1) / (kFlatThreads * each),
                       .threads = kFlatThreads};
  };
  if (items.total <= ex.device->num_sms * kThreadsOfSm) return f.template operator()<1>(shape(1));
  return f.template operator()<kMost>(shape(kMost));
}

// ---- pieces ----
//
// Rows cut into pieces of 32 * kEach items, a warp for each: a thread takes kEach items of one row,
// a constant distance apart, so that it finds its place once.

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
  const bool has_room = num_rows * items_per_row <= ex.device->num_sms * kThreadsOfSm;
  return has_room ? call.template operator()<1>() : call.template operator()<kMost>();
}

}  // namespace fathom::cuda
