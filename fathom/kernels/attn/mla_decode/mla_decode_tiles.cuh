// Decode on the tensor cores of Hopper: keys of 576 numbers, values of 512.
//
// A block takes 64 of the Q * N query rows of a request over one piece of its keys. Two warpgroups
// compute, a third brings keys. Shared memory holds the queries (72 KB) and two tiles of 64 keys
// (72 KB each), each as nine panels of 64 columns. For every pair of tiles:
//
//   warpgroup w: scores of tile w; its row maxima; barrier; weights of tile w, written over the
//   last panel of that tile, which no product needs any more (values are the first 512 columns);
//   barrier; output columns 256 w .. 256 w + 255 += weights of both tiles times their values.
//
// A tile is brought in two parts, so that it can be refilled as soon as its values were used.
#pragma once

#include <cmath>

#include "fathom/kernels/attn/mla_decode/mla_decode_call.cuh"
#include "fathom/kernels/attn/tensor_core.cuh"

namespace fathom::mla_decode {

using namespace cuda;  // NOLINT: device primitives

inline constexpr int kTileRows = 64;  ///< query rows of a block
inline constexpr int kTileKeys = 64;  ///< keys of a tile
inline constexpr int kTileD = 576;    ///< width of a key
inline constexpr int kTileL = 512;    ///< width of a value
inline constexpr int kTileThreads = 3 * kWarpgroup;
inline constexpr int kTwoTermKeys = 512;  ///< up to here a weight enters as two bf16

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
inline constexpr int64_t kSharedBytes = kFlagsAt + 8 + 1024;

/// How the keys of requests are cut, and where the pieces' results lie.
struct Cuts {
  int splits;
  int row_tiles;   ///< blocks that the rows of a request take
  float* sums;     ///< [B, splits, Q * N, 512], not normalised
  float2* states;  ///< [B, splits, Q * N]: maximum (base 2) and sum of the weights
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

/// bf16 keys: sixteen-byte copies, eight threads a row of a panel. Two tiles ahead, where there is
/// no room yet, keys are brought into the last cache.
__device__ inline void bring_keys(
    const Call& c, const Piece& p, uint32_t keys_at, Barriers bars, Bf16) {
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
  look_up(0, places);
  look_up(1, next);
  for (int tile = 0; tile < p.num_tiles; ++tile) {
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
__device__ inline void bring_keys(
    const Call& c, const Piece& p, uint32_t keys_at, Barriers bars, E4m3) {
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

// ---- computing ----

/// The block's query rows to shared memory, as bf16; rows past the last are zeros.
__device__ inline void bring_queries(const Call& c, const Piece& p, uint32_t to) {
  constexpr int kChunks = kTileD / 8;
  const int64_t rows = c.Q * c.N;
  for (int i = static_cast<int>(threadIdx.x); i < kTileRows * kChunks; i += 2 * kWarpgroup) {
    const int row = i / kChunks;
    const int column = i % kChunks * 8;
    Packed<Bf16> words = {};
    const int64_t at = p.first_row + row;
    if (at < rows) {
      const int64_t j = at / c.N;
      const int64_t n = at - j * c.N;
      const bool in_first = column < c.first_width;
      const HeadRows& part = in_first ? c.q : c.q_pe;
      const int64_t offset = part.offset(p.b, j, n) + (in_first ? column : column - c.first_width);
      const auto* from = static_cast<const unsigned char*>(part.data) +
                         offset * (part.format == Format::kE4m3 ? 1 : 2);
      const bool whole = reinterpret_cast<uintptr_t>(from) % 16 == 0;
      if (whole && part.format == Format::kBf16) {
        words = load_packed(reinterpret_cast<const Bf16*>(from));
      } else {
        float values[kVector];
#pragma unroll
        for (int e = 0; e < kVector; ++e)
          values[e] = load_any(part.data, part.format, offset + e);
        pack(values, words);
      }
    }
    const uint32_t place = to + static_cast<uint32_t>(column / kPanelColumns) * kPanelBytes +
                           panel_offset(row, column / 8 % 8);
    asm volatile("st.shared.v4.b32 [%0], {%1, %2, %3, %4};" ::"r"(place), "r"(words.words[0]),
                 "r"(words.words[1]), "r"(words.words[2]), "r"(words.words[3])
                 : "memory");
  }
}

/// What a warpgroup knows of the two rows of a lane. `max` is the score that weights are relative
/// to: the highest so far, or one that is below it by at most kSlack in base 2.
struct RowPair {
  float max[2] = {-INFINITY, -INFINITY};
  float sum[2] = {0.0f, 0.0f};  ///< of this warpgroup's tiles and this lane's columns
};

inline constexpr float kSlack = 8.0f;

/// A weight this much of the sum of its warpgroup, which has half of the keys, enters as two bf16.
inline constexpr float kLargeShare = 0.25f;
inline constexpr int kScores = 32;
inline constexpr int kSums = 128;

/// Scores of one tile, not yet scaled.
__device__ __forceinline__ void score_tile(float (&s)[kScores],
                                           uint32_t queries,
                                           uint32_t keys,
                                           Barriers bars,
                                           int buffer,
                                           uint32_t parity) {
  barrier_wait(bars.full(buffer, 0), parity);
  barrier_wait(bars.full(buffer, 1), parity);
  fence_for_products();
  begin_products();
#pragma unroll
  for (int panel = 0; panel < kPanels; ++panel) {
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      const auto at = static_cast<uint32_t>(panel) * kPanelBytes + static_cast<uint32_t>(k) * 32;
      multiply_rows(s, rows_operand(queries + at), rows_operand(keys + at), panel + k > 0);
    }
  }
  commit_products();
  wait_products<0>();
}

/// Keys that a row does not see get -inf.
__device__ __forceinline__ void mask_scores(float (&s)[kScores],
                                            int first_key,
                                            const int (&limits)[2]) {
  const int column = first_key + 2 * (lane_id() & 3);
#pragma unroll
  for (int i = 0; i < kScores; ++i) {
    const int key = column + i / 4 * 8 + (i & 1);
    if (key >= limits[i >> 1 & 1]) s[i] = -INFINITY;
  }
}

/// Weights as bf16 in the order of their pairs of columns, to a panel.
__device__ __forceinline__ void store_weights(uint32_t panel,
                                              const uint32_t (&words)[kScores / 2]) {
  const int row = (warp_id() & 3) * 16 + lane_id() / 4;
#pragma unroll
  for (int i = 0; i < kScores / 2; ++i) {
    const uint32_t at =
        panel + panel_offset(row + 8 * (i & 1), i / 2) + static_cast<uint32_t>(lane_id() & 3) * 4;
    asm volatile("st.shared.b32 [%0], %1;" ::"r"(at), "r"(words[i]) : "memory");
  }
}

/// o += weights of a tile times 256 columns of its values.
__device__ __forceinline__ void add_values(float (&o)[kSums], uint32_t tile, int wg) {
  const uint32_t weights = tile + (kPanels - 1) * kPanelBytes;
  const uint32_t values = tile + static_cast<uint32_t>(wg) * kFirstPart * kPanelBytes;
  begin_products();
#pragma unroll
  for (int k = 0; k < kTileKeys / 16; ++k) {
    multiply_columns(o, rows_operand(weights + static_cast<uint32_t>(k) * 32),
                     columns_operand(values + static_cast<uint32_t>(k) * 2048, kPanelBytes), true);
  }
  commit_products();
}

__device__ __forceinline__ void free_tile(Barriers bars, int buffer, int wg) {
  if (lane_id() != 0) return;
  if (wg == 0) barrier_arrive(bars.free(buffer, 0));
  barrier_arrive(bars.free(buffer, 1));
}

__device__ __forceinline__ float quad_max(float x) {
  x = fmaxf(x, __shfl_xor_sync(0xFFFFFFFFu, x, 1));
  return fmaxf(x, __shfl_xor_sync(0xFFFFFFFFu, x, 2));
}

__device__ __forceinline__ float quad_sum(float x) {
  x += __shfl_xor_sync(0xFFFFFFFFu, x, 1);
  return x + __shfl_xor_sync(0xFFFFFFFFu, x, 2);
}

inline constexpr int kBoth = 2 * kWarpgroup;  ///< threads that compute

/// o += weights of the tiles of a pair times their values, to the end.
__device__ __forceinline__ void add_pair(float (&o)[kSums], uint32_t tiles, bool second, int wg) {
  add_values(o, tiles, wg);
  if (second) add_values(o, tiles + kTileBytes, wg);
  wait_products<0>();
}

/// All tiles of the block. `shared` is the address of the shared memory.
__device__ __forceinline__ void attend_tiles(const Call& c,
                                             const Piece& p,
                                             unsigned char* base,
                                             uint32_t shared,
                                             Barriers bars,
                                             int wg,
                                             float (&o)[kSums],
                                             RowPair& state) {
  auto* maxima = reinterpret_cast<float*>(base + kMaximaAt);
  auto* flags = reinterpret_cast<volatile int*>(base + kFlagsAt);
  const int row = (warp_id() & 3) * 16 + lane_id() / 4;
  const uint32_t own = shared + kKeysAt + static_cast<uint32_t>(wg) * kTileBytes;
  const float scale = c.score_scale * 1.44269504f;
  const bool two_terms = p.length <= kTwoTermKeys;
  int limits[2];
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    const int64_t at = p.first_row + row + 8 * h;
    limits[h] = at < c.Q * c.N ? static_cast<int>(c.visible(p.length, at / c.N)) : 0;
  }
  const bool whole = p.first_row + kTileRows <= c.Q * c.N;
  const int all_see = whole ? static_cast<int>(c.visible(p.length, p.first_row / c.N)) : 0;
#pragma unroll
  for (int i = 0; i < kSums; ++i)
    o[i] = 0.0f;
  for (int pair = 0; 2 * pair < p.num_tiles; ++pair) {
    const auto parity = static_cast<uint32_t>(pair & 1);
    const bool second = 2 * pair + 1 < p.num_tiles;
    const bool mine = wg == 0 || second;
    float s[kScores];
    if (mine) {
      score_tile(s, shared, own, bars, wg, parity);
      const int first_key = (p.first_tile + 2 * pair + wg) * kTileKeys;
      if (first_key + kTileKeys > all_see) mask_scores(s, first_key, limits);
    } else {
#pragma unroll
      for (int i = 0; i < kScores; ++i)
        s[i] = -INFINITY;
    }
    float most[2] = {-INFINITY, -INFINITY};
#pragma unroll
    for (int i = 0; i < kScores; ++i)
      most[i >> 1 & 1] = fmaxf(most[i >> 1 & 1], s[i]);
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      most[h] = quad_max(most[h]);
      if ((lane_id() & 3) == 0) maxima[wg * kTileRows + row + 8 * h] = most[h];
    }
    named_sync(1, kBoth);
    float shrink[2];
    float bias[2];
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const float now =
          fmaxf(fmaxf(state.max[h], maxima[row + 8 * h]), maxima[kTileRows + row + 8 * h]);
      // A base that is a little too low does no harm: weights may grow to 2^8.
      const bool grows = (now - state.max[h]) * scale > kSlack;
      const float base_now = grows ? now : state.max[h];
      const float safe = base_now == -INFINITY ? 0.0f : base_now;
      shrink[h] = grows ? exp2_approx((state.max[h] - safe) * scale) : 1.0f;
      bias[h] = safe * scale;
      state.max[h] = base_now;
      state.sum[h] *= shrink[h];
    }
#pragma unroll
    for (int i = 0; i < kScores; ++i) {
      const int h = i >> 1 & 1;
      s[i] = exp2_approx(fmaf(s[i], scale, -bias[h]));
      state.sum[h] += s[i];
    }
    // A row takes its weights in two terms where one of them is a large part of the sum so far.
    bool large[2];
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const float top = exp2_approx(fmaf(most[h], scale, -bias[h]));
      large[h] = two_terms || top > kLargeShare * quad_sum(state.sum[h]);
    }
    uint32_t words[kScores / 2];
    uint32_t rest[kScores / 2];
#pragma unroll
    for (int i = 0; i < kScores / 2; ++i) {
      words[i] = pack_bf16(s[2 * i], s[2 * i + 1]);
      rest[i] = large[i & 1] ? pack_bf16_rest(s[2 * i], s[2 * i + 1], words[i]) : 0;
    }
    if (threadIdx.x == 0) flags[(pair & 1) ^ 1] = 0;
    if (__any_sync(0xFFFFFFFFu, large[0] || large[1]) && lane_id() == 0) flags[pair & 1] = 1;
    if (__any_sync(0xFFFFFFFFu, shrink[0] != 1.0f || shrink[1] != 1.0f)) {
#pragma unroll
      for (int i = 0; i < kSums; ++i)
        o[i] *= shrink[i >> 1 & 1];
    }
    const uint32_t weights = own + (kPanels - 1) * kPanelBytes;
    if (mine) store_weights(weights, words);
    // The products to come read the other warpgroup's tile too.
    if (wg == 1 || second) barrier_wait(bars.full(wg ^ 1, wg), parity);
    fence_for_products();
    named_sync(2, kBoth);
    if (flags[pair & 1] != 0) {
      add_pair(o, shared + kKeysAt, second, wg);
      named_sync(1, kBoth);
      if (mine) store_weights(weights, rest);
      fence_for_products();
      named_sync(2, kBoth);
      add_pair(o, shared + kKeysAt, second, wg);
      free_tile(bars, 0, wg);
      if (second) free_tile(bars, 1, wg);
    } else if (second) {
      add_values(o, shared + kKeysAt, wg);
      add_values(o, shared + kKeysAt + kTileBytes, wg);
      wait_products<1>();
      free_tile(bars, 0, wg);
      wait_products<0>();
      free_tile(bars, 1, wg);
    } else {
      add_values(o, shared + kKeysAt, wg);
      wait_products<0>();
      free_tile(bars, 0, wg);
    }
  }
}

/// Adds the sink, divides and writes the rows of a request that is not cut.
__device__ __forceinline__ void store_rows(
    const Call& c, const Piece& p, int wg, const float (&o)[kSums], RowPair state) {
  const int row = (warp_id() & 3) * 16 + lane_id() / 4;
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    const int64_t at = p.first_row + row + 8 * h;
    if (at >= c.Q * c.N) continue;
    const int64_t j = at / c.N;
    const int64_t n = at - j * c.N;
    float shrink = 1.0f;
    if (c.sinks != nullptr && c.sinks[n] != -INFINITY) {
      const float sink = c.sinks[n] * 1.44269504f;
      const float most = fmaxf(state.max[h], sink);
      shrink = exp2_approx(state.max[h] - most);
      state.sum[h] = state.sum[h] * shrink + exp2_approx(sink - most);
      state.max[h] = most;
    }
    const bool empty = state.sum[h] == 0.0f;
    const float factor = empty ? 0.0f : c.out_scale * shrink / state.sum[h];
    Bf16* out =
        static_cast<Bf16*>(c.o.data) + c.o.offset(p.b, j, n) + wg * 256 + 2 * (lane_id() & 3);
#pragma unroll
    for (int i = 0; i < kSums / 4; ++i) {
      *reinterpret_cast<uint32_t*>(out + 8 * i) =
          pack_bf16(o[4 * i + 2 * h] * factor, o[4 * i + 2 * h + 1] * factor);
    }
    if (c.lse.data != nullptr && wg == 0 && (lane_id() & 3) == 0) {
      static_cast<float*>(c.lse.data)[c.lse.offset(p.b, j, n)] =
          empty ? -INFINITY : state.max[h] * 0.693147181f + logf(state.sum[h]);
    }
  }
}

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
    if (at >= c.Q * c.N) continue;
    const int64_t place = (p.b * cuts.splits + p.split) * (c.Q * c.N) + at;
    if (wg == 0 && (lane_id() & 3) == 0) cuts.states[place] = {state.max[h], state.sum[h]};
    if (p.num_tiles == 0) continue;
    float* out = cuts.sums + place * kTileL + wg * 256 + 2 * (lane_id() & 3);
#pragma unroll
    for (int i = 0; i < kSums / 4; ++i)
      *reinterpret_cast<float2*>(out + 8 * i) = {o[4 * i + 2 * h], o[4 * i + 2 * h + 1]};
  }
}

template <class C>
__global__ void __launch_bounds__(kTileThreads, 1)
    decode_tiles(const __grid_constant__ Call c, const __grid_constant__ Cuts cuts) {
  extern __shared__ unsigned char raw_shared[];
  let_next_start();
  wait_for_previous();
  const uint32_t raw = shared_address(raw_shared);
  const uint32_t shared = (raw + 1023) & ~1023u;
  unsigned char* base = raw_shared + (shared - raw);
  const Barriers bars{shared + kBarriersAt};
  const Piece p = piece_of(c, cuts);
  if (threadIdx.x == 0) {
    bars.init();
    *reinterpret_cast<int2*>(base + kFlagsAt) = {0, 0};
  }
  __syncthreads();
  const int wg = __shfl_sync(0xFFFFFFFFu, static_cast<int>(threadIdx.x) / kWarpgroup, 0);
  if (wg == 2) {
    give_registers<72>();
    bring_keys(c, p, shared + kKeysAt, bars, C{});
  } else {
    take_registers<216>();
    if (p.num_tiles > 0) bring_queries(c, p, shared);
    fence_for_products();
    named_sync(1, kBoth);
    float o[kSums];
    RowPair state;
    attend_tiles(c, p, base, shared, bars, wg, o, state);
    auto* sums = reinterpret_cast<float*>(base + kSumsAt);
    const int row = (warp_id() & 3) * 16 + lane_id() / 4;
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      state.sum[h] = quad_sum(state.sum[h]);
      if ((lane_id() & 3) == 0) sums[wg * kTileRows + row + 8 * h] = state.sum[h];
    }
    named_sync(1, kBoth);
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      state.sum[h] = sums[row + 8 * h] + sums[kTileRows + row + 8 * h];
      state.max[h] *= c.score_scale * 1.44269504f;  // in base 2 from here on
    }
    if (cuts.splits == 1) {
      store_rows(c, p, wg, o, state);
    } else {
      store_piece(c, p, cuts, wg, o, state);
    }
  }
}

}  // namespace fathom::mla_decode
