// What route_offsets writes, and how a block writes it where slots are few.
#pragma once

#include "fathom/formats/layout/scale_layout.h"
#include "fathom/kernels/cuda/flat.cuh"
#include "fathom/kernels/cuda/rows.cuh"
#include "fathom/kernels/moe/route/route.h"

namespace fathom::cuda {

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

inline TokenSlots slots_of(const View& ids, int first_id, int64_t num_buckets) {
  return {.ids = ids.data,
          .wide = ids.format == Format::kI64,
          .token_stride = ids.stride(0),
          .top_k = FastDivide(ids.dim(1)),
          .first_id = first_id,
          .num_buckets = static_cast<int>(num_buckets)};
}

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

inline Sizes sizes_of(const View& v, int32_t n, int32_t k) {
  if (!v.present()) return {};
  return {v.as<int32_t>(), v.stride(0), n, k};
}

inline Offsets offsets_of(const RouteOffsets::Args& a) {
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

/// offsets[e]: slots of buckets before e; a slot's position: those before it in the order of
/// (bucket, slot). By a block, every thread of which looks at all slots. buckets: shared memory of
/// num_slots.
__device__ inline void write_few_offsets(const Offsets& o, int num_slots, int* buckets) {
  const int tid = static_cast<int>(threadIdx.x);
  const int threads = static_cast<int>(blockDim.x);
  for (int slot = tid; slot < num_slots; slot += threads)
    buckets[slot] = o.slots.bucket(slot);
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
  for (int e = tid; e <= o.slots.num_buckets; e += threads)
    o.offsets[e] = slots_before(e, 0);
  for (int slot = tid; slot < num_slots; slot += threads) {
    const int bucket = buckets[slot];
    o.place(slot, bucket < 0 ? -1 : slots_before(bucket, slot), o.src_row);
  }
  o.finish(slots_before(o.slots.num_buckets, 0), tid, threads);
}

}  // namespace fathom::cuda
