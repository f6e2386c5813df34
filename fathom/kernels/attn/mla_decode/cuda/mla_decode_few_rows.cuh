// Decode of few query rows over few keys, where waits decide and not the bytes: a cluster of blocks
// takes 16 of the Q * N rows of a request, each block one piece of the keys.
//
// A block has nine warps, one for each panel of 64 columns of queries and keys, which only it
// reads: it brings its panel of a tile of 64 keys itself, and needs nobody's keys but its own.
//
//   warp w     brings panel w of the keys, and multiplies it by panel w of the queries
//   all        add the nine parts of the scores, in order
//   warp w < 8 turns all scores into weights and multiplies them by panel w of the values
//
// Then each block sends its sums to the others' shared memory: block r of the cluster gets the
// r-th part of the columns from all, adds the pieces in order and writes. Nobody reads from another
// block, so a block may end before the others have.
//
// In a decode step the code and the keys are cold. So the code is kept short (loops over chunks of
// 16 keys are not unrolled), and while the previous kernel still runs
//
//   - keys are brought into the last cache, from lengths and tables as they then are;
//   - all of the code runs once over the first 16 keys, so that it is in the caches of instructions
//     when it counts. This rehearsal sends nothing and writes nothing.
//
// What either reads other kernels may be writing, so no way that is taken depends on it.
#pragma once

#include <cmath>

#include "fathom/kernels/attn/mla_decode/cuda/mla_decode_results.cuh"
#include "fathom/kernels/cuda/arithmetic.cuh"
#include "fathom/kernels/cuda/flat.cuh"
#include "fathom/kernels/cuda/products/mma.cuh"

namespace fathom::mla_decode {

inline constexpr int kFewRows = 16;        ///< query rows of a cluster
inline constexpr int kFewWarps = kPanels;  ///< one a panel
inline constexpr int kValueWarps = kTileL / kPanelColumns;
inline constexpr int kChunkKeys = 16;  ///< keys that one product sums over
inline constexpr int kChunks = kTileKeys / kChunkKeys;
inline constexpr int kFewStages = 2;              ///< tiles of keys under way
inline constexpr int kColumnGroups = kTileL / 8;  ///< eight columns each: what a product writes
static_assert(kTileKeys * kFewRows / 4 == kValueWarps * kWarp, "a thread adds four scores");

/// A decode call for clusters of few rows.
struct FewRows {
  Call c;
  uint32_t num_rows;     ///< of a request
  uint32_t num_queries;  ///< of a request
  int room;              ///< the most keys of a request
  FastDivide heads;
  FastDivide page_size;
  FastDivide row_tiles;  ///< of a request, a cluster each
  int log2_pieces;       ///< blocks of a cluster: 2^3 or 2^4

  /// Keys that query j of a request of `length` keys sees.
  __device__ int visible(int length, uint32_t j) const {
    return max(0, length - static_cast<int>(num_queries) + 1 + static_cast<int>(j));
  }
};

/// Scores lie as the products leave them: of chunk k, half h (8 keys) a lane holds
/// {row g: keys 2t 2t+1; row g + 8: the same}, g = lane / 4 and t = lane % 4.
struct FewRowsMemory {
  uint4 keys[kFewStages][kFewWarps][kTileKeys * kPanelRowBytes / 16];  ///< see panel_offset()
  float4 parts[kFewWarps][2 * kChunks][kWarp];
  float4 scores[2 * kChunks][kWarp];
  float4 received[kColumnGroups]
                 [kWarp];  ///< a piece's column groups of this block, then the next's
  float2 states[kMostInCluster][kFewRows];  ///< base and sum of each piece
  uint64_t all_received;                    ///< barrier: sums and states are here

  /// What a block gets: column groups of all pieces, and the states of each.
  static constexpr uint32_t received_bytes(int pieces) {
    return sizeof(received) + static_cast<uint32_t>(pieces) * sizeof(states[0]);
  }
};

static_assert(sizeof(FewRowsMemory) <= 227 << 10, "what a block of Hopper may take");

/// What a lane knows of rows g and g + 8 of its cluster.
struct RowsOfLane {
  bool exists[2];
  uint32_t j[2];  ///< query token
  uint32_t n[2];  ///< head

  __device__ RowsOfLane(const FewRows& f, uint32_t first_row) {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const uint32_t row = first_row + static_cast<uint32_t>(lane_id() / 4 + 8 * h);
      exists[h] = row < f.num_rows;
      j[h] = f.heads.of(row);
      n[h] = row - j[h] * f.heads.divisor;
    }
  }
};

/// The keys of one block.
struct KeyRange {
  int length;  ///< of the request
  int first;
  int end;
};

/// Pieces are of equal length, a multiple of 16 keys. Reads what an earlier kernel may still write
/// past the first cache, which would keep it.
__device__ __forceinline__ KeyRange keys_of_piece(const FewRows& f,
                                                  int b,
                                                  uint32_t first_row,
                                                  int piece) {
  const int length = max(0, min(__ldcg(f.c.kv_lens + b), f.room));
  const uint32_t last_row = min(first_row + kFewRows, f.num_rows) - 1;
  const int seen = f.visible(length, f.heads.of(last_row));
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

__device__ __forceinline__ int chunks_between(int first, int end) {
  return min(kChunks, (end - first + kChunkKeys - 1) / kChunkKeys);
}

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

/// A warp's panel of the queries as operands of products: queries[4 k + 2 e + h] is the pair
/// 16 k + 8 e + 2 t of row g + 8 h. Read past the first cache, as keys are.
__device__ __forceinline__ void load_queries(const Call& c,
                                             int b,
                                             const RowsOfLane& rows,
                                             uint32_t (&queries)[16]) {
  const int column = warp_id() * kPanelColumns;
  const bool in_first = column < c.first_width;
  const HeadRows& part = in_first ? c.q : c.q_pe;
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    const Bf16* row = static_cast<const Bf16*>(part.data) + part.offset(b, rows.j[h], rows.n[h]) +
                      (in_first ? column : column - c.first_width) + 2 * (lane_id() & 3);
#pragma unroll
    for (int i = 0; i < 8; ++i)
      queries[2 * i + h] =
          rows.exists[h] ? __ldcg(reinterpret_cast<const unsigned*>(row + 8 * i)) : 0;
  }
}

/// The part of the scores that this warp's panel gives.
__device__ __forceinline__ void score_panel(uint32_t panel,
                                            const uint32_t (&queries)[16],
                                            int num_chunks,
                                            float4 (&parts)[2 * kChunks][kWarp]) {
  const int row = lane_id() / 16 * 8 + (lane_id() & 7);
  const int half = lane_id() >> 3 & 1;
#pragma unroll 1
  for (int k = 0; k < num_chunks; ++k) {
    float s[2][4] = {};
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      uint32_t keys[4];
      load_matrices(keys, panel + panel_offset(kChunkKeys * k + row, 2 * i + half));
      const uint32_t* q = queries + 4 * i;
      mma_16x8x16(s[0], q[0], q[1], q[2], q[3], keys[0], keys[1]);
      mma_16x8x16(s[1], q[0], q[1], q[2], q[3], keys[2], keys[3]);
    }
#pragma unroll
    for (int h = 0; h < 2; ++h)
      parts[2 * k + h][lane_id()] = {s[h][0], s[h][1], s[h][2], s[h][3]};
  }
}

/// Adds the parts of four scores, scaled to base 2; -inf where a row does not see the key.
/// `first_key` is that of the tile.
__device__ __forceinline__ void add_parts(FewRowsMemory& m,
                                          int first_key,
                                          const int (&limits)[2],
                                          float scale) {
  const int place = warp_id();
  float4 s = m.parts[0][place][lane_id()];
#pragma unroll
  for (int w = 1; w < kFewWarps; ++w) {
    const float4 part = m.parts[w][place][lane_id()];
    s.x += part.x;
    s.y += part.y;
    s.z += part.z;
    s.w += part.w;
  }
  const int key = first_key + 8 * place + 2 * (lane_id() & 3);
  m.scores[place][lane_id()] = {
      key < limits[0] ? s.x * scale : -INFINITY, key + 1 < limits[0] ? s.y * scale : -INFINITY,
      key < limits[1] ? s.z * scale : -INFINITY, key + 1 < limits[1] ? s.w * scale : -INFINITY};
}

/// Sums of this warp's columns: o[i] is column group i of its panel, held as scores are.
using FewSums = float[8][4];

/// Raises the bases to the highest score of the tile and shrinks the sums.
__device__ __forceinline__ void raise_bases(const FewRowsMemory& m,
                                            int num_chunks,
                                            RowPair& state,
                                            FewSums& o) {
  float most[2] = {-INFINITY, -INFINITY};
#pragma unroll 1
  for (int i = 0; i < 2 * num_chunks; ++i) {
    const float4 s = m.scores[i][lane_id()];
    most[0] = fmaxf(most[0], fmaxf(s.x, s.y));
    most[1] = fmaxf(most[1], fmaxf(s.z, s.w));
  }
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    const float base = fmaxf(state.base[h], combine_lanes<4>(most[h], Max{}));
    const float shrink = exp2_approx(state.base[h] - base);
    state.base[h] = base;
    state.sum[h] *= shrink;
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      o[i][2 * h] *= shrink;
      o[i][2 * h + 1] *= shrink;
    }
  }
}

/// o += weights * values. A weight enters as two bf16.
__device__ __forceinline__ void add_panel(
    const FewRowsMemory& m, uint32_t panel, int num_chunks, RowPair& state, FewSums& o) {
  const int row = lane_id() & 15;
  const int half = lane_id() / 16;
#pragma unroll 1
  for (int k = 0; k < num_chunks; ++k) {
    uint32_t high[4];
    uint32_t low[4];
#pragma unroll
    for (int e = 0; e < 2; ++e) {
      const float4 s = m.scores[2 * k + e][lane_id()];
      const float weights[4] = {exp2_approx(s.x - state.base[0]), exp2_approx(s.y - state.base[0]),
                                exp2_approx(s.z - state.base[1]), exp2_approx(s.w - state.base[1])};
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        const float a = weights[2 * h];
        const float b = weights[2 * h + 1];
        state.sum[h] += a + b;
        high[2 * e + h] = pack_bf16(a, b);
        low[2 * e + h] = pack_bf16_rest(a, b, high[2 * e + h]);
      }
    }
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      uint32_t values[4];
      load_transposed(values, panel + panel_offset(kChunkKeys * k + row, 2 * i + half));
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        const uint32_t b0 = values[2 * e];
        const uint32_t b1 = values[2 * e + 1];
        mma_16x8x16(o[2 * i + e], low[0], low[1], low[2], low[3], b0, b1);
        mma_16x8x16(o[2 * i + e], high[0], high[1], high[2], high[3], b0, b1);
      }
    }
  }
}

/// Gives every block of the cluster its part of this warp's sums, and all of them the states.
__device__ __forceinline__ void send_piece(FewRowsMemory& m,
                                           int log2_pieces,
                                           int piece,
                                           bool rehearsal,
                                           RowPair& state,
                                           const FewSums& o) {
  const int log2_groups = 6 - log2_pieces;  // column groups of a block
  static_assert(kColumnGroups == 1 << 6, "what the shift is for");
  const uint32_t sums = shared_address(&m.received[piece << log2_groups][lane_id()]);
  const uint32_t barrier = shared_address(&m.all_received);
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    const int group = 8 * warp_id() + i;
    const int block = group >> log2_groups;
    const int place = group - (block << log2_groups);
    send(address_in_block(sums + static_cast<uint32_t>(place) * sizeof(m.received[0]), block),
         address_in_block(barrier, block), float4{o[i][0], o[i][1], o[i][2], o[i][3]}, !rehearsal);
  }
#pragma unroll
  for (int h = 0; h < 2; ++h)
    state.sum[h] = combine_lanes<4>(state.sum[h], Add{});
  const int h = lane_id() & 3;
  if (h >= 2) return;
  const float2 mine = {h == 0 ? state.base[0] : state.base[1],
                       h == 0 ? state.sum[0] : state.sum[1]};
  const uint32_t states = shared_address(&m.states[piece][lane_id() / 4 + 8 * h]);
#pragma unroll 1
  for (int block = warp_id(); block < 1 << log2_pieces; block += kValueWarps)
    send(address_in_block(states, block), address_in_block(barrier, block), mine, !rehearsal);
}

/// Adds the pieces of two rows of this block's columns, their sinks, divides and writes.
__device__ __forceinline__ void write_columns(const FewRows& f,
                                              const FewRowsMemory& m,
                                              int b,
                                              int rank,
                                              const RowsOfLane& rows,
                                              bool rehearsal) {
  const Call& c = f.c;
  constexpr int kAtOnce = 4;  // pieces whose loads are under way together
  const int pieces = 1 << f.log2_pieces;
  const int groups = kColumnGroups >> f.log2_pieces;
  if (warp_id() >= groups) return;
  const int g = lane_id() / 4;
  float sink[2];
#pragma unroll
  for (int h = 0; h < 2; ++h)
    sink[h] =
        c.sinks != nullptr && rows.exists[h] ? __ldcg(c.sinks + rows.n[h]) * kLog2E : -INFINITY;
  float most[2] = {sink[0], sink[1]};
#pragma unroll 1
  for (int first = 0; first < pieces; first += kAtOnce) {
#pragma unroll
    for (int s = first; s < first + kAtOnce; ++s) {
      most[0] = fmaxf(most[0], m.states[s][g].x);
      most[1] = fmaxf(most[1], m.states[s][g + 8].x);
    }
  }
  float sum[2] = {exp2_approx(sink[0] - most[0]), exp2_approx(sink[1] - most[1])};
  float total[4] = {};
#pragma unroll 1
  for (int first = 0; first < pieces; first += kAtOnce) {
#pragma unroll
    for (int s = first; s < first + kAtOnce; ++s) {
      const float4 part = m.received[s * groups + warp_id()][lane_id()];
      const float values[4] = {part.x, part.y, part.z, part.w};
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        const float2 state = m.states[s][g + 8 * h];
        const float share = exp2_approx(state.x - most[h]);
        sum[h] += share * state.y;
        total[2 * h] += share * values[2 * h];
        total[2 * h + 1] += share * values[2 * h + 1];
      }
    }
  }
  const int column = 8 * (rank * groups + warp_id()) + 2 * (lane_id() & 3);
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    if (!rows.exists[h]) continue;
    const bool empty = sum[h] == 0.0f;
    const float factor = empty ? 0.0f : c.out_scale * approximate_reciprocal(sum[h]);
    Bf16* to = static_cast<Bf16*>(c.o.data) + c.o.offset(b, rows.j[h], rows.n[h]) + column;
    st_global_if(to, pack_bf16(total[2 * h] * factor, total[2 * h + 1] * factor), !rehearsal);
    if (c.lse.data != nullptr && column == 0 && !rehearsal) {
      static_cast<float*>(c.lse.data)[c.lse.offset(b, rows.j[h], rows.n[h])] =
          empty ? -INFINITY : most[h] * kLn2 + __logf(sum[h]);
    }
  }
}

/// What a block has to do.
struct FewRowsBlock {
  const FewRows& f;
  FewRowsMemory& m;
  RowsOfLane rows;
  int b;
  uint32_t first_row;
  int rank;  ///< piece, and part of the columns
  int warp;

  __device__ uint32_t panel(int tile) const {
    return shared_address(m.keys[static_cast<uint32_t>(tile) % kFewStages][warp]);
  }

  /// Brings this piece's keys into the last cache, as far as they can be known.
  __device__ __forceinline__ void prefetch_keys() const {
    const KeyRange likely = keys_of_piece(f, b, first_row, rank);
    const KeyPlaces places(f, b, likely.first, likely.end);
#pragma unroll
    for (const Bf16* key : places.at)
      if (key != nullptr) prefetch_line(key);
  }

  __device__ __forceinline__ void bring(const KeyRange& keys, int tile) const {
    const int first = keys.first + tile * kTileKeys;
    if (first < keys.end) {
      bring_panel(panel(tile), KeyPlaces(f, b, first, keys.end), f.c.keys.data,
                  chunks_between(first, keys.end));
    }
    commit_copies();
  }

  /// Keys of a tile to the sums of this warp's columns.
  __device__ __forceinline__ void attend(const KeyRange& keys,
                                         int tile,
                                         const uint32_t (&queries)[16],
                                         RowPair& state,
                                         FewSums& o) const {
    const int first = keys.first + tile * kTileKeys;
    const int num_chunks = chunks_between(first, keys.end);
    wait_copies<kFewStages - 1>();
    __syncwarp();
    score_panel(panel(tile), queries, num_chunks, m.parts[warp]);
    __syncthreads();
    if (warp < 2 * num_chunks) {
      int limits[2];
#pragma unroll
      for (int h = 0; h < 2; ++h)
        limits[h] = rows.exists[h] ? f.visible(keys.length, rows.j[h]) : 0;
      add_parts(m, first, limits, f.c.score_scale * kLog2E);
    }
    __syncthreads();
    if (warp < kValueWarps) {
      raise_bases(m, num_chunks, state, o);
      add_panel(m, panel(tile), num_chunks, state, o);
    }
    __syncwarp();
  }

  __device__ __forceinline__ void run(bool rehearsal) const {
    uint32_t queries[16];
    load_queries(f.c, b, rows, queries);
    KeyRange keys = keys_of_piece(f, b, first_row, rank);
    // All warps must take the same way, and may have read different lengths.
    if (rehearsal) keys = {.length = 0, .first = 0, .end = min(kChunkKeys, f.room)};
    RowPair state;
    FewSums o = {};
    // A tile is brought two steps ahead; the first two steps do nothing else.
    const int num_tiles = (keys.end - keys.first + kTileKeys - 1) / kTileKeys;
#pragma unroll 1
    for (int tile = -kFewStages; tile < num_tiles; ++tile) {
      if (tile >= 0) attend(keys, tile, queries, state, o);
      bring(keys, tile + kFewStages);
    }
    if (warp < kValueWarps) send_piece(m, f.log2_pieces, rank, rehearsal, state, o);
    if (!rehearsal) barrier_wait(shared_address(&m.all_received), 0);
    write_columns(f, m, b, rank, rows, rehearsal);
  }
};

__global__ void __launch_bounds__(kFewWarps* kWarp, 1)
    decode_few_rows(const __grid_constant__ FewRows f) {
  extern __shared__ __align__(1024) unsigned char few_rows_memory[];
  auto& m = *reinterpret_cast<FewRowsMemory*>(few_rows_memory);
  let_next_start();
  if (threadIdx.x == 0) {
    barrier_init(shared_address(&m.all_received), 1);
    fence_barriers();
    barrier_expect(shared_address(&m.all_received),
                   FewRowsMemory::received_bytes(1 << f.log2_pieces));
  }
  __syncwarp();
  cluster_arrive_relaxed();  // blocks may be sent to once they have started
  const uint32_t cluster = blockIdx.x >> f.log2_pieces;
  const uint32_t request = f.row_tiles.of(cluster);
  const uint32_t first_row = (cluster - request * f.row_tiles.divisor) * kFewRows;
  const FewRowsBlock block{.f = f,
                           .m = m,
                           .rows = RowsOfLane(f, first_row),
                           .b = static_cast<int>(request),
                           .first_row = first_row,
                           .rank = static_cast<int>(cluster_rank()),
                           .warp = __shfl_sync(0xFFFFFFFFu, warp_id(), 0)};
  block.prefetch_keys();
  cluster_wait();
#pragma unroll 1
  for (int turn = 0; turn < 2; ++turn) {
    if (turn == 1) wait_for_previous();
    block.run(turn == 0);
    __syncwarp();
  }
}

}  // namespace fathom::mla_decode
