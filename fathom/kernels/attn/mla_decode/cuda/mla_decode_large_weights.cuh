// What rounding to bf16 leaves of the largest weights of a row over many keys. Products take every
// weight as one bf16; of the few that share most of a row's sum the rest counts:
//
//   o += sum_k (p_k - bf16(p_k)) v_k        over keys k that were remembered
//
// Where a lane weighs a key that has a large share of its row, it remembers the key and the rest.
// Behind the last tile, rests that still count are products of their own: 16 keys of a warp at a
// time, brought once more, which are few. What is remembered, and the order in which it is added,
// depends on the weights alone.
//
// A list of 16 bytes a row and lane, eight lists a row (four lanes share it, in both warpgroups):
//
//   word 0, 1   keys; the first one's rest is the larger one
//   word 2      their rests as bf16, the first in the low half; 0 if there is none
//   word 3      what they are relative to: the base of the row when they were written
#pragma once

#include <cuda_bf16.h>

#include "fathom/kernels/attn/mla_decode/cuda/mla_decode_results.cuh"
#include "fathom/kernels/cuda/products/mma.cuh"

namespace fathom::mla_decode {

/// Requests of at most so many keys take every weight as two bf16, and so do blocks of at most so
/// many tiles: nearly each chunk of their keys has a large one, and to bring keys again takes as
/// long.
inline constexpr int kTwoTermKeys = 512;
inline constexpr int kTwoTermTiles = 6;

/// A weight this much of the sum of its warpgroup, which has half of the keys, is remembered. At
/// 1/16, twenty equal weights within one tile would not be.
inline constexpr float kLargeShare = 1.0f / 32;

/// A rest counts from this much of its row's sum on: the most that is left of a weight of a 64th.
inline constexpr float kLeastRest = 1.0f / 16384;

inline constexpr int kScores = 32;         ///< of a lane and tile: two rows of sixteen keys
inline constexpr int kRestsAtOnce = 16;    ///< that a product sums over
inline constexpr int kListedInWarp = 256;  ///< the most that lists name: 2 x 2 x 32 lists of two

__device__ __forceinline__ bool in_two_terms(const Piece& p) {
  return p.length <= kTwoTermKeys || p.num_tiles <= kTwoTermTiles;
}

/// Where a lane has two times sixteen bytes for the tiles of warpgroup `t`, one for each of its
/// rows, 512 bytes apart: lists, or the rests of all weights of a tile.
__device__ __forceinline__ uint32_t lane_place(uint32_t lists, int t, int lane = lane_id()) {
  return lists +
         static_cast<uint32_t>(t * kTileRows * kTileKeys + (warp_id() & 3) * 1024 + lane * 16);
}

/// The lane whose list of a row takes what this lane remembers: another one of the four that share
/// the row from one pair of tiles to the next, so that keys a power of two apart, which one lane
/// weighs all of, do not crowd in one list.
__device__ __forceinline__ int list_lane(int pair) {
  const int turn = pair + (pair >> 2) + (pair >> 4);
  return (lane_id() & ~3) | ((lane_id() + turn) & 3);
}

struct LargeWeights {
  uint32_t keys[2];
  float rests[2];
  float base;
};

__device__ __forceinline__ LargeWeights read_list(uint32_t at) {
  const uint4 words = load_shared_16_now(at);
  return {{words.x, words.y},
          {__uint_as_float(words.z << 16), __uint_as_float(words.z & 0xFFFF0000u)},
          __uint_as_float(words.w)};
}

__device__ __forceinline__ void write_list(uint32_t at, const LargeWeights& list) {
  store_shared_16(at, {list.keys[0], list.keys[1], pack_bf16(list.rests[0], list.rests[1]),
                       __float_as_uint(list.base)});
}

/// Empties the lane's lists, of the tiles that its warpgroup weighs.
__device__ __forceinline__ void empty_lists(uint32_t lists, int wg) {
#pragma unroll
  for (uint32_t h = 0; h < 2; ++h)
    write_list(lane_place(lists, wg) + 512 * h, {{}, {}, kNoBase});
  __syncwarp();
}

/// All ones in each half where that of `a`, as bf16, is greater than that of `b`.
__device__ __forceinline__ uint32_t greater_halves(uint32_t a, uint32_t b) {
  return __hgt2_mask(*reinterpret_cast<const __nv_bfloat162*>(&a),
                     *reinterpret_cast<const __nv_bfloat162*>(&b));
}

/// The weights of a lane's two rows in one tile: number 4 k + 2 h + e is of row h and of key
/// `first_key` + 8 k + e.
struct TileWeights {
  const float (&weights)[kScores];
  const uint32_t (&words)[kScores / 2];  ///< their bf16, two a word
  const float (&bases)[2];
  uint32_t first_key;

  /// Number 2 * word + high. Selected in steps: registers have no index.
  __device__ __forceinline__ float weight(int word, bool high) const {
    float left[kScores / 2];
#pragma unroll
    for (int i = 0; i < kScores / 2; ++i)
      left[i] = high ? weights[2 * i + 1] : weights[2 * i];
#pragma unroll
    for (int step = 0; step < 4; ++step) {
      const int half = kScores / 4 >> step;
      const bool upper = (word & half) != 0;
#pragma unroll
      for (int i = 0; i < kScores / 4; ++i)
        if (i < half) left[i] = upper ? left[i + half] : left[i];
    }
    return left[0];
  }

  /// Takes number 2 * word + high into the list of its row, in place of the one that matters least.
  __device__ __forceinline__ void remember(uint32_t place, int word, bool high) const {
    const float p = weight(word, high);
    const float rest = p - __uint_as_float(pack_bf16(p, p) << 16);
    const bool second_row = (word & 1) != 0;
    const uint32_t at = place + (second_row ? 512 : 0);
    const uint32_t key = first_key + static_cast<uint32_t>(word / 2 * 8 + (high ? 1 : 0));
    const float base = second_row ? bases[1] : bases[0];
    LargeWeights list = read_list(at);
    const float shrink = exp2_approx(list.base - base);
    list.base = base;
    const float first = list.rests[0] * shrink;
    const float second = list.rests[1] * shrink;
    const bool largest = fabsf(rest) > fabsf(first);
    const bool larger = fabsf(rest) > fabsf(second);
    list.rests[0] = largest ? rest : first;
    list.rests[1] = largest ? first : (larger ? rest : second);
    list.keys[1] = largest ? list.keys[0] : (larger ? key : list.keys[1]);
    list.keys[0] = largest ? key : list.keys[0];
    write_list(at, list);
  }

  /// Remembers all weights above the limit of their row, both halves of which are that limit.
  __device__ __forceinline__ void remember_above(uint32_t place,
                                                 const uint32_t (&limits)[2]) const {
    uint32_t found = 0;
#pragma unroll
    for (int i = 0; i < kScores / 2; ++i)
      found |= greater_halves(words[i], limits[i & 1]) & 0x10001u << i;
#pragma unroll 1
    while (found != 0) {
      const int bit = __ffs(static_cast<int>(found)) - 1;
      found &= found - 1;
      remember(place, bit & 15, bit > 15);
    }
    __syncwarp();
  }
};

// ---- behind the last tile ----

/// Shared memory of the warps that compute, over queries and keys, which nobody needs any more.
struct RestMemory {
  uint4 values[kBoth / kWarp][2][kRestsAtOnce][kWarp];  ///< 256 columns of sixteen keys
  uint2 rests[kBoth / kWarp][kListedInWarp];            ///< key; row, and the rest as bf16 above it
};

static_assert(sizeof(RestMemory) <= kMaximaAt, "lies over queries and keys alone");

/// Gathers what the lists of both warpgroups have for the sixteen rows of a warp and what still
/// counts. Returns how many. Both warpgroups have met.
__device__ __forceinline__ int gather_rests(uint32_t lists, const RowPair& state, uint2* out) {
  int count = 0;
#pragma unroll
  for (int t = 0; t < 2; ++t) {
#pragma unroll
    for (uint32_t h = 0; h < 2; ++h) {
      const LargeWeights list = read_list(lane_place(lists, t) + 512 * h);
      const float shrink = exp2_approx(list.base - state.base[h]);
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        const float rest = list.rests[e] * shrink;
        const bool counts = fabsf(rest) > kLeastRest * state.sum[h];
        const uint32_t all = __ballot_sync(0xFFFFFFFFu, counts);
        if (counts) {
          const int before = __popc(all & ((1u << lane_id()) - 1));
          const uint32_t row = static_cast<uint32_t>(lane_id()) / 4 + 8 * h;
          out[count + before] = {list.keys[e], pack_bf16(0.0f, rest) | row};
        }
        count += __popc(all);
      }
    }
  }
  __syncwarp();
  return count;
}

/// Where a row of eight columns of a key's values lies: rows that a product reads at once meet all
/// banks.
__device__ __forceinline__ uint32_t value_place(uint32_t values, int key, int chunk) {
  return values + static_cast<uint32_t>(key * kWarp + (chunk ^ (key & 7))) * 16;
}

/// Starts to bring 256 columns of sixteen keys. The lanes l and 16 + l know where those of key l
/// lie; bit l of `exists` says whether they do, if not they arrive as zeros.
__device__ __forceinline__ void bring_values(const Bf16* mine, uint32_t exists, uint32_t values) {
#pragma unroll
  for (int key = 0; key < kRestsAtOnce; ++key) {
    const auto from = __shfl_sync(0xFFFFFFFFu, reinterpret_cast<uint64_t>(mine), key);
    copy_chunk(value_place(values, key, lane_id()),
               reinterpret_cast<const Bf16*>(from) + 8 * lane_id(), (exists >> key & 1) != 0);
  }
}

__device__ __forceinline__ void bring_values(const E4m3* mine, uint32_t exists, uint32_t values) {
  constexpr int kLoads = kRestsAtOnce / 2;
  const int chunk = lane_id() & 15;
  uint4 codes[kLoads];
#pragma unroll
  for (int i = 0; i < kLoads; ++i) {
    const int key = 2 * i + lane_id() / 16;
    const auto from = __shfl_sync(0xFFFFFFFFu, reinterpret_cast<uint64_t>(mine), key);
    codes[i] = uint4{};
    if ((exists >> key & 1) != 0)
      codes[i] = *reinterpret_cast<const uint4*>(reinterpret_cast<const E4m3*>(from) + 16 * chunk);
  }
#pragma unroll
  for (int i = 0; i < kLoads; ++i) {
    uint4 wide[2];
    widen(codes[i], wide);
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      store_shared_16(value_place(values, 2 * i + lane_id() / 16, 2 * chunk + h), wide[h]);
    }
  }
}

/// o += rests times values: `left` of the rests exist, at most sixteen are taken.
__device__ __forceinline__ void multiply_rests(float (&o)[kSums],
                                               const uint2* rests,
                                               int left,
                                               uint32_t values) {
  constexpr uint32_t kNoRow = 0xFFFF;
  uint32_t a[4] = {};
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const int k = i / 2 * 8 + 2 * (lane_id() & 3) + i % 2;
    const uint32_t word = k < left ? rests[k].y : kNoRow;
    const uint32_t rest = i % 2 == 0 ? word >> 16 : word & 0xFFFF0000u;
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      if ((word & 0xFFFF) == static_cast<uint32_t>(lane_id() / 4 + 8 * h)) a[i / 2 * 2 + h] |= rest;
    }
  }
#pragma unroll
  for (int i = 0; i < kSums / 4; i += 2) {
    uint32_t b[4];
    load_transposed(b, value_place(values, lane_id() & 15, i + lane_id() / 16));
#pragma unroll
    for (int e = 0; e < 2; ++e) {
      float(&sums)[4] = reinterpret_cast<float(&)[4]>(o[4 * (i + e)]);
      mma_16x8x16(sums, a[0], a[1], a[2], a[3], b[2 * e], b[2 * e + 1]);
    }
  }
}

/// Adds the rests that count to the sums of a warpgroup. All products of the block are done;
/// queries and keys are written over. bring(rests, left, values) starts to bring the warpgroup's
/// 256 columns of the keys of sixteen rests, of which `left` exist; the others arrive as zeros.
template <class Bring>
__device__ __forceinline__ void add_rests(
    unsigned char* base, uint32_t lists, float (&o)[kSums], const RowPair& state, Bring bring) {
  auto& memory = *reinterpret_cast<RestMemory*>(base);
  uint2* rests = memory.rests[warp_id()];
  const uint32_t values = shared_address(memory.values[warp_id()]);
  const auto stage = [&](int first) {
    return values + static_cast<uint32_t>(first / kRestsAtOnce & 1) * sizeof(memory.values[0][0]);
  };
  const int count = gather_rests(lists, state, rests);
  // The next ones are under way while sixteen are multiplied.
#pragma unroll 1
  for (int first = -kRestsAtOnce; first < count; first += kRestsAtOnce) {
    const int next = first + kRestsAtOnce;
    if (next < count) bring(rests + next, count - next, stage(next));
    commit_copies();
    if (first < 0) continue;
    wait_copies<1>();
    __syncwarp();
    multiply_rests(o, rests + first, count - first, stage(first));
    __syncwarp();
  }
}

}  // namespace fathom::mla_decode
