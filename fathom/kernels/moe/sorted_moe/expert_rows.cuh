// Rows of x by expert, as the grouped products take them: the slots of a call in the order of their
// experts, a copy of the row of each, and where its result goes.
#pragma once

#include "fathom/base/checked_math.h"
#include "fathom/kernels/cuda/flat.cuh"
#include "fathom/kernels/cuda/rows.cuh"
#include "fathom/kernels/moe/route/slot_order.cuh"
#include "fathom/kernels/moe/sorted_moe/sorted_moe.h"

namespace fathom::cuda {

/// The places of sorted_ids, whose buckets are experts from -1 on.
struct SortedPlaces {
  const int32_t* sorted_ids;
  const int32_t* block_expert;
  const int32_t* num_padded;
  FastDivide block;
  int num_slots;
  int num_experts;

  __device__ int bucket(int j) const {
    const int32_t slot = sorted_ids[j];
    const int32_t e = block_expert[block.of(static_cast<uint32_t>(j))];
    const bool exists = j < *num_padded && slot >= 0 && slot < num_slots;
    return exists && e >= -1 && e < num_experts ? e + 1 : -1;
  }
};

/// A call's rows in order: first those of expert -1, which no product reads, then those of 0, 1, ..
/// All in workspace.
struct ExpertRows {
  static constexpr bool kScansAgain = false;
  static constexpr bool kStages = false;

  SortedPlaces from;
  bool rows_are_sorted;
  const float* slot_weights;  ///< null: none
  int32_t* offsets;           ///< [E + 1]
  int32_t* row_of_slot;       ///< [slots]; -1: none
  int32_t* y_rows;            ///< [slots], of rows
  float* weights;             ///< [slots], of rows; null: none

  __device__ void prepare(int thread, int threads, bool) const {
    fill(row_of_slot, from.num_slots, -1, thread, threads);
  }

  __device__ int size(int count) const { return count; }

  __device__ int first(int begin) const { return begin; }

  __device__ void bucket(int b, int begin, int) const {
    if (b > 0) offsets[b - 1] = min(begin, from.num_slots);
  }

  __device__ void all(int sum) const { offsets[from.num_experts] = min(sum, from.num_slots); }

  __device__ bool places() const { return true; }

  __device__ void place(int j, int row, int32_t*) const {
    if (row < 0 || row >= from.num_slots) return;
    const int32_t slot = from.sorted_ids[j];
    row_of_slot[slot] = row;
    y_rows[row] = rows_are_sorted ? j : slot;
    if (weights != nullptr) weights[row] = slot_weights[slot];
  }

  __device__ void finish(int, int, int) const {}
};

/// Bytes of the parts of the workspace.
struct ExpertRowsMemory {
  int64_t x, scales, offsets, of_slots;

  explicit ExpertRowsMemory(const SortedMoeGemm::Args& a) {
    constexpr int64_t kAlign = 256;
    const int64_t slots = num_slots(a);
    const int64_t blocks = a.x_scales.present() ? (a.w.cols() + 127) / 128 : 0;
    x = align_up(slots * a.w.cols() * element_bytes(a.x.format), kAlign);
    scales = align_up(slots * blocks * 4, kAlign);
    offsets = align_up((a.w.values.dim(0) + 1) * 4, kAlign);
    of_slots = align_up(slots * 4, kAlign);
  }

  int64_t bytes() const { return x + scales + offsets + 3 * of_slots; }
};

/// Rows of x, each to the rows of its token's slots, by sixteen bytes.
struct RowCopies {
  const uint8_t* x;
  int64_t x_row;  ///< bytes
  uint8_t* to;
  int64_t to_row;       ///< bytes
  const float* scales;  ///< of 128 codes; null: none
  int64_t scale_row;
  int64_t scale_block;
  float* to_scales;
  int num_blocks;  ///< of scales of a row
  int top_k;
  int num_slots;
  const int32_t* row_of_slot;
  FlatItems items;
};

/// Sixteen bytes that lie on sizeof(Word).
template <class Word>
__device__ __forceinline__ uint4 load_sixteen(const uint8_t* from) {
  union {
    uint4 all;
    Word words[16 / sizeof(Word)];
  } held;

#pragma unroll
  for (size_t i = 0; i < 16 / sizeof(Word); ++i)
    held.words[i] = reinterpret_cast<const Word*>(from)[i];
  return held.all;
}

/// A row of x is read once, however many slots its token has.
template <class Word, int kEach>
__global__ void __launch_bounds__(kFlatThreads) copy_expert_rows(RowCopies c) {
  let_next_start();
  wait_for_previous();
  ItemPlace at[kEach];
  uint4 held[kEach];
#pragma unroll
  for (int i = 0; i < kEach; ++i) {
    at[i] = c.items.mine<kEach>(i);
    held[i] =
        at[i].exists ? load_sixteen<Word>(c.x + at[i].row * c.x_row + at[i].item * 16) : uint4{};
  }
#pragma unroll
  for (int i = 0; i < kEach; ++i) {
    if (!at[i].exists) continue;
    const bool has_scale = at[i].item < c.num_blocks;
    const float scale =
        has_scale ? c.scales[at[i].row * c.scale_row + at[i].item * c.scale_block] : 0.0f;
    const int64_t slot = at[i].row * c.top_k;
    const int64_t end = min(slot + c.top_k, int64_t{c.num_slots});
    for (int64_t v = slot; v < end; ++v) {
      const int64_t row = c.row_of_slot[v];
      if (row < 0) continue;
      *reinterpret_cast<uint4*>(c.to + row * c.to_row + at[i].item * 16) = held[i];
      if (has_scale) c.to_scales[row * c.num_blocks + at[i].item] = scale;
    }
  }
}

/// The rows of expert -1.
__global__ void __launch_bounds__(kFlatThreads)
    write_zero_rows(AnyRows y, const int32_t* y_rows, const int32_t* num_rows, int64_t columns) {
  let_next_start();
  wait_for_previous();
  for (int r = static_cast<int>(blockIdx.x); r < *num_rows; r += static_cast<int>(gridDim.x)) {
    for (int64_t n = threadIdx.x; n < columns; n += kFlatThreads)
      y.store(y_rows[r], n, 0.0f);
  }
}

template <class Word>
Status launch_copies(const Exec& ex, const RowCopies& c) {
  return with_items_each(ex, c.items, [&]<int kEach>(const LaunchShape& shape) {
    return launch_kernel(ex, copy_expert_rows<Word, kEach>, shape, c);
  });
}

inline Status copy_rows(const Exec& ex, const RowCopies& c) {
  const uint64_t places = reinterpret_cast<uintptr_t>(c.x) | static_cast<uint64_t>(c.x_row);
  if (places % 16 == 0) return launch_copies<uint4>(ex, c);
  return places % 4 == 0 ? launch_copies<uint32_t>(ex, c) : launch_copies<uint8_t>(ex, c);
}

}  // namespace fathom::cuda
