// One row by a block, or by the blocks of a cluster. Up to 8,192 scores are held in registers and
// selected from as they are, and up to 131,072 by a cluster (topk_cluster.cuh) where rows are few.
// Of other rows, a sample says a bound that somewhat more than K scores are not below; one pass
// over the row keeps those, in order of position, and they are selected from. Where the bound was
// wrong, or equal scores are many, a block reads the row in several passes.
//
//   block r of a cluster of C:  sample of the row, bound | pass over part r of the row
//   cluster meets               block 0 appends the candidates of blocks 1 .. C-1 to its own
//   cluster meets               block 0 selects and writes
#include <algorithm>
#include <cmath>

#include "fathom/base/checked_math.h"
#include "fathom/kernels/cuda/clusters_at_once.h"
#include "fathom/kernels/cuda/launch_cuda.h"
#include "fathom/kernels/cuda/products/cluster.cuh"
#include "fathom/kernels/cuda/products/mma.cuh"
#include "fathom/kernels/cuda/rows.cuh"
#include "fathom/kernels/cuda/tensor_core.cuh"
#include "fathom/kernels/sparse/request_offsets.cuh"
#include "fathom/kernels/sparse/topk_rows/topk_cluster.cuh"
#include "fathom/kernels/sparse/topk_rows/topk_row.cuh"
#include "fathom/kernels/sparse/topk_rows/topk_rows.h"

namespace fathom {
namespace {

using namespace topk_rows;  // the parts of this kernel

constexpr int kMostSampling = 8;  // blocks of a cluster
/// Fewer scores of a block are not worth a larger cluster.
constexpr int64_t kLeastScores = kAtOnce / 2;

// Lengths, starts and requests are values of GPU memory that the host cannot check: what would
// leave a row is cut off, and a position of no table gives -1.

struct Selection {
  const float* scores;
  int64_t stride;
  int64_t columns;
  const int32_t* lengths;
  const int32_t* row_starts;  ///< null: 0
  cuda::Rows<int32_t> out;
  int k;
  int blocks;  ///< of a row

  /// First column of row b.
  __device__ int64_t start(int64_t b) const {
    return row_starts == nullptr ? 0 : min(max(int64_t{row_starts[b]}, int64_t{0}), columns);
  }

  /// Of row b, cut to what it has room for.
  __device__ int length(int64_t b, int64_t start) const {
    return static_cast<int>(min(max(int64_t{lengths[b]}, int64_t{0}), columns - start));
  }

  /// Row b as it lies.
  __device__ RowUnits row(int64_t b) const {
    const int64_t first = start(b);
    return {scores + b * stride + first, length(b, first)};
  }
};

// ---- what a position becomes ----

struct Positions {
  struct Row {
    __device__ int32_t of(int position) const { return position; }
  };

  __device__ Row row(int64_t) const { return {}; }
};

struct Offsets {
  const int32_t* offsets;

  struct Row {
    int32_t offset;

    __device__ int32_t of(int position) const { return position + offset; }
  };

  __device__ Row row(int64_t b) const { return {offsets[b]}; }
};

struct PageTable {
  cuda::Rows<const int32_t> table;
  int64_t width;
  int num_requests;
  const int32_t* cu_seqlens_q;  ///< null: row b is request b

  struct Row {
    const int32_t* slots;  ///< null: no request has the row
    int64_t width;

    __device__ int32_t of(int position) const {
      return slots == nullptr || position >= width ? -1 : slots[position];
    }
  };

  /// By whole warps.
  __device__ Row row(int64_t b) const {
    const int64_t r =
        cu_seqlens_q == nullptr ? b : cuda::request_by_warp(cu_seqlens_q, num_requests, b);
    return {r < 0 || r >= num_requests ? nullptr : table[r], width};
  }
};

// ---- selection ----

/// Units spread over the row, on their way to the memory of the block's list: a sample of scores,
/// more of them of longer rows. A thread reads what it has brought itself.
class Sample {
 public:
  __device__ Sample(Shared& s, const RowUnits& row) : s_(s) {
    constexpr int kFewUnits = 1 << 16;
    quads_ = row.count > kFewUnits ? kQuads : 2;
#pragma unroll 1
    for (int q = 0; q < quads_; ++q) {
      const auto number = static_cast<uint64_t>(q * kThreads + static_cast<int>(threadIdx.x));
      const auto unit = static_cast<int>(number * static_cast<uint64_t>(row.count) /
                                         static_cast<uint64_t>(kThreads * quads_));
      cuda::copy_async<16>(place(q), row.units + unit, true);
      live_ |= row.live(unit) << 4 * q;
    }
    cuda::end_copy_group();
  }

  __device__ int size() const {
    return 4 * kThreads * quads_;
  }

  /// Calls f(key) for those of this thread.
  template <class F>
  __device__ __forceinline__ void each(F f) const {
#pragma unroll 1
    for (int q = 0; q < quads_; ++q) {
      const uint4 raw = *place(q);
      const uint32_t live = live_ >> 4 * q;
      if ((live & 1u) != 0) f(key_of(raw.x));
      if ((live & 2u) != 0) f(key_of(raw.y));
      if ((live & 4u) != 0) f(key_of(raw.z));
      if ((live & 8u) != 0) f(key_of(raw.w));
    }
  }

 private:
  __device__ uint4* place(int q) const {
    return reinterpret_cast<uint4*>(s_.keys) + q * kThreads + threadIdx.x;
  }

  Shared& s_;
  int quads_;
  uint32_t live_ = 0;
};

/// A key that probably somewhat more than k scores are not below; 0 if that is not to be had.
/// Neighbours resemble each other, so the rank has a quarter and four standard deviations to spare.
/// Every block of a cluster finds the same one.
__device__ uint32_t
bound_of_sample(Shared& s, Threads& threads, const Sample& sample, const RowUnits& row, int k) {
  const auto samples = static_cast<float>(sample.size());
  const auto length = static_cast<float>(row.end - row.begin);
  const float expected = static_cast<float>(k) * samples / length;
  const float rank = 1.25f * expected + 4.0f * sqrtf(expected) + 8.0f;
  cuda::wait_copy_groups<0>();
  if (rank > samples / 2 || rank / samples * length > static_cast<float>(kAtOnce)) return 0;
  uint32_t top = 0;
  sample.each([&](uint32_t key) { top = max(top, key); });
  top = threads.largest(top);
  const Window w{top, 0, kFirstShift};
  sample.each([&](uint32_t key) { atomicAdd(&s.bins[w.bin(key)], 1u); });
  __syncthreads();
  const Picked p = pick(s, threads, static_cast<int>(rank));
  const uint32_t depth = (p.bin + 1) << kFirstShift;
  return p.bin == kBins - 1 || top < depth ? 0 : top - depth + 1;
}

/// Some units of a row, the first of which are on their way.
struct Part {
  int first;
  int last;
  uint4 raw[kQuads];
  uint32_t live;

  __device__ Part(const RowUnits& row, int number, int parts) {
    const int each = (row.count + parts - 1) / parts;
    first = min(row.count, number * each);
    last = min(row.count, first + each);
    live = row.load(first, last, kQuads, raw);
  }
};

/// Writes every score of a part that is not below the bound to the block's list, in order; says how
/// many there are. Those past the end of the list are not written.
__device__ int collect(
    Shared& s, Threads& threads, const RowUnits& row, const Part& part, uint32_t bound) {
  int count = 0;
  int first = part.first;
  const int last = part.last;
  uint32_t live = part.live;
  uint4 raw[kQuads];
#pragma unroll
  for (int q = 0; q < kQuads; ++q)
    raw[q] = part.raw[q];
  for (; first < last; first += kAtOnce / 4) {
    Held held;
    held.quads = kQuads;
    held.live = live;
    keys_of(raw, held.key);
    // The next ones are on their way meanwhile.
    live = row.load(first + kAtOnce / 4, last, kQuads, raw);
    const uint32_t mask = held.where([&](uint32_t k) { return k >= bound; });
    const Order order(threads, held, mask);
    if (mask != 0) {
      order.each(mask, [&](int number, int i) {
        const int at = count + number;
        if (at >= kAtOnce) return;
        s.keys[at] = held.key[i];
        s.places[at] = static_cast<uint32_t>(4 * (first + held.quad_index(i / 4)) + i % 4);
      });
    }
    count += order.all;
  }
  return count;
}

/// Appends the candidates of the cluster's other blocks to those of its first one; says how many
/// all have. By all blocks.
__device__ int gather_candidates(Shared& s, int blocks) {
  const auto tid = static_cast<int>(threadIdx.x);
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

/// Writes the elements that the cut takes; place(i) is the position of key[i].
template <class Row, class Place>
__device__ void write_taken(Shared& s,
                            Threads& threads,
                            const Held& held,
                            const Cut& cut,
                            int k,
                            const Row& row,
                            int32_t* out,
                            Place place) {
  int equal_before = 0;
  const uint32_t taken = taken_by(threads, held, cut, equal_before);
  const Order order(threads, held, taken);
  order.each(taken, [&](int number, int i) { s.keys[number] = static_cast<uint32_t>(place(i)); });
  __syncthreads();
  for (int i = static_cast<int>(threadIdx.x); i < k; i += kThreads)
    out[i] = row.of(static_cast<int>(s.keys[i]));
}

/// All scores of a row, read in each pass.
struct ReadAgain {
  const RowUnits& row;

  template <class F>
  __device__ void each(F f) const {
#pragma unroll 1
    for (int first = 0; first < row.count; first += kAtOnce / 4)
      hold(row, first).each(f);
  }
};

/// Any row, by one block: four passes at most, and one that writes.
template <class Row>
__device__ void select_in_passes(
    Shared& s, Threads& threads, const RowUnits& units, int k, const Row& row, int32_t* out) {
  constexpr uint32_t kHighest = 0xFFFFFFFFu;
  const Window all{kHighest, 0, 32 - kBinBits};
  const Cut cut = find_cut(s, threads, ReadAgain{units}, all, k);
  int written = 0;
  int equal_before = 0;
  for (int first = 0; first < units.count; first += kAtOnce / 4) {
    const Held held = hold(units, first);
    const uint32_t taken = taken_by(threads, held, cut, equal_before);
    const Order order(threads, held, taken);
    order.each(taken, [&](int number, int i) {
      const int place = 4 * (first + held.quad_index(i / 4)) + i % 4 - units.begin;
      out[written + number] = row.of(place);
    });
    written += order.all;
  }
}

/// Selects from a row that is held, and writes.
template <class Row>
__device__ void select_held(Shared& s,
                            Threads& threads,
                            const RowUnits& units,
                            const Held& held,
                            int k,
                            const Row& row,
                            int32_t* out) {
  __syncthreads();  // bins are clear
  const Cut cut = find_cut(s, threads, held, k);
  write_taken(s, threads, held, cut, k, row, out,
              [&](int i) { return 4 * held.quad_index(i / 4) + i % 4 - units.begin; });
}

/// A row that takes all its scores.
template <class Row>
__device__ void write_all(int length, int k, const Row& row, int32_t* out) {
  for (int i = static_cast<int>(threadIdx.x); i < k; i += kThreads)
    out[i] = i < length ? row.of(i) : -1;
}

/// Rows that fit into registers whatever their lengths, from column 0 on.
template <class Translation>
__global__ void __launch_bounds__(kThreads, 2)
    select_short_rows(const __grid_constant__ Selection c, const Translation translation) {
  extern __shared__ __align__(16) unsigned char topk_shared[];
  Shared& s = *reinterpret_cast<Shared*>(topk_shared);
  reinterpret_cast<uint4*>(s.bins)[threadIdx.x] = make_uint4(0, 0, 0, 0);
  cuda::let_next_start();
  cuda::wait_for_previous();
  const int64_t b = blockIdx.x;
  const float* scores = c.scores + b * c.stride;
  const EarlyRow early(RowUnits(scores, static_cast<int>(c.columns)));
  const int length = c.length(b, 0);
  const auto row = translation.row(b);
  if (length <= c.k) return write_all(length, c.k, row, c.out[b]);
  const RowUnits units(scores, length);
  Threads threads(s);
  select_held(s, threads, units, early.hold(units), c.k, row, c.out[b]);
}

/// Whether row b is one for a block alone: it takes all its scores, or the block holds them, which
/// is sooner done. Part 0 has written it then, and all parts are told alike.
template <class Translation>
__device__ __forceinline__ bool is_written_alone(Shared& s,
                                                 const Selection& c,
                                                 const RowUnits& units,
                                                 const Translation& translation,
                                                 int64_t b,
                                                 int part) {
  const int length = units.end - units.begin;
  if (length <= c.k) {
    if (part == 0) write_all(length, c.k, translation.row(b), c.out[b]);
    return true;
  }
  if (4 * units.count > kAtOnce) return false;
  if (part == 0) {
    Threads threads(s);
    select_held(s, threads, units, hold(units, 0), c.k, translation.row(b), c.out[b]);
  }
  return true;
}

template <class Translation>
__global__ void __launch_bounds__(kThreads, 2)
    select_rows(const __grid_constant__ Selection c, const Translation translation) {
  extern __shared__ __align__(16) unsigned char topk_shared[];
  Shared& s = *reinterpret_cast<Shared*>(topk_shared);
  reinterpret_cast<uint4*>(s.bins)[threadIdx.x] = make_uint4(0, 0, 0, 0);
  cuda::let_next_start();
  cuda::wait_for_previous();
  const int64_t b = blockIdx.x / static_cast<unsigned>(c.blocks);
  const int part = static_cast<int>(blockIdx.x % static_cast<unsigned>(c.blocks));
  const RowUnits units = c.row(b);
  if (is_written_alone(s, c, units, translation, b, part)) return;
  Threads threads(s);
  const Sample sample(s, units);
  const Part own(units, part, c.blocks);
  __syncthreads();  // bins are clear
  const uint32_t bound = bound_of_sample(s, threads, sample, units, c.k);
  int count = kAtOnce + 1;
  if (bound > 0) {
    count = collect(s, threads, units, own, bound);
    if (c.blocks > 1) {
      if (threadIdx.x == 0) s.num_candidates = count;
      count = gather_candidates(s, c.blocks);
    } else {
      __syncthreads();
    }
  }
  if (part != 0) return;
  const auto row = translation.row(b);
  if (count < c.k || count > kAtOnce) {
    select_in_passes(s, threads, units, c.k, row, c.out[b]);
    return;
  }
  const Held held = hold_candidates(s, count);
  const uint32_t top = threads.largest(held.largest());
  const Cut cut = find_cut(s, threads, held, {top, bound, shift_of(top - bound)}, c.k);
  write_taken(s, threads, held, cut, c.k, row, c.out[b], [&](int i) {
    return static_cast<int>(s.places[4 * held.quad_index(i / 4) + i % 4]) - units.begin;
  });
}

/// Rows that fit into the registers of a cluster.
template <class Translation>
__global__ void __launch_bounds__(kThreads, 2)
    select_in_cluster(const __grid_constant__ Selection c, const Translation translation) {
  extern __shared__ __align__(16) unsigned char topk_shared[];
  Shared& s = *reinterpret_cast<Shared*>(topk_shared);
  const int64_t b = blockIdx.x / static_cast<unsigned>(c.blocks);
  const int part = static_cast<int>(blockIdx.x % static_cast<unsigned>(c.blocks));
  // Into the last cache, where what earlier kernels still write is seen all the same.
  if (threadIdx.x == 0) cuda::prefetch_line(c.lengths + b);
  reinterpret_cast<uint4*>(s.bins)[threadIdx.x] = make_uint4(0, 0, 0, 0);
  clear_rounds(s);
  __syncthreads();
  cuda::let_next_start();
  cuda::wait_for_previous();
  const RowUnits units = c.row(b);
  if (is_written_alone(s, c, units, translation, b, part)) return;
  Threads threads(s);
  const int each = (units.count + c.blocks - 1) / c.blocks;
  const int first = min(units.count, part * each);
  Held held;
  held.quads = quads_for(each);
  uint4 raw[kQuads];
  held.live = units.load(first, min(units.count, first + each), held.quads, raw);
  const auto row = translation.row(b);
  keys_of(raw, held.key);
  const Share share = share_of_block(s, held, c.k, c.blocks);
  int equal_before = share.equal_before;
  const uint32_t taken = taken_by(threads, held, share.cut, equal_before);
  const Order order(threads, held, taken);
  order.each(taken, [&](int number, int i) {
    s.places[number] =
        static_cast<uint32_t>(4 * (first + held.quad_index(i / 4)) + i % 4 - units.begin);
  });
  __syncthreads();
  int32_t* out = c.out[b] + share.first;
  for (int i = static_cast<int>(threadIdx.x); i < order.all; i += kThreads)
    out[i] = row.of(static_cast<int>(s.places[i]));
}

// ---- launches ----

/// Blocks of a cluster that holds rows of so many scores, or 0 if rows are too long, or so many
/// that more than four rounds of blocks would wait for each other's ends.
int blocks_that_hold(int64_t rows, int64_t scores, int at_least, int num_sms) {
  int blocks = at_least;
  while (blocks < kMostBlocks && blocks * int64_t{kAtOnce} < scores)
    blocks *= 2;
  const bool fits = blocks > 1 && blocks * int64_t{kAtOnce} >= scores;
  return fits && rows * blocks <= int64_t{8} * num_sms ? blocks : 0;
}

/// Whether the GPU has room for clusters of so many blocks, which are asked for.
template <class Translation>
bool has_clusters(const DeviceInfo& gpu, int blocks) {
  if (blocks <= 8) return true;
  return cuda::clusters_at_once(
             gpu.ordinal, {.kernel = reinterpret_cast<const void*>(select_in_cluster<Translation>),
                           .threads = kThreads,
                           .shared_bytes = sizeof(Shared),
                           .cluster = blocks}) > 0;
}

/// Blocks of a row: as many as the GPU has room for, while each has enough to read.
int blocks_of_row(int64_t rows, int64_t columns, int num_sms) {
  int blocks = 1;
  while (blocks < kMostSampling && columns > kAtOnce && 2 * blocks * rows <= num_sms &&
         ceil_div<int64_t>(columns, 2 * blocks) >= kLeastScores)
    blocks *= 2;
  return blocks;
}

template <class Args, class Translation>
Status launch_selection(Exec& ex, const Args& a, const View& out, const Translation& translation) {
  const int64_t rows = out.dim(0);
  int blocks = blocks_of_row(rows, a.scores.dim(1), ex.device->num_sms);
  // A row that is not aligned has up to three scores of others in its first unit.
  const bool in_order = cuda::takes_vectors(a.scores) && !a.row_starts.present();
  const int64_t in_units = a.scores.dim(1) + (in_order ? 0 : 3);
  const bool is_short = !a.row_starts.present() && in_units <= kAtOnce;
  const int holding = is_short ? 0 : blocks_that_hold(rows, in_units, blocks, ex.device->num_sms);
  const bool in_cluster = holding > 0 && has_clusters<Translation>(*ex.device, holding);
  if (in_cluster) blocks = holding;
  const Selection c{
      .scores = a.scores.template as<const float>(),
      .stride = a.scores.stride(0),
      .columns = a.scores.dim(1),
      .lengths = a.lengths.template as<const int32_t>(),
      .row_starts = a.row_starts.present() ? a.row_starts.template as<const int32_t>() : nullptr,
      .out = cuda::rows_of<int32_t>(out),
      .k = static_cast<int>(out.dim(1)),
      .blocks = blocks};
  const auto kernel = is_short     ? select_short_rows<Translation>
                      : in_cluster ? select_in_cluster<Translation>
                                   : select_rows<Translation>;
  return launch_kernel(ex, kernel,
                       {.blocks = rows * blocks,
                        .threads = kThreads,
                        .shared_bytes = sizeof(Shared),
                        .cluster = blocks},
                       c, translation);
}

Status run_plain(Exec& ex, const TopkRows::Args& a) {
  return launch_selection(ex, a, a.ids, Positions{});
}

Status run_ragged(Exec& ex, const TopkRowsRagged::Args& a) {
  return launch_selection(ex, a, a.ids, Offsets{a.offsets.as<const int32_t>()});
}

Status run_paged(Exec& ex, const TopkRowsPaged::Args& a) {
  const bool row_is_request = !a.row_starts.present() && a.page_table.dim(0) == a.scores.dim(0);
  return launch_selection(
      ex, a, a.slots,
      PageTable{.table = cuda::rows_of<const int32_t>(a.page_table),
                .width = a.page_table.dim(1),
                .num_requests = static_cast<int>(a.page_table.dim(0)),
                .cu_seqlens_q = row_is_request ? nullptr : a.cu_seqlens_q.as<const int32_t>()});
}

constexpr uint32_t kTraits = kDeterministic | kBatchInvariant | kGraphSafe;

}  // namespace

constinit const VariantTable<TopkRows> topk_rows_cuda{
    {"in_registers", sm(90), "", kTraits, run_plain},
};

constinit const VariantTable<TopkRowsPaged> topk_rows_paged_cuda{
    {"in_registers", sm(90), "", kTraits, run_paged},
};

constinit const VariantTable<TopkRowsRagged> topk_rows_ragged_cuda{
    {"in_registers", sm(90), "", kTraits, run_ragged},
};

}  // namespace fathom
