#include "fathom/base/checked_math.h"
#include "fathom/kernels/moe/route/few_offsets.cuh"
#include "fathom/kernels/moe/route/slot_order.cuh"

namespace fathom {
namespace {

using namespace cuda;  // NOLINT: device primitives, in this file's own namespace

template <class Sink>
Status sort(const Exec& ex, const View& ids, const TokenSlots& s, const Sink& sink) {
  return sort_slots(ex, static_cast<int>(ids.numel()), s.num_buckets, s, sink);
}

// ---- route_offsets, route_group_shapes ----

/// So few slots that every thread can look at all of them.
constexpr int kFewSlots = 64;
constexpr int kFewThreads = 256;

__global__ void __launch_bounds__(kFewThreads) order_few_slots(int num_slots, Offsets o) {
  __shared__ int buckets[kFewSlots];
  let_next_start();
  wait_for_previous();
  write_few_offsets(o, num_slots, buckets);
}

Status route_offsets(Exec& ex, const RouteOffsets::Args& a) {
  const Offsets o = offsets_of(a);
  return sort(ex, a.ids, o.slots, o);
}

Status route_few_offsets(Exec& ex, const RouteOffsets::Args& a) {
  return launch_kernel(ex, order_few_slots, {.blocks = 1, .threads = kFewThreads},
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
