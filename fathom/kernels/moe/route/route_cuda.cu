#include "fathom/base/checked_math.h"
#include "fathom/formats/scale_layout.h"
#include "fathom/kernels/cuda/device_code.cuh"
#include "fathom/kernels/cuda/launch_cuda.h"
#include "fathom/kernels/cuda/rows.cuh"
#include "fathom/kernels/moe/route/route.h"

namespace fathom {
namespace {

using namespace cuda;  // NOLINT: device primitives, in this file's own namespace

// One block sorts all slots, stably. Each warp owns a stretch of slots and counts them by bucket;
// sums over the warps before it, and over the buckets before, say where its first slot of a bucket
// goes. Lanes with the same bucket find each other by one exchange, so that nothing depends on the
// order in which warps run.
//
//   counts[warp][bucket]   slots of the bucket in the warp's stretch, then those of earlier warps
//   begins[bucket]         slots of earlier buckets; begins[num_buckets] those of all

constexpr int kMaxWarps = 32;
constexpr int kMaxBuckets = 1601;

struct Slots {
  const void* ids;
  bool wide;  // int64, not int32
  int64_t token_stride;
  unsigned top_k;
  int num_slots;
  int first_id;  // of bucket 0
  int num_buckets;

  __device__ int bucket(int slot) const {
    const unsigned t = static_cast<unsigned>(slot) / top_k;
    const int64_t at = t * token_stride + (static_cast<unsigned>(slot) - t * top_k);
    const int64_t id =
        wide ? static_cast<const int64_t*>(ids)[at] : int64_t{static_cast<const int32_t*>(ids)[at]};
    const int64_t b = id - first_id;
    return b >= 0 && b < num_buckets ? static_cast<int>(b) : -1;
  }
};

struct Shared {
  int* counts;
  int* begins;

  __device__ Shared(int* memory, int num_buckets)
      : counts(memory), begins(memory + (blockDim.x / 32) * num_buckets) {}
};

/// The lanes whose bucket is that of this lane: one ballot for each bit of it. (The instruction
/// that matches lanes takes a turn for every distinct value.)
__device__ unsigned lanes_with(int bucket, int num_bits) {
  unsigned same = __ballot_sync(0xFFFFFFFFu, bucket >= 0);
  if (bucket < 0) same = ~same;
  for (int bit = 0; bit < num_bits; ++bit) {
    const bool set = (bucket >> bit & 1) != 0;
    const unsigned with_bit = __ballot_sync(0xFFFFFFFFu, set);
    same &= set ? with_bit : ~with_bit;
  }
  return same;
}

/// Slots whose ids a lane loads at once.
constexpr int kAhead = 4;

/// Calls f(slot, bucket, before, leads, together) for the slots of this warp, 32 at a time:
/// `before` lanes with the same bucket have lower slots, `together` have it at all, the first of
/// them leads.
template <class F>
__device__ void for_slots_of_warp(const Slots& s, F f) {
  const int warps = static_cast<int>(blockDim.x) / 32;
  const int stretch = (s.num_slots + 32 * warps - 1) / (32 * warps) * 32;
  const int begin = warp_id() * stretch;
  const int end = min(s.num_slots, begin + stretch);
  const unsigned lower = (1u << lane_id()) - 1;
  const int num_bits = 32 - __clz(s.num_buckets);
  for (int at = begin; at < end; at += 32 * kAhead) {
    int buckets[kAhead];
#pragma unroll
    for (int i = 0; i < kAhead; ++i) {
      const int slot = at + 32 * i + lane_id();
      buckets[i] = slot < end ? s.bucket(slot) : -1;
    }
#pragma unroll
    for (int i = 0; i < kAhead; ++i) {
      const int slot = at + 32 * i + lane_id();
      const unsigned same = lanes_with(buckets[i], num_bits);
      f(slot, slot < end, buckets[i], __popc(same & lower), __popc(same));
      __syncwarp();
    }
  }
}

/// Fills counts with what earlier warps have, and begins with the slots of each bucket.
__device__ void count_slots(const Slots& s, const Shared& shared) {
  const int warps = static_cast<int>(blockDim.x) / 32;
  for (int i = static_cast<int>(threadIdx.x); i < warps * s.num_buckets;
       i += static_cast<int>(blockDim.x)) {
    shared.counts[i] = 0;
  }
  __syncthreads();
  int* own = shared.counts + warp_id() * s.num_buckets;
  for_slots_of_warp(s, [&](int, bool, int bucket, int before, int together) {
    if (bucket >= 0 && before == 0) own[bucket] += together;
  });
  __syncthreads();
  for (int b = static_cast<int>(threadIdx.x); b < s.num_buckets;
       b += static_cast<int>(blockDim.x)) {
    int total = 0;
#pragma unroll 8
    for (int w = 0; w < warps; ++w) {
      const int count = shared.counts[w * s.num_buckets + b];
      shared.counts[w * s.num_buckets + b] = total;
      total += count;
    }
    shared.begins[b] = total;
  }
  __syncthreads();
}

/// values[i] = sum of those before, each rounded up to a multiple of `unit` first; returns the sum
/// of all. Called by one warp.
__device__ int scan(int* values, int count, int unit) {
  const int each = (count + 31) / 32;
  const int begin = min(count, lane_id() * each);
  const int end = min(count, begin + each);
  const auto padded = [unit](int value) { return (value + unit - 1) / unit * unit; };
  int own = 0;
  for (int i = begin; i < end; ++i)
    own += padded(values[i]);
  int inclusive = own;
#pragma unroll
  for (int offset = 1; offset < 32; offset *= 2) {
    const int lower = __shfl_up_sync(0xFFFFFFFFu, inclusive, offset);
    if (lane_id() >= offset) inclusive += lower;
  }
  int at = inclusive - own;
  for (int i = begin; i < end; ++i) {
    const int value = padded(values[i]);
    values[i] = at;
    at += value;
  }
  return __shfl_sync(0xFFFFFFFFu, inclusive, 31);
}

/// The position of each slot of this warp: f(slot, position), position -1 for slots of no bucket.
template <class F>
__device__ void place_slots(const Slots& s, const Shared& shared, F f) {
  int* own = shared.counts + warp_id() * s.num_buckets;
  for_slots_of_warp(s, [&](int slot, bool exists, int bucket, int before, int together) {
    int position = -1;
    if (bucket >= 0) position = shared.begins[bucket] + own[bucket] + before;
    __syncwarp();  // all have read before one adds
    if (bucket >= 0 && before == 0) own[bucket] += together;
    if (exists) f(slot, position);
  });
}

extern __shared__ int route_shared[];

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
  int32_t* offsets;
  int32_t* src_row;  // null: counts alone are asked for
  int64_t num_rows;
  Rows<int32_t> dest;
  Sizes up, down;
  int32_t* scale_offsets;  // null: not asked for
  bool count_first;
};

__global__ void __launch_bounds__(32 * kMaxWarps) write_offsets(Slots s, Offsets o) {
  let_next_start();
  wait_for_previous();
  const Shared shared(route_shared, s.num_buckets);
  const int E = s.num_buckets;
  count_slots(s, shared);
  for (int e = static_cast<int>(threadIdx.x); e < E; e += static_cast<int>(blockDim.x)) {
    o.up.write(e, shared.begins[e], o.count_first);
    o.down.write(e, shared.begins[e], o.count_first);
    if (o.scale_offsets != nullptr) o.scale_offsets[e] = shared.begins[e];
  }
  __syncthreads();
  if (warp_id() == 0) {
    const int all = scan(shared.begins, E, 1);
    if (lane_id() == 0) shared.begins[E] = all;
    if (o.scale_offsets != nullptr) {
      const int rows = scan(o.scale_offsets, E, static_cast<int>(kSwizzleRows));
      if (lane_id() == 0) o.scale_offsets[E] = rows;
    }
  }
  __syncthreads();
  for (int e = static_cast<int>(threadIdx.x); e <= E; e += static_cast<int>(blockDim.x))
    o.offsets[e] = shared.begins[e];
  if (o.src_row == nullptr) return;
  place_slots(s, shared, [&](int slot, int position) {
    const auto t = static_cast<unsigned>(slot) / s.top_k;
    o.dest[t][static_cast<unsigned>(slot) - t * s.top_k] = position;
    if (position >= 0) o.src_row[position] = static_cast<int32_t>(t);
  });
  for (int64_t i = shared.begins[E] + threadIdx.x; i < o.num_rows; i += blockDim.x)
    o.src_row[i] = -1;
}

/// So few slots that every thread can look at all of them.
constexpr int kFewSlots = 64;
constexpr int kFewThreads = 256;

/// offsets[e]: slots of buckets before e; a slot's position: those before it in the order of
/// (bucket, slot).
__global__ void __launch_bounds__(kFewThreads) write_few_offsets(Slots s, Offsets o) {
  __shared__ int buckets[kFewSlots];
  let_next_start();
  wait_for_previous();
  const int tid = static_cast<int>(threadIdx.x);
  if (tid < kFewSlots) buckets[tid] = tid < s.num_slots ? s.bucket(tid) : -1;
  __syncthreads();
  const auto slots_before = [&](int bucket, int slot) {
    int before = 0;
#pragma unroll 8
    for (int j = 0; j < s.num_slots; ++j) {
      const int b = buckets[j];
      before += b >= 0 && (b < bucket || (b == bucket && j < slot)) ? 1 : 0;
    }
    return before;
  };
  for (int e = tid; e <= s.num_buckets; e += kFewThreads)
    o.offsets[e] = slots_before(e, 0);
  if (tid < s.num_slots) {
    const int bucket = buckets[tid];
    const int position = bucket < 0 ? -1 : slots_before(bucket, tid);
    const auto t = static_cast<unsigned>(tid) / s.top_k;
    o.dest[t][static_cast<unsigned>(tid) - t * s.top_k] = position;
    if (position >= 0) o.src_row[position] = static_cast<int32_t>(t);
  }
  const int placed = slots_before(s.num_buckets, 0);
  for (int64_t i = placed + tid; i < o.num_rows; i += kFewThreads)
    o.src_row[i] = -1;
}

Slots slots_of(const View& ids, int first_id, int64_t num_buckets) {
  return {.ids = ids.data,
          .wide = ids.format == Format::kI64,
          .token_stride = ids.stride(0),
          .top_k = static_cast<unsigned>(ids.dim(1) == 0 ? 1 : ids.dim(1)),
          .num_slots = static_cast<int>(ids.dim(0) * ids.dim(1)),
          .first_id = first_id,
          .num_buckets = static_cast<int>(num_buckets)};
}

/// One block, of as many warps as there is work for: four at least, for what is done by bucket.
LaunchShape one_block(const Slots& s) {
  int warps = 4;
  while (warps < kMaxWarps && 32 * warps < s.num_slots)
    warps *= 2;
  const int64_t words = int64_t{warps} * s.num_buckets + s.num_buckets + 1;
  return {.blocks = 1, .threads = 32 * warps, .shared_bytes = 4 * words};
}

Sizes sizes_of(const View& v, int32_t n, int32_t k) {
  if (!v.present()) return {};
  return {v.as<int32_t>(), v.stride(0), n, k};
}

Status route_offsets(Exec& ex, const RouteOffsets::Args& a) {
  const Slots s = slots_of(a.ids, 0, a.offsets.dim(0) - 1);
  const Offsets o{
      .offsets = a.offsets.as<int32_t>(),
      .src_row = a.src_row.as<int32_t>(),
      .num_rows = a.src_row.dim(0),
      .dest = rows_of<int32_t>(a.dest),
      .up = sizes_of(a.sizes_up, 2 * a.n, a.k),
      .down = sizes_of(a.sizes_down, a.k, a.n),
      .scale_offsets = a.scale_offsets.present() ? a.scale_offsets.as<int32_t>() : nullptr,
      .count_first = true};
  return launch_kernel(ex, write_offsets, one_block(s), s, o);
}

Status route_few_offsets(Exec& ex, const RouteOffsets::Args& a) {
  const Slots s = slots_of(a.ids, 0, a.offsets.dim(0) - 1);
  const Offsets o{.offsets = a.offsets.as<int32_t>(),
                  .src_row = a.src_row.as<int32_t>(),
                  .num_rows = a.src_row.dim(0),
                  .dest = rows_of<int32_t>(a.dest),
                  .up = {},
                  .down = {},
                  .scale_offsets = nullptr,
                  .count_first = true};
  return launch_kernel(ex, write_few_offsets, {.blocks = 1, .threads = kFewThreads}, s, o);
}

Status route_group_shapes(Exec& ex, const RouteGroupShapes::Args& a) {
  const Slots s = slots_of(a.ids, 0, a.sizes_up.dim(0));
  const Offsets o{.offsets = a.offsets.as<int32_t>(),
                  .src_row = nullptr,
                  .num_rows = 0,
                  .dest = {},
                  .up = sizes_of(a.sizes_up, 2 * a.n, a.k),
                  .down = sizes_of(a.sizes_down, a.k, a.n),
                  .scale_offsets = nullptr,
                  .count_first = false};
  return launch_kernel(ex, write_offsets, one_block(s), s, o);
}

// ---- align_experts ----

struct Blocks {
  int32_t* sorted_ids;
  int32_t* block_expert;
  int32_t* num_padded;
  int32_t* starts;  // null: not asked for
  int64_t num_sorted;
  int64_t num_blocks;
  int block;
  bool fills;
};

// Buckets are -1, 0, 1, ... What the buffers have no room for, which the host refuses where it can
// see the ids, is left out.
__global__ void __launch_bounds__(32 * kMaxWarps) align_slots(Slots s, Blocks b) {
  let_next_start();
  wait_for_previous();
  const Shared shared(route_shared, s.num_buckets);
  if (b.fills) {
    for (int64_t j = threadIdx.x; j < b.num_sorted; j += blockDim.x)
      b.sorted_ids[j] = s.num_slots;
  }
  count_slots(s, shared);
  if (warp_id() == 0) {
    const int all = scan(shared.begins, s.num_buckets, b.block);
    if (lane_id() == 0) {
      shared.begins[s.num_buckets] = all;
      *b.num_padded = all;
    }
  }
  __syncthreads();
  for (int i = static_cast<int>(threadIdx.x); i <= s.num_buckets;
       i += static_cast<int>(blockDim.x)) {
    const int begin = shared.begins[i];
    if (b.starts != nullptr) b.starts[i] = begin;
    const int64_t end = i == s.num_buckets ? b.num_blocks * b.block : shared.begins[i + 1];
    const int expert = i == s.num_buckets ? -1 : i - 1;
    for (int64_t block = begin / b.block; block < min(end / b.block, b.num_blocks); ++block)
      b.block_expert[block] = expert;
  }
  place_slots(s, shared, [&](int slot, int position) {
    if (position >= 0 && position < b.num_sorted) b.sorted_ids[position] = slot;
  });
}

Status align_experts(Exec& ex, const AlignExperts::Args& a) {
  const Slots s = slots_of(a.ids, -1, int64_t{a.num_experts} + 1);
  const Blocks b{.sorted_ids = a.sorted_ids.as<int32_t>(),
                 .block_expert = a.block_expert.as<int32_t>(),
                 .num_padded = a.num_padded.as<int32_t>(),
                 .starts = a.starts.present() ? a.starts.as<int32_t>() : nullptr,
                 .num_sorted = a.sorted_ids.dim(0),
                 .num_blocks = a.block_expert.dim(0),
                 .block = a.block,
                 .fills = a.padding == PaddedSlots::kFill};
  return launch_kernel(ex, align_slots, one_block(s), s, b);
}

bool has_few_slots(const View& ids) {
  return ids.dim(0) * ids.dim(1) < (int64_t{1} << 30);
}

bool route_fits(const RouteOffsets::Args& a) {
  return has_few_slots(a.ids);
}

bool few_fit(const RouteOffsets::Args& a) {
  return a.ids.dim(0) * a.ids.dim(1) <= kFewSlots && a.src_row.present() && !a.sizes_up.present() &&
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
    {"few_slots", sm(90), "", kTraits, route_few_offsets, MathUnit::kF32, few_fit},
    {"block", sm(90), "E1<=1602", kTraits, route_offsets, MathUnit::kF32, route_fits},
};

constinit const VariantTable<RouteGroupShapes> route_group_shapes_cuda{
    {"block", sm(90), "E<=1601", kTraits, route_group_shapes, MathUnit::kF32, shapes_fit},
};

constinit const VariantTable<AlignExperts> align_experts_cuda{
    {"block", sm(90), "", kTraits, align_experts, MathUnit::kF32, align_fits},
};

}  // namespace fathom
