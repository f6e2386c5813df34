// Selection of the largest scores by one block of the GPU, exactly and in order of position.
//
// Scores become keys, unsigned integers that order as totalOrder does. A block holds up to 8,192
// keys in registers: warps, their quads and their lanes follow each other in order of position,
//
//   element 4 * ((warp * quads + q) * 32 + lane) + c   is key[4 q + c] of a lane
//
// so that sums over lanes and warps say where a taken element goes. The smallest key that is taken
// comes from a histogram over sizes, or over distances to a key from which none above is left out,
// then over the bin that holds it, and so on; a bin of few keys is ranked.
#pragma once

#include <cstdint>

#include "fathom/kernels/cuda/arithmetic.cuh"
#include "fathom/kernels/cuda/device_code.cuh"
#include "fathom/kernels/cuda/elements.cuh"
#include "fathom/kernels/cuda/reduce.cuh"
#include "fathom/kernels/sparse/topk_rows/topk_plan.h"

namespace fathom::topk_rows {

inline constexpr int kThreads = 512;
inline constexpr int kWarps = kThreads / 32;
inline constexpr int kQuads = 4;
inline constexpr int kEach = 4 * kQuads;          ///< keys of a thread
inline constexpr int kAtOnce = kThreads * kEach;  ///< keys of a block
inline constexpr int kBinBits = 11;
inline constexpr int kBins = 1 << kBinBits;
inline constexpr int kListed = 128;  ///< keys of a bin that are ranked
inline constexpr uint32_t kAllLanes = 0xFFFFFFFFu;

static_assert(kBins == 4 * kThreads, "a thread has four neighbouring bins");
static_assert(kThreads == 4 * kListed, "four threads rank a key");

/// Histograms of a row that a cluster holds: each but the first is of a bin of the one before.
inline constexpr int kRounds = 4;
static_assert(kAtOnce == kBlockScores);
static_assert(kAtOnce == kRounds * kBins, "their bins take the place of candidates");
static_assert(kMostBlocks <= kWarps, "a warp looks at the bins of a block");

/// The smallest key that is taken, how many equal to it are, and how many there are.
struct Cut {
  uint32_t key;
  int taken;
  int equal;
};

/// The bin in which a rank lies, counted from the highest key.
struct Picked {
  uint32_t bin;
  int above;  ///< keys of the bins before it
  int count;
};

/// What blocks of a cluster tell each other in a round. Sums are zeros before.
struct Round {
  int own_groups[kWarps];                ///< keys of this block in each 128 bins, for the others
  int groups[kWarps];                    ///< of all blocks
  alignas(16) int bins[kBins / kWarps];  ///< of all blocks: those 128 that hold the rank
  int above[kMostBlocks];                ///< of each block: keys before the bin that is picked
  int inside[kMostBlocks];               ///< and in it
};

struct Shared {
  /// Candidates; at the end positions that are written. Or the bins of kRounds histograms.
  alignas(16) uint32_t keys[kAtOnce];
  alignas(16) uint32_t places[kAtOnce];  ///< of candidates, in the row
  alignas(16) uint32_t bins[kBins];      ///< zeros between two uses
  uint32_t listed[kListed];
  int sums[2][kWarps];          ///< of warps; uses take turns, so that one barrier each is enough
  int begins[kMostBlocks + 1];  ///< of the candidates of a cluster's blocks
  int num_listed;
  int num_candidates;
  Picked picked;
  Cut cut;
  Round rounds[kRounds];
};

/// The threads of a block as they add up and compare numbers; every call has one barrier.
class Threads {
 public:
  __device__ explicit Threads(Shared& shared) : s_(shared) {}

  /// The largest of all threads' keys.
  __device__ uint32_t largest(uint32_t key) {
    int* sums = turn();
    key = __reduce_max_sync(kAllLanes, key);
    if (cuda::lane_id() == 0) sums[cuda::warp_id()] = static_cast<int>(key);
    __syncthreads();
    return __reduce_max_sync(kAllLanes, static_cast<uint32_t>(sums[cuda::lane_id() % kWarps]));
  }

  /// Numbers of all warps before this one, and of all; lane 31 says that of its warp.
  struct Sums {
    int before;
    int all;
  };

  __device__ Sums sum_warps(int of_warp) {
    int* sums = turn();
    if (cuda::lane_id() == 31) sums[cuda::warp_id()] = of_warp;
    __syncthreads();
    const int sum = cuda::lane_id() < kWarps ? sums[cuda::lane_id()] : 0;
    return {__reduce_add_sync(kAllLanes, cuda::lane_id() < cuda::warp_id() ? sum : 0),
            __reduce_add_sync(kAllLanes, sum)};
  }

 private:
  __device__ int* turn() {
    parity_ ^= 1;
    return s_.sums[parity_];
  }

  Shared& s_;
  int parity_ = 0;
};

/// Keys in registers.
struct Held {
  uint32_t key[kEach];
  uint32_t live = 0;  ///< bit i: key[i] is there
  int quads = 0;      ///< in use, the same in all threads

  __device__ uint32_t nibble(uint32_t mask, int q) const { return mask >> 4 * q & 15u; }

  /// Number of the first element of quad q, in units of four.
  __device__ int quad_index(int q) const {
    return (cuda::warp_id() * quads + q) * 32 + cuda::lane_id();
  }

  template <class F>
  __device__ __forceinline__ void each(F f) const {
#pragma unroll
    for (int q = 0; q < kQuads; ++q) {
      if (q >= quads) break;
#pragma unroll
      for (int i = 4 * q; i < 4 * q + 4; ++i) {
        if ((live >> i & 1u) != 0) f(key[i]);
      }
    }
  }

  __device__ __forceinline__ uint32_t largest() const {
    uint32_t top = 0;
    each([&](uint32_t k) { top = max(top, k); });
    return top;
  }

  /// Bits of the elements of which f(key) is true.
  template <class F>
  __device__ __forceinline__ uint32_t where(F f) const {
    uint32_t mask = 0;
#pragma unroll
    for (int q = 0; q < kQuads; ++q) {
      if (q >= quads) break;
#pragma unroll
      for (int i = 4 * q; i < 4 * q + 4; ++i)
        mask |= f(key[i]) ? 1u << i : 0u;
    }
    return mask & live;
  }
};

/// Where the elements of a mask come in order: those of quad q of this lane from first[q] on.
struct Order {
  int first[kQuads];
  int all;  ///< elements of all threads

  __device__ Order(Threads& threads, const Held& held, uint32_t mask) {
    uint32_t counts = 0;  // a byte a quad; a warp has up to 128 of each
#pragma unroll
    for (int q = 0; q < kQuads; ++q)
      counts |= static_cast<uint32_t>(__popc(held.nibble(mask, q))) << 8 * q;
    const auto upto = static_cast<uint32_t>(cuda::sum_up_to_lane(static_cast<int>(counts)));
    const uint32_t of_warp = __shfl_sync(kAllLanes, upto, 31);
    const uint32_t before = upto - counts;
    int sum = 0;
#pragma unroll
    for (int q = 0; q < kQuads; ++q) {
      first[q] = sum + static_cast<int>(before >> 8 * q & 255u);
      sum += static_cast<int>(of_warp >> 8 * q & 255u);
    }
    const Threads::Sums sums = threads.sum_warps(sum);
#pragma unroll
    for (int q = 0; q < kQuads; ++q)
      first[q] += sums.before;
    all = sums.all;
  }

  /// Calls f(number in order, i) for every element i of the mask.
  template <class F>
  __device__ __forceinline__ void each(uint32_t mask, F f) const {
#pragma unroll
    for (int q = 0; q < kQuads; ++q) {
      if ((mask >> 4 * q & 15u) == 0) continue;
      int number = first[q];
#pragma unroll
      for (int c = 0; c < 4; ++c) {
        if ((mask >> (4 * q + c) & 1u) != 0) f(number++, 4 * q + c);
      }
    }
  }
};

/// Of four neighbouring bins, behind `above` keys, the one that holds rank k.
struct PickedOfFour {
  int index = 0;
  int above;
  int count;

  __device__ PickedOfFour(uint4 bins, int above_all, int k)
      : above(above_all), count(static_cast<int>(bins.x)) {
    const int counts[4] = {static_cast<int>(bins.x), static_cast<int>(bins.y),
                           static_cast<int>(bins.z), static_cast<int>(bins.w)};
#pragma unroll
    for (int i = 1; i < 4; ++i) {
      if (index != i - 1 || k <= above + count) continue;
      above += count;
      index = i;
      count = counts[i];
    }
  }
};

__device__ __forceinline__ int sum_of_four(uint4 bins) {
  return static_cast<int>(bins.x + bins.y + bins.z + bins.w);
}

/// Finds the bin of rank k, 1 <= k <= what bins hold, and clears all. By all threads, after a
/// barrier; ends with one.
__device__ inline Picked pick(Shared& s, Threads& threads, int k) {
  const auto tid = static_cast<int>(threadIdx.x);
  auto* quads = reinterpret_cast<uint4*>(s.bins);
  const uint4 quad = quads[tid];
  quads[tid] = make_uint4(0, 0, 0, 0);
  if (tid == 0) s.num_listed = 0;
  const int own = sum_of_four(quad);
  const int upto = cuda::sum_up_to_lane(own);
  const int above = threads.sum_warps(upto).before + upto - own;
  if (above < k && k <= above + own) {
    const PickedOfFour p(quad, above, k);
    s.picked = {static_cast<uint32_t>(4 * tid + p.index), p.above, p.count};
  }
  __syncthreads();
  return s.picked;
}

/// Keys from top down to bottom, in bins of 2^shift; the last bin has what is left.
struct Window {
  uint32_t top;
  uint32_t bottom;
  int shift;

  __device__ uint32_t bin(uint32_t key) const {
    return min((top - key) >> shift, static_cast<uint32_t>(kBins - 1));
  }

  __device__ bool holds(uint32_t key) const { return key <= top && key >= bottom; }

  /// To what a bin of it holds.
  __device__ void narrow(uint32_t picked) {
    top -= picked << shift;
    const uint32_t span = (1u << shift) - 1;
    if (picked < kBins - 1 && top - bottom > span) bottom = top - span;
  }
};

/// The shift at which bins hold so many distances.
__device__ __forceinline__ int shift_of(uint32_t range) {
  return max(0, 32 - __clz(static_cast<int>(range)) - kBinBits);
}

/// Bins of all keys by sign and size: 32 an octave, from 2^-16 to 2^16. The outermost bins of a
/// sign have what is beyond. Positive ones come first, the largest at their head.
struct SizeBins {
  static constexpr int kShift = 18;
  static constexpr int kLeast = (127 - 16) << (23 - kShift);
  static constexpr int kOfSign = kBins / 2;

  __device__ static uint32_t bin(uint32_t key) {
    const uint32_t bits = key ^ 0x80000000u;
    const int sign = static_cast<int>(bits) >> 31;  // -1 or 0
    const int size = static_cast<int>(bits) ^ sign;
    const int level = min(max((size >> kShift) - kLeast, 0), kOfSign - 1);
    return static_cast<uint32_t>(kOfSign + (level ^ ~sign));
  }

  __device__ static Window window(uint32_t bin) {
    const bool negative = bin >= kOfSign;
    const auto level = static_cast<int>(negative ? bin - kOfSign : kOfSign - 1 - bin);
    const auto edge = [](int i) { return static_cast<uint32_t>(i + kLeast) << kShift; };
    const uint32_t low = level == 0 ? 0 : edge(level);
    const uint32_t high = level == kOfSign - 1 ? 0x7FFFFFFFu : edge(level + 1) - 1;
    const int shift = shift_of(high - low);
    if (negative) return {0x7FFFFFFFu - low, 0x7FFFFFFFu - high, shift};
    return {0x80000000u + high, 0x80000000u + low, shift};
  }
};

/// The cut of rank k among `count` keys that are listed, after a barrier. Four threads have a key.
__device__ inline Cut rank_listed(Shared& s, int count, int k) {
  const auto tid = static_cast<int>(threadIdx.x);
  const int number = tid / 4;
  const uint32_t own = s.listed[min(number, count - 1)];
  uint32_t ranks = 0;  // a byte each: keys that are greater, equal, equal and earlier
  for (int i = tid % 4; i < count; i += 4) {
    const uint32_t other = s.listed[i];
    ranks += other > own ? 1u : other < own ? 0u : i < number ? 0x10100u : 0x100u;
  }
  ranks += __shfl_xor_sync(kAllLanes, ranks, 1);
  ranks += __shfl_xor_sync(kAllLanes, ranks, 2);
  const auto greater = static_cast<int>(ranks & 255u);
  const auto equal = static_cast<int>(ranks >> 8 & 255u);
  if (tid % 4 == 0 && number < count && ranks >> 16 == 0 && greater < k && k <= greater + equal)
    s.cut = {own, k - greater, equal};
  __syncthreads();
  return s.cut;
}

/// The cut of rank k among the `count` keys of a window, no more than kListed.
template <class Elements>
__device__ Cut rank_few(Shared& s, const Elements& elements, const Window& w, int count, int k) {
  elements.each([&](uint32_t key) {
    if (w.holds(key)) s.listed[atomicAdd(&s.num_listed, 1)] = key;
  });
  __syncthreads();
  return rank_listed(s, count, k);
}

/// The cut of the k largest elements; k of them or more lie in the window, and none above it. By
/// all threads, after a barrier that follows the last use of the bins.
template <class Elements>
__device__ Cut find_cut(Shared& s, Threads& threads, const Elements& elements, Window w, int k) {
  for (;;) {
    elements.each([&](uint32_t key) {
      if (w.holds(key)) atomicAdd(&s.bins[w.bin(key)], 1u);
    });
    __syncthreads();
    const Picked p = pick(s, threads, k);
    k -= p.above;
    w.narrow(p.bin);
    if (w.top == w.bottom) return {w.top, k, p.count};
    if (p.count <= kListed) return rank_few(s, elements, w, p.count, k);
    w.shift = shift_of(w.top - w.bottom);
  }
}

/// The cut of the k largest of all elements, of which there are as many.
template <class Elements>
__device__ Cut find_cut(Shared& s, Threads& threads, const Elements& elements, int k) {
  elements.each([&](uint32_t key) { atomicAdd(&s.bins[SizeBins::bin(key)], 1u); });
  __syncthreads();
  const Picked p = pick(s, threads, k);
  const Window w = SizeBins::window(p.bin);
  if (p.count <= kListed) return rank_few(s, elements, w, p.count, k - p.above);
  return find_cut(s, threads, elements, w, k - p.above);
}

/// The elements that a cut takes; of those equal to it the first, `equal_before` of which came
/// before.
__device__ __forceinline__ uint32_t taken_by(Threads& threads,
                                             const Held& held,
                                             const Cut& cut,
                                             int& equal_before) {
  if (cut.taken == cut.equal) return held.where([&](uint32_t k) { return k >= cut.key; });
  uint32_t taken = held.where([&](uint32_t k) { return k > cut.key; });
  const uint32_t equal = held.where([&](uint32_t k) { return k == cut.key; });
  const Order order(threads, held, equal);
  order.each(equal, [&](int number, int i) {
    if (equal_before + number < cut.taken) taken |= 1u << i;
  });
  equal_before += order.all;
  return taken;
}

}  // namespace fathom::topk_rows
