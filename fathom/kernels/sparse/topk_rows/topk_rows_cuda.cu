// One row by a block, or by the blocks of a cluster. Up to 8,192 scores are held in registers and
// selected from as they are, and up to 131,072 by a cluster (topk_cluster.cuh) where rows are few.
// Other rows are read once (topk_stream.cuh): a bound from the first windows says which scores are
// listed, and those are selected from. Where the bound was wrong, or equal scores are many, a block
// reads the row in several passes.
#include "fathom/kernels/cuda/clusters_at_once.h"
#include "fathom/kernels/cuda/launch_cuda.h"
#include "fathom/kernels/cuda/rows.cuh"
#include "fathom/kernels/cuda/tensor_core.cuh"
#include "fathom/kernels/sparse/request_offsets.cuh"
#include "fathom/kernels/sparse/topk_rows/topk_cluster.cuh"
#include "fathom/kernels/sparse/topk_rows/topk_plan.h"
#include "fathom/kernels/sparse/topk_rows/topk_rows.h"
#include "fathom/kernels/sparse/topk_rows/topk_stream.cuh"

namespace fathom {
namespace {

using namespace topk_rows;  // the parts of this kernel

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

/// Rows of any length. With more than two windows on their way a block has a multiprocessor.
template <int kWindows, class Translation>
__global__ void __launch_bounds__(kThreads, kWindows > 2 ? 1 : 2)
    select_rows(const __grid_constant__ Selection c, const Translation translation) {
  extern __shared__ __align__(16) unsigned char topk_shared[];
  StreamShared& s = *reinterpret_cast<StreamShared*>(topk_shared);
  const int64_t b = blockIdx.x / static_cast<unsigned>(c.blocks);
  const int part = static_cast<int>(blockIdx.x % static_cast<unsigned>(c.blocks));
  // Into the last cache, where what earlier kernels still write is seen all the same.
  if (threadIdx.x == 0) cuda::prefetch_line(c.lengths + b);
  reinterpret_cast<uint4*>(s.bins)[threadIdx.x] = make_uint4(0, 0, 0, 0);
#pragma unroll
  for (auto& bins : s.maxima)
    reinterpret_cast<uint4*>(bins)[threadIdx.x] = make_uint4(0, 0, 0, 0);
  if (threadIdx.x == 0) s.num_candidates = 0;
  __syncthreads();
  cuda::let_next_start();
  cuda::wait_for_previous();
  const RowUnits units = c.row(b);
  if (is_written_alone(s, c, units, translation, b, part)) return;
  Threads threads(s);
  const uint32_t bound = list_candidates<kWindows>(s, threads, units, c.k, part, c.blocks);
  const int count = gather_candidates(s, c.blocks);
  if (part != 0) return;
  const auto row = translation.row(b);
  if (count < c.k || count > kAtOnce) {
    select_in_passes(s, threads, units, c.k, row, c.out[b]);
    return;
  }
  Held held = hold_candidates(s, count);
  const uint32_t top = threads.largest(held.largest());
  const Cut cut = find_cut(s, threads, held, {top, bound, shift_of(top - bound)}, c.k);
  const uint32_t taken = taken_of_list(s, threads, held, cut, units);
  write_by_place(s, threads, held, taken, units, c.k, row, c.out[b]);
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

/// Where there are no clusters of more than eight blocks, eight stream a row.
template <class Translation>
RowPlan plan_on(const DeviceInfo& gpu, int64_t rows, int64_t scores, bool any_start) {
  RowPlan plan = plan_rows(rows, scores, any_start, gpu.num_sms);
  if (plan.form == RowForm::kHeld && !has_clusters<Translation>(gpu, plan.blocks))
    plan = {RowForm::kFew, kMostStreaming};
  return plan;
}

template <class Args, class Translation>
Status launch_selection(Exec& ex, const Args& a, const View& out, const Translation& translation) {
  const int64_t rows = out.dim(0);
  // A row that is not aligned has up to three scores of others in its first unit.
  const bool any_start = a.row_starts.present();
  const bool in_order = cuda::takes_vectors(a.scores) && !any_start;
  const RowPlan plan =
      plan_on<Translation>(*ex.device, rows, a.scores.dim(1) + (in_order ? 0 : 3), any_start);
  const Selection c{
      .scores = a.scores.template as<const float>(),
      .stride = a.scores.stride(0),
      .columns = a.scores.dim(1),
      .lengths = a.lengths.template as<const int32_t>(),
      .row_starts = a.row_starts.present() ? a.row_starts.template as<const int32_t>() : nullptr,
      .out = cuda::rows_of<int32_t>(out),
      .k = static_cast<int>(out.dim(1)),
      .blocks = plan.blocks};
  const auto kernel = plan.form == RowForm::kShort  ? select_short_rows<Translation>
                      : plan.form == RowForm::kHeld ? select_in_cluster<Translation>
                      : plan.form == RowForm::kFew  ? select_rows<4, Translation>
                                                    : select_rows<2, Translation>;
  const bool streamed = plan.form == RowForm::kFew || plan.form == RowForm::kMany;
  return launch_kernel(
      ex, kernel,
      {.blocks = rows * plan.blocks,
       .threads = kThreads,
       .shared_bytes = static_cast<int64_t>(streamed ? sizeof(StreamShared) : sizeof(Shared)),
       .cluster = plan.blocks},
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
