// Latent attention of few query rows over few keys, where waits decide and not the bytes: a cluster
// of blocks takes 16 of the Q * N rows of a request, each block one piece of the keys. What
// computes; the kernels that include this differ in how a warp gets its keys.
//
// A block has nine warps, one for each panel of 64 columns of queries and keys (eight where keys
// have 512), which only it reads: it brings its panel of a tile of 64 keys itself, and needs
// nobody's keys but its own.
//
//   warp w     brings panel w of the keys, and multiplies it by panel w of the queries
//   all        add the parts of the scores, in order
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
#include "fathom/kernels/cuda/clusters_at_once.h"
#include "fathom/kernels/cuda/flat.cuh"
#include "fathom/kernels/cuda/products/mma.cuh"

namespace fathom::mla_decode {

inline constexpr int kFewRows = 16;  ///< query rows of a cluster
inline constexpr int kValueWarps = kTileL / kPanelColumns;
inline constexpr int kChunkKeys = 16;  ///< keys that one product sums over
inline constexpr int kChunks = kTileKeys / kChunkKeys;
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
template <int kWarpsOfBlock, int kStages>
struct FewRowsMemory {
  static constexpr int kWarps = kWarpsOfBlock;  ///< one a panel

  uint4 keys[kStages][kWarps][kTileKeys * kPanelRowBytes / 16];  ///< see panel_offset()
  float4 parts[kWarps][2 * kChunks][kWarp];
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

__device__ __forceinline__ int chunks_between(int first, int end) {
  return min(kChunks, (end - first + kChunkKeys - 1) / kChunkKeys);
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

/// Adds the parts of four scores, scaled to base 2; -inf where sees(h, key) is false: the lane's
/// row h does not see that key of the tile.
template <class Memory, class Sees>
__device__ __forceinline__ void add_parts(Memory& m, float scale, Sees sees) {
  const int place = warp_id();
  float4 s = m.parts[0][place][lane_id()];
#pragma unroll
  for (int w = 1; w < Memory::kWarps; ++w) {
    const float4 part = m.parts[w][place][lane_id()];
    s.x += part.x;
    s.y += part.y;
    s.z += part.z;
    s.w += part.w;
  }
  const int key = 8 * place + 2 * (lane_id() & 3);
  m.scores[place][lane_id()] = {
      sees(0, key) ? s.x * scale : -INFINITY, sees(0, key + 1) ? s.y * scale : -INFINITY,
      sees(1, key) ? s.z * scale : -INFINITY, sees(1, key + 1) ? s.w * scale : -INFINITY};
}

/// Sums of this warp's columns: o[i] is column group i of its panel, held as scores are.
using FewSums = float[8][4];

/// Raises the bases to the highest score of the tile and shrinks the sums.
template <class Memory>
__device__ __forceinline__ void raise_bases(const Memory& m,
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
template <class Memory>
__device__ __forceinline__ void add_panel(
    const Memory& m, uint32_t panel, int num_chunks, RowPair& state, FewSums& o) {
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
template <class Memory>
__device__ __forceinline__ void send_piece(
    Memory& m, int log2_pieces, int piece, bool rehearsal, RowPair& state, const FewSums& o) {
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

/// The first of the two columns that a lane writes of its rows: of warps that write any.
__device__ __forceinline__ int column_of_lane(const FewRows& f, int rank) {
  const int groups = kColumnGroups >> f.log2_pieces;
  return 8 * (rank * groups + warp_id()) + 2 * (lane_id() & 3);
}

/// Adds the pieces of two rows of this block's columns, their sinks, divides and writes.
template <class Memory, class Turn>
__device__ __forceinline__ void write_columns(const FewRows& f,
                                              const Memory& m,
                                              int b,
                                              int rank,
                                              const RowsOfLane& rows,
                                              bool rehearsal,
                                              const Turn& turn) {
  const Call& c = f.c;
  constexpr int kAtOnce = 4;  // pieces whose loads are under way together
  const int pieces = 1 << f.log2_pieces;
  const int groups = kColumnGroups >> f.log2_pieces;
  if (warp_id() >= groups) return;
  const int g = lane_id() / 4;
  float sink[2];
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    sink[h] =
        c.sinks != nullptr && rows.exists[h] ? __ldcg(c.sinks + rows.n[h]) * kLog2E : -INFINITY;
    sink[h] = sink[h] > kMostSink ? kMostSink : sink[h];
  }
  float most[2] = {kNoBase, kNoBase};
#pragma unroll 1
  for (int first = 0; first < pieces; first += kAtOnce) {
#pragma unroll
    for (int s = first; s < first + kAtOnce; ++s) {
      most[0] = fmaxf(most[0], m.states[s][g].x);
      most[1] = fmaxf(most[1], m.states[s][g + 8].x);
    }
  }
  float sum[2] = {};
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
  const int column = column_of_lane(f, rank);
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    if (!rows.exists[h]) continue;
    // As sink_row(), in short.
    const float top = fmaxf(most[h], sink[h]);
    const float shrink = exp2_approx(most[h] - top);
    const float all = sum[h] * shrink + exp2_approx(sink[h] - top);
    const float factor = all == 0.0f ? 0.0f : c.out_scale * shrink * approximate_reciprocal(all);
    Bf16* to = static_cast<Bf16*>(c.o.data) + c.o.offset(b, rows.j[h], rows.n[h]) + column;
    float pair[2] = {total[2 * h] * factor, total[2 * h + 1] * factor};
    turn(0, pair[0], pair[1]);
    st_global_if(to, pack_bf16(pair[0], pair[1]), !rehearsal);
    if (c.lse.data != nullptr && column == 0 && !rehearsal) {
      const float logged = c.lse_has_sink ? all : sum[h];
      static_cast<float*>(c.lse.data)[c.lse.offset(b, rows.j[h], rows.n[h])] =
          logged == 0.0f ? -INFINITY : (c.lse_has_sink ? top : most[h]) * kLn2 + __logf(logged);
    }
  }
}

/// What a block has to do.
struct FewRowsBlock {
  const FewRows& f;
  RowsOfLane rows;
  int b;
  uint32_t first_row;
  int rank;  ///< piece, and part of the columns
  int warp;

  /// Keys of a tile, which lie in this warp's panel, to the sums of its columns.
  template <class Memory, class Sees>
  __device__ __forceinline__ void attend(Memory& m,
                                         uint32_t panel,
                                         int num_chunks,
                                         const uint32_t (&queries)[16],
                                         RowPair& state,
                                         FewSums& o,
                                         Sees sees) const {
    score_panel(panel, queries, num_chunks, m.parts[warp]);
    __syncthreads();
    if (warp < 2 * num_chunks) add_parts(m, f.c.score_scale * kLog2E, sees);
    __syncthreads();
    if (warp < kValueWarps) {
      raise_bases(m, num_chunks, state, o);
      add_panel(m, panel, num_chunks, state, o);
    }
    __syncwarp();
  }

  /// Attends to the keys of the piece by add(queries, state, o), adds up the pieces and writes. In
  /// a rehearsal nothing is sent or written.
  template <class Memory, class Add, class Turn = Unturned>
  __device__ __forceinline__ void run(Memory& m,
                                      bool rehearsal,
                                      Add add,
                                      const Turn& turn = {}) const {
    uint32_t queries[16];
    load_queries(f.c, b, rows, queries);
    RowPair state;
    FewSums o = {};
    add(queries, state, o);
    if (warp < kValueWarps) send_piece(m, f.log2_pieces, rank, rehearsal, state, o);
    if (!rehearsal) barrier_wait(shared_address(&m.all_received), 0);
    write_columns(f, m, b, rank, rows, rehearsal, turn);
  }
};

/// Makes what a block receives known to its cluster, and says what the block has to do. Blocks may
/// be sent to behind cluster_wait().
template <class Memory>
__device__ __forceinline__ FewRowsBlock begin_few_rows(const FewRows& f, Memory& m) {
  if (threadIdx.x == 0) {
    barrier_init(shared_address(&m.all_received), 1);
    fence_barriers();
    barrier_expect(shared_address(&m.all_received), Memory::received_bytes(1 << f.log2_pieces));
  }
  __syncwarp();
  cluster_arrive_relaxed();
  const uint32_t cluster = blockIdx.x >> f.log2_pieces;
  const uint32_t request = f.row_tiles.of(cluster);
  const uint32_t first_row = (cluster - request * f.row_tiles.divisor) * kFewRows;
  return {.f = f,
          .rows = RowsOfLane(f, first_row),
          .b = static_cast<int>(request),
          .first_row = first_row,
          .rank = static_cast<int>(cluster_rank()),
          .warp = __shfl_sync(0xFFFFFFFFu, warp_id(), 0)};
}

// ---- on the host ----

/// The shape of `clusters` clusters of blocks whose threads and shared memory `shape` has: of 16
/// blocks each where the GPU runs all of them at once, else of 8.
inline Status choose_clusters(const Exec& ex,
                              const void* kernel,
                              int64_t clusters,
                              LaunchShape* shape) {
  shape->cluster = kMostInCluster;
  const int64_t at_once = clusters_at_once(ex.device->ordinal, {.kernel = kernel,
                                                                .threads = shape->threads,
                                                                .shared_bytes = shape->shared_bytes,
                                                                .cluster = shape->cluster});
  if (at_once < clusters) {
    shape->cluster = 8;
  } else {
    FATHOM_TRY(
        cuda_status(cudaFuncSetAttribute(kernel, cudaFuncAttributeNonPortableClusterSizeAllowed, 1),
                    "asking for a large cluster"));
  }
  shape->blocks = clusters * shape->cluster;
  return {};
}

}  // namespace fathom::mla_decode
