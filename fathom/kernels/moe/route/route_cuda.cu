#include "fathom/base/checked_math.h"
#include "fathom/formats/layout/scale_layout.h"
#include "fathom/kernels/cuda/rows.cuh"
#include "fathom/kernels/moe/route/route.h"
#include "fathom/kernels/moe/route/slot_order.cuh"

namespace fathom {
namespace {

using namespace cuda;  // NOLINT: device primitives, in this file's own namespace

/// The slots of tokens, whose buckets are ids.
struct TokenSlots {
  const void* ids;
  bool wide;  // int64, not int32
  int64_t token_stride;
  FastDivide top_k;
  int first_id;  // of bucket 0
  int num_buckets;

  struct Place {
    uint32_t token;
    uint32_t k;
  };

  __device__ Place place(int slot) const {
    const uint32_t t = top_k.of(static_cast<uint32_t>(slot));
    return {t, static_cast<uint32_t>(slot) - t * top_k.divisor};
  }

  __device__ int bucket(int slot) const {
    const auto [t, k] = place(slot);
    const int64_t at = t * token_stride + k;
    const int64_t id =
        wide ? static_cast<const int64_t*>(ids)[at] : int64_t{static_cast<const int32_t*>(ids)[at]};
    const int64_t b = id - first_id;
    return b >= 0 && b < num_buckets ? static_cast<int>(b) : -1;
  }
};

TokenSlots slots_of(const View& ids, int first_id, int64_t num_buckets) {
  return {.ids = ids.data,
          .wide = ids.format == Format::kI64,
          .token_stride = ids.stride(0),
          .top_k = FastDivide(ids.dim(1)),
          .first_id = first_id,
          .num_buckets = static_cast<int>(num_buckets)};
}

template <class Sink>
Status sort(const Exec& ex, const View& ids, const TokenSlots& s, const Sink& sink) {
  return sort_slots(ex, static_cast<int>(ids.numel()), s.num_buckets, s, sink);
}

// ---- route_offsets, route_group_shapes ----

/// Rows of sizes[E,3]: (count, n, k) with the count first, or (n, count, k).
struct Sizes {
  int32_t* data = nullptr;
  int64_t stride = 0;
  int32_t n = 0;
  int32_t k = 0;

  __device__ void write(int e, int count, bool count_first) const {
    if (data == nullptr) return;
    int32_t* row = data + e * stride;
    row[0] = count_first ? count : n;
    row[1] = count_first ? n : count;
    row[2] = k;
  }
};

struct Offsets {
  static constexpr bool kScansAgain = true;
  static constexpr bool kStages = true;

  TokenSlots slots;
  int32_t* offsets;
  int32_t* src_row;  // null: counts alone are asked for
  int64_t num_rows;
  Rows<int32_t> dest;
  Sizes up, down;
  int32_t* scale_offsets;  // null: not asked for
  bool count_first;

  bool is_staged() const { return src_row != nullptr; }

  __host__ __device__ int32_t* sorted() const { return src_row; }

  int64_t num_sorted() const { return num_rows; }

  __device__ int32_t absent() const { return -1; }

  __device__ void prepare(int, int, bool) const {}

  __device__ int size(int count) const { return count; }

  __device__ int first(int begin) const { return begin; }

  __device__ void bucket(int e, int begin, int count) const {
    offsets[e] = begin;
    up.write(e, count, count_first);
    down.write(e, count, count_first);
  }

  __device__ void all(int sum) const { offsets[slots.num_buckets] = sum; }

  __device__ bool scans_again() const { return scale_offsets != nullptr; }

  __device__ int again_size(int count) const {
    constexpr auto kUnit = static_cast<unsigned>(kSwizzleRows);
    return static_cast<int>((static_cast<unsigned>(count) + kUnit - 1) / kUnit * kUnit);
  }

  __device__ void again(int e, int begin) const { scale_offsets[e] = begin; }

  __device__ void again_all(int sum) const { scale_offsets[slots.num_buckets] = sum; }

  __device__ bool places() const { return src_row != nullptr; }

  __device__ void place(int slot, int position, int32_t* sorted) const {
    const auto [t, k] = slots.place(slot);
    dest[t][k] = position;
    if (position >= 0) sorted[position] = static_cast<int32_t>(t);
  }

  __device__ void finish(int sum, int thread, int threads) const {
#pragma unroll 1
    for (int64_t i = int64_t{sum} + thread; i < num_rows; i += threads)
      src_row[i] = -1;
  }
};

/// So few slots that every thread can look at all of them.
constexpr int kFewSlots = 64;
constexpr int kFewThreads = 256;

/// offsets[e]: slots of buckets before e; a slot's position: those before it in the order of
/// (bucket, slot).
__global__ void __launch_bounds__(kFewThreads) write_few_offsets(int num_slots, Offsets o) {
  __shared__ int buckets[kFewSlots];
  let_next_start();
  wait_for_previous();
  const int tid = static_cast<int>(threadIdx.x);
  if (tid < kFewSlots) buckets[tid] = tid < num_slots ? o.slots.bucket(tid) : -1;
  __syncthreads();
  const auto slots_before = [&](int bucket, int slot) {
    int before = 0;
#pragma unroll 8
    for (int j = 0; j < num_slots; ++j) {
      const int b = buckets[j];
      before += b >= 0 && (b < bucket || (b == bucket && j < slot)) ? 1 : 0;
    }
    return before;
  };
  for (int e = tid; e <= o.slots.num_buckets; e += kFewThreads)
    o.offsets[e] = slots_before(e, 0);
  if (tid < num_slots) {
    const int bucket = buckets[tid];
    o.place(tid, bucket < 0 ? -1 : slots_before(bucket, tid), o.src_row);
  }
  o.finish(slots_before(o.slots.num_buckets, 0), tid, kFewThreads);
}

Sizes sizes_of(const View& v, int32_t n, int32_t k) {
  if (!v.present()) return {};
  return {v.as<int32_t>(), v.stride(0), n, k};
}

Offsets offsets_of(const RouteOffsets::Args& a) {
  return {.slots = slots_of(a.ids, 0, a.offsets.dim(0) - 1),
          .offsets = a.offsets.as<int32_t>(),
          .src_row = a.src_row.as<int32_t>(),
          .num_rows = a.src_row.dim(0),
          .dest = rows_of<int32_t>(a.dest),
          .up = sizes_of(a.sizes_up, 2 * a.n, a.k),
          .down = sizes_of(a.sizes_down, a.k, a.n),
          .scale_offsets = a.scale_offsets.present() ? a.scale_offsets.as<int32_t>() : nullptr,
          .count_first = true};
}

Status route_offsets(Exec& ex, const RouteOffsets::Args& a) {
  const Offsets o = offsets_of(a);
  return sort(ex, a.ids, o.slots, o);
}

Status route_few_offsets(Exec& ex, const RouteOffsets::Args& a) {
  return launch_kernel(ex, write_few_offsets, {.blocks = 1, .threads = kFewThreads},
                       static_cast<int>(a.ids.numel()), offsets_of(a));
}

Status route_group_shapes(Exec& ex, const RouteGroupShapes::Args& a) {
  const Offsets o{.slots = slots_of(a.ids, 0, a.sizes_up.dim(0)),
                  .offsets = a.offsets.as<int32_t>(),
                  .src_row = nullptr,
                  .num_rows = 0,
                  .dest = {},
                  .up = sizes_of(a.sizes_up, 2 * a.n, a.k),
                  .down = sizes_of(a.sizes_down, a.k, a.n),
                  .scale_offsets = nullptr,
                  .count_first = false};
  return sort(ex, a.ids, o.slots, o);
}

// ---- align_experts ----

/// Buckets are -1, 0, 1, ... and take whole blocks. What the buffers have no room for, which the
/// host refuses where it can see the ids, is left out.
struct Blocks {
  static constexpr bool kScansAgain = false;
  static constexpr bool kStages = true;

  int32_t* sorted_ids;
  int32_t* block_expert;
  int32_t* num_padded;
  int32_t* starts;  // null: not asked for
  int64_t num_positions;
  int64_t num_blocks;
  FastDivide block;
  int num_slots;
  int num_buckets;
  bool fills;

  bool is_staged() const { return fills; }

  __host__ __device__ int32_t* sorted() const { return sorted_ids; }

  int64_t num_sorted() const { return num_positions; }

  __device__ int32_t absent() const { return num_slots; }

  __device__ void prepare(int thread, int threads, bool staged) const {
    if (fills && !staged) fill(sorted_ids, num_positions, num_slots, thread, threads);
    fill(block_expert, num_blocks, -1, thread, threads);
  }

  __device__ int size(int count) const {
    return count == 0 ? 0 : static_cast<int>(block.of(static_cast<uint32_t>(count) - 1)) + 1;
  }

  __device__ int first(int begin) const { return begin * static_cast<int>(block.divisor); }

  __device__ void bucket(int b, int begin, int count) const {
    if (starts != nullptr) starts[b] = first(begin);
    if (b == 0) return;  // of no expert: block_expert is -1 already
    const int64_t end = min(int64_t{begin} + size(count), num_blocks);
#pragma unroll 1
    for (int64_t i = begin; i < end; ++i)
      block_expert[i] = b - 1;
  }

  __device__ void all(int sum) const {
    *num_padded = first(sum);
    if (starts != nullptr) starts[num_buckets] = first(sum);
  }

  __device__ bool places() const {
    return true;
  }

  __device__ void place(int slot, int position, int32_t* sorted) const {
    if (position >= 0 && position < num_positions) sorted[position] = slot;
  }

  __device__ void finish(int, int, int) const {}
};

Status align_experts(Exec& ex, const AlignExperts::Args& a) {
  const TokenSlots s = slots_of(a.ids, -1, int64_t{a.num_experts} + 1);
  const Blocks b{.sorted_ids = a.sorted_ids.as<int32_t>(),
                 .block_expert = a.block_expert.as<int32_t>(),
                 .num_padded = a.num_padded.as<int32_t>(),
                 .starts = a.starts.present() ? a.starts.as<int32_t>() : nullptr,
                 .num_positions = a.sorted_ids.dim(0),
                 .num_blocks = a.block_expert.dim(0),
                 .block = FastDivide(a.block),
                 .num_slots = static_cast<int>(a.ids.numel()),
                 .num_buckets = s.num_buckets,
                 .fills = a.padding == PaddedSlots::kFill};
  return sort(ex, a.ids, s, b);
}

bool has_few_slots(const View& ids) {
  return ids.numel() < (int64_t{1} << 30);
}

bool route_fits(const RouteOffsets::Args& a) {
  return has_few_slots(a.ids);
}

bool few_fit(const RouteOffsets::Args& a) {
  return a.ids.numel() <= kFewSlots && a.src_row.present() && !a.sizes_up.present() &&
         !a.sizes_down.present() && !a.scale_offsets.present();
}

bool shapes_fit(const RouteGroupShapes::Args& a) {
  return has_few_slots(a.ids);
}

bool align_fits(const AlignExperts::Args& a) {
  return has_few_slots(a.ids) && a.num_experts < kMaxBuckets;
}

// Every slot's place depends on all others by definition; no result depends on how warps run.
constexpr uint32_t kTraits = kDeterministic | kBatchInvariant | kGraphSafe;

}  // namespace

constinit const VariantTable<RouteOffsets> route_offsets_cuda{
    {"few_slots", sm(90), "", kTraits | kSomeRowCounts, route_few_offsets, MathUnit::kF32, few_fit},
    {"block", sm(90), "E1<=1602", kTraits, route_offsets, MathUnit::kF32, route_fits},
};

constinit const VariantTable<RouteGroupShapes> route_group_shapes_cuda{
    {"block", sm(90), "E<=1601", kTraits, route_group_shapes, MathUnit::kF32, shapes_fit},
};

constinit const VariantTable<AlignExperts> align_experts_cuda{
    {"block", sm(90), "", kTraits, align_experts, MathUnit::kF32, align_fits},
};

}  // namespace fathom
