// A row of scores on its way from memory into the registers of a block.
#pragma once

#include "fathom/kernels/sparse/topk_rows/topk_block.cuh"

namespace fathom::topk_rows {

/// Scores in units of four on addresses that sixteen divides; the row begins within the first one.
/// A unit that holds a score of the row is memory that may be read.
struct RowUnits {
  const uint4* units;
  int begin;  ///< first score of the row, in scores from the first unit
  int end;
  int count;  ///< units

  __device__ RowUnits(const float* row, int length) {
    const auto address = reinterpret_cast<uintptr_t>(row);
    units = reinterpret_cast<const uint4*>(address & ~uintptr_t{15});
    begin = static_cast<int>(address / 4 % 4);
    end = begin + length;
    count = length > 0 ? (end + 3) / 4 : 0;
  }

  /// Which of the four scores of a unit are the row's.
  __device__ uint32_t live(int unit) const {
    const int left = end - 4 * unit;
    const uint32_t from = unit == 0 ? 15u << begin & 15u : 15u;
    return left >= 4 ? from : left > 0 ? from & ((1u << left) - 1) : 0u;
  }

  /// Starts to load up to kQuads units of this thread, of a block's that begin at `first` and end
  /// before `last`; says which scores exist.
  __device__ __forceinline__ uint32_t load(int first,
                                           int last,
                                           int quads,
                                           uint4 (&raw)[kQuads]) const {
    uint32_t mask = 0;
#pragma unroll
    for (int q = 0; q < kQuads; ++q) {
      const int unit = first + (cuda::warp_id() * quads + q) * 32 + cuda::lane_id();
      raw[q] = make_uint4(0, 0, 0, 0);
      if (q >= quads || unit >= last) continue;
      raw[q] = cuda::load_16(units + unit, cuda::kEvictNormal);
      mask |= live(unit) << 4 * q;
    }
    return mask;
  }
};

__device__ __forceinline__ void keys_of(const uint4 (&raw)[kQuads], uint32_t (&keys)[kEach]) {
#pragma unroll
  for (int q = 0; q < kQuads; ++q) {
    keys[4 * q] = cuda::key_of_bits(raw[q].x);
    keys[4 * q + 1] = cuda::key_of_bits(raw[q].y);
    keys[4 * q + 2] = cuda::key_of_bits(raw[q].z);
    keys[4 * q + 3] = cuda::key_of_bits(raw[q].w);
  }
}

/// Quads of a thread that so many units of a block take.
__device__ __forceinline__ int quads_for(int units) {
  return min(kQuads, (units + kThreads - 1) / kThreads);
}

__device__ __forceinline__ Held hold(const RowUnits& row, int first) {
  Held held;
  uint4 raw[kQuads];
  held.quads = quads_for(row.count - first);
  held.live = row.load(first, row.count, held.quads, raw);
  keys_of(raw, held.key);
  return held;
}

/// A row whose scores are on their way before its length is known: all that it has room for.
struct EarlyRow {
  int quads;
  uint4 raw[kQuads];

  __device__ explicit EarlyRow(const RowUnits& room) : quads(quads_for(room.count)) {
    room.load(0, room.count, quads, raw);
  }

  /// What is the row's.
  __device__ __forceinline__ Held hold(const RowUnits& row) const {
    Held held;
    held.quads = quads;
    keys_of(raw, held.key);
#pragma unroll
    for (int q = 0; q < kQuads; ++q) {
      if (q < quads) held.live |= row.live(held.quad_index(q)) << 4 * q;
    }
    return held;
  }
};

}  // namespace fathom::topk_rows
