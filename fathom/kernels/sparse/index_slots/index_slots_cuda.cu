#include "fathom/kernels/attn/tree_keys.h"
#include "fathom/kernels/cuda/flat.cuh"
#include "fathom/kernels/cuda/rows.cuh"
#include "fathom/kernels/sparse/index_slots/index_slots.h"
#include "fathom/kernels/sparse/request_offsets.cuh"

namespace fathom {
namespace {

using namespace cuda;  // NOLINT: device primitives, in this file's own namespace

// Ids, positions, offsets and pages are values of GPU memory that the host cannot check: what is
// out of range is not followed, and its slot is -1.

/// Pages of requests.
struct Tables {
  Rows<const int32_t> block_table;
  const int32_t* q_offsets;
  int num_requests;
  int64_t num_pages;  ///< of a row of the table
  FastDivide page_rows;

  /// The pages of the request that owns token t; null if none does. By a whole warp.
  __device__ const int32_t* pages_of(int64_t t) const {
    const int b = request_by_warp(q_offsets, num_requests, t);
    return b < 0 || b >= num_requests ? nullptr : block_table[b];
  }

  /// The slot of row `id` of a request.
  __device__ int32_t slot(const int32_t* pages, int32_t id) const {
    if (id < 0) return -1;
    const uint32_t page = page_rows.of(static_cast<uint32_t>(id));
    if (page >= num_pages) return -1;
    const uint32_t offset = static_cast<uint32_t>(id) - page * page_rows.divisor;
    return static_cast<int32_t>(static_cast<uint32_t>(pages[page]) * page_rows.divisor + offset);
  }
};

template <class Args>
Tables tables_of(const Args& a) {
  return {.block_table = rows_of<const int32_t>(a.block_table),
          .q_offsets = a.q_offsets.template as<const int32_t>(),
          .num_requests = static_cast<int>(a.block_table.dim(0)),
          .num_pages = a.block_table.dim(1),
          .page_rows = FastDivide(a.page_rows)};
}

/// Up to four neighbouring numbers: at once where rows allow it.
template <int kUnit>
struct Slots {
  int32_t v[kUnit];

  __device__ void store(int32_t* p) const {
    if constexpr (kUnit == 4) {
      *reinterpret_cast<int4*>(p) = make_int4(v[0], v[1], v[2], v[3]);
    } else {
      *p = v[0];
    }
  }

  __device__ void load(const int32_t* p) {
    if constexpr (kUnit == 4) {
      const int4 all = *reinterpret_cast<const int4*>(p);
      v[0] = all.x;
      v[1] = all.y;
      v[2] = all.z;
      v[3] = all.w;
    } else {
      v[0] = *p;
    }
  }
};

/// Of tokens of trees: keys that each sees, and which rows of its tree are among them.
struct Trees {
  const int32_t* lengths;
  const int64_t* masks;
};

/// Where key `id` of the `seen` keys of a token lies among its request's; kTrees: by its mask.
template <bool kTrees>
__device__ int32_t place_of(const int64_t* masks, int64_t t, int64_t seen, int32_t id) {
  if constexpr (kTrees) {
    if (id >= 0) return static_cast<int32_t>(place_of_seen(tree_token_of(seen, masks[t]), id));
  }
  return id;
}

/// Items are units of kUnit slots of a token; a warp has a piece of one token.
template <int kUnit, int kEach, bool kTrees>
__global__ void __launch_bounds__(kFlatThreads) find_chosen_slots(
    Rows<const int32_t> ids, Tables tables, Trees trees, Rows<int32_t> slots, RowPieces pieces) {
  let_next_start();
  wait_for_previous();
  const PiecePlace piece = pieces.mine<kEach>();
  if (!piece.exists) return;
  Slots<kUnit> held[kEach];
#pragma unroll
  for (int i = 0; i < kEach; ++i) {
    const uint32_t item = piece.first + static_cast<uint32_t>(lane_id() + i * kWarp);
    if (pieces.left(item) > 0) held[i].load(ids[piece.row] + int64_t{kUnit} * item);
  }
  const int32_t* pages = tables.pages_of(piece.row);
  int64_t seen = 0;
  if constexpr (kTrees) seen = trees.lengths[piece.row];
#pragma unroll
  for (int i = 0; i < kEach; ++i) {
    const uint32_t item = piece.first + static_cast<uint32_t>(lane_id() + i * kWarp);
    if (pieces.left(item) <= 0) continue;
#pragma unroll
    for (int32_t& id : held[i].v) {
      id = pages == nullptr
               ? -1
               : tables.slot(pages, place_of<kTrees>(trees.masks, piece.row, seen, id));
    }
    held[i].store(slots[piece.row] + int64_t{kUnit} * item);
  }
}

/// The same of the rows that a token sees.
template <int kUnit, int kEach, bool kTrees>
__global__ void __launch_bounds__(kFlatThreads) find_visible_slots(const int32_t* positions,
                                                                   int64_t tokens_per_row,
                                                                   Tables tables,
                                                                   const int64_t* tree_masks,
                                                                   Rows<int32_t> slots,
                                                                   RowPieces pieces) {
  let_next_start();
  wait_for_previous();
  const PiecePlace piece = pieces.mine<kEach>();
  if (!piece.exists) return;
  const int64_t seen = (int64_t{positions[piece.row]} + 1) / tokens_per_row;
  const int32_t* pages = tables.pages_of(piece.row);
#pragma unroll
  for (int i = 0; i < kEach; ++i) {
    const uint32_t item = piece.first + static_cast<uint32_t>(lane_id() + i * kWarp);
    if (pieces.left(item) <= 0) continue;
    Slots<kUnit> out;
#pragma unroll
    for (int j = 0; j < kUnit; ++j) {
      const int64_t row = int64_t{kUnit} * item + j;
      out.v[j] = pages == nullptr || row >= seen
                     ? -1
                     : tables.slot(pages, place_of<kTrees>(tree_masks, piece.row, seen,
                                                           static_cast<int32_t>(row)));
    }
    out.store(slots[piece.row] + int64_t{kUnit} * item);
  }
}

/// A ring of rows for each request; null: rows of the call's tokens.
struct Rings {
  const int32_t* request_slots;
  const int32_t* q_offsets;
  int num_requests;
  int width;  ///< slots of a token
  FastDivide ring_rows;
  const int64_t* tree_masks;
};

template <int kUnit, int kEach, bool kTrees>
__global__ void __launch_bounds__(kFlatThreads)
    find_ring_slots(const int32_t* positions, Rings rings, Rows<int32_t> slots, RowPieces pieces) {
  let_next_start();
  wait_for_previous();
  const PiecePlace piece = pieces.mine<kEach>();
  if (!piece.exists) return;
  const int first = positions[piece.row] - (rings.width - 1);
  const int b = request_by_warp(rings.q_offsets, rings.num_requests, piece.row);
  const bool owned = b >= 0 && b < rings.num_requests;
  const bool of_step = rings.request_slots == nullptr;
  const uint32_t begin =
      owned && !of_step ? static_cast<uint32_t>(rings.request_slots[b]) * rings.ring_rows.divisor
                        : 0;
  const int oldest = owned && of_step ? rings.q_offsets[b] : 0;
  const int first_row = static_cast<int>(piece.row) - (rings.width - 1);
#pragma unroll
  for (int i = 0; i < kEach; ++i) {
    const uint32_t item = piece.first + static_cast<uint32_t>(lane_id() + i * kWarp);
    if (pieces.left(item) <= 0) continue;
    Slots<kUnit> out;
#pragma unroll
    for (int j = 0; j < kUnit; ++j) {
      const int entry = kUnit * static_cast<int>(item) + j;
      if (of_step) {
        const int row = first_row + entry;
        out.v[j] = owned && row >= oldest ? row : -1;
        continue;
      }
      const int p = place_of<kTrees>(rings.tree_masks, piece.row, int64_t{first} + rings.width,
                                     first + entry);
      const auto token = static_cast<uint32_t>(p < 0 ? 0 : p);
      const uint32_t row = token - rings.ring_rows.of(token) * rings.ring_rows.divisor;
      out.v[j] = owned && p >= 0 ? static_cast<int32_t>(begin + row) : -1;
    }
    out.store(slots[piece.row] + int64_t{kUnit} * item);
  }
}

__global__ void __launch_bounds__(kFlatThreads)
    count_visible_rows(const int32_t* positions, int64_t tokens_per_row, int32_t* rows, int64_t T) {
  let_next_start();
  wait_for_previous();
  const int64_t t = int64_t{blockIdx.x} * kFlatThreads + threadIdx.x;
  if (t < T) rows[t] = static_cast<int32_t>((int64_t{positions[t]} + 1) / tokens_per_row);
}

Status visible_rows(Exec& ex, const VisibleRows::Args& a) {
  const int64_t T = a.rows.dim(0);
  return launch_kernel(ex, count_visible_rows,
                       {.blocks = ceil_div<int64_t>(T, kFlatThreads), .threads = kFlatThreads},
                       a.positions.as<const int32_t>(), a.tokens_per_row, a.rows.as<int32_t>(), T);
}

template <int kUnit>
Status index_slots(Exec& ex, const IndexSlots::Args& a) {
  const Trees trees{a.lengths.as<const int32_t>(), a.tree_masks.as<const int64_t>()};
  return with_row_pieces<4>(
      ex, a.slots.dim(0), a.slots.dim(1) / kUnit,
      [&]<int kEach>(const RowPieces& pieces, const LaunchShape& shape) {
        const auto kernel = a.tree_masks.present() ? find_chosen_slots<kUnit, kEach, true>
                                                   : find_chosen_slots<kUnit, kEach, false>;
        return launch_kernel(ex, kernel, shape, rows_of<const int32_t>(a.ids), tables_of(a), trees,
                             rows_of<int32_t>(a.slots), pieces);
      });
}

template <int kUnit>
Status visible_slots(Exec& ex, const VisibleSlots::Args& a) {
  return with_row_pieces<4>(
      ex, a.slots.dim(0), a.slots.dim(1) / kUnit,
      [&]<int kEach>(const RowPieces& pieces, const LaunchShape& shape) {
        const auto kernel = a.tree_masks.present() ? find_visible_slots<kUnit, kEach, true>
                                                   : find_visible_slots<kUnit, kEach, false>;
        return launch_kernel(ex, kernel, shape, a.positions.as<const int32_t>(), a.tokens_per_row,
                             tables_of(a), a.tree_masks.as<const int64_t>(),
                             rows_of<int32_t>(a.slots), pieces);
      });
}

template <int kUnit>
Status ring_slots(Exec& ex, const RingSlots::Args& a) {
  const Rings rings{.request_slots = a.request_slots.as<const int32_t>(),
                    .q_offsets = a.q_offsets.as<const int32_t>(),
                    .num_requests = static_cast<int>(a.q_offsets.dim(0) - 1),
                    .width = static_cast<int>(a.slots.dim(1)),
                    .ring_rows = FastDivide(a.ring_rows),
                    .tree_masks = a.tree_masks.as<const int64_t>()};
  return with_row_pieces<4>(
      ex, a.slots.dim(0), a.slots.dim(1) / kUnit,
      [&]<int kEach>(const RowPieces& pieces, const LaunchShape& shape) {
        const auto kernel = a.tree_masks.present() ? find_ring_slots<kUnit, kEach, true>
                                                   : find_ring_slots<kUnit, kEach, false>;
        return launch_kernel(ex, kernel, shape, a.positions.as<const int32_t>(), rings,
                             rows_of<int32_t>(a.slots), pieces);
      });
}

/// True if four neighbours of a row are sixteen bytes on their own boundary.
bool is_aligned(const View& v) {
  constexpr int64_t kUnit = 4;
  return v.dim(1) % kUnit == 0 && reinterpret_cast<uintptr_t>(v.data) % 16 == 0 &&
         (v.dim(0) < 2 || v.stride(0) % kUnit == 0);
}

bool chosen_are_aligned(const IndexSlots::Args& a) {
  return is_aligned(a.ids) && is_aligned(a.slots);
}

template <class Args>
bool slots_are_aligned(const Args& a) {
  return is_aligned(a.slots);
}

constexpr uint32_t kTraits = kDeterministic | kBatchInvariant | kGraphSafe;

}  // namespace

constinit const VariantTable<VisibleRows> visible_rows_cuda{
    {"elements", sm(90), "", kTraits, visible_rows},
};

constinit const VariantTable<IndexSlots> index_slots_cuda{
    {"vectors", sm(90), "", kTraits, index_slots<4>, MathUnit::kF32, chosen_are_aligned},
    {"elements", sm(90), "", kTraits, index_slots<1>},
};

constinit const VariantTable<VisibleSlots> visible_slots_cuda{
    {"vectors", sm(90), "", kTraits, visible_slots<4>, MathUnit::kF32,
     slots_are_aligned<VisibleSlots::Args>},
    {"elements", sm(90), "", kTraits, visible_slots<1>},
};

constinit const VariantTable<RingSlots> ring_slots_cuda{
    {"vectors", sm(90), "", kTraits, ring_slots<4>, MathUnit::kF32,
     slots_are_aligned<RingSlots::Args>},
    {"elements", sm(90), "", kTraits, ring_slots<1>},
};

}  // namespace fathom
