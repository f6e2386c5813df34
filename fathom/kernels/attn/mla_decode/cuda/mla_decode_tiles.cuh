// Latent attention on the tensor cores of Hopper: keys of 576 or 512 numbers, values of 512. What
// computes; the kernels that include this differ in how keys reach their tiles.
//
// A block takes 64 of the Q * N query rows of a request over one piece of its keys. Two warpgroups
// compute, a third brings keys. Shared memory holds the queries (72 KB) and two tiles of 64 keys
// (72 KB each), each as nine panels of 64 columns. Warpgroup w scores the tiles of parity w and
// owns the output columns 256 w .. 256 w + 255 of all tiles, so that each computes while the other
// one's products run:
//
//   warpgroup 0                                  warpgroup 1
//   scores of tile 0, weights 0       | A        scores of tile 1
//   columns += weights 0 * values 0   |          columns += weights 0 * values 0, and meanwhile
//                                     | B        weights 1
//   columns += weights 1 * values 1   |          columns += weights 1 * values 1
//
// Weights of a tile are written over its last panel, the rotary columns, which no value product
// needs, and which keys of 512 numbers do not have. A tile is brought in two parts, so that it can
// be refilled as soon as its values were used.
#pragma once

#include <cmath>

#include "fathom/kernels/attn/mla_decode/cuda/mla_decode_large_weights.cuh"

namespace fathom::mla_decode {

/// bf16 queries to shared memory, sixteen bytes at a time, eight threads a row of a panel: all
/// copies of a thread are under way at once. Rows past the last arrive as zeros.
template <int kScored>
__device__ __forceinline__ void copy_queries(const Call& c, const Piece& p, uint32_t to) {
  const auto tid = static_cast<int>(threadIdx.x);
  const int chunk = tid & 7;
  constexpr int kRowsAtOnce = kBoth / 8;
#pragma unroll
  for (int i = 0; i < kTileRows / kRowsAtOnce; ++i) {
    const int row = tid / 8 + kRowsAtOnce * i;
    const bool exists = p.first_row + row < p.end_row;
    const int64_t at = exists ? p.first_row + row : 0;
    const int64_t j = query_of(c, at);
    const int64_t n = at - j * c.N;
    const Bf16* first = static_cast<const Bf16*>(c.q.data) + c.q.offset(p.b, j, n);
    const Bf16* second = static_cast<const Bf16*>(c.q_pe.data) + c.q_pe.offset(p.b, j, n);
    const uint32_t place = to + panel_offset(row, chunk);
#pragma unroll
    for (int panel = 0; panel < kScored; ++panel) {
      const int column = panel * kPanelColumns + 8 * chunk;
      const Bf16* from =
          column < c.first_width ? first + column : second + (column - c.first_width);
      copy_chunk(place + static_cast<uint32_t>(panel) * kPanelBytes, from, exists);
    }
  }
}

/// Queries of any format and alignment to shared memory, as bf16; rows past the last are zeros.
template <int kScored>
__device__ __forceinline__ void convert_queries(const Call& c, const Piece& p, uint32_t to) {
  constexpr int kChunks = kScored * kPanelColumns / 8;
  for (int i = static_cast<int>(threadIdx.x); i < kTileRows * kChunks; i += 2 * kWarpgroup) {
    const int row = i / kChunks;
    const int column = i % kChunks * 8;
    Packed<Bf16> words = {};
    const int64_t at = p.first_row + row;
    if (at < p.end_row) {
      const int64_t j = query_of(c, at);
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
    store_shared_16(place, {words.words[0], words.words[1], words.words[2], words.words[3]});
  }
}

/// A base is at most this far below the highest score.
inline constexpr float kSlack = 8.0f;

/// The operand `bytes` further on: its low word has the address in units of sixteen bytes. Cheaper
/// than to make one from an address, which counts between products of 32 cycles.
__device__ __forceinline__ uint64_t ahead(uint64_t operand, uint32_t bytes) {
  return (operand & 0xFFFFFFFF00000000u) | (static_cast<uint32_t>(operand) + bytes / 16);
}

/// Waits for a group of panels. The copy engine's tiles need no fence.
__device__ __forceinline__ void wait_group(uint32_t full, uint32_t parity, bool by_engine) {
  barrier_wait(full, parity);
  if (!by_engine) fence_for_products();
}

/// Scores of one tile, not yet scaled. Begins with the first panels that landed.
template <int kScored>
__device__ __forceinline__ void score_tile(float (&s)[kScores],
                                           uint32_t queries,
                                           uint32_t keys,
                                           Barriers bars,
                                           int buffer,
                                           uint32_t parity,
                                           bool by_engine) {
  const uint64_t rows = rows_operand(queries);
  const uint64_t columns = rows_operand(keys);
  begin_products();
#pragma unroll
  for (int group = 0; group < kGroups; ++group) {
    wait_group(bars.full(buffer, group), parity, by_engine);
#pragma unroll
    for (int panel = first_panel(group); panel < first_panel(group + 1); ++panel) {
      if (panel >= kScored) continue;
#pragma unroll
      for (int k = 0; k < 4; ++k) {
        const auto at = static_cast<uint32_t>(panel) * kPanelBytes + static_cast<uint32_t>(k) * 32;
        multiply_rows(s, ahead(rows, at), ahead(columns, at), panel + k > 0);
      }
    }
  }
  commit_products();
  wait_products<0>();
}

/// Weights as bf16 in the order of their pairs of columns, to a panel.
__device__ __forceinline__ void store_weights(uint32_t panel,
                                              const uint32_t (&words)[kScores / 2]) {
  const int row = (warp_id() & 3) * 16 + lane_id() / 4;
#pragma unroll
  for (int i = 0; i < kScores / 2; ++i) {
    const uint32_t at =
        panel + panel_offset(row + 8 * (i & 1), i / 2) + static_cast<uint32_t>(lane_id() & 3) * 4;
    store_shared_4(at, words[i]);
  }
}

/// What rounding left of the weights of a tile, in the order of a product's operand in registers.
struct Rest {
  uint32_t words[kScores / 2];
};

/// o += a product over 16 keys of a tile, whose weights are in shared memory or in registers, and
/// 256 columns of values. kHalves: as two products, which need fewer registers at the launch of the
/// kernel; the sums are the same.
template <bool kHalves, class Weights>
__device__ __forceinline__ void add_product(float (&o)[kSums],
                                            const Weights& weights,
                                            uint64_t values) {
  if constexpr (kHalves) {
    constexpr int kHalf = kSums / 2;
    multiply_columns(reinterpret_cast<float(&)[kHalf]>(o[0]), weights, values, true);
    multiply_columns(reinterpret_cast<float(&)[kHalf]>(o[kHalf]), weights,
                     ahead(values, 2 * kPanelBytes), true);
  } else {
    multiply_columns(o, weights, values, true);
  }
}

/// o += weights of a tile times 256 columns of its values. The caller waits for it.
template <bool kHalves>
__device__ __forceinline__ void add_values(
    float (&o)[kSums], uint32_t tile, int wg, bool two_terms, const Rest& rest) {
  const uint64_t weights = rows_operand(tile + (kPanels - 1) * kPanelBytes);
  const uint64_t values =
      columns_operand(tile + static_cast<uint32_t>(wg) * kFirstPart * kPanelBytes, kPanelBytes);
  begin_products();
#pragma unroll
  for (uint32_t k = 0; k < kTileKeys / 16; ++k)
    add_product<kHalves>(o, ahead(weights, k * 32), ahead(values, k * 2048));
  commit_products();
  if (!two_terms) return;
  begin_products();
#pragma unroll
  for (int k = 0; k < kTileKeys / 16; ++k) {
    const uint32_t operand[4] = {rest.words[4 * k], rest.words[4 * k + 1], rest.words[4 * k + 2],
                                 rest.words[4 * k + 3]};
    add_product<kHalves>(o, operand, ahead(values, static_cast<uint32_t>(k) * 2048));
  }
  commit_products();
}

/// Whether the other block of a cluster of two writes to the tiles as well, and has to know that
/// they are free.
template <class Keys>
inline constexpr bool kOfPair = requires {
  requires Keys::kPaired;
};

/// Whether products of values are made in halves: see add_product().
template <class Keys>
inline constexpr bool kInHalves = requires {
  requires Keys::kHalves;
};

/// Behind wait_products(), where the lanes of a warp have met: bases and rests that they read went
/// into those products.
template <bool kPaired>
__device__ __forceinline__ void free_tile(Barriers bars, int buffer, int wg) {
  if (!arrives_for_warp()) return;
  if (wg == 0) barrier_arrive(bars.free(buffer, 0));
  barrier_arrive(bars.free(buffer, 1));
  if constexpr (kPaired) {
    const auto other = static_cast<int>(cluster_rank() ^ 1);
    if (wg == 0) arrive_in_block(address_in_block(bars.free(buffer, 0), other));
    arrive_in_block(address_in_block(bars.free(buffer, 1), other));
  }
}

__device__ __forceinline__ float quad_max(float x) {
  x = fmaxf(x, __shfl_xor_sync(0xFFFFFFFFu, x, 1));
  return fmaxf(x, __shfl_xor_sync(0xFFFFFFFFu, x, 2));
}

__device__ __forceinline__ float quad_sum(float x) {
  x += __shfl_xor_sync(0xFFFFFFFFu, x, 1);
  return x + __shfl_xor_sync(0xFFFFFFFFu, x, 2);
}

/// A block as a warpgroup sees it. Keys says which keys count:
///
///   kScored                      panels of a key that are scored: 9, or the 8 that are values
///   kPaired, kHalves             if it has them: see kOfPair, kInHalves
///   asked = ask(first_key)       before the scores of a tile are made: what must be known of it
///   hide(s, first_key, asked)    behind them: -inf for keys that a row of the lane does not see
template <class Keys>
struct Block {
  const Piece& p;
  const Keys& keys;
  uint32_t queries;  ///< address in shared memory
  uint32_t tiles;    ///< of the two tiles
  Barriers bars;
  float* bases;    ///< [2, 64]: what the weights of each warpgroup's tile are relative to
  uint32_t rests;  ///< address of [2, 4 warps, 2, 32 lanes] times 16 bytes: see lane_place()
  int row;         ///< the first of the lane's two rows; the other one lies 8 below
  float scale;     ///< of scores, to base 2
  bool two_terms;  ///< every weight enters as two bf16

  __device__ uint32_t tile(int t) const { return tiles + static_cast<uint32_t>(t) * kTileBytes; }

  __device__ uint32_t weights(int t) const { return tile(t) + (kPanels - 1) * kPanelBytes; }

  __device__ bool has_second(int pair) const { return 2 * pair + 1 < p.num_tiles; }

  __device__ bool by_engine(int pair, int t) const { return 2 * pair + t < p.whole_tiles; }

  __device__ int key_of(int pair, int t) const { return (p.first_tile + 2 * pair + t) * kTileKeys; }

  /// Waits for the values of tile `t` that warpgroup `wg` owns. The tile is the other one's, which
  /// waits for all of it.
  __device__ void wait_values(int pair, int t, int wg) const {
#pragma unroll
    for (int group = 0; group < 2; ++group)
      barrier_wait(bars.full(t, 2 * wg + group), static_cast<uint32_t>(pair & 1));
    if (!by_engine(pair, t)) fence_for_products();
  }

  /// Scores of tile `t` of a pair, -inf where a row does not see the key.
  __device__ __forceinline__ void score(float (&s)[kScores], int pair, int t) const {
    const int first_key = key_of(pair, t);
    const auto asked = keys.ask(first_key);
    score_tile<Keys::kScored>(s, queries, tile(t), bars, t, static_cast<uint32_t>(pair & 1),
                              by_engine(pair, t));
    keys.hide(s, first_key, asked);
  }
};

/// Weights of a tile as bf16 pairs.
struct Weights {
  uint32_t words[kScores / 2];
};

/// Rests are kept as e5m2: two bits of what is left after eight suffice.
template <class Keys>
__device__ __forceinline__ void store_rest(const Block<Keys>& block,
                                           int t,
                                           const float (&s)[kScores],
                                           const uint32_t (&words)[kScores / 2]) {
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    uint32_t codes[4] = {};
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      const int at = 8 * half + i;
      const float2 pair = {s[2 * at] - __uint_as_float(words[at] << 16),
                           s[2 * at + 1] - __uint_as_float(words[at] & 0xFFFF0000u)};
      codes[i / 2] |= uint32_t{__nv_cvt_float2_to_fp8x2(pair, __NV_SATFINITE, __NV_E5M2)}
                      << 16 * (i & 1);
    }
    store_shared_16(lane_place(block.rests, t) + static_cast<uint32_t>(half) * 512,
                    {codes[0], codes[1], codes[2], codes[3]});
  }
}

/// Turns the scores of a tile into weights. Raises the base where a score is far above it: `shrink`
/// is what sums relative to the old base are multiplied by. `most` are the largest scores.
__device__ __forceinline__ void weigh_scores(
    float (&s)[kScores], float scale, RowPair& state, float (&most)[2], float (&shrink)[2]) {
#pragma unroll
  for (int h = 0; h < 2; ++h)
    most[h] = -INFINITY;
#pragma unroll
  for (int i = 0; i < kScores; ++i)
    most[i >> 1 & 1] = fmaxf(most[i >> 1 & 1], s[i]);
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    most[h] = quad_max(most[h]);
    state.largest[h] = fmaxf(state.largest[h], most[h]);
    const float score = most[h] * scale;
    // A base that is a little too low does no harm: weights may grow to 2^8.
    const bool grows = score > state.base[h] + kSlack;
    shrink[h] = grows ? exp2_approx(state.base[h] - score) : 1.0f;
    state.base[h] = grows ? score : state.base[h];
    state.sum[h] *= shrink[h];
  }
#pragma unroll
  for (int i = 0; i < kScores; ++i) {
    const int h = i >> 1 & 1;
    s[i] = exp2_approx(fmaf(s[i], scale, -state.base[h]));
    state.sum[h] += s[i];
  }
}

/// Turns the scores of tile `t` of a pair into weights; stores their rests, or remembers the large
/// ones. `shrink` as in weigh_scores().
template <class Keys>
__device__ __forceinline__ void weigh(float (&s)[kScores],
                                      const Block<Keys>& block,
                                      int pair,
                                      int t,
                                      RowPair& state,
                                      Weights& w,
                                      float (&shrink)[2]) {
  float most[2];
  weigh_scores(s, block.scale, state, most, shrink);
#pragma unroll
  for (int i = 0; i < kScores / 2; ++i)
    w.words[i] = pack_bf16(s[2 * i], s[2 * i + 1]);
  if (block.two_terms) {
    store_rest(block, t, s, w.words);
    return;
  }
  // The largest weight of a row, in the same bits as above, is above the limit if any is.
  uint32_t limits[2];
  bool large = false;
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    const float limit = kLargeShare * quad_sum(state.sum[h]);
    const float largest = exp2_approx(fmaf(most[h], block.scale, -state.base[h]));
    limits[h] = pack_bf16(limit, limit);
    large = large || greater_halves(pack_bf16(largest, largest), limits[h]) != 0;
  }
  if (!__any_sync(0xFFFFFFFFu, large)) return;
  const TileWeights weights{
      .weights = s,
      .words = w.words,
      .bases = state.base,
      .first_key = static_cast<uint32_t>(block.key_of(pair, t) + 2 * (lane_id() & 3))};
  weights.remember_above(lane_place(block.rests, t, list_lane(pair)), limits);
}

/// Takes over the base that the other warpgroup's tile raised.
template <class Keys>
__device__ __forceinline__ void follow(const Block<Keys>& block,
                                       int tile,
                                       RowPair& state,
                                       float (&shrink)[2]) {
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    const float base = block.bases[tile * kTileRows + block.row + 8 * h];
    shrink[h] = base == state.base[h] ? 1.0f : exp2_approx(state.base[h] - base);
    state.base[h] = base;
    state.sum[h] *= shrink[h];
  }
}

__device__ __forceinline__ void shrink_sums(float (&o)[kSums], const float (&shrink)[2]) {
  if (!__any_sync(0xFFFFFFFFu, shrink[0] != 1.0f || shrink[1] != 1.0f)) return;
#pragma unroll
  for (int i = 0; i < kSums; ++i)
    o[i] *= shrink[i >> 1 & 1];
}

/// Rests as an operand in registers. Warps of both warpgroups have the same rows.
template <class Keys>
__device__ __forceinline__ void load_rest(const Block<Keys>& block, int t, Rest& rest) {
  if (!block.two_terms) return;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const uint4 words =
        load_shared_16_now(lane_place(block.rests, t) + static_cast<uint32_t>(half) * 512);
    const uint32_t codes[4] = {words.x, words.y, words.z, words.w};
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      const auto pair = static_cast<__nv_fp8x2_storage_t>(codes[i / 2] >> (i % 2 * 16));
      const float2 values = __half22float2(__half2(__nv_cvt_fp8x2_to_halfraw2(pair, __NV_E5M2)));
      rest.words[8 * half + i] = pack_bf16(values.x, values.y);
    }
  }
}

/// Lays weights and base of tile `t` out for both warpgroups. Whoever reads them meets the writers
/// at a barrier first. What lay there belongs to the tile that was in this buffer before, which
/// both have freed.
template <class Keys>
__device__ __forceinline__ void publish(const Block<Keys>& block,
                                        int t,
                                        const Weights& w,
                                        const RowPair& state) {
  store_weights(block.weights(t), w.words);
  if ((lane_id() & 3) == 0) {
    block.bases[t * kTileRows + block.row] = state.base[0];
    block.bases[t * kTileRows + block.row + 8] = state.base[1];
  }
  fence_for_products();
}

/// What warpgroup 0 does over the tiles of the block.
template <class Keys>
__device__ __forceinline__ void attend_even(const Block<Keys>& block,
                                            float (&o)[kSums],
                                            RowPair& state) {
  for (int pair = 0; 2 * pair < block.p.num_tiles; ++pair) {
    Weights w;
    float shrink[2];
    {
      float s[kScores];
      block.score(s, pair, 0);
      weigh(s, block, pair, 0, state, w, shrink);
    }
    named_sync(kOwn0, kWarpgroup);  // all scores were read from the panel that takes the weights
    publish(block, 0, w, state);
    named_arrive(kWeights0, kBoth);
    named_sync(kOwn0, kWarpgroup);
    shrink_sums(o, shrink);
    Rest rest;
    load_rest(block, 0, rest);
    add_values<kInHalves<Keys>>(o, block.tile(0), 0, block.two_terms, rest);
    wait_products<0>();
    free_tile<kOfPair<Keys>>(block.bars, 0, 0);
    if (!block.has_second(pair)) break;
    block.wait_values(pair, 1, 0);
    named_sync(kWeights1, kBoth);
    follow(block, 1, state, shrink);
    shrink_sums(o, shrink);
    load_rest(block, 1, rest);
    add_values<kInHalves<Keys>>(o, block.tile(1), 0, block.two_terms, rest);
    wait_products<0>();
    free_tile<kOfPair<Keys>>(block.bars, 1, 0);
  }
}

/// What warpgroup 1 does.
template <class Keys>
__device__ __forceinline__ void attend_odd(const Block<Keys>& block,
                                           float (&o)[kSums],
                                           RowPair& state) {
  for (int pair = 0; 2 * pair < block.p.num_tiles; ++pair) {
    const bool second = block.has_second(pair);
    float s[kScores];
    if (second) block.score(s, pair, 1);
    block.wait_values(pair, 0, 1);
    named_sync(kWeights0, kBoth);
    float shrink[2];
    follow(block, 0, state, shrink);
    shrink_sums(o, shrink);
    Rest rest;
    load_rest(block, 0, rest);
    add_values<kInHalves<Keys>>(o, block.tile(0), 1, block.two_terms, rest);
    // The weights of the own tile, while the products run.
    Weights w;
    if (second) {
      weigh(s, block, pair, 1, state, w, shrink);
      publish(block, 1, w, state);
      named_arrive(kWeights1, kBoth);
      named_sync(kOwn1, kWarpgroup);
    }
    wait_products<0>();
    free_tile<kOfPair<Keys>>(block.bars, 0, 1);
    if (!second) break;
    shrink_sums(o, shrink);
    load_rest(block, 1, rest);
    add_values<kInHalves<Keys>>(o, block.tile(1), 1, block.two_terms, rest);
    wait_products<0>();
    free_tile<kOfPair<Keys>>(block.bars, 1, 1);
  }
}

/// All tiles of the block. `shared` is the address of the shared memory.
template <class Keys>
__device__ __forceinline__ void attend_tiles(const Call& c,
                                             const Piece& p,
                                             const Keys& keys,
                                             unsigned char* base,
                                             uint32_t shared,
                                             Barriers bars,
                                             int wg,
                                             float (&o)[kSums],
                                             RowPair& state) {
  const Block<Keys> block{.p = p,
                          .keys = keys,
                          .queries = shared,
                          .tiles = shared + kKeysAt,
                          .bars = bars,
                          .bases = reinterpret_cast<float*>(base + kMaximaAt),
                          .rests = shared + kRestsAt,
                          .row = (warp_id() & 3) * 16 + lane_id() / 4,
                          .scale = c.score_scale * kLog2E,
                          .two_terms = in_two_terms(p)};
  if (!block.two_terms) empty_lists(block.rests, wg);
#pragma unroll
  for (int i = 0; i < kSums; ++i)
    o[i] = 0.0f;
  if (wg == 0) {
    attend_even(block, o, state);
  } else {
    attend_odd(block, o, state);
  }
}

/// Sums of a row's weights over both warpgroups and the columns of a quad. When it returns, no
/// product of the block is under way.
__device__ __forceinline__ void add_row_sums(float* sums, int wg, RowPair& state) {
  const int row = (warp_id() & 3) * 16 + lane_id() / 4;
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    state.sum[h] = quad_sum(state.sum[h]);
    if ((lane_id() & 3) == 0) sums[wg * kTileRows + row + 8 * h] = state.sum[h];
  }
  named_sync(kAll, kBoth);
#pragma unroll
  for (int h = 0; h < 2; ++h)
    state.sum[h] = sums[row + 8 * h] + sums[kTileRows + row + 8 * h];
}

/// From sums to rows of the output or a piece of them. A cluster writes over queries and keys.
template <class Turn>
__device__ __forceinline__ void give_rows(const Call& c,
                                          const Piece& p,
                                          const Cuts& cuts,
                                          unsigned char* base,
                                          int wg,
                                          const float (&o)[kSums],
                                          const RowPair& state,
                                          const Turn& turn) {
  if (cuts.merge == Merge::kNone) {
    store_rows<Bf16>(c, p, wg, o, state, turn);
  } else if (cuts.merge == Merge::kKernel) {
    store_piece(c, p, cuts, wg, o, state);
  } else {
    lay_out_piece(c, p, base, wg, o, state);
    meet_cluster();
    merge_in_cluster(c, p, cuts, base, turn);
    __syncwarp();
  }
}

/// From the sums of a block to rows of the output or a piece of them. `bring` as in add_rests().
template <class Bring, class Turn = Unturned>
__device__ __forceinline__ void finish_rows(const Call& c,
                                            const Piece& p,
                                            const Cuts& cuts,
                                            unsigned char* base,
                                            uint32_t shared,
                                            int wg,
                                            float (&o)[kSums],
                                            RowPair& state,
                                            Bring bring,
                                            const Turn& turn = {}) {
  const bool in_cluster = cuts.merge == Merge::kCluster;
  add_row_sums(reinterpret_cast<float*>(base + kSumsAt), wg, state);
  if (!in_two_terms(p)) {
    add_rests(base, shared + kRestsAt, o, state, bring);
    // Sums lie where values of rests do, those of other warps too.
    if (in_cluster) named_sync(kAll, kBoth);
  }
  give_rows(c, p, cuts, base, wg, o, state, turn);
}

}  // namespace fathom::mla_decode
