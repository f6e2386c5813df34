// From the lists of a token to tiles of 64 rows in shared memory: which entries count, and the
// warpgroup that gathers the rows they name and turns codes into bf16 on the way. Tiles, panels and
// barriers are those of mla_decode_keys.cuh; a "key" there is an entry here.
#pragma once

#include "fathom/kernels/attn/mla_decode/cuda/mla_decode_tiles.cuh"
#include "fathom/kernels/attn/sparse_mla/cuda/sparse_mla_rows.cuh"

namespace fathom::sparse_mla {

using mla_decode::Barriers;
using mla_decode::first_panel;
using mla_decode::kFirstPart;
using mla_decode::kGroups;
using mla_decode::kPanelBytes;
using mla_decode::kTileBytes;
using mla_decode::kTileKeys;
using mla_decode::kTileThreads;
using mla_decode::Piece;
using namespace cuda;  // NOLINT: device primitives

/// Named barrier: the first rows of codes are on their way.
inline constexpr int kRowsAsked = mla_decode::kWholeTiles + 1;

// ---- which entries count ----

/// The lists of a token, one behind the other, each from its first entry that names a row to its
/// last. Entries between them may still name none. In shared memory: no warp has registers for it.
struct Entries {
  const int32_t* first;   ///< entry i < of_first
  const int32_t* second;  ///< entry i of the others
  int of_first;
  int count;
  int named;       ///< entries that name a row
  int first_tile;  ///< of the piece that this block has
  int num_tiles;

  __device__ __forceinline__ int32_t slot(int i) const {
    return i < of_first ? first[i] : second[i];
  }

  /// The row that entry i names with this slot.
  __device__ __forceinline__ RowName name(const DeviceCall& c, int i, int32_t slot) const {
    return name_row(c, i >= of_first, slot);
  }

  __device__ __forceinline__ RowName name(const DeviceCall& c, int i) const {
    return i < count ? name(c, i, slot(i)) : kNoRow;
  }
};

/// What the threads of a block find in both lists, in shared memory.
struct Findings {
  int first[2];  ///< entry that names a row
  int last[2];
  int named[2];

  __device__ void clear() {
    for (int i = 0; i < 2; ++i) {
      first[i] = INT32_MAX;
      last[i] = -1;
      named[i] = 0;
    }
  }
};

/// Of the entries that a thread has looked at.
struct Found {
  int first = INT32_MAX;
  int last = -1;
  int named = 0;

  __device__ __forceinline__ void take(int entry, bool counts) {
    first = counts && entry < first ? entry : first;
    last = counts ? entry : last;  // entries come in order
    named += counts ? 1 : 0;
  }

  /// Adds those of a warp.
  __device__ __forceinline__ void add_to(Findings& all, int source) const {
    const int warp_named = __reduce_add_sync(0xFFFFFFFFu, named);
    const int warp_first = __reduce_min_sync(0xFFFFFFFFu, first);
    const int warp_last = __reduce_max_sync(0xFFFFFFFFu, last);
    if (lane_id() != 0 || warp_named == 0) return;
    atomicAdd(&all.named[source], warp_named);
    atomicMin(&all.first[source], warp_first);
    atomicMax(&all.last[source], warp_last);
  }
};

/// Looks through the lists of token t, and finds piece `split` of them: pieces are of equal length.
/// All threads of the block; `all` is clear and a barrier has made that known. The gathering
/// warpgroup alone looks: its loads come before those of queries then. Integers alone are added, so
/// their order does not matter. `entries` and `all` are in shared memory; all threads may read
/// `entries` behind it.
__device__ __forceinline__ void find_entries(
    const DeviceCall& c, int64_t t, int split, int splits, Findings& all, Entries& entries) {
  constexpr int kAtOnce = 16;
  const int32_t* lists[2] = {c.sources[0].slots + t * c.sources[0].slots_stride,
                             c.sources[1].slots + t * c.sources[1].slots_stride};
  if (threadIdx.x >= mla_decode::kBoth) {
    const int of_first = c.list_length(0, t);
    const int count = of_first + (c.num_sources > 1 ? c.sources[1].width : 0);
    Found found[2];
    for (int begin = static_cast<int>(threadIdx.x & (kWarpgroup - 1)); begin < count;
         begin += kAtOnce * kWarpgroup) {
      int32_t slots[kAtOnce];
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) {
        const int at = begin + i * kWarpgroup;
        slots[i] = -1;
        if (at < count) slots[i] = at < of_first ? lists[0][at] : lists[1][at - of_first];
      }
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) {
        const int at = begin + i * kWarpgroup;
        const bool second = at >= of_first;
        const bool counts = c.sources[second ? 1 : 0].names(slots[i]);
        found[0].take(at, counts && !second);
        found[1].take(at - of_first, counts && second);
      }
    }
    __syncwarp();
    found[0].add_to(all, 0);
    if (c.num_sources > 1) found[1].add_to(all, 1);
  }
  __syncthreads();
  if (threadIdx.x == 0) {
    int lengths[2];
    for (int i = 0; i < 2; ++i)
      lengths[i] = all.named[i] == 0 ? 0 : all.last[i] - all.first[i] + 1;
    const int total = lengths[0] + lengths[1];
    const int tiles = ceil_div(total, kTileKeys);
    const int each = ceil_div(tiles, splits);
    const int first_tile = min(split * each, tiles);
    entries = {.first = lists[0] + (lengths[0] > 0 ? all.first[0] : 0),
               .second = lists[1] + (lengths[1] > 0 ? all.first[1] : 0) - lengths[0],
               .of_first = lengths[0],
               .count = total,
               .named = all.named[0] + all.named[1],
               .first_tile = first_tile,
               .num_tiles = min(each, tiles - first_tile)};
  }
  __syncthreads();
}

// ---- tiles ----

/// What one thread of the gathering warpgroup does for a tile of codes. It has one row, or two that
/// lie 32 apart, and of each panel of a row a quarter, two chunks of eight channels. Steps go from
/// panel to panel, in the order in which products want them, two rows in turn. With P panels of
/// codes and two rows:
///
///   step    0        1        2        3    ..  2 P - 1   2 P       2 P + 1   2 P + 2   2 P + 3
///   panel   0, row A 0, row B 1, row A 1, B ..  P - 1, B  rope, A   rope, B   rope, A   rope, B
///
/// A step of codes stores two chunks of sixteen bytes, one of rope one.
template <class Rows, int kRows>
struct Steps {
  static constexpr int kCodePanels = Rows::kCodes / kPanelColumns;
  static constexpr int kCodes = kRows * kCodePanels;
  static constexpr int kCount = kCodes + 2 * kRows;
  static constexpr int kAhead = kCodePanels + 2;  ///< steps whose loads are under way
  static_assert(kCount % kAhead == 0, "a step finds its registers at the same place in every tile");
  static_assert(Rows::kCodes % kPanelColumns == 0 && kRopeWidth == kPanelColumns);

  /// Whether a step is the last of its group of panels.
  __device__ static constexpr bool ends(int step, int group) {
    if (group + 1 == kGroups) return step + 1 == kCount;
    return step + 1 == kRows * first_panel(group + 1);
  }

  /// Panels of a group that are filled.
  __device__ static constexpr int panels_of(int group) {
    return (group + 1 == kGroups ? kCodePanels + 1 : first_panel(group + 1)) - first_panel(group);
  }
};

/// With kPaired the two blocks of a cluster that have the same rows gather half of a tile each, and
/// write it into the tiles of both. What is sent counts its bytes at the other block's barrier; a
/// warp there expects them where it arrives for its own. Tiles are free when both blocks say so.
template <class Rows, bool kPaired>
struct CodeGatherer {
  static constexpr int kRows = kPaired ? 1 : 2;  ///< of a tile, that a thread has
  using S = Steps<Rows, kRows>;

  /// Scales of whole panels: each of the four lanes of a row keeps so many, and asks the others.
  static constexpr bool kKeepsScales = Rows::kOfScale >= kPanelColumns;
  static constexpr int kScales = Rows::kCodes / Rows::kOfScale;
  static constexpr int kLaneScales = kKeepsScales ? ceil_div(kScales, 4) : 1;

  const DeviceCall& c;
  const Entries entries;  ///< a copy in registers
  const int row;          ///< the first one of a tile that the thread has

  __device__ __forceinline__ static int thread() {
    return static_cast<int>(threadIdx.x & (kWarpgroup - 1));
  }

  __device__ __forceinline__ static int first_row() {
    return thread() / 4 + (kPaired ? 32 * static_cast<int>(cluster_rank() & 1) : 0);
  }

  __device__ __forceinline__ static int quarter() { return static_cast<int>(threadIdx.x & 3); }

  /// Whether a thread's chunks are of both halves of a row: what four lanes send has no gaps then.
  static constexpr bool kHalfRows = kPaired && kKeepsScales;

  /// Chunk h within a panel where four lanes store half of a row: rows take turns, so that those of
  /// eight lanes meet all banks.
  __device__ __forceinline__ static int half_row_chunk(int h) {
    return quarter() + 4 * (h ^ (thread() / 4 & 1));
  }

  __device__ __forceinline__ static int chunk(int h) {
    return kHalfRows ? half_row_chunk(h) : 2 * quarter() + h;
  }

  struct Scales {
    uint32_t of[kRows][kLaneScales];
  };

  /// Entries of the thread's rows in a tile.
  __device__ __forceinline__ int entry_of(int tile, int h) const {
    return (entries.first_tile + tile) * kTileKeys + row + 32 * h;
  }

  /// Starts to load their slots. Nothing is asked of them yet: a thread would wait for it.
  __device__ __forceinline__ void look_up(int tile, int32_t (&slots)[kRows]) const {
#pragma unroll
    for (int h = 0; h < kRows; ++h) {
      const int entry = entry_of(tile, h);
      const bool exists = tile < entries.num_tiles && entry < entries.count;
      slots[h] = exists ? entries.slot(entry) : -1;
    }
  }

  __device__ __forceinline__ void name(int tile,
                                       const int32_t (&slots)[kRows],
                                       RowName (&names)[kRows]) const {
#pragma unroll
    for (int h = 0; h < kRows; ++h)
      names[h] = entries.name(c, entry_of(tile, h), slots[h]);
  }

  /// Where rows lie; starts to load their scales.
  __device__ __forceinline__ void find(const RowName (&names)[kRows],
                                       RowAddress (&rows)[kRows],
                                       Scales& scales) const {
#pragma unroll
    for (int h = 0; h < kRows; ++h) {
      rows[h] = address_of(c, names[h]);
      if constexpr (kKeepsScales) {
#pragma unroll
        for (int i = 0; i < kLaneScales; ++i) {
          const int at = 4 * i + quarter();
          const bool exists = rows[h].exists() && at < kScales;
          scales.of[h][i] = exists ? Rows::scale(rows[h].scales, at) : 0;
        }
      }
    }
  }

  /// Brings the sectors of rows into the last cache. Four lanes have 128 bytes at a time.
  __device__ __forceinline__ void prefetch(const RowName (&names)[kRows]) const {
    constexpr int kLast = Rows::kBytes - 1;
    constexpr int kSector = 32;
#pragma unroll
    for (int h = 0; h < kRows; ++h) {
      const RowAddress at = address_of(c, names[h]);
      if (!at.exists()) continue;
#pragma unroll
      for (int line = 0; line < Rows::kBytes; line += 4 * kSector)
        prefetch_line(at.values + min(line + kSector * quarter(), kLast));
      prefetch_line(at.rope + kSector * quarter());
      const unsigned char* others[3] = {at.rope + 2 * kRopeWidth - 1, at.scales, at.values + kLast};
      const unsigned char* other = others[0];
#pragma unroll
      for (int i = 1; i < 3; ++i)
        other = quarter() == i ? others[i] : other;
      prefetch_line(other);
    }
  }

  __device__ __forceinline__ Unit load(int step, const RowAddress (&rows)[kRows]) const {
    const RowAddress& at = rows[step % kRows];
    if (step >= S::kCodes) {
      const int of_row = half_row_chunk((step - S::kCodes) / kRows);
      return {load_16_if(at.rope + 16 * of_row, at.exists()), 0};
    }
    const int panel = step / kRows;
    const int unit = 4 * panel + quarter();
    if constexpr (kHalfRows) {
      const unsigned char* from = at.values + kPanelColumns * panel;
      const uint2 first = load_8_if(from + 8 * chunk(0), at.exists());
      const uint2 second = load_8_if(from + 8 * chunk(1), at.exists());
      return {{first.x, first.y, second.x, second.y}, 0};
    } else if constexpr (kKeepsScales) {
      return {load_16_if(at.values + kUnit * unit, at.exists()), 0};
    } else {
      return Rows::load(at.values, at.scales, unit, at.exists());
    }
  }

  /// To the own tile and, `to_other` bytes further on, to that of the other block, whose barrier
  /// `full` counts what comes.
  __device__ __forceinline__ static void put(uint32_t at,
                                             const uint4& words,
                                             [[maybe_unused]] uint32_t full,
                                             [[maybe_unused]] uint32_t to_other) {
    store_shared_16(at, words);
    if constexpr (kPaired) send(at + to_other, full + to_other, words);
  }

  __device__ __forceinline__ void store(int step,
                                        Unit unit,
                                        const Scales& scales,
                                        uint32_t tile,
                                        uint32_t full,
                                        uint32_t to_other) const {
    const int h = step % kRows;
    const int at = row + 32 * h;
    if (step >= S::kCodes) {
      const uint32_t panel = tile + static_cast<uint32_t>(S::kCodePanels) * kPanelBytes;
      const int of_row = half_row_chunk((step - S::kCodes) / kRows);
      put(panel + panel_offset(at, of_row), unit.words, full, to_other);
      return;
    }
    const int of_tile = step / kRows;
    if constexpr (kKeepsScales) {
      const int i = of_tile * kPanelColumns / Rows::kOfScale;
      unit.scale = __shfl_sync(0xFFFFFFFFu, scales.of[h][i / 4], i % 4, 4);
    }
    uint4 wide[2];
    Rows::decode(unit, wide);
    const uint32_t panel = tile + static_cast<uint32_t>(of_tile) * kPanelBytes;
#pragma unroll
    for (int i = 0; i < 2; ++i)
      put(panel + panel_offset(at, chunk(i)), wide[i], full, to_other);
  }

  /// Arrives for a warp that has stored its rows of a group; eight of the other block come too.
  /// Whoever waits calls fence_for_products().
  __device__ __forceinline__ static void arrive(uint32_t full, int panels) {
    if constexpr (kPaired) {
      __syncwarp();
      const int bytes = panels * 8 * kPanelRowBytes / kWarpArrivals;
      if (arrives_for_warp()) barrier_expect(full, static_cast<uint32_t>(bytes));
    } else {
      warp_arrive(full);
    }
  }

  /// Fills the tiles of the block. Loads run a row ahead of stores; rows two tiles ahead are on
  /// their way to the last cache, and the entries of three are known.
  __device__ __forceinline__ void run(uint32_t tiles, Barriers bars) const {
    const uint32_t to_other =
        kPaired ? address_in_block(tiles, static_cast<int>(cluster_rank() ^ 1)) - tiles : 0;
    RowName next[kRows];   // rows of the next tile
    int32_t after[kRows];  // slots of the one behind it
    RowAddress rows[kRows];
    Scales scales;       // of the tile that is stored
    Scales next_scales;  // of the one that is loaded
    Unit held[S::kAhead];
    {
      int32_t slots[2][kRows];
      look_up(0, slots[0]);
      look_up(1, slots[1]);
      look_up(2, after);
      name(0, slots[0], next);
      find(next, rows, next_scales);
      name(1, slots[1], next);
    }
#pragma unroll
    for (int i = 0; i < S::kAhead; ++i)
      held[i] = load(i, rows);
    named_arrive(kRowsAsked, kTileThreads);
    prefetch(next);
#pragma unroll 1
    for (int tile = 0; tile < entries.num_tiles; ++tile) {
      const int buffer = tile & 1;
      const auto parity = static_cast<uint32_t>((tile >> 1) & 1) ^ 1u;
      const uint32_t to = tiles + static_cast<uint32_t>(buffer) * kTileBytes;
      scales = next_scales;
      int group = 0;
#pragma unroll
      for (int step = 0; step < S::kCount; ++step) {
        if (step == 0) barrier_wait(bars.free(buffer, 0), parity);
        if (step == kRows * kFirstPart) barrier_wait(bars.free(buffer, 1), parity);
        store(step, held[step % S::kAhead], scales, to, bars.full(buffer, group), to_other);
        if (step + S::kAhead == S::kCount) {
          find(next, rows, next_scales);
          name(tile + 2, after, next);
          prefetch(next);
          look_up(tile + 3, after);
        }
        held[step % S::kAhead] = load((step + S::kAhead) % S::kCount, rows);
        if (!S::ends(step, group)) continue;
        arrive(bars.full(buffer, group), S::panels_of(group));
        ++group;
      }
    }
    if constexpr (kPaired) wait_for_others(bars);
  }

  /// Until both blocks have used the last tiles: nothing of the other one is on its way then to a
  /// block that has ended.
  __device__ __forceinline__ void wait_for_others(Barriers bars) const {
    for (int tile = max(0, entries.num_tiles - 2); tile < entries.num_tiles; ++tile) {
      for (int part = 0; part < 2; ++part)
        barrier_wait(bars.free(tile & 1, part), static_cast<uint32_t>((tile >> 1) & 1));
    }
  }
};

/// Arrivals at a group of panels: of warps that store, or of threads whose copies land.
template <class Rows>
inline constexpr int kFillers = Rows::kCodes > 0 ? kWarpgroup / 32 * kWarpArrivals : kWarpgroup;

/// What the third warpgroup does.
template <class Rows, bool kPaired>
__device__ __forceinline__ void gather(
    const DeviceCall& c, const Entries& entries, const Piece& p, uint32_t tiles, Barriers bars) {
  if constexpr (Rows::kCodes > 0) {
    using Gatherer = CodeGatherer<Rows, kPaired>;
    Gatherer{.c = c, .entries = entries, .row = Gatherer::first_row()}.run(tiles, bars);
  } else {
    mla_decode::bring_rows<kWidthOf<Rows> / kPanelColumns>(
        p, 0, tiles, bars, reinterpret_cast<const Bf16*>(c.sources[0].values.data),
        [&](int entry) { return bf16_row(c, entries.name(c, entry)); });
  }
}

}  // namespace fathom::sparse_mla
