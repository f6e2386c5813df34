// The pieces that decode is cut into on Hopper, and how their keys reach shared memory: tiles of 64
// keys in nine panels of 64 columns, filled by one warpgroup in two parts a tile.
#pragma once

#include "fathom/kernels/attn/mla_decode/mla_decode_call.cuh"
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

/// Shared memory, in bytes from a multiple of 1024.
inline constexpr uint32_t kKeysAt = kTileBytes;
inline constexpr uint32_t kMaximaAt = 3 * kTileBytes;
inline constexpr uint32_t kSumsAt = kMaximaAt + 2 * kTileRows * 4;
inline constexpr uint32_t kBarriersAt = kSumsAt + 2 * kTileRows * 4;
inline constexpr uint32_t kFlagsAt = kBarriersAt + 8 * 8;
inline constexpr uint32_t kRestsAt = kFlagsAt + 16;
inline constexpr int64_t kSharedBytes = kRestsAt + 2 * kTileRows * kTileKeys + 1024;

/// How the keys of requests are cut, and where the pieces' results lie.
struct Cuts {
  int splits;
  int row_tiles;   ///< blocks that the rows of a request take
  float* sums;     ///< [B, splits, Q * N, 512], not normalised
  float2* states;  ///< [B, splits, Q * N]: maximum (base 2) and sum of the weights
  bool by_engine;  ///< the copy engine brings whole tiles: each lies within a page
};

/// The tiles of one block.
struct Piece {
  int64_t b;
  int64_t first_row;
  int split;
  int first_tile;
  int num_tiles;
  int num_keys;  ///< of the request, that some row of the block sees
  int length;    ///< of the request
};

__device__ inline Piece piece_of(const Call& c, const Cuts& cuts) {
  Piece p;
  const auto block = static_cast<int64_t>(blockIdx.x);
  const int64_t item = block / cuts.row_tiles;
  p.first_row = (block - item * cuts.row_tiles) * kTileRows;
  p.b = item / cuts.splits;
  p.split = static_cast<int>(item - p.b * cuts.splits);
  p.length = static_cast<int>(c.length(p.b));
  const int64_t rows = c.Q * c.N;
  const int64_t last_row = p.first_row + kTileRows < rows ? p.first_row + kTileRows - 1 : rows - 1;
  p.num_keys = static_cast<int>(c.visible(p.length, last_row / c.N));
  const int tiles = (p.length + kTileKeys - 1) / kTileKeys;
  int each = (tiles + cuts.splits - 1) / cuts.splits;
  if (cuts.splits > 1) each = (each + 1) / 2 * 2;
  p.first_tile = p.split * each;
  const int seen = (p.num_keys + kTileKeys - 1) / kTileKeys;
  const int end = p.first_tile + each < seen ? p.first_tile + each : seen;
  p.num_tiles = end > p.first_tile ? end - p.first_tile : 0;
  return p;
}

/// Barriers: part `part` of tile buffer `buffer` is filled; is free again.
struct Barriers {
  uint32_t base;

  __device__ uint32_t full(int buffer, int part) const {
    return base + 8 * static_cast<uint32_t>(2 * buffer + part);
  }

  __device__ uint32_t free(int buffer, int part) const { return full(buffer, part) + 32; }

  __device__ void init() const {
    for (int buffer = 0; buffer < 2; ++buffer) {
      for (int part = 0; part < 2; ++part) {
        barrier_init(full(buffer, part), kWarpgroup);
        barrier_init(free(buffer, part), part == 0 ? 4 : 8);  // warps that use it
      }
    }
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
  }
};

// ---- bringing keys ----

/// bf16 keys in pages of a multiple of 64: the copy engine brings tiles that all queries of the
/// block see, a panel a time. Two tiles ahead, where there is no room yet, keys are brought into
/// the last cache. A page that does not exist arrives as zeros.
__device__ inline void bring_whole_tiles(const Call& c,
                                         const Piece& p,
                                         int whole_tiles,
                                         uint32_t keys_at,
                                         Barriers bars,
                                         const CUtensorMap& map) {
  const bool leads = (static_cast<int>(threadIdx.x) & (kWarpgroup - 1)) == 0;
  const int tiles_of_page = static_cast<int>(c.keys.page_size) / kTileKeys;
  const auto page_of = [&](int tile) {
    return c.keys.table[p.b * c.keys.table_stride + (p.first_tile + tile) / tiles_of_page];
  };
  const auto row_of = [&](int tile) { return (p.first_tile + tile) % tiles_of_page * kTileKeys; };
  int pages[3] = {};
  if (leads) {
#pragma unroll
    for (int i = 0; i < 3; ++i)
      if (i < whole_tiles) pages[i] = page_of(i);
  }
  for (int tile = 0; tile < whole_tiles; ++tile) {
    const int buffer = tile & 1;
    const auto parity = static_cast<uint32_t>((tile >> 1) & 1) ^ 1u;
#pragma unroll
    for (int part = 0; part < 2; ++part) {
      barrier_wait(bars.free(buffer, part), parity);
      const int first = part * kFirstPart;
      const int end = part == 0 ? kFirstPart : kPanels;
      if (!leads) {
        barrier_arrive(bars.full(buffer, part));
        continue;
      }
      barrier_expect(bars.full(buffer, part), static_cast<uint32_t>(end - first) * kPanelBytes);
      for (int panel = first; panel < end; ++panel) {
        copy_box(keys_at + static_cast<uint32_t>(buffer) * kTileBytes +
                     static_cast<uint32_t>(panel) * kPanelBytes,
                 map, panel * kPanelColumns, row_of(tile), pages[0], bars.full(buffer, part));
      }
    }
    if (!leads) continue;
    if (tile + 2 < whole_tiles) {
      for (int panel = 0; panel < kPanels; ++panel)
        prefetch_box(map, panel * kPanelColumns, row_of(tile + 2), pages[2]);
    }
    pages[0] = pages[1];
    pages[1] = pages[2];
    if (tile + 3 < whole_tiles) pages[2] = page_of(tile + 3);
  }
}

/// bf16 keys of any pages and slots, from tile `first` on: sixteen-byte copies, eight threads a row
/// of a panel. Keys that no query sees arrive as zeros.
__device__ inline void bring_rows(
    const Call& c, const Piece& p, int first, uint32_t keys_at, Barriers bars) {
  const int tid = static_cast<int>(threadIdx.x) & (kWarpgroup - 1);
  const int chunk = tid & 7;
  constexpr int kRowsEach = kTileKeys / 16;
  const auto* data = static_cast<const Bf16*>(c.keys.data);
  const auto look_up = [&](int tile, int64_t(&places)[kRowsEach]) {
#pragma unroll
    for (int i = 0; i < kRowsEach; ++i) {
      const int key = (p.first_tile + tile) * kTileKeys + tid / 8 + 16 * i;
      const bool exists = tile < p.num_tiles && key < p.num_keys;
      places[i] = exists ? c.keys.place(p.b, static_cast<uint32_t>(key)) : -1;
    }
  };
  int64_t places[kRowsEach];
  int64_t next[kRowsEach];
  look_up(first, places);
  look_up(first + 1, next);
  for (int tile = first; tile < p.num_tiles; ++tile) {
    const int buffer = tile & 1;
    const auto parity = static_cast<uint32_t>((tile >> 1) & 1) ^ 1u;
#pragma unroll
    for (int part = 0; part < 2; ++part) {
      barrier_wait(bars.free(buffer, part), parity);
#pragma unroll
      for (int i = 0; i < kRowsEach; ++i) {
        const Bf16* from = data + (places[i] < 0 ? 0 : places[i]) + 8 * chunk;
        const uint32_t to = keys_at + static_cast<uint32_t>(buffer) * kTileBytes +
                            panel_offset(tid / 8 + 16 * i, chunk);
#pragma unroll
        for (int panel = part * kFirstPart; panel < (part == 0 ? kFirstPart : kPanels); ++panel) {
          copy_chunk(to + static_cast<uint32_t>(panel) * kPanelBytes, from + panel * kPanelColumns,
                     places[i] >= 0);
        }
      }
      arrive_after_copies(bars.full(buffer, part));
    }
#pragma unroll
    for (int i = 0; i < kRowsEach; ++i)
      places[i] = next[i];
    look_up(tile + 2, next);
#pragma unroll
    for (int i = 0; i < kRowsEach; ++i) {
      if (next[i] < 0) continue;
      prefetch_line(data + next[i] + chunk * kPanelColumns);
      if (chunk == 0) prefetch_line(data + next[i] + 8 * kPanelColumns);
    }
  }
  // A block must not end before its copies.
  wait_copies_all();
}

__device__ inline void bring_keys(const Call& c,
                                  const Piece& p,
                                  const Cuts& cuts,
                                  uint32_t keys_at,
                                  Barriers bars,
                                  const CUtensorMap& map,
                                  Bf16) {
  int whole_tiles = 0;
  if (cuts.by_engine) {
    const int left = p.num_keys / kTileKeys - p.first_tile;
    whole_tiles = left < 0 ? 0 : (left < p.num_tiles ? left : p.num_tiles);
    bring_whole_tiles(c, p, whole_tiles, keys_at, bars, map);
  }
  bring_rows(c, p, whole_tiles, keys_at, bars);
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
__device__ inline void bring_keys(const Call& c,
                                  const Piece& p,
                                  const Cuts&,
                                  uint32_t keys_at,
                                  Barriers bars,
                                  const CUtensorMap&,
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
          asm volatile("st.shared.v4.b32 [%0], {%1, %2, %3, %4};" ::"r"(at), "r"(wide[h].x),
                       "r"(wide[h].y), "r"(wide[h].z), "r"(wide[h].w)
                       : "memory");
        }
      }
    }
    fence_for_products();
    barrier_arrive(bars.full(buffer, part));
  };
  for (int tile = 0; tile < p.num_tiles; ++tile) {
    const int buffer = tile & 1;
    const auto parity = static_cast<uint32_t>((tile >> 1) & 1) ^ 1u;
    int64_t places[kRowsEach];
#pragma unroll
    for (int i = 0; i < kRowsEach; ++i) {
      const int key = (p.first_tile + tile) * kTileKeys + tid / 4 + 32 * i;
      places[i] = key < p.num_keys ? c.keys.place(p.b, static_cast<uint32_t>(key)) : -1;
    }
    bring_part.template operator()<0, kFirstPart>(places, buffer, 0, parity);
    bring_part.template operator()<kFirstPart, kPanels>(places, buffer, 1, parity);
  }
}

}  // namespace fathom::mla_decode
