// permute_rows for a y that no cache holds and rows of x that are taken several times.
//
// Gathered row by row of y, every row of x comes out of the L2 cache as often as it is taken, and
// those reads share the cache's bandwidth with as many bytes of writes. Here a block owns rows of x
// (or parts of them): it looks through all of src_row, keeps a list of the rows of y for each of
// its own, then loads each row once and stores it to all of its places. Lists are put together in
// any order, which no result depends on.
//
//   first[row]    the first entry of the list of a row of this block; the last list is of zeros
//   entries[e]    a row of y, and the entry after this one
//
// Where lists get too long for shared memory, they are worked off and begun anew. However uneven
// the choice of rows is, a row has as many blocks as it has parts.
#pragma once

#include <algorithm>

#include "fathom/base/checked_math.h"
#include "fathom/kernels/cuda/device_code.cuh"
#include "fathom/kernels/cuda/flat.cuh"
#include "fathom/kernels/cuda/launch_cuda.h"
#include "fathom/kernels/cuda/rows.cuh"

namespace fathom::cuda {

struct Scatter {
  static constexpr int kThreads = 1024;
  static constexpr int kEach = 8;                     ///< indices of a thread at once
  static constexpr int kStep = kThreads * kEach;      ///< of a block
  static constexpr int kEntries = kStep + kStep / 2;  ///< 96 KiB: two blocks fit, one waiting
  static constexpr int kMostRows = 2048;              ///< of x, of a block
  static constexpr int kMostParts = 16;
  static constexpr int64_t kLineBytes = 128;
  static constexpr int64_t kLeastPart = 8 * kLineBytes;
};

/// Block b has part b % parts of the rows of group b / parts.
struct ScatterShares {
  int num_sources = 0;  ///< rows of x
  int num_slots = 0;    ///< rows of y
  int units_of_row = 0;
  int units_of_part = 0;  ///< whole cache lines; the last part may have fewer
  int parts = 1;
  int rows_of_group = 0;
  int num_groups = 1;
  FastDivide of_part;
};

/// Of all ways to share a call out to the GPU's blocks the one whose largest share is smallest, of
/// those the one with the most parts.
inline ScatterShares scatter_shares(
    int64_t num_sms, int64_t num_sources, int64_t num_slots, int64_t row_bytes, int unit_bytes) {
  ScatterShares best{.num_sources = static_cast<int>(num_sources),
                     .num_slots = static_cast<int>(num_slots)};
  best.units_of_row = static_cast<int>(row_bytes / unit_bytes);
  const int64_t most_parts =
      std::clamp<int64_t>(row_bytes / Scatter::kLeastPart, 1, Scatter::kMostParts);
  int64_t least = INT64_MAX;
  for (int64_t wanted = 1; wanted <= most_parts; ++wanted) {
    const int64_t units =
        align_up(ceil_div<int64_t>(best.units_of_row, wanted), Scatter::kLineBytes / unit_bytes);
    const int64_t parts = ceil_div<int64_t>(best.units_of_row, units);
    const int64_t groups =
        std::max({num_sms / parts, int64_t{1}, ceil_div<int64_t>(num_sources, Scatter::kMostRows)});
    const int64_t rows = ceil_div(num_sources, groups);
    if (rows * units > least) continue;
    least = rows * units;
    best.units_of_part = static_cast<int>(units);
    best.parts = static_cast<int>(parts);
    best.rows_of_group = static_cast<int>(rows);
    best.num_groups = static_cast<int>(groups);
    best.of_part = FastDivide(units);
  }
  return best;
}

struct ScatterLists {
  int2* entries;
  int* count;
  int* first;

  __device__ explicit ScatterLists(int4* memory)
      : entries(reinterpret_cast<int2*>(memory)),
        count(reinterpret_cast<int*>(entries + Scatter::kEntries)),
        first(count + 1) {}

  static int64_t bytes(const ScatterShares& s) {
    return 8 * int64_t{Scatter::kEntries} + 4 * (int64_t{s.rows_of_group} + 2);
  }

  __device__ void add(int row, int slot) const {
    const int e = atomicAdd(count, 1);
    entries[e] = make_int2(slot, atomicExch(first + row, e));
  }
};

/// A unit of a row of this block, and the list of its places.
template <class Unit>
struct HeldUnit {
  Unit value{};
  int unit = 0;    ///< of the row
  int entry = -1;  ///< none: nothing to store

  __device__ HeldUnit(const ScatterShares& s,
                      const ScatterLists& lists,
                      const Rows<const Unit>& x,
                      int first_row,
                      int num_rows,
                      int first_unit,
                      int item) {
    const int row = static_cast<int>(s.of_part.of(static_cast<uint32_t>(item)));
    if (row > num_rows) return;
    unit = first_unit + item - row * s.units_of_part;
    if (unit >= s.units_of_row) return;
    entry = lists.first[row];
    if (entry >= 0 && row < num_rows) value = __ldcs(x[int64_t{first_row} + row] + unit);
  }
};

/// The list of this block that a row of y belongs to; -1: none. Zeros are shared out by groups.
__device__ __forceinline__ int list_of(
    const ScatterShares& s, int32_t source, int slot, int group, int num_rows) {
  if (source < 0 || source >= s.num_sources) return slot % s.num_groups == group ? num_rows : -1;
  const int row = source - group * s.rows_of_group;
  return row < num_rows ? row : -1;
}

extern __shared__ int4 scatter_shared[];

template <class Unit>
__global__ void __launch_bounds__(Scatter::kThreads, 2)
    scatter_rows(Rows<const Unit> x, const int32_t* src_row, Rows<Unit> y, ScatterShares s) {
  let_next_start();
  wait_for_previous();
  const ScatterLists lists(scatter_shared);
  const int tid = static_cast<int>(threadIdx.x);
  const int group = static_cast<int>(blockIdx.x) / s.parts;
  const int first_unit = (static_cast<int>(blockIdx.x) - group * s.parts) * s.units_of_part;
  const int first_row = group * s.rows_of_group;
  const int num_rows = min(s.rows_of_group, max(s.num_sources - first_row, 0));
  const int num_items = (num_rows + 1) * s.units_of_part;

  for (int at = 0; at < s.num_slots;) {
    for (int i = tid; i <= num_rows; i += Scatter::kThreads)
      lists.first[i] = -1;
    if (tid == 0) *lists.count = 0;
    __syncthreads();
    int count = 0;
    while (at < s.num_slots && count + Scatter::kStep <= Scatter::kEntries) {
      int32_t source[Scatter::kEach];
#pragma unroll
      for (int i = 0; i < Scatter::kEach; ++i) {
        const int slot = at + i * Scatter::kThreads + tid;
        source[i] = slot < s.num_slots ? src_row[slot] : 0;
      }
#pragma unroll
      for (int i = 0; i < Scatter::kEach; ++i) {
        const int slot = at + i * Scatter::kThreads + tid;
        const int row = list_of(s, source[i], slot, group, num_rows);
        if (row >= 0 && slot < s.num_slots) lists.add(row, slot);
      }
      at += Scatter::kStep;
      __syncthreads();
      count = *lists.count;
      __syncthreads();  // all have read it
    }
    const auto held_at = [&](int item) {
      return HeldUnit<Unit>(s, lists, x, first_row, num_rows, first_unit, item);
    };
    HeldUnit<Unit> held = held_at(tid);
    for (int item = tid; item < num_items; item += Scatter::kThreads) {
      const HeldUnit<Unit> next = held_at(item + Scatter::kThreads);  // while these are stored
      while (held.entry >= 0) {
        const int2 entry = lists.entries[held.entry];
        __stcs(y[entry.x] + held.unit, held.value);
        held.entry = entry.y;
      }
      held = next;
    }
    __syncthreads();  // lists have been read
  }
}

template <class Unit>
Status launch_scatter(const Exec& ex,
                      const ScatterShares& s,
                      const Rows<const Unit>& x,
                      const int32_t* src_row,
                      const Rows<Unit>& y) {
  return launch_kernel(ex, scatter_rows<Unit>,
                       {.blocks = s.num_slots == 0 ? 0 : int64_t{s.num_groups} * s.parts,
                        .threads = Scatter::kThreads,
                        .shared_bytes = ScatterLists::bytes(s)},
                       x, src_row, y, s);
}

}  // namespace fathom::cuda
