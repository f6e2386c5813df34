// Decode of few rows over the keys of a block table.
#pragma once

#include "fathom/kernels/attn/mla_decode/cuda/mla_decode_few_rows.cuh"

namespace fathom::mla_decode {

/// Two tiles of keys are under way.
inline constexpr int kFewStages = 2;
using FewPagedMemory = FewRowsMemory<kPanels, kFewStages>;
static_assert(sizeof(FewPagedMemory) <= 227 << 10, "what a block of Hopper may take");

/// The keys of one block.
struct KeyRange {
  int length;  ///< of the request
  int first;
  int end;
};

/// Which keys the two rows of a lane see: those of a chain.
struct FewInChains {
  __device__ __forceinline__ explicit FewInChains(const FewRowsBlock&) {}

  /// Keys that some of the rows up to `last_row` see.
  static __device__ __forceinline__ int most(const FewRows& f, int length, uint32_t last_row) {
    return f.visible(length, f.heads.of(last_row));
  }

  __device__ __forceinline__ bool sees(const FewRowsBlock& block,
                                       int length,
                                       int h,
                                       int key) const {
    return key < (block.rows.exists[h] ? block.f.visible(length, block.rows.j[h]) : 0);
  }
};

/// The same of tokens in trees. In a rehearsal masks may be any.
struct FewInTrees {
  TreeToken tokens[2];

  __device__ __forceinline__ explicit FewInTrees(const FewRowsBlock& block) {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      tokens[h] = {};
      if (block.rows.exists[h])
        tokens[h] = block.f.c.tree_token(block.b, block.f.room, block.rows.j[h]);
    }
  }

  static __device__ __forceinline__ int most(const FewRows&, int length, uint32_t) {
    return length;
  }

  __device__ __forceinline__ bool sees(const FewRowsBlock&, int length, int h, int key) const {
    return key < length && sees_place(tokens[h], key);
  }
};

/// Pieces are of equal length, a multiple of 16 keys. Reads what an earlier kernel may still write
/// past the first cache, which would keep it.
template <class Seen>
__device__ __forceinline__ KeyRange
keys_of_piece(const FewRows& f, int b, uint32_t first_row, int piece) {
  const int length = max(0, min(__ldcg(f.c.kv_lens + b), f.room));
  const uint32_t last_row = min(first_row + kFewRows, f.num_rows) - 1;
  const int seen = Seen::most(f, length, last_row);
  const int pieces = 1 << f.log2_pieces;
  const int each = (seen + kChunkKeys * pieces - 1) / kChunkKeys >> f.log2_pieces;
  const int first = piece * each * kChunkKeys;
  return {length, first, min(first + each * kChunkKeys, seen)};
}

/// Where a warp's panel of the keys of a tile lies, as far as a lane looks them up: key 32 i +
/// lane; null where there is none.
struct KeyPlaces {
  const Bf16* at[2];
  static_assert(kTileKeys == 2 * kWarp, "a lane looks up two keys");

  __device__ __forceinline__ KeyPlaces(const FewRows& f, int b, int first, int end) {
    const PagedKeys& keys = f.c.keys;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      at[i] = nullptr;
      const int key = first + kWarp * i + lane_id();
      if (key >= end) continue;
      const uint32_t entry = f.page_size.of(static_cast<uint32_t>(key));
      const uint32_t in_page = static_cast<uint32_t>(key) - entry * f.page_size.divisor;
      const int page = __ldcg(keys.table + b * keys.table_stride + entry);
      if (page < 0 || page >= keys.num_pages) continue;
      at[i] = static_cast<const Bf16*>(keys.data) + page * keys.page_stride +
              in_page * keys.key_stride + warp_id() * kPanelColumns;
    }
  }
};

/// A warp's panel of a tile to shared memory, eight lanes a key. Keys past the end arrive as zeros
/// up to the end of their chunk.
__device__ __forceinline__ void bring_panel(uint32_t panel,
                                            const KeyPlaces& places,
                                            const void* cache,
                                            int num_chunks) {
  const int part = lane_id() & 7;
  const int first = lane_id() / 8;
  uint32_t to[2];  // of keys 16 k + first and 16 k + 4 + first
#pragma unroll
  for (int i = 0; i < 2; ++i)
    to[i] = panel + panel_offset(4 * i + first, part);
#pragma unroll 1
  for (int k = 0; k < num_chunks; ++k) {
    const auto mine = reinterpret_cast<uint64_t>(k < kChunks / 2 ? places.at[0] : places.at[1]);
#pragma unroll
    for (int i = 0; i < kChunkKeys / 4; ++i) {
      const uint64_t key = __shfl_sync(0xFFFFFFFFu, mine, (kChunkKeys * k + 4 * i + first) % kWarp);
      const void* from = key == 0 ? cache : reinterpret_cast<const Bf16*>(key) + 8 * part;
      copy_chunk(to[i % 2] + (i / 2) * 8 * kPanelRowBytes, from, key != 0);
    }
#pragma unroll
    for (int i = 0; i < 2; ++i)
      to[i] += kChunkKeys * kPanelRowBytes;
  }
}

/// The keys of a block.
template <class Seen>
struct FewPagedKeys {
  const FewRowsBlock& block;
  FewPagedMemory& m;

  __device__ uint32_t panel(int tile) const {
    return shared_address(m.keys[static_cast<uint32_t>(tile) % kFewStages][block.warp]);
  }

  __device__ __forceinline__ KeyRange range() const {
    return keys_of_piece<Seen>(block.f, block.b, block.first_row, block.rank);
  }

  /// Brings this piece's keys into the last cache, as far as they can be known.
  __device__ __forceinline__ void prefetch() const {
    const KeyRange likely = range();
    const KeyPlaces places(block.f, block.b, likely.first, likely.end);
#pragma unroll
    for (const Bf16* key : places.at)
      if (key != nullptr) prefetch_line(key);
  }

  __device__ __forceinline__ void bring(const KeyRange& keys, int tile) const {
    const int first = keys.first + tile * kTileKeys;
    if (first < keys.end) {
      bring_panel(panel(tile), KeyPlaces(block.f, block.b, first, keys.end), block.f.c.keys.data,
                  chunks_between(first, keys.end));
    }
    commit_copies();
  }

  __device__ __forceinline__ void attend(const KeyRange& keys,
                                         int tile,
                                         const Seen& seen,
                                         const uint32_t (&queries)[16],
                                         RowPair& state,
                                         FewSums& o) const {
    const int first = keys.first + tile * kTileKeys;
    wait_copies<kFewStages - 1>();
    __syncwarp();
    block.attend(m, panel(tile), chunks_between(first, keys.end), queries, state, o,
                 [&](int h, int key) { return seen.sees(block, keys.length, h, first + key); });
  }

  __device__ __forceinline__ void run(bool rehearsal) const {
    block.run(m, rehearsal, [&](const uint32_t(&queries)[16], RowPair& state, FewSums& o) {
      const Seen seen(block);
      KeyRange keys = range();
      // All warps must take the same way, and may have read different lengths.
      if (rehearsal) keys = {.length = 0, .first = 0, .end = min(kChunkKeys, block.f.room)};
      // A tile is brought two steps ahead; the first two steps do nothing else.
      const int num_tiles = (keys.end - keys.first + kTileKeys - 1) / kTileKeys;
#pragma unroll 1
      for (int tile = -kFewStages; tile < num_tiles; ++tile) {
        if (tile >= 0) attend(keys, tile, seen, queries, state, o);
        bring(keys, tile + kFewStages);
      }
    });
  }
};

template <class Seen>
__global__ void __launch_bounds__(FewPagedMemory::kWarps* kWarp, 1)
    decode_few_rows(const __grid_constant__ FewRows f) {
  extern __shared__ __align__(1024) unsigned char few_rows_memory[];
  auto& m = *reinterpret_cast<FewPagedMemory*>(few_rows_memory);
  let_next_start();
  const FewRowsBlock block = begin_few_rows(f, m);
  const FewPagedKeys<Seen> keys{block, m};
  keys.prefetch();
  cluster_wait();
#pragma unroll 1
  for (int turn = 0; turn < 2; ++turn) {
    if (turn == 1) wait_for_previous();
    keys.run(turn == 0);
    __syncwarp();
  }
}

}  // namespace fathom::mla_decode
