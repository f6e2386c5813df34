#include "fathom/kernels/attn/kv_write/move_rows.h"
#include "fathom/kernels/cuda/arithmetic.cuh"
#include "fathom/kernels/cuda/flat.cuh"
#include "fathom/kernels/cuda/rows.cuh"

namespace fathom {
namespace {

using namespace cuda;  // NOLINT: device primitives, in this file's own namespace

/// Pages of layers, strides in bytes.
struct CachePlane {
  std::byte* data;
  int64_t layer_stride;
  int64_t page_stride;
  int64_t row_stride;
  int64_t page_rows;
  int64_t num_slots;

  __device__ bool has(int64_t slot) const { return slot >= 0 && slot < num_slots; }

  __device__ std::byte* row(int64_t layer, int64_t slot) const {
    const RowOfGroup place(slot, page_rows);
    return data + layer * layer_stride + place.group * page_stride + place.row * row_stride;
  }
};

/// A thread has one unit of a row, in one layer, through all moves: eight are read, then written,
/// which the order of the moves allows.
template <class Unit>
__global__ void __launch_bounds__(kFlatThreads)
    move_units(CachePlane plane, const int64_t* moves, int64_t num_moves, FlatItems items) {
  constexpr int kAtOnce = 8;
  let_next_start();
  wait_for_previous();
  const ItemPlace at = items.mine<1>(0);
  if (!at.exists) return;
  const auto unit_at = [&](int64_t slot) {
    return reinterpret_cast<Unit*>(plane.row(at.row, slot)) + at.item;
  };
  for (int64_t first = 0; first < num_moves; first += kAtOnce) {
    Unit held[kAtOnce];
    int64_t to[kAtOnce];
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      to[i] = -1;
      if (first + i >= num_moves) continue;
      const int64_t from = moves[2 * (first + i)];
      if (!plane.has(from)) continue;
      to[i] = moves[2 * (first + i) + 1];
      held[i] = *unit_at(from);
    }
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      if (plane.has(to[i])) *unit_at(to[i]) = held[i];
    }
  }
}

template <class Unit>
Status launch_moves(Stream& stream, const View& rows, const View& moves) {
  const FlatItems items = flat_items(rows.dim(0), rows.dim(3) / static_cast<int64_t>(sizeof(Unit)));
  const CachePlane plane{.data = rows.as<std::byte>(),
                         .layer_stride = rows.stride(0),
                         .page_stride = rows.stride(1),
                         .row_stride = rows.stride(2),
                         .page_rows = rows.dim(2),
                         .num_slots = rows.dim(1) * rows.dim(2)};
  Exec ex;
  ex.stream = &stream;
  return launch_kernel(ex, move_units<Unit>, one_item_each(items), plane, moves.as<const int64_t>(),
                       moves.dim(0), items);
}

}  // namespace

Status move_rows_by_kernel(Stream& stream, const View& rows, const View& moves) {
  if (moves.dim(0) == 0) return {};
  if (rows.dim(3) % 16 == 0 && is_aligned(rows, 16))
    return launch_moves<uint4>(stream, rows, moves);
  if (rows.dim(3) % 4 == 0 && is_aligned(rows, 4))
    return launch_moves<uint32_t>(stream, rows, moves);
  return launch_moves<uint8_t>(stream, rows, moves);
}

}  // namespace fathom
