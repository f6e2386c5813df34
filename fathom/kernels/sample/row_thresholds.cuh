// The threshold of a row on one block of the GPU: the largest key at which what is not below it
// reaches a count or a mass. Keys order values; a histogram over their leading thirteen bits finds
// the bin that holds the threshold, then the next bits within it, and so on.
//
// Masses are whole numbers: a value of w times the largest has a mass of 2^42 w, rounded. So sums
// are the same in any order, and atomic additions to shared memory may make them. Rows of up to
// 2^20 values stay below 2^63.
#pragma once

#include <cstdint>

#include "fathom/kernels/sample/row_pieces.cuh"

namespace fathom::cuda {

inline constexpr float kWholeMass = 0x1p42f;

/// What is not below a threshold.
struct KeptValues {
  uint32_t key;
  uint64_t mass;
};

/// What a threshold must reach: both numbers.
struct Goal {
  uint32_t count;
  double mass;

  __device__ bool reached(uint32_t c, uint64_t m) const {
    return c >= count && static_cast<double>(m) >= mass;
  }
};

/// Counts and masses of values by some bits of their keys.
class Bins {
 public:
  static constexpr int kBits = 13;

  /// By all threads, between barriers.
  __device__ void clear() {
    auto* quads = reinterpret_cast<uint4*>(words_);
    for (int i = static_cast<int>(threadIdx.x); i < 3 * kCount / 4; i += kRowThreads)
      quads[i] = make_uint4(0, 0, 0, 0);
  }

  __device__ void add(uint32_t bin, uint64_t mass) {
    atomicAdd(&words_[0][bin], 1u);
    add_mass(bin, mass);
  }

  /// The carry goes to the high word whatever the order of additions.
  __device__ void add_mass(uint32_t bin, uint64_t mass) {
    const auto low = static_cast<uint32_t>(mass);
    const uint32_t before = atomicAdd(&words_[1][bin], low);
    const uint32_t high = static_cast<uint32_t>(mass >> 32) + (before + low < low ? 1u : 0u);
    if (high != 0) atomicAdd(&words_[2][bin], high);
  }

  __device__ void set_mass(uint32_t bin, uint64_t mass) {
    words_[1][bin] = static_cast<uint32_t>(mass);
    words_[2][bin] = static_cast<uint32_t>(mass >> 32);
  }

  __device__ uint64_t mass(uint32_t bin) const {
    return uint64_t{words_[2][bin]} << 32 | words_[1][bin];
  }

  /// A bin with what lies above it.
  struct Place {
    uint32_t bin;
    uint32_t count_above;
    uint64_t mass_above;
    uint64_t mass;  ///< of the bin
  };

  /// The highest bin at which the goal is reached by what is not below it and what is `above` all
  /// bins; the lowest bin if none reaches it. By all threads, between barriers; ends with one.
  __device__ Place pick(uint32_t count_above, uint64_t mass_above, const Goal& goal) {
    // Thread i has bins lowest .. lowest + 7, thread 0 the highest ones.
    const int tid = static_cast<int>(threadIdx.x);
    const int lowest = kCount - kEach * (tid + 1);
    uint32_t counts[kEach];
    uint64_t masses[kEach];
    uint32_t own_count = 0;
    uint64_t own_mass = 0;
    read(lowest, counts, masses);
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      own_count += counts[i];
      own_mass += masses[i];
    }
    uint32_t count = static_cast<uint32_t>(sum_up_to_lane(static_cast<int>(own_count)));
    uint64_t mass = own_mass;
#pragma unroll
    for (int offset = 1; offset < 32; offset *= 2) {
      const uint64_t lower =
          __shfl_up_sync(kAllLanes, static_cast<unsigned long long>(mass), offset);
      if (lane_id() >= offset) mass += lower;
    }
    if (lane_id() == 31) {
      warp_counts_[warp_id()] = count;
      warp_masses_[warp_id()] = mass;
    }
    __syncthreads();
    const bool earlier = lane_id() < warp_id();
    count += count_above + __reduce_add_sync(kAllLanes, earlier ? warp_counts_[lane_id()] : 0u);
    mass += mass_above + sum_of_lanes(earlier ? warp_masses_[lane_id()] : uint64_t{0});
    uint32_t above = count - own_count;
    uint64_t mass_of_above = mass - own_mass;
    // One thread has the bin: sums ascend from thread to thread.
    const bool here = goal.reached(count, mass) ? tid == 0 || !goal.reached(above, mass_of_above)
                                                : tid == kRowThreads - 1;
    if (here) {
      int i = kEach - 1;
#pragma unroll
      for (int b = kEach - 1; b > 0; --b) {
        if (b != i || goal.reached(above + counts[b], mass_of_above + masses[b])) continue;
        above += counts[b];
        mass_of_above += masses[b];
        i = b - 1;
      }
      uint64_t of_bin = 0;
#pragma unroll
      for (int b = 0; b < kEach; ++b)
        of_bin = b == i ? masses[b] : of_bin;
      picked_ = {static_cast<uint32_t>(lowest + i), above, mass_of_above, of_bin};
    }
    __syncthreads();
    return picked_;
  }

 private:
  static constexpr int kCount = 1 << kBits;
  static constexpr int kEach = kCount / kRowThreads;
  static_assert(kEach == 8, "two loads of four words read what a thread has");

  __device__ void read(int lowest, uint32_t (&counts)[kEach], uint64_t (&masses)[kEach]) const {
#pragma unroll
    for (int i = 0; i < kEach; i += 4) {
      const uint4 c = *reinterpret_cast<const uint4*>(&words_[0][lowest + i]);
      const uint4 low = *reinterpret_cast<const uint4*>(&words_[1][lowest + i]);
      const uint4 high = *reinterpret_cast<const uint4*>(&words_[2][lowest + i]);
      counts[i] = c.x;
      counts[i + 1] = c.y;
      counts[i + 2] = c.z;
      counts[i + 3] = c.w;
      masses[i] = uint64_t{high.x} << 32 | low.x;
      masses[i + 1] = uint64_t{high.y} << 32 | low.y;
      masses[i + 2] = uint64_t{high.z} << 32 | low.z;
      masses[i + 3] = uint64_t{high.w} << 32 | low.w;
    }
  }

  alignas(16) uint32_t words_[3][kCount];  // counts, masses' low words, masses' high words
  uint32_t warp_counts_[kRowWarps];
  uint64_t warp_masses_[kRowWarps];
  Place picked_;
};

/// The largest key at which the goal is reached; 0 where all values do not reach it. By all
/// threads. values.for_each(f) calls f(value, token) for each value, shared out over the threads;
/// scale.key(value) has Scale::kKeyBits bits, scale.mass(value) is its mass.
template <class Values, class Scale>
__device__ KeptValues
find_threshold(Bins& bins, const Values& values, const Scale& scale, const Goal& goal) {
  uint32_t key = 0;  // its bits from `below` on
  uint32_t count_above = 0;
  uint64_t mass_above = 0;
  uint64_t mass = 0;
  for (int below = Scale::kKeyBits; below > 0;) {
    const int shift = max(0, below - Bins::kBits);
    const uint32_t mask = (1u << (below - shift)) - 1;
    bins.clear();
    __syncthreads();
    values.for_each([&](float value, int) {
      const uint32_t k = scale.key(value);
      if (k >> below == key) bins.add(k >> shift & mask, scale.mass(value));
    });
    __syncthreads();
    const Bins::Place place = bins.pick(count_above, mass_above, goal);
    key = key << (below - shift) | place.bin;
    count_above = place.count_above;
    mass_above = place.mass_above;
    mass = mass_above + place.mass;
    below = shift;
  }
  return {key, mass};
}

/// The values of a row that are not below a floor, read again in each pass.
template <class Row>
struct RowFrom {
  Row row;
  float floor;

  template <class F>
  __device__ void for_each(F f) const {
    for (int piece = warp_id(); piece < row.num_pieces(); piece += kRowWarps) {
      PieceValues x;
      row.load(piece, x);
#pragma unroll
      for (int j = 0; j < kQuads; ++j) {
#pragma unroll
        for (int c = 0; c < 4; ++c) {
          if (x[j][c] >= floor) f(x[j][c], first_token(piece) + 128 * j + c);
        }
      }
    }
  }
};

/// Writes the k-th largest of the peaks, 1 <= k <= num_pieces: k values of the row are not below
/// it. By all threads, between barriers.
__device__ inline void find_kth_peak(const float* peaks, int num_pieces, int k, float* kth) {
  for (int i = static_cast<int>(threadIdx.x); i < num_pieces; i += kRowThreads) {
    const float own = peaks[i];
    int rank = 0;
    for (int p = 0; p < num_pieces; ++p)
      rank += peaks[p] > own || (peaks[p] == own && p < i) ? 1 : 0;
    if (rank == k - 1) *kth = own;
  }
}

}  // namespace fathom::cuda
