// A row that is read once, by a block or the blocks of a cluster, in windows of 8,192 scores. The
// lines of a window are spread over the row, so the first windows are a sample, in groups of
// scores. As many scores are not below a key as groups have a largest that is not:
//
//   block r of C:  windows r, r + C, .. ; the first: largest of groups | cluster meets: bound
//                  scores that are not below it go to the block's list, in any order
//   cluster meets  block 0 appends the others' lists to its own
//   cluster meets  block 0 finds the cut; bits of taken positions say where each goes
//
// A bound of rank K lists K scores or more; one of a sample too few or too many at times.
#pragma once

#include "fathom/kernels/cuda/products/cluster.cuh"
#include "fathom/kernels/sparse/topk_rows/topk_row.cuh"

namespace fathom::topk_rows {

inline constexpr int kPieceUnits = 8;   ///< neighbouring units of a window: a line of memory
inline constexpr int kBoundRounds = 2;  ///< histograms that a bound comes from at most

struct StreamShared : Shared {
  /// Of the groups' largest; zeros before.
  alignas(16) uint32_t maxima[kBoundRounds][kBins];
};

/// A row in windows of kAtOnce scores.
struct Windows {
  const RowUnits& row;
  int count;
  int first;  ///< unit 0 of this thread in window 0

  __device__ explicit Windows(const RowUnits& r)
      : row(r), count((r.count + kAtOnce / 4 - 1) / (kAtOnce / 4)) {
    const auto tid = static_cast<int>(threadIdx.x);
    first = tid / kPieceUnits * kPieceUnits * count + tid % kPieceUnits;
  }

  /// Unit q of this thread.
  __device__ __forceinline__ int unit(int window, int q) const {
    return first + window * kPieceUnits + q * (kThreads * count);
  }

  /// Starts to load this thread's scores; says which exist.
  __device__ __forceinline__ uint32_t load(int window, uint4 (&raw)[kQuads]) const {
    uint32_t live = 0;
#pragma unroll
    for (int q = 0; q < kQuads; ++q) {
      const int u = unit(window, q);
      const bool exists = window < count && u < row.count;
      raw[q] = cuda::load_16_if(row.units + u, exists);
      const uint32_t four = u > 0 && u < row.count - 1 ? 15u : row.live(u);
      live |= (exists ? four : 0u) << 4 * q;
    }
    return live;
  }
};

inline constexpr int kMostGroups = 4;  ///< of a thread

/// Calls f(key) with the largest key of each group of a thread's scores that exist, 0 where none
/// does. `groups` is a power of two; neighbours are in different ones.
template <class F>
__device__ __forceinline__ void each_largest(const uint4 (&raw)[kQuads],
                                             uint32_t live,
                                             int groups,
                                             F f) {
  const auto key = [&](uint32_t bits, int i) {
    return (live >> i & 1u) != 0 ? cuda::key_of_bits(bits) : 0;
  };
  uint32_t largest[kMostGroups];
  for (uint32_t& k : largest)
    k = 0;
#pragma unroll
  for (int q = 0; q < kQuads; ++q) {
    largest[0] = max(largest[0], key(raw[q].x, 4 * q));
    largest[1] = max(largest[1], key(raw[q].y, 4 * q + 1));
    largest[2] = max(largest[2], key(raw[q].z, 4 * q + 2));
    largest[3] = max(largest[3], key(raw[q].w, 4 * q + 3));
  }
#pragma unroll
  for (int half = kMostGroups / 2; half > 0; half /= 2) {
    if (groups > half) break;
#pragma unroll
    for (int i = 0; i < half; ++i)
      largest[i] = max(largest[i], largest[i + half]);
  }
#pragma unroll
  for (int i = 0; i < kMostGroups; ++i) {
    if (i >= groups) break;
    f(largest[i]);
  }
}

/// The rank among the scores of `seen` windows that a bound should have: a quarter and four
/// standard deviations to spare, as neighbours resemble each other.
__device__ __forceinline__ int rank_of_bound(int k, int seen, int windows) {
  if (seen >= windows) return k;
  const float expected =
      static_cast<float>(k) * static_cast<float>(seen) / static_cast<float>(windows);
  return min(k, static_cast<int>(1.25f * expected + 4.0f * sqrtf(expected) + 8.0f));
}

/// A key that `rank` scores of the first windows or more are not below, 0 if that is not to be had.
/// The groups are as few as have the rank in their upper half. By all threads of the cluster, which
/// find the same one; histograms are clear in all blocks.
__device__ inline uint32_t bound_of_largest(StreamShared& s,
                                            Threads& threads,
                                            const uint4 (&raw)[kQuads],
                                            uint32_t live,
                                            int rank,
                                            int blocks) {
  int groups = 1;
  while (groups < kMostGroups && blocks * kThreads * groups < 2 * rank)
    groups *= 2;
  Window w{};
#pragma unroll 1
  for (int round = 0;; ++round) {
    uint32_t* bins = s.maxima[round];
    each_largest(raw, live, groups, [&](uint32_t key) {
      if (round == 0) {
        if (key != 0) atomicAdd(&bins[SizeBins::bin(key)], 1u);
      } else if (w.holds(key)) {
        atomicAdd(&bins[w.bin(key)], 1u);
      }
    });
    uint4 quad = make_uint4(0, 0, 0, 0);
    if (blocks == 1) {
      __syncthreads();
      quad = reinterpret_cast<const uint4*>(bins)[threadIdx.x];
    } else {
      cuda::cluster_sync();
#pragma unroll 2
      for (int block = 0; block < blocks; ++block) {
        const auto* theirs =
            cuda::in_block(reinterpret_cast<const uint4*>(bins), static_cast<unsigned>(block));
        const uint4 other = theirs[threadIdx.x];
        quad = make_uint4(quad.x + other.x, quad.y + other.y, quad.z + other.z, quad.w + other.w);
      }
    }
    const int own = sum_of_four(quad);
    const int upto = cuda::sum_up_to_lane(own);
    const Threads::Sums sums = threads.sum_warps(upto);
    if (sums.all < rank) return 0;
    const int above = sums.before + upto - own;
    if (above < rank && rank <= above + own) {
      const PickedOfFour p(quad, above, rank);
      s.picked = {static_cast<uint32_t>(4 * static_cast<int>(threadIdx.x) + p.index), p.above,
                  p.count};
    }
    __syncthreads();
    const Picked p = s.picked;
    if (round == 0) {
      w = SizeBins::window(p.bin);
    } else {
      w.narrow(p.bin);
    }
    // Up to a quarter more than wanted is not worth another round.
    if (round + 1 == kBoundRounds || p.count <= rank / 4 + 32) return w.bottom;
    rank -= p.above;
    w.shift = shift_of(w.top - w.bottom);
  }
}

/// Which scores have a key that is not below a bound's; one comparison of their bits each.
__device__ __forceinline__ uint32_t not_below(const uint4 (&raw)[kQuads], uint32_t bound) {
  uint32_t mask = 0;
  const auto each = [&](auto takes) {
#pragma unroll
    for (int q = 0; q < kQuads; ++q) {
      mask |= takes(raw[q].x) ? 1u << 4 * q : 0u;
      mask |= takes(raw[q].y) ? 2u << 4 * q : 0u;
      mask |= takes(raw[q].z) ? 4u << 4 * q : 0u;
      mask |= takes(raw[q].w) ? 8u << 4 * q : 0u;
    }
  };
  if (bound >> 31 != 0) {
    const auto least = static_cast<int32_t>(cuda::bits_of_key(bound));
    each([&](uint32_t bits) { return static_cast<int32_t>(bits) >= least; });
  } else {
    each([&](uint32_t bits) { return bits <= ~bound; });
  }
  return mask;
}

/// Appends scores of a mask to the block's list, if there is room for all of the warp. The count
/// goes on where there is none.
__device__ __forceinline__ void append(StreamShared& s,
                                       const Windows& windows,
                                       int window,
                                       const uint4 (&raw)[kQuads],
                                       uint32_t mask) {
  const int own = __popc(mask);
  const int upto = cuda::sum_up_to_lane(own);
  int begin = 0;
  if (cuda::lane_id() == 31) begin = atomicAdd(&s.num_candidates, upto);
  begin = __shfl_sync(kAllLanes, begin, 31);
  const int of_warp = __shfl_sync(kAllLanes, upto, 31);
  if (begin + of_warp > kAtOnce) return;
  int at = begin + upto - own;
#pragma unroll
  for (int q = 0; q < kQuads; ++q) {
    if ((mask >> 4 * q & 15u) == 0) continue;
    const auto place = static_cast<uint32_t>(4 * windows.unit(window, q));
    const uint32_t bits[4] = {raw[q].x, raw[q].y, raw[q].z, raw[q].w};
#pragma unroll
    for (int c = 0; c < 4; ++c) {
      if ((mask >> (4 * q + c) & 1u) == 0) continue;
      s.keys[at] = cuda::key_of_bits(bits[c]);
      s.places[at] = place + static_cast<uint32_t>(c);
      ++at;
    }
  }
}

/// Lists what of a block's windows is not below a bound that the first ones say; gives the bound,
/// which is the same in all blocks of the cluster. s.num_candidates says how many there are, more
/// than kAtOnce if not all are listed. A barrier must follow. kWindows of them are in
/// registers or on their way.
template <int kWindows>
__device__ __forceinline__ uint32_t list_candidates(
    StreamShared& s, Threads& threads, const RowUnits& units, int k, int part, int blocks) {
  const Windows windows(units);
  uint4 raw[kWindows][kQuads];
  uint32_t live[kWindows];
#pragma unroll
  for (int i = 0; i < kWindows; ++i)
    live[i] = windows.load(part + i * blocks, raw[i]);
  const int rank = rank_of_bound(k, min(blocks, windows.count), windows.count);
  const uint32_t bound = bound_of_largest(s, threads, raw[0], live[0], rank, blocks);
#pragma unroll 1
  for (int first = part; first < windows.count; first += kWindows * blocks) {
#pragma unroll
    for (int i = 0; i < kWindows; ++i) {
      const int window = first + i * blocks;
      if (window >= windows.count) break;
      append(s, windows, window, raw[i], not_below(raw[i], bound) & live[i]);
      live[i] = windows.load(window + kWindows * blocks, raw[i]);
    }
  }
  return bound;
}

/// Appends the lists of the cluster's other blocks to that of its first one; says there how many
/// all have. By all blocks; ends with a barrier.
__device__ inline int gather_candidates(Shared& s, int blocks) {
  const auto tid = static_cast<int>(threadIdx.x);
  if (blocks == 1) {
    __syncthreads();
    return s.num_candidates;
  }
  cuda::cluster_sync();
  int all = 0;
  if (cuda::cluster_rank() == 0) {
    if (cuda::warp_id() == 0) {
      const int lane = cuda::lane_id();
      const int own =
          lane < blocks ? *cuda::in_block(&s.num_candidates, static_cast<unsigned>(lane)) : 0;
      const int upto = cuda::sum_up_to_lane(own);
      if (lane < blocks) s.begins[lane + 1] = upto;
      if (lane == 0) s.begins[0] = 0;
    }
    __syncthreads();
    all = s.begins[blocks];
    if (all <= kAtOnce) {
#pragma unroll 4
      for (int at = s.begins[1] + tid; at < all; at += kThreads) {
        int block = 1;
        while (at >= s.begins[block + 1])
          ++block;
        const int from = at - s.begins[block];
        s.keys[at] = cuda::in_block(s.keys, static_cast<unsigned>(block))[from];
        s.places[at] = cuda::in_block(s.places, static_cast<unsigned>(block))[from];
      }
    }
  }
  cuda::cluster_sync();
  return all;
}

/// The block's list in registers.
__device__ __forceinline__ Held hold_candidates(const Shared& s, int count) {
  Held held;
  held.quads = quads_for((count + 3) / 4);
#pragma unroll
  for (int q = 0; q < kQuads; ++q) {
    const int unit = held.quad_index(q);
    uint4 keys = make_uint4(0, 0, 0, 0);
    if (q < held.quads) {
      keys = reinterpret_cast<const uint4*>(s.keys)[unit];
      const int left = count - 4 * unit;
      held.live |= (left >= 4 ? 15u : left > 0 ? (1u << left) - 1 : 0u) << 4 * q;
    }
    held.key[4 * q] = keys.x;
    held.key[4 * q + 1] = keys.y;
    held.key[4 * q + 2] = keys.z;
    held.key[4 * q + 3] = keys.w;
  }
  return held;
}

/// What a cut takes of a list in any order, of those equal to it the first of the row. Leaves
/// places where keys were.
__device__ inline uint32_t taken_of_list(
    Shared& s, Threads& threads, Held& held, const Cut& cut, const RowUnits& units) {
  uint32_t taken = held.where([&](uint32_t k) { return k > cut.key; });
  const uint32_t equal = held.where([&](uint32_t k) { return k == cut.key; });
#pragma unroll
  for (int q = 0; q < kQuads; ++q) {
    if (q >= held.quads) break;
    const uint4 places = reinterpret_cast<const uint4*>(s.places)[held.quad_index(q)];
    // The first place is the largest key.
    held.key[4 * q] = ~places.x;
    held.key[4 * q + 1] = ~places.y;
    held.key[4 * q + 2] = ~places.z;
    held.key[4 * q + 3] = ~places.w;
  }
  if (cut.taken == cut.equal) return taken | equal;
  held.live = equal;
  const uint32_t last = ~static_cast<uint32_t>(4 * units.count);
  const Window all{0xFFFFFFFFu, last, shift_of(~last)};
  const Cut at = find_cut(s, threads, held, all, cut.taken);
  return taken | held.where([&](uint32_t place) { return place >= at.key; });
}

/// Writes the taken places that taken_of_list leaves. The bits before that of one say where it
/// goes.
template <class Row>
__device__ void write_by_place(Shared& s,
                               Threads& threads,
                               const Held& held,
                               uint32_t taken,
                               const RowUnits& units,
                               int k,
                               const Row& row,
                               int32_t* out) {
  constexpr int kWordBits = 32;
  const auto tid = static_cast<int>(threadIdx.x);
  uint32_t* words = s.keys;
  uint32_t* sorted = s.places;
  const int places = 4 * units.count;
  int written = 0;
  for (int64_t first = 0; first < places; first += kAtOnce * kWordBits) {
    const auto begin = static_cast<uint32_t>(first);
    const int count =
        static_cast<int>(min(int64_t{kAtOnce}, (places - first + kWordBits - 1) / kWordBits));
    __syncthreads();  // lists, or bits of the places before, have been read
    for (int i = tid; i < count; i += kThreads)
      words[i] = 0;
    __syncthreads();
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      if ((taken >> i & 1u) == 0) continue;
      const uint32_t bit = ~held.key[i] - begin;  // large if it comes before
      if (bit / kWordBits < static_cast<uint32_t>(count))
        atomicOr(&words[bit / kWordBits], 1u << bit % kWordBits);
    }
    __syncthreads();
    const int each = (count + kThreads - 1) / kThreads;
    const int own = min(count, tid * each);
    const int behind = min(count, own + each);
    int bits = 0;
    for (int i = own; i < behind; ++i)
      bits += __popc(words[i]);
    const int upto = cuda::sum_up_to_lane(bits);
    const Threads::Sums sums = threads.sum_warps(upto);
    int number = written + sums.before + upto - bits;
    for (int i = own; i < behind; ++i) {
      for (uint32_t word = words[i]; word != 0; word &= word - 1)
        sorted[number++] =
            begin + static_cast<uint32_t>(i * kWordBits + __ffs(static_cast<int>(word)) - 1);
    }
    written += sums.all;
  }
  __syncthreads();
  for (int i = tid; i < k; i += kThreads)
    out[i] = row.of(static_cast<int>(sorted[i]) - units.begin);
}

}  // namespace fathom::topk_rows
