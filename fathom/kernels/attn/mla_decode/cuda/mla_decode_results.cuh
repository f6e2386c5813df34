// From the sums of a block to rows of the output: at once, through the shared memory of a cluster,
// or through global memory. A row's pieces are added in an order that the row and the plan give.
//
// A piece has for each row a base, the sum of its weights relative to 2^base, and its weighted sums
// of values, not normalised. With a sink t (a logit without a value):
//
//   base = max_s base_s;      sum = sum_s 2^(base_s - base) sum_s
//   most = max(base, t);      all = 2^(base - most) sum + 2^(t - most)
//   o = 2^(base - most) (sum_s 2^(base_s - base) o_s) / all
#pragma once

#include <cmath>

#include "fathom/kernels/attn/mla_decode/cuda/mla_decode_keys.cuh"
#include "fathom/kernels/cuda/launch_cuda.h"
#include "fathom/kernels/cuda/products/cluster.cuh"
#include "fathom/kernels/cuda/reduce.cuh"

namespace fathom::mla_decode {

inline constexpr float kNoBase = -1e30f;      ///< of a row that saw no key yet
inline constexpr float kMostSink = 1e30f;     ///< what an infinite sink counts as
inline constexpr float kLog2E = 1.44269504f;  ///< natural logits to base 2
inline constexpr float kLn2 = 0.693147181f;   ///< and back
inline constexpr int kSums = 128;             ///< of a thread: 2 rows of 256 columns a quad
inline constexpr int kMostPieces = 64;        ///< of a request
inline constexpr int kMostInCluster = 16;     ///< pieces that a cluster adds
inline constexpr int kBoth = 2 * kWarpgroup;  ///< threads that compute
inline constexpr int kWarpColumns = 128;      ///< of a row, that a warp writes at once

/// What a warpgroup knows of the two rows of a lane. `base` is what weights are relative to, in
/// base 2: the highest score so far, or one that is a little below it.
struct RowPair {
  float base[2] = {kNoBase, kNoBase};
  float sum[2] = {0.0f, 0.0f};                ///< of this warpgroup's tiles and this lane's columns
  float largest[2] = {-INFINITY, -INFINITY};  ///< score of this warpgroup's tiles, not scaled
};

/// What becomes of pairs of adjacent columns before they are rounded: they stay as they are. A call
/// whose results are turned by an angle has a struct in its place. What columns() and eighths()
/// give is called with the number of a pair and the pair; all three may be loads.
struct Unturned {
  __device__ __forceinline__ void operator()(int, float&, float&) const {}

  /// Of two pairs from a column on.
  __device__ __forceinline__ Unturned columns(int) const { return {}; }

  /// Of the pairs at a column and every eight further on, 256 columns in all.
  __device__ __forceinline__ Unturned eighths(int) const { return {}; }

  /// As merge_pieces() begins: of request b.
  __device__ __forceinline__ Unturned ask(int64_t) const { return {}; }
};

/// What a row is without and with its sink t, given base and sum of its weights:
///
///   most = max(base, t);   all = sum 2^(base - most) + 2^(t - most)
struct Sunk {
  float factor;  ///< of sums of values relative to `base`; 0 for a row without weights
  float lse;
};

/// Sink of head n, in base 2; -inf if there is none.
__device__ __forceinline__ float sink_of(const Call& c, int64_t n) {
  if (c.sinks == nullptr) return -INFINITY;
  const float sink = c.sinks[n] * kLog2E;
  return sink > kMostSink ? kMostSink : sink;
}

__device__ __forceinline__ Sunk sink_row(const Call& c, float sink, float base, float sum) {
  const float most = fmaxf(base, sink);
  const float shrink = exp2_approx(base - most);
  const float all = sum * shrink + exp2_approx(sink - most);
  const float logged = c.lse_has_sink ? all : sum;
  const float lse = (c.lse_has_sink ? most : base) * kLn2 + logf(logged);
  return {.factor = all == 0.0f ? 0.0f : c.out_scale * shrink / all,
          .lse = logged == 0.0f ? -INFINITY : lse * c.lse_factor};
}

// ---- one piece ----

/// Word j of lane q of a quad becomes word q of lane j.
__device__ __forceinline__ void transpose_quad(uint32_t (&words)[4]) {
#pragma unroll
  for (int bit = 1; bit <= 2; bit *= 2) {
    const bool upper = (lane_id() & bit) != 0;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      if ((i & bit) != 0) continue;
      const uint32_t got = __shfl_xor_sync(0xFFFFFFFFu, upper ? words[i] : words[i + bit], bit);
      words[i] = upper ? got : words[i];
      words[i + bit] = upper ? words[i + bit] : got;
    }
  }
}

/// Adds the sink, divides and writes the rows of a request that is not cut: sixteen bytes a lane,
/// where addresses allow it, so that whole sectors are written.
template <class Out, class Turn = Unturned>
__device__ __forceinline__ void store_rows(const Call& c,
                                           const Piece& p,
                                           int wg,
                                           const float (&o)[kSums],
                                           const RowPair& state,
                                           const Turn& turn = {}) {
  const int row = (warp_id() & 3) * 16 + lane_id() / 4;
  const int quarter = lane_id() & 3;
  const int64_t strides = c.o.strides[0] | c.o.strides[1] | c.o.strides[2];
  const bool whole =
      (reinterpret_cast<uintptr_t>(c.o.data) | static_cast<uintptr_t>(2 * strides)) % 16 == 0;
  const auto turned = turn.eighths(wg * 256 + 2 * quarter);
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    const bool exists = p.first_row + row + 8 * h < p.end_row;
    const int64_t at = exists ? p.first_row + row + 8 * h : p.first_row;
    const int64_t j = query_of(c, at);
    const int64_t n = at - j * c.N;
    const Sunk sunk = sink_row(c, sink_of(c, n), state.base[h], state.sum[h]);
    Out* out = static_cast<Out*>(c.o.data) + c.o.offset(p.b, j, n) + wg * 256;
    if constexpr (sizeof(Out) == 4) {
#pragma unroll
      for (int k = 2 * h; k < kSums; k += 4) {
        float2 pair = {o[k] * sunk.factor, o[k + 1] * sunk.factor};
        turned(k / 4, pair.x, pair.y);
        if (exists) *reinterpret_cast<float2*>(out + 2 * (k - 2 * h + quarter)) = pair;
      }
    } else {
#pragma unroll
      for (int first = 0; first < kSums / 4; first += 4) {
        uint32_t words[4];
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const int k = 4 * (first + i) + 2 * h;
          float pair[2] = {o[k] * sunk.factor, o[k + 1] * sunk.factor};
          turned(first + i, pair[0], pair[1]);
          words[i] = pack_bf16(pair[0], pair[1]);
        }
        if (whole) {
          transpose_quad(words);
          if (exists)
            *reinterpret_cast<uint4*>(out + 8 * (first + quarter)) = {words[0], words[1], words[2],
                                                                      words[3]};
        } else if (exists) {
#pragma unroll
          for (int i = 0; i < 4; ++i)
            *reinterpret_cast<uint32_t*>(out + 8 * (first + i) + 2 * quarter) = words[i];
        }
      }
    }
    if (exists && c.lse.data != nullptr && wg == 0 && quarter == 0)
      static_cast<float*>(c.lse.data)[c.lse.offset(p.b, j, n)] = sunk.lse;
  }
}

// ---- adding pieces ----

/// What a warp knows of the pieces of one row. Lane l has the pieces l and 32 + l.
struct Shares {
  float share[2];  ///< what a piece's sums are multiplied by; 0 if they are not to be read
  Sunk sunk;
};

/// Of row `row`. state_of(s) gives base and sum of piece s.
template <class StateOf>
__device__ __forceinline__ Shares
shares_of(const Call& c, int64_t row, int pieces, StateOf state_of) {
  float2 states[2];
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    const int s = lane_id() + kWarp * h;
    states[h] = s < pieces ? state_of(s) : float2{kNoBase, 0.0f};
  }
  Shares out;
  const float most = combine_lanes(fmaxf(states[0].x, states[1].x), Max{});
#pragma unroll
  for (int h = 0; h < 2; ++h)
    out.share[h] = states[h].y == 0.0f ? 0.0f : exp2_approx(states[h].x - most);
  const float sum = combine_lanes(out.share[0] * states[0].y + out.share[1] * states[1].y, Add{});
  out.sunk = sink_row(c, sink_of(c, row - query_of(c, row) * c.N), most, sum);
  return out;
}

/// Four floats, read here and not where the compiler would have them: in the order of the program.
__device__ __forceinline__ float4 read_now(const float* from) {
  float4 out;
  asm volatile("ld.v4.f32 {%0, %1, %2, %3}, [%4];"
               : "=f"(out.x), "=f"(out.y), "=f"(out.z), "=f"(out.w)
               : "l"(from)
               : "memory");
  return out;
}

/// The order in which a warp takes the pieces of a row: first, first + 1, .. and around. A piece
/// that is not to be read gives way to piece `spare`, whatever that holds, so that no load waits
/// for a branch.
struct PieceOrder {
  int pieces;
  int first;
  int spare;
};

/// Writes kChunks times 128 columns of a row, from `column` of this lane on. part_of(s, k) says
/// where four sums of piece s in chunk k lie. Eight pieces are on their way at once.
template <int kChunks, class PartOf, class Turn>
__device__ __forceinline__ void write_merged(const Call& c,
                                             int64_t b,
                                             int64_t row,
                                             int column,
                                             const PieceOrder& order,
                                             const Shares& shares,
                                             PartOf part_of,
                                             const Turn& turn) {
  constexpr int kAtOnce = 8;
  decltype(turn.columns(0)) turned[kChunks];
#pragma unroll
  for (int k = 0; k < kChunks; ++k)
    turned[k] = turn.columns(column + k * kWarpColumns);
  float4 total[kChunks] = {};
  for (int begin = 0; begin < order.pieces; begin += kAtOnce) {
    float share[kAtOnce];
    int piece[kAtOnce];
    float4 parts[kAtOnce][kChunks];
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      const int turn = order.first + begin + i;
      piece[i] = turn < order.pieces ? turn : turn - order.pieces;
      const float from = piece[i] < kWarp ? shares.share[0] : shares.share[1];
      share[i] = __shfl_sync(0xFFFFFFFFu, from, piece[i] & (kWarp - 1));
      if (begin + i >= order.pieces) share[i] = 0.0f;
      if (share[i] == 0.0f) piece[i] = order.spare;
    }
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
#pragma unroll
      for (int k = 0; k < kChunks; ++k)
        parts[i][k] = read_now(part_of(piece[i], k));
    }
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      if (share[i] == 0.0f) continue;
#pragma unroll
      for (int k = 0; k < kChunks; ++k) {
        total[k].x += share[i] * parts[i][k].x;
        total[k].y += share[i] * parts[i][k].y;
        total[k].z += share[i] * parts[i][k].z;
        total[k].w += share[i] * parts[i][k].w;
      }
    }
  }
  const int64_t j = query_of(c, row);
  const int64_t n = row - j * c.N;
  const float factor = shares.sunk.factor;
  Bf16* out = static_cast<Bf16*>(c.o.data) + c.o.offset(b, j, n) + column;
#pragma unroll
  for (int k = 0; k < kChunks; ++k) {
    float4 v = {total[k].x * factor, total[k].y * factor, total[k].z * factor, total[k].w * factor};
    turned[k](0, v.x, v.y);
    turned[k](1, v.z, v.w);
    *reinterpret_cast<uint2*>(out + k * kWarpColumns) = {pack_bf16(v.x, v.y), pack_bf16(v.z, v.w)};
  }
  if (c.lse.data != nullptr && column == 0)
    static_cast<float*>(c.lse.data)[c.lse.offset(b, j, n)] = shares.sunk.lse;
}

// ---- in a cluster ----

/// Waits for all threads of the cluster; what they wrote before is seen after it. Every thread of
/// every block comes to it as often as the others, those that only bring keys too.
__device__ __forceinline__ void meet_cluster() {
  asm volatile("barrier.cluster.arrive.release;\nbarrier.cluster.wait.acquire;" ::: "memory");
}

/// The same for threads that wrote nothing that others read: they need not wait for their stores.
__device__ __forceinline__ void meet_cluster_relaxed() {
  asm volatile("barrier.cluster.arrive.relaxed;\nbarrier.cluster.wait.acquire;" ::: "memory");
}

/// A block's results in its shared memory, over its queries and keys, which nobody needs any more.
/// Rows are eight words further apart than they are long: the rows of a warp meet all banks.
struct PieceMemory {
  static constexpr int kRowFloats = kTileL + 8;

  float sums[kTileRows][kRowFloats];
};

static_assert(sizeof(PieceMemory) <= kMaximaAt, "sums lie over queries and keys alone");

/// Base and sum of each row; over the bases of weights.
__device__ __forceinline__ float2* piece_states(unsigned char* base) {
  static_assert(kTileRows * sizeof(float2) <= kSumsAt - kMaximaAt, "states lie over the bases");
  return reinterpret_cast<float2*>(base + kMaximaAt);
}

/// Lays out what a block has for its cluster: states always, sums if it had keys. All products of
/// the block are done, and its other warpgroup does not read bases any more.
__device__ __forceinline__ void lay_out_piece(const Call& c,
                                              const Piece& p,
                                              unsigned char* base,
                                              int wg,
                                              const float (&o)[kSums],
                                              const RowPair& state) {
  auto* memory = reinterpret_cast<PieceMemory*>(base);
  const int row = (warp_id() & 3) * 16 + lane_id() / 4;
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    if (p.first_row + row + 8 * h >= p.end_row) continue;
    if (wg == 0 && (lane_id() & 3) == 0)
      piece_states(base)[row + 8 * h] = {state.base[h], state.sum[h]};
    if (p.num_tiles == 0) continue;
    float* out = memory->sums[row + 8 * h] + wg * 256 + 2 * (lane_id() & 3);
#pragma unroll
    for (int i = 0; i < kSums / 4; ++i)
      *reinterpret_cast<float2*>(out + 8 * i) = {o[4 * i + 2 * h], o[4 * i + 2 * h + 1]};
  }
}

/// Half rows of the cluster, in turn over the warps of all its blocks. Warps begin with different
/// pieces: a block gives its sums away no faster than it reads those of others, so all at one block
/// would take as long as there are blocks.
template <class Turn>
__device__ __forceinline__ void merge_in_cluster(
    const Call& c, const Piece& p, const Cuts& cuts, unsigned char* base, const Turn& turn) {
  constexpr int kWarps = kBoth / kWarp;
  constexpr int kChunks = kTileL / 2 / kWarpColumns;
  auto* memory = reinterpret_cast<PieceMemory*>(base);
  const auto side = static_cast<unsigned>(cuts.side);
  const unsigned mine = cluster_rank() % side;
  const auto block_of = [&](int piece) { return static_cast<unsigned>(piece) * side + mine; };
  const auto rows = static_cast<int>(p.end_row - p.first_row);
  for (int half = p.split * kWarps + warp_id(); half < 2 * rows; half += cuts.splits * kWarps) {
    const int row = half / 2;
    const int column = half % 2 * (kTileL / 2) + 4 * lane_id();
    const Shares shares = shares_of(c, p.first_row + row, cuts.splits, [&](int s) {
      return *in_block(piece_states(base) + row, block_of(s));
    });
    const PieceOrder order{.pieces = cuts.splits, .first = half % cuts.splits, .spare = p.split};
    const auto part_of = [&](int s, int k) {
      const float* sums = memory->sums[row] + column + k * kWarpColumns;
      return in_block(sums, block_of(s));
    };
    write_merged<kChunks>(c, p.b, p.first_row + row, column, order, shares, part_of, turn);
  }
}

// ---- for a second kernel ----

__device__ __forceinline__ void store_piece(const Call& c,
                                            const Piece& p,
                                            const Cuts& cuts,
                                            int wg,
                                            const float (&o)[kSums],
                                            const RowPair& state) {
  const int row = (warp_id() & 3) * 16 + lane_id() / 4;
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    const int64_t at = p.first_row + row + 8 * h;
    if (at >= p.end_row) continue;
    const int64_t place = (p.b * cuts.splits + p.split) * (c.Q * c.N) + at;
    if (wg == 0 && (lane_id() & 3) == 0) cuts.states[place] = {state.base[h], state.sum[h]};
    if (p.num_tiles == 0) continue;
    float* out = cuts.sums + place * kTileL + wg * 256 + 2 * (lane_id() & 3);
#pragma unroll
    for (int i = 0; i < kSums / 4; ++i)
      *reinterpret_cast<float2*>(out + 8 * i) = {o[4 * i + 2 * h], o[4 * i + 2 * h + 1]};
  }
}

inline constexpr int kMergeThreads = kTileL / 4;

/// Adds the pieces of a row in order, its sink, divides and writes. One block a row, four columns a
/// thread. Eight blocks leave the registers that eight loads at once need.
template <class Turn>
__global__ void __launch_bounds__(kMergeThreads, 8)
    merge_pieces(const __grid_constant__ Call c,
                 const __grid_constant__ Cuts cuts,
                 const __grid_constant__ Turn turn) {
  let_next_start();
  const auto rows = static_cast<uint32_t>(c.Q * c.N);
  const int64_t b = blockIdx.x / rows;
  const int64_t row = blockIdx.x - b * rows;
  const int64_t first = b * cuts.splits * rows + row;
  const auto column = static_cast<int>(4 * threadIdx.x);
  wait_for_previous();
  const auto asked = turn.ask(b);  // on its way with the states; what follows, with the sums
  const Shares shares =
      shares_of(c, row, cuts.splits, [&](int s) { return cuts.states[first + int64_t{s} * rows]; });
  const PieceOrder order{.pieces = cuts.splits, .first = 0, .spare = 0};
  const auto part_of = [&](int s, int) {
    return cuts.sums + (first + int64_t{s} * rows) * kTileL + column;
  };
  write_merged<1>(c, b, row, column, order, shares, part_of, asked);
}

}  // namespace fathom::mla_decode
