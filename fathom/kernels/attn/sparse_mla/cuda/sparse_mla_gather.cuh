// From the entries of a token to tiles of 64 rows in shared memory: the warpgroups that gather the
// rows they name and turn codes into bf16 on the way. Tiles, panels and barriers are those of
// mla_decode_keys.cuh; a "key" there is an entry here.
#pragma once

#include <type_traits>

#include "fathom/kernels/attn/sparse_mla/cuda/sparse_mla_entries.cuh"

namespace fathom::sparse_mla {

using mla_decode::Barriers;
using mla_decode::first_panel;
using mla_decode::kFirstPart;
using mla_decode::kGroups;
using mla_decode::kPanelBytes;
using mla_decode::kTileBytes;
using mla_decode::Piece;

/// Named barrier: the first rows of codes are on their way.
inline constexpr int kRowsAsked = mla_decode::kWholeTiles + 1;

/// How the rows of a tile that a block gathers lie over its gathering threads: so many lanes have a
/// row, and a thread has one row, or two that lie 32 apart.
template <bool kPaired, int kGatherers>
struct RowsOfThreads {
  static constexpr int kThreads = kGatherers * kWarpgroup;
  static constexpr int kAll = kPaired ? kTileKeys / 2 : kTileKeys;
  static constexpr int kLanes = kPaired && kGatherers == 2 ? 8 : 4;
  static constexpr int kOfThread = kAll * kLanes / kThreads;
  static constexpr int kOfWarp = kWarp / kLanes;  ///< at once
  static constexpr int kChunks = 8 / kLanes;      ///< of eight channels, that a lane has of a panel
};

/// What a gathering thread does for a tile of codes. Steps go from panel to panel, in the order in
/// which products want them, two rows in turn; a step is what a lane has of a panel of codes, or
/// one chunk of rope. With P panels of codes:
///
///   lanes of a row, rows of a thread   steps
///   4, 2    panel 0, row A;  0, B;  1, A;  ..  P - 1, B;  rope, A;  rope, B;  rope, A;  rope, B
///   4, 1    panel 0;  1;  ..  P - 1;  rope;  rope
///   8, 1    panel 0;  1;  ..  P - 1;  rope
template <class Rows, bool kPaired, int kGatherers>
struct Steps {
  using Threads = RowsOfThreads<kPaired, kGatherers>;
  static constexpr int kRows = Threads::kOfThread;
  static constexpr int kCodePanels = Rows::kCodes / kPanelColumns;
  static constexpr int kCodes = kRows * kCodePanels;
  static constexpr int kCount = kCodes + kRows * Threads::kChunks;
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

/// When loads begin, of one warpgroup that gathers, which only the kernel of Blackwell has: it has
/// registers for a row of a thread.
template <class Rows, bool kPaired>
struct RowAhead {
  using S = Steps<Rows, kPaired, 1>;
  static constexpr int kPlaces = S::kCodePanels + 2;  ///< steps whose loads are under way
  static_assert(S::kCount % kPlaces == 0, "a step's registers are the same ones in every tile");

  __device__ static constexpr int place(int step) { return step % kPlaces; }
};

/// Of two, with fewer registers: loads of a batch of steps begin behind the first store of the one
/// before it, into registers that the one before that has left.
///
/// Why so: a warp counts loads under way in six counters, and the assembler has but one for those
/// whose use lies behind a branch. Whoever waits for one of them waits for all. So there is no
/// branch but the waits for room, and behind each of these the loads that count are a batch old.
template <class Rows, bool kPaired>
struct BatchAhead {
  using S = Steps<Rows, kPaired, 2>;
  static constexpr int kBatches = kPaired ? 2 : 6;
  static constexpr int kPlaces = kPaired ? S::kCount : 4;
  static constexpr int kLocates = kPaired ? 0 : S::kCount - 2;  ///< step that asks last for a row

  __device__ static constexpr int batch_of(int step) {
    if (kPaired) return step < 4 ? 0 : 1;
    return step < S::kCodes ? step / 2 : step - S::kCodes + 4;
  }

  __device__ static constexpr bool begins(int step) {
    return step == 0 || batch_of(step) != batch_of(step - 1);
  }

  __device__ static constexpr int place(int step) {
    if (kPaired) return step;
    return step < S::kCodes ? step % 4 : 2 * (step - S::kCodes);
  }
};

/// With kPaired the two blocks of a cluster that have the same rows gather half of a tile each, and
/// write it into the tiles of both. What is sent counts its bytes at the other block's barrier; a
/// warp there expects them where it arrives for its own. Tiles are free when both blocks say so.
template <class Rows, bool kPaired, int kGatherers>
struct CodeGatherer {
  using Threads = RowsOfThreads<kPaired, kGatherers>;
  using S = Steps<Rows, kPaired, kGatherers>;
  static constexpr bool kInBatches = kGatherers == 2;
  using Ahead = std::conditional_t<kInBatches, BatchAhead<Rows, kPaired>, RowAhead<Rows, kPaired>>;
  static constexpr int kRows = Threads::kOfThread;
  static constexpr int kLanes = Threads::kLanes;
  static constexpr int kChunks = Threads::kChunks;
  static constexpr int kOf = kPanelColumns / kLanes;  ///< channels of a panel, that a lane has

  /// Scales of whole panels: each of the lanes of a row keeps so many, and asks the others.
  static constexpr bool kKeepsScales = Rows::kOfScale >= kPanelColumns;
  static constexpr int kScales = Rows::kCodes / Rows::kOfScale;
  static constexpr int kLaneScales = kKeepsScales ? ceil_div(kScales, kLanes) : 1;

  /// A copy in registers, or what is in shared memory.
  using Listed = std::conditional_t<kInBatches, const Entries&, const Entries>;

  const DeviceCall& c;
  Listed entries;
  const int row;  ///< the first one of a tile that the thread has

  __device__ __forceinline__ static int thread() {
    return static_cast<int>(threadIdx.x & (Threads::kThreads - 1));
  }

  __device__ __forceinline__ static int first_row() {
    return thread() / kLanes + (kPaired ? 32 * static_cast<int>(cluster_rank() & 1) : 0);
  }

  /// Of the lanes of a row.
  __device__ __forceinline__ static int lane() {
    return static_cast<int>(threadIdx.x & (kLanes - 1));
  }

  /// Whether a thread's chunks are of both halves of a row: what four lanes send has no gaps then.
  static constexpr bool kHalfRows = kPaired && kKeepsScales && kLanes == 4;

  /// Chunk h within a panel where four lanes store half of a row: rows take turns, so that those of
  /// eight lanes meet all banks.
  __device__ __forceinline__ static int half_row_chunk(int h) {
    return lane() + 4 * (h ^ (thread() / 4 & 1));
  }

  __device__ __forceinline__ static int chunk(int h) {
    return kHalfRows ? half_row_chunk(h) : kChunks * lane() + h;
  }

  __device__ __forceinline__ static int rope_chunk(int step) {
    return kLanes == 8 ? lane() : half_row_chunk((step - S::kCodes) / kRows);
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
      if constexpr (kInBatches) {
        const int32_t* list = entry < entries.of_first ? entries.first : entries.second;
        slots[h] = static_cast<int32_t>(load_4_if(list + entry, exists, ~0u));
      } else {
        slots[h] = exists ? entries.slot(entry) : -1;
      }
    }
  }

  __device__ __forceinline__ void name(int tile,
                                       const int32_t (&slots)[kRows],
                                       RowName (&names)[kRows]) const {
#pragma unroll
    for (int h = 0; h < kRows; ++h)
      names[h] = entries.name(c, entry_of(tile, h), slots[h]);
  }

  /// Where a row lies; in batches, where a lane's part of it begins.
  __device__ __forceinline__ RowAddress locate(RowName name) const {
    if constexpr (kInBatches) {
      const RowAddress at = address_anyway(c, name);
      // Not by a condition, of which the compiler would make a branch.
      const uint64_t exists = uint64_t{0} - kept(name != kNoRow ? 1 : 0);
      const auto values =
          reinterpret_cast<uint64_t>(at.values + lane() * kOf * Rows::kBytes / Rows::kCodes);
      const int of_scales =
          kKeepsScales ? lane() * Rows::kScaleBytes : lane() * kOf / Rows::kOfScale;
      return {reinterpret_cast<const unsigned char*>(values & exists), at.scales + of_scales,
              at.rope + 16 * lane()};
    } else {
      return address_of(c, name);
    }
  }

  /// Starts to load what the lane keeps of the scales of a row.
  __device__ __forceinline__ void load_scales(const RowAddress& row,
                                              uint32_t (&scales)[kLaneScales]) const {
    if constexpr (kKeepsScales) {
#pragma unroll
      for (int i = 0; i < kLaneScales; ++i) {
        const int at = kLanes * i + lane();
        const bool exists = row.exists() && at < kScales;
        scales[i] = exists ? Rows::scale(row.scales, kInBatches ? kLanes * i : at) : 0;
      }
    }
  }

  /// Where rows lie; starts to load their scales.
  __device__ __forceinline__ void find(const RowName (&names)[kRows],
                                       RowAddress (&rows)[kRows],
                                       Scales& scales) const {
#pragma unroll
    for (int h = 0; h < kRows; ++h) {
      rows[h] = locate(names[h]);
      load_scales(rows[h], scales.of[h]);
    }
  }

  /// Brings the sectors of rows into the last cache, one a lane at a time.
  __device__ __forceinline__ void prefetch(const RowName (&names)[kRows]) const {
    constexpr int kLast = Rows::kBytes - 1;
    constexpr int kSector = 32;
#pragma unroll
    for (int h = 0; h < kRows; ++h) {
      const RowAddress at = kInBatches ? address_anyway(c, names[h]) : address_of(c, names[h]);
      if (!kInBatches && !at.exists()) continue;
      const auto bring = [&](const unsigned char* sector) {
        if constexpr (kInBatches) {
          prefetch_line_if(sector, names[h] != kNoRow);
        } else {
          prefetch_line(sector);
        }
      };
#pragma unroll
      for (int line = 0; line < Rows::kBytes; line += kLanes * kSector)
        bring(at.values + min(line + kSector * lane(), kLast));
      const int quarter = lane() & 3;
      const unsigned char* of_rope = at.rope + kSector * quarter;
      if constexpr (kLanes == 4) bring(of_rope);
      const unsigned char* others[3] = {at.rope + 2 * kRopeWidth - 1, at.scales, at.values + kLast};
      const unsigned char* other = others[0];
#pragma unroll
      for (int i = 1; i < 3; ++i)
        other = quarter == i ? others[i] : other;
      bring(kLanes == 8 && lane() < 4 ? of_rope : other);
    }
  }

  /// Bytes from what `rows` says to a chunk of rope.
  __device__ __forceinline__ static int rope_offset(int step) {
    if constexpr (!kInBatches) return 16 * rope_chunk(step);
    return kLanes == 8 ? 0 : 16 * (rope_chunk(step) - lane());
  }

  __device__ __forceinline__ Unit load(int step, const RowAddress (&rows)[kRows]) const {
    const RowAddress& at = rows[step % kRows];
    if (step >= S::kCodes) return {load_16_if(at.rope + rope_offset(step), at.exists()), 0};
    const int panel = step / kRows;
    const int unit = kLanes * panel + (kInBatches ? 0 : lane());
    if constexpr (kHalfRows) {
      const unsigned char* from = at.values + kPanelColumns * panel;
      const uint2 first = load_8_if(from + 8 * chunk(0), at.exists());
      const uint2 second = load_8_if(from + 8 * chunk(1), at.exists());
      return {{first.x, first.y, second.x, second.y}, 0};
    } else if constexpr (kKeepsScales) {
      return {Rows::template load_codes<kOf>(at.values, unit, at.exists()), 0};
    } else {
      return Rows::template load<kOf>(at.values, at.scales, unit, at.exists());
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
      put(panel + panel_offset(at, rope_chunk(step)), unit.words, full, to_other);
      return;
    }
    const int of_tile = step / kRows;
    if constexpr (kKeepsScales) {
      const int i = of_tile * kPanelColumns / Rows::kOfScale;
      unit.scale = __shfl_sync(0xFFFFFFFFu, scales.of[h][i / kLanes], i % kLanes, kLanes);
    }
    uint4 wide[kChunks];
    Rows::decode(unit, wide);
    const uint32_t panel = tile + static_cast<uint32_t>(of_tile) * kPanelBytes;
#pragma unroll
    for (int i = 0; i < kChunks; ++i)
      put(panel + panel_offset(at, chunk(i)), wide[i], full, to_other);
  }

  /// Arrives for a warp that has stored its rows of a group; as many of the other block come too.
  /// Whoever waits calls fence_for_products().
  __device__ __forceinline__ static void arrive(uint32_t full, int panels) {
    if constexpr (kPaired) {
      __syncwarp();
      const int bytes = panels * Threads::kOfWarp * kPanelRowBytes / kWarpArrivals;
      if (arrives_for_warp()) barrier_expect(full, static_cast<uint32_t>(bytes));
    } else {
      warp_arrive(full);
    }
  }

  /// From the own tiles to those of the other block.
  __device__ __forceinline__ static uint32_t bytes_to_other(uint32_t tiles) {
    return kPaired ? address_in_block(tiles, static_cast<int>(cluster_rank() ^ 1)) - tiles : 0;
  }

  /// Fills the tiles of the block. Loads run a row ahead of stores; rows two tiles ahead are on
  /// their way to the last cache, and the entries of three are known.
  __device__ __forceinline__ void run_rows_ahead(uint32_t tiles, Barriers bars) const {
    const uint32_t to_other = bytes_to_other(tiles);
    RowName next[kRows];   // rows of the next tile
    int32_t after[kRows];  // slots of the one behind it
    RowAddress rows[kRows];
    Scales scales;       // of the tile that is stored
    Scales next_scales;  // of the one that is loaded
    Unit held[Ahead::kPlaces];
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
    for (int i = 0; i < Ahead::kPlaces; ++i)
      held[i] = load(i, rows);
    named_arrive(kRowsAsked, kThreadsWith<kGatherers>);
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
        store(step, held[Ahead::place(step)], scales, to, bars.full(buffer, group), to_other);
        if (step + Ahead::kPlaces == S::kCount) {
          find(next, rows, next_scales);
          name(tile + 2, after, next);
          prefetch(next);
          look_up(tile + 3, after);
        }
        held[Ahead::place(step)] = load((step + Ahead::kPlaces) % S::kCount, rows);
        if (!S::ends(step, group)) continue;
        arrive(bars.full(buffer, group), S::panels_of(group));
        ++group;
      }
    }
    if constexpr (kPaired) wait_for_others(bars);
  }

  /// The same with loads a batch ahead of stores.
  __device__ __forceinline__ void run_batches_ahead(uint32_t tiles, Barriers bars) const {
    const uint32_t to_other = bytes_to_other(tiles);
    RowName next[1];    // row of the next tile
    RowName behind[1];  // and of the one behind it
    int32_t after[1];   // whose slot this was
    RowAddress rows[1];
    Scales scales;       // of the tile that is stored
    Scales next_scales;  // of the one that is loaded
    Unit held[Ahead::kPlaces];
    const auto ask = [&](int batch) {
#pragma unroll
      for (int i = 0; i < S::kCount; ++i)
        if (Ahead::batch_of(i) == batch) held[Ahead::place(i)] = load(i, rows);
    };
    {
      int32_t slots[2][1];
      look_up(0, slots[0]);
      look_up(1, slots[1]);
      look_up(2, after);
      name(0, slots[0], next);
      find(next, rows, next_scales);
      ask(0);
      prefetch(next);
      name(1, slots[1], behind);
    }
    named_arrive(kRowsAsked, kThreadsWith<kGatherers>);
    prefetch(behind);
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
        if (step == kFirstPart) barrier_wait(bars.free(buffer, 1), parity);
        store(step, held[Ahead::place(step)], scales, to, bars.full(buffer, group), to_other);
        if (step == 0) {
          next[0] = behind[0];
          name(tile + 2, after, behind);
        }
        if (Ahead::begins(step)) {
          const int asked = Ahead::batch_of(step) + 1;
          if (asked < Ahead::kBatches) {
            ask(asked);
          } else {
            load_scales(rows[0], next_scales.of[0]);
            ask(0);
            look_up(tile + 3, after);
          }
        }
        if (step == (kPaired ? 0 : S::kCount - 1)) prefetch(behind);
        if (step == Ahead::kLocates) rows[0] = locate(next[0]);
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
template <class Rows, int kGatherers>
inline constexpr int kFillers =
    Rows::kCodes > 0 ? kGatherers* kWarpgroup / kWarp* kWarpArrivals : kWarpgroup;

/// What the warpgroups behind those that compute do.
template <class Rows, bool kPaired, int kGatherers>
__device__ __forceinline__ void gather(
    const DeviceCall& c, const Entries& entries, const Piece& p, uint32_t tiles, Barriers bars) {
  if constexpr (Rows::kCodes > 0) {
    using Gatherer = CodeGatherer<Rows, kPaired, kGatherers>;
    const Gatherer gatherer{.c = c, .entries = entries, .row = Gatherer::first_row()};
    if constexpr (Gatherer::kInBatches) {
      gatherer.run_batches_ahead(tiles, bars);
    } else {
      gatherer.run_rows_ahead(tiles, bars);
    }
  } else {
    static_assert(kGatherers == 1);
    mla_decode::bring_rows<kWidthOf<Rows> / kPanelColumns>(
        p, 0, tiles, bars, reinterpret_cast<const Bf16*>(c.sources[0].values.data),
        [&](int entry) { return bf16_row(c, entries.name(c, entry)); });
  }
}

}  // namespace fathom::sparse_mla
