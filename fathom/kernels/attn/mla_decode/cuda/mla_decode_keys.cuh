// The pieces that decode is cut into on Hopper, and how their keys reach shared memory: tiles of 64
// keys in nine panels of 64 columns. One warpgroup fills them, in two parts that get free at
// different times, each in two groups of panels that products may start with:
//
//   panel   0    1    2    3    4    5    6    7    8
//   group  [   0    ][   1    ][      2      ][   3    ]
//   part   [         0        ][           1           ]
#pragma once

#include "fathom/kernels/attn/mla_decode/cuda/mla_decode_call.cuh"
#include "fathom/kernels/cuda/tensor_core.cuh"
#include "fathom/kernels/cuda/tensor_map.cuh"

namespace fathom::mla_decode {

using namespace cuda;  // NOLINT: device primitives

inline constexpr int kTileRows = 64;  ///< query rows of a block
inline constexpr int kTileKeys = 64;  ///< keys of a tile
inline constexpr int kTileD = 576;    ///< width of a key
inline constexpr int kTileL = 512;    ///< width of a value
inline constexpr int kTileThreads = 3 * kWarpgroup;

inline constexpr int kPanels = kTileD / kPanelColumns;
inline constexpr uint32_t kPanelBytes = kTileKeys * kPanelRowBytes;
inline constexpr uint32_t kTileBytes = kPanels * kPanelBytes;
inline constexpr int kFirstPart = 4;  ///< panels of a tile's first part: columns of warpgroup 0
inline constexpr int kGroups = 4;     ///< of panels, that arrive one after the other

__host__ __device__ constexpr int first_panel(int group) {
  return group <= 2 ? 2 * group : (group == 3 ? 7 : kPanels);
}

static_assert(first_panel(2) == kFirstPart, "a part is two groups");
static_assert(first_panel(kGroups) == kPanels, "groups are all panels");

/// Shared memory, in bytes from a multiple of 1024.
inline constexpr uint32_t kKeysAt = kTileBytes;
inline constexpr uint32_t kMaximaAt = 3 * kTileBytes;
inline constexpr uint32_t kSumsAt = kMaximaAt + 2 * kTileRows * 4;
inline constexpr uint32_t kBarriersAt = kSumsAt + 2 * kTileRows * 4;
inline constexpr uint32_t kRestsAt = kBarriersAt + 2 * (kGroups + 2) * 8;
inline constexpr int64_t kSharedBytes = kRestsAt + 2 * kTileRows * kTileKeys + 1024;
static_assert(kRestsAt % 16 == 0 && kSharedBytes <= 227 << 10, "what a block of Hopper may take");

/// Named barriers; 0 is that of __syncthreads().
enum NamedBarrier { kAll = 1, kWeights0, kWeights1, kOwn0, kOwn1, kWholeTiles };

/// Where the pieces of a request are added.
enum class Merge {
  kNone,     ///< one piece: a block writes its rows
  kCluster,  ///< the pieces of 64 rows are a cluster of blocks, which reads their shared memory
  kKernel,   ///< a second kernel adds float32 sums from global memory
};

/// How the keys of requests are cut, and where the pieces' results lie.
struct Cuts {
  int splits;
  Merge merge;
  int row_tiles;              ///< blocks that the rows of a request take
  float* sums;                ///< [B, splits, Q * N, 512], not normalised; of Merge::kKernel alone
  float2* states;             ///< [B, splits, Q * N]: base (base 2) and sum of the weights
  bool by_engine;             ///< the copy engine brings whole tiles: each lies within a page
  bool copy_queries;          ///< queries are bf16 whose chunks of sixteen bytes can be copied
  int rows_each = kTileRows;  ///< query rows of a block, at most 64
  int side = 1;               ///< blocks of a cluster that have the same piece, side by side
};

/// The tiles of one block.
struct Piece {
  int64_t b;
  int64_t first_row;
  int64_t end_row;  ///< behind the last row of the block
  int split;
  int first_tile;
  int num_tiles;
  int whole_tiles;  ///< of these, the first ones, which the copy engine brings
  int num_keys;     ///< of the request, that some row of the block sees
  int length;       ///< of the request
};

/// Query that row `row` of a request is of. Rows of a request are fewer than 2^31.
__device__ __forceinline__ int64_t query_of(const Call& c, int64_t row) {
  return static_cast<uint32_t>(row) / static_cast<uint32_t>(c.N);
}

/// Blocks that share keys lie side by side; blocks of a cluster must.
__device__ inline Piece piece_of(const Call& c, const Cuts& cuts) {
  Piece p;
  const auto splits = static_cast<uint32_t>(cuts.splits);
  const auto row_tiles = static_cast<uint32_t>(cuts.row_tiles);
  const bool pieces_inside = cuts.merge == Merge::kCluster;
  const uint32_t inside = pieces_inside ? splits : row_tiles;
  const uint32_t middle = pieces_inside ? row_tiles : splits;
  const uint32_t outer = blockIdx.x / inside;
  const uint32_t first = blockIdx.x - outer * inside;
  const uint32_t request = outer / middle;
  const uint32_t second = outer - request * middle;
  p.b = request;
  p.split = static_cast<int>(pieces_inside ? first : second);
  p.first_row = int64_t{pieces_inside ? second : first} * kTileRows;
  p.length = static_cast<int>(c.length(p.b));
  const int64_t rows = c.Q * c.N;
  p.end_row = p.first_row + kTileRows < rows ? p.first_row + kTileRows : rows;
  p.num_keys = c.tree_masks != nullptr
                   ? p.length
                   : static_cast<int>(c.visible(p.length, query_of(c, p.end_row - 1)));
  const auto tiles_of = [](int keys) { return keys / kTileKeys + (keys % kTileKeys != 0); };
  int each = static_cast<int>((static_cast<uint32_t>(tiles_of(p.length)) + splits - 1) / splits);
  if (splits > 1 && each > 1) each = (each + 1) / 2 * 2;
  p.first_tile = p.split * each;
  const int seen = tiles_of(p.num_keys);
  const int end = p.first_tile + each < seen ? p.first_tile + each : seen;
  p.num_tiles = end > p.first_tile ? end - p.first_tile : 0;
  const int left = p.num_keys / kTileKeys - p.first_tile;
  p.whole_tiles = !cuts.by_engine || left < 0 ? 0 : (left < p.num_tiles ? left : p.num_tiles);
  return p;
}

/// Blocks of a call that is not cut, each with rows of one query: what a block has, and how it goes
/// about it, follows from its query alone, whatever is beside it. With trees a row's keys are those
/// of its path, one behind the other.
__device__ inline Piece piece_of_query(const Call& c, const Cuts& cuts) {
  Piece p{};
  const auto row_tiles = static_cast<uint32_t>(cuts.row_tiles);
  const uint32_t tiles_of_query = row_tiles / static_cast<uint32_t>(c.Q);
  const uint32_t request = blockIdx.x / row_tiles;
  const uint32_t within = blockIdx.x - request * row_tiles;
  const uint32_t query = within / tiles_of_query;
  const int64_t end = (int64_t{query} + 1) * c.N;
  p.b = request;
  p.first_row = query * c.N + int64_t{within - query * tiles_of_query} * kTileRows;
  p.end_row = p.first_row + kTileRows < end ? p.first_row + kTileRows : end;
  const int64_t length = c.length(p.b);
  int64_t keys = c.tree_masks != nullptr ? num_seen(c.tree_token(p.b, length, query))
                                         : c.visible(length, query);
  // The host could not look at masks: no path is longer than its request.
  keys = keys < length ? keys : length;
  p.num_keys = static_cast<int>(keys);
  p.length = p.num_keys;
  p.num_tiles = p.num_keys / kTileKeys + (p.num_keys % kTileKeys != 0);
  p.whole_tiles = cuts.by_engine ? p.num_keys / kTileKeys : 0;
  return p;
}

/// Barriers: group `group` of tile buffer `buffer` is filled; part `part` of it is free again.
struct Barriers {
  uint32_t base;

  __device__ uint32_t full(int buffer, int group) const {
    return base + 8 * static_cast<uint32_t>(kGroups * buffer + group);
  }

  __device__ uint32_t free(int buffer, int part) const {
    return base + 8 * static_cast<uint32_t>(2 * kGroups + 2 * buffer + part);
  }

  /// `arrivals`: of those that fill a group; `blocks` whose warps use what is brought.
  __device__ void init(int arrivals, int blocks = 1) const {
    for (int buffer = 0; buffer < 2; ++buffer) {
      for (int group = 0; group < kGroups; ++group)
        barrier_init(full(buffer, group), arrivals);
      barrier_init(free(buffer, 0), 4 * kWarpArrivals * blocks);  // warps that use it
      barrier_init(free(buffer, 1), 8 * kWarpArrivals * blocks);
    }
    fence_barriers();
  }
};

/// Arrives `count` times at once. PTX ISA, mbarrier.arrive.
__device__ __forceinline__ void barrier_arrive_times(uint32_t barrier, int count) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(count)
               : "memory");
}

// ---- bringing keys ----

/// bf16 keys in pages of a multiple of 64: the copy engine brings tiles that all queries of the
/// block see, a panel a time. Two tiles ahead, where there is no room yet, keys are brought into
/// the last cache, by one of two blocks side by side, which read the same ones. A page that does
/// not exist arrives as zeros. One thread does it for the warpgroup, and arrives for all of it.
__device__ inline void bring_whole_tiles(
    const Call& c, const Piece& p, uint32_t keys_at, Barriers bars, const CUtensorMap& map) {
  const uint32_t tiles_of_page = c.keys.page_size / kTileKeys;
  const auto page_of = [&](int tile) {
    return c.keys.table[p.b * c.keys.table_stride +
                        static_cast<uint32_t>(p.first_tile + tile) / tiles_of_page];
  };
  const auto row_of = [&](int tile) {
    return static_cast<int>(static_cast<uint32_t>(p.first_tile + tile) % tiles_of_page) * kTileKeys;
  };
  const bool asks_ahead = p.first_row / kTileRows % 2 == 0;
  int pages[3] = {};
#pragma unroll
  for (int i = 0; i < 3; ++i)
    if (i < p.whole_tiles) pages[i] = page_of(i);
  for (int tile = 0; tile < p.whole_tiles; ++tile) {
    const int buffer = tile & 1;
    const auto parity = static_cast<uint32_t>((tile >> 1) & 1) ^ 1u;
    const uint32_t to = keys_at + static_cast<uint32_t>(buffer) * kTileBytes;
    const int row = row_of(tile);
#pragma unroll
    for (int group = 0; group < kGroups; ++group) {
      if (group % 2 == 0) barrier_wait(bars.free(buffer, group / 2), parity);
      const uint32_t bar = bars.full(buffer, group);
      const int first = first_panel(group);
      const int end = first_panel(group + 1);
      barrier_arrive_times(bar, kWarpgroup - 1);
      barrier_expect(bar, static_cast<uint32_t>(end - first) * kPanelBytes);
#pragma unroll
      for (int panel = first; panel < end; ++panel) {
        copy_box(to + static_cast<uint32_t>(panel) * kPanelBytes, map, panel * kPanelColumns, row,
                 pages[0], bar);
      }
    }
    if (asks_ahead && tile + 2 < p.whole_tiles) {
      for (int panel = 0; panel < kPanels; ++panel)
        prefetch_box(map, panel * kPanelColumns, row_of(tile + 2), pages[2]);
    }
    pages[0] = pages[1];
    pages[1] = pages[2];
    if (tile + 3 < p.whole_tiles) pages[2] = page_of(tile + 3);
  }
}

/// bf16 keys of any pages and slots, from tile `first` on: sixteen-byte copies, eight threads a row
/// of a panel. row_of(key) says where a key of kScored panels lies; it is null where there is none.
/// Such keys, and those that no query sees, arrive as zeros. `some` is any address of the cache: a
/// copy of nothing has one too.
template <int kScored, class RowOf>
__device__ __forceinline__ void bring_rows(
    const Piece& p, int first, uint32_t keys_at, Barriers bars, const Bf16* some, RowOf row_of) {
  if (first == p.num_tiles) return;
  const int tid = static_cast<int>(threadIdx.x) & (kWarpgroup - 1);
  const int chunk = tid & 7;
  constexpr int kRowsEach = kTileKeys / 16;
  const auto look_up = [&](int tile, const Bf16*(&places)[kRowsEach]) {
#pragma unroll
    for (int i = 0; i < kRowsEach; ++i) {
      const int key = (p.first_tile + tile) * kTileKeys + tid / 8 + 16 * i;
      const bool exists = tile < p.num_tiles && key < p.num_keys;
      places[i] = exists ? row_of(key) : nullptr;
    }
  };
  const Bf16* places[kRowsEach];
  const Bf16* next[kRowsEach];
  look_up(first, places);
  look_up(first + 1, next);
  for (int tile = first; tile < p.num_tiles; ++tile) {
    const int buffer = tile & 1;
    const auto parity = static_cast<uint32_t>((tile >> 1) & 1) ^ 1u;
#pragma unroll
    for (int group = 0; group < kGroups; ++group) {
      if (group % 2 == 0) barrier_wait(bars.free(buffer, group / 2), parity);
#pragma unroll
      for (int i = 0; i < kRowsEach; ++i) {
        const Bf16* from = (places[i] == nullptr ? some : places[i]) + 8 * chunk;
        const uint32_t to = keys_at + static_cast<uint32_t>(buffer) * kTileBytes +
                            panel_offset(tid / 8 + 16 * i, chunk);
#pragma unroll
        for (int panel = first_panel(group); panel < first_panel(group + 1); ++panel) {
          if (panel >= kScored) continue;
          copy_chunk(to + static_cast<uint32_t>(panel) * kPanelBytes, from + panel * kPanelColumns,
                     places[i] != nullptr);
        }
      }
      arrive_after_copies(bars.full(buffer, group));
    }
#pragma unroll
    for (int i = 0; i < kRowsEach; ++i)
      places[i] = next[i];
    look_up(tile + 2, next);
#pragma unroll
    for (int i = 0; i < kRowsEach; ++i) {
      if (next[i] == nullptr) continue;
      prefetch_line(next[i] + chunk * kPanelColumns);
      if (kScored > 8 && chunk == 0) prefetch_line(next[i] + 8 * kPanelColumns);
    }
  }
  // A block must not end before its copies.
  wait_copies_all();
}

/// place_of(key): the first element of a key of the piece's request, or -1.
template <class PlaceOf>
__device__ __forceinline__ void bring_keys(const Call& c,
                                           const Piece& p,
                                           uint32_t keys_at,
                                           Barriers bars,
                                           const CUtensorMap& map,
                                           const PlaceOf& place_of,
                                           Bf16) {
  if (p.whole_tiles > 0) {
    if ((static_cast<int>(threadIdx.x) & (kWarpgroup - 1)) == 0)
      bring_whole_tiles(c, p, keys_at, bars, map);
    // A wait tells a phase from the next one alone, so nobody runs ahead of the thread that brings.
    __syncwarp();
    named_sync(kWholeTiles, kWarpgroup);
  }
  const auto* data = static_cast<const Bf16*>(c.keys.data);
  bring_rows<kPanels>(p, p.whole_tiles, keys_at, bars, data, [&](int key) {
    const int64_t place = place_of(static_cast<uint32_t>(key));
    return place < 0 ? nullptr : data + place;
  });
}

/// Sixteen e4m3 codes as bf16, which holds them all.
__device__ __forceinline__ void widen(const uint4& codes, uint4 (&out)[2]) {
  const uint32_t words[4] = {codes.x, codes.y, codes.z, codes.w};
  uint32_t wide[8];
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    const auto pair = static_cast<__nv_fp8x2_storage_t>(words[i / 2] >> (i % 2 * 16));
    const float2 values = __half22float2(__half2(__nv_cvt_fp8x2_to_halfraw2(pair, __NV_E4M3)));
    wide[i] = pack_bf16(values.x, values.y);
  }
  out[0] = {wide[0], wide[1], wide[2], wide[3]};
  out[1] = {wide[4], wide[5], wide[6], wide[7]};
}

/// e4m3 keys: loaded to registers while the part is in use, widened on the way to shared memory.
/// Four threads a row of a panel.
template <class PlaceOf>
__device__ __forceinline__ void bring_keys(const Call& c,
                                           const Piece& p,
                                           uint32_t keys_at,
                                           Barriers bars,
                                           const CUtensorMap&,
                                           const PlaceOf& place_of,
                                           E4m3) {
  const int tid = static_cast<int>(threadIdx.x) & (kWarpgroup - 1);
  const int quarter = tid & 3;
  constexpr int kRowsEach = 2;
  const auto* data = static_cast<const E4m3*>(c.keys.data);
  const auto bring_part = [&]<int kBegin, int kEnd>(const int64_t(&places)[kRowsEach], int buffer,
                                                    int part, uint32_t parity) {
    uint4 codes[kRowsEach][kEnd - kBegin];
#pragma unroll
    for (int i = 0; i < kRowsEach; ++i) {
#pragma unroll
      for (int panel = kBegin; panel < kEnd; ++panel) {
        codes[i][panel - kBegin] =
            places[i] < 0 ? uint4{}
                          : *reinterpret_cast<const uint4*>(data + places[i] +
                                                            panel * kPanelColumns + 16 * quarter);
      }
    }
    barrier_wait(bars.free(buffer, part), parity);
#pragma unroll
    for (int i = 0; i < kRowsEach; ++i) {
#pragma unroll
      for (int panel = kBegin; panel < kEnd; ++panel) {
        uint4 wide[2];
        widen(codes[i][panel - kBegin], wide);
        const uint32_t to = keys_at + static_cast<uint32_t>(buffer) * kTileBytes +
                            static_cast<uint32_t>(panel) * kPanelBytes;
#pragma unroll
        for (int h = 0; h < 2; ++h) {
          const uint32_t at = to + panel_offset(tid / 4 + 32 * i, 2 * quarter + h);
          store_shared_16(at, wide[h]);
        }
      }
    }
    fence_for_products();
    barrier_arrive(bars.full(buffer, 2 * part));
    barrier_arrive(bars.full(buffer, 2 * part + 1));
  };
  for (int tile = 0; tile < p.num_tiles; ++tile) {
    const int buffer = tile & 1;
    const auto parity = static_cast<uint32_t>((tile >> 1) & 1) ^ 1u;
    int64_t places[kRowsEach];
#pragma unroll
    for (int i = 0; i < kRowsEach; ++i) {
      const int key = (p.first_tile + tile) * kTileKeys + tid / 4 + 32 * i;
      places[i] = key < p.num_keys ? place_of(static_cast<uint32_t>(key)) : -1;
    }
    bring_part.template operator()<0, kFirstPart>(places, buffer, 0, parity);
    bring_part.template operator()<kFirstPart, kPanels>(places, buffer, 1, parity);
  }
}

}  // namespace fathom::mla_decode
