// How the sums of a tile (tile_products.cuh) become rows of y.
#pragma once

#include "fathom/kernels/cuda/products/cluster.cuh"
#include "fathom/kernels/cuda/products/tile_walk.cuh"

namespace fathom::cuda {

/// Where the outputs of a tile go: sums of row n of w and row `token` of the tile.
struct TileOutput {
  const ProductCall& c;
  ProductTile tile;
  int64_t y_first;  ///< element of y of the tile's first row of x, column 0
  float factor;

  __device__ TileOutput(const ProductCall& call, const ProductTile& t, float codec_factor)
      : c(call),
        tile(t),
        y_first((call.offsets != nullptr ? 0 : t.e * call.y_matrix) + t.first * call.y_row),
        factor(codec_factor * call.factor(t.e)) {}

  __device__ __forceinline__ float value(float sum, int token, int n) const {
    return n < c.N && token < tile.count ? c.finished(sum * factor, tile.first + token, n) : 0.0f;
  }

  /// Four neighbours of a row of y.
  __device__ __forceinline__ void store_four(const float4& sums, int token, int n) const {
    const bool whole = c.y_format == Format::kBf16 && n + 4 <= c.N &&
                       (c.y_row | y_first) % 4 == 0 && reinterpret_cast<uintptr_t>(c.y) % 8 == 0;
    if (!whole) {
      store(sums.x, token, n);
      store(sums.y, token, n + 1);
      store(sums.z, token, n + 2);
      store(sums.w, token, n + 3);
      return;
    }
    if (token >= tile.count) return;
    const uint2 words = {pair_of_floats(value(sums.x, token, n), value(sums.y, token, n + 1)),
                         pair_of_floats(value(sums.z, token, n + 2), value(sums.w, token, n + 3))};
    *reinterpret_cast<uint2*>(static_cast<Bf16*>(c.y) + y_first + token * c.y_row + n) = words;
  }

  __device__ __forceinline__ void store(float sum, int token, int n) const {
    if (n >= c.N || token >= tile.count) return;
    store_any(c.y, c.y_format, y_first + token * c.y_row + n, value(sum, token, n));
  }
};

template <class T>
__device__ __forceinline__ uint32_t pair_of(float low, float high);

template <>
__device__ __forceinline__ uint32_t pair_of<Bf16>(float low, float high) {
  return pair_of_floats(low, high);
}

template <>
__device__ __forceinline__ uint32_t pair_of<F16>(float low, float high) {
  const __half2 pair = __floats2half2_rn(low, high);
  return uint32_t{__half_as_ushort(__high2half(pair))} << 16 | __half_as_ushort(__low2half(pair));
}

/// Eight neighbours of a row of y, as far as they exist.
template <class T>
__device__ __forceinline__ void store_eight(T* to, uint4 words, int exist, bool whole) {
  if (whole && exist >= 8) {
    *reinterpret_cast<uint4*>(to) = words;
    return;
  }
  const uint32_t each[4] = {words.x, words.y, words.z, words.w};
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    if (i < exist) to[i].bits = static_cast<uint16_t>(each[i / 2] >> (16 * (i & 1)));
  }
}

/// Two-byte outputs of 64 rows of w: by 64 rows of x, through a panel of shared memory that turns
/// them over. `panel` belongs to this warpgroup, whose named barrier is `barrier`.
template <class T, bool kPlain, int kSums>
__device__ __forceinline__ void store_panels(
    const TileOutput& out, const float (&d)[kSums], int first_n, uint32_t panel, int barrier) {
  const int lane = lane_id();
  const int warp = warp_id() & 3;
  const int tid = static_cast<int>(threadIdx.x) % kWarpgroup;
  const int row = first_n + warp * 16 + (lane >> 2);
  const bool whole = reinterpret_cast<uintptr_t>(out.c.y) % 16 == 0 && out.c.y_row % 8 == 0 &&
                     out.c.y_matrix % 8 == 0;
#pragma unroll
  for (int part = 0; part < kSums / 32; ++part) {
#pragma unroll
    for (int j = 0; j < 8; j += 2) {
      uint32_t words[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int column = part * 64 + (j + i / 2) * 8 + 2 * (lane & 3);
        const int at = part * 32 + (j + i / 2) * 4 + 2 * (i & 1);
        float low = d[at] * out.factor;
        float high = d[at + 1] * out.factor;
        if constexpr (!kPlain) {
          low = out.value(d[at], column, row + 8 * (i & 1));
          high = out.value(d[at + 1], column + 1, row + 8 * (i & 1));
        }
        words[i] = pair_of<T>(low, high);
      }
      // Lane 8 i + r names the place of row r of the turned-over matrix i.
      const int token = (j + (lane >> 4)) * 8 + (lane & 7);
      asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(
                       panel + panel_offset(token, 2 * warp + (lane >> 3 & 1))),
                   "r"(words[0]), "r"(words[1]), "r"(words[2]), "r"(words[3])
                   : "memory");
    }
    named_sync(barrier, kWarpgroup);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int token = i * 16 + tid / 8;
      const int chunk = tid & 7;
      const uint4 words = load_shared_16(panel + panel_offset(token, chunk));
      const int n = first_n + 8 * chunk;
      if (part * 64 + token >= out.tile.count) continue;
      store_eight(static_cast<T*>(out.c.y) + out.y_first +
                      static_cast<int64_t>(part * 64 + token) * out.c.y_row + n,
                  words, out.c.N - n, whole);
    }
    named_sync(barrier, kWarpgroup);
  }
}

/// Outputs of 64 rows of w from row `first_n` on.
template <int kSums>
__device__ __forceinline__ void store_tile(
    const TileOutput& out, const float (&d)[kSums], int first_n, uint32_t panel, int barrier) {
  const bool plain = out.c.is_plain();
  if (out.c.y_format == Format::kBf16 && plain)
    return store_panels<Bf16, true>(out, d, first_n, panel, barrier);
  if (out.c.y_format == Format::kBf16)
    return store_panels<Bf16, false>(out, d, first_n, panel, barrier);
  if (out.c.y_format == Format::kF16)
    return store_panels<F16, false>(out, d, first_n, panel, barrier);
  const int n = first_n + (warp_id() & 3) * 16 + (lane_id() >> 2);
  const int token = 2 * (lane_id() & 3);
#pragma unroll
  for (int i = 0; i < kSums; ++i)
    out.store(d[i], token + i / 4 * 8 + (i & 1), n + (i >> 1 & 1) * 8);
}

/// Sums of a slice of k to shared memory, [token][row of the tile].
template <int kPitch, int kSums>
__device__ __forceinline__ void keep_sums(const float (&d)[kSums], float* sums, int first_row) {
  const int row = first_row + (lane_id() >> 2);
  const int token = 2 * (lane_id() & 3);
#pragma unroll
  for (int i = 0; i < kSums; ++i)
    sums[(token + i / 4 * 8 + (i & 1)) * kPitch + row + (i >> 1 & 1) * 8] = d[i];
}

/// Adds up the slices of a tile: every block of the cluster a share of its rows of x.
template <int kTokens, int kRows, int kPitch, int kThreads>
__device__ void combine_slices(const TileOutput& out, float* sums, int split) {
  const int rank = static_cast<int>(cluster_rank());
  const int share = kTokens / split;
  const int count = min(out.tile.count, (rank + 1) * share) - rank * share;
  constexpr int kFours = kRows / 4;
#pragma unroll 2
  for (int i = static_cast<int>(threadIdx.x); i < count * kFours; i += kThreads) {
    const int token = rank * share + i / kFours;
    const int row = i % kFours * 4;
    float4 sum = {0.0f, 0.0f, 0.0f, 0.0f};
#pragma unroll 2
    for (int s = 0; s < split; ++s) {
      const float* theirs = in_block(sums, static_cast<unsigned>(s)) + token * kPitch + row;
      const float4 v = *reinterpret_cast<const float4*>(theirs);
      sum = {sum.x + v.x, sum.y + v.y, sum.z + v.z, sum.w + v.w};
    }
    out.store_four(sum, token, out.tile.row_tile * kRows + row);
  }
}

}  // namespace fathom::cuda
