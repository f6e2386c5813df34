// What blocks that stay for many tiles of a product have to do: tiles of rows of w within a batch
// of rows of x, batches within a matrix, shared out evenly over clusters of blocks.
#pragma once

#include "fathom/kernels/cuda/device_code.cuh"
#include "fathom/kernels/cuda/products/product.cuh"
#include "fathom/kernels/cuda/reduce.cuh"
#include "fathom/kernels/cuda/rows.cuh"
#include "fathom/kernels/cuda/tensor_core.cuh"

namespace fathom::cuda {

struct PersistentPlan {
  int row_tiles = 0;     ///< of w
  int batches = 1;       ///< of rows of x, of one matrix; with offsets, of none
  int split = 1;         ///< slices of k: blocks in a cluster
  int slice_blocks = 0;  ///< blocks of 128 k in a slice, whole slots of them
  int num_blocks = 0;    ///< in K
};

/// A tile: of matrix e, the rows of tile `tile` of w, `count` rows of x.
struct TileItem {
  int e;
  int tile;
  int first;  ///< row of x within the matrix; with offsets, of all of x
  int count;
};

/// Brings offsets into the last cache while the kernel before, which may make them, still runs. No
/// value of theirs is used before it is done.
__device__ __forceinline__ void bring_offsets_nearer(const ProductCall& c) {
  constexpr int kLine = 32;  // offsets
  const int i = static_cast<int>(threadIdx.x) * kLine;
  if (i <= c.matrices) prefetch_line(c.offsets + i);
}

/// For all threads of a block: the first item of every expert; starts[matrices] is their number.
/// Offsets come from far away, so that all of a round are asked for at once, and one is enough for
/// most.
template <int kBatch>
__device__ __forceinline__ void find_expert_items(const ProductCall& c,
                                                  int row_tiles,
                                                  int threads,
                                                  int* starts) {
  constexpr int kMostEach = 8;
  __shared__ int warp_items[32];
  int before = 0;  // items of earlier rounds
#pragma unroll 1
  for (int from = 0; from < c.matrices; from += kMostEach * threads) {
    const int end = min(from + kMostEach * threads, c.matrices);
    const int each = (end - from + threads - 1) / threads;  // experts of a thread
    const int first = from + static_cast<int>(threadIdx.x) * each;
    int rows[kMostEach + 1];
#pragma unroll
    for (int i = 0; i <= kMostEach; ++i)
      rows[i] = i <= each ? c.offsets[min(first + i, end)] : 0;
    int items[kMostEach];
    int mine = 0;
#pragma unroll
    for (int i = 0; i < kMostEach; ++i) {
      items[i] = i < each ? (rows[i + 1] - rows[i] + kBatch - 1) / kBatch * row_tiles : 0;
      mine += items[i];
    }
    const int up_to = sum_up_to_lane(mine);
    if (lane_id() == 31) warp_items[warp_id()] = up_to;
    __syncthreads();
    int start = before + up_to - mine;
#pragma unroll
    for (int warp = 0; warp < threads / 32; ++warp) {
      if (warp < warp_id()) start += warp_items[warp];
      before += warp_items[warp];
    }
#pragma unroll
    for (int i = 0; i < kMostEach; ++i) {
      if (i < each && first + i < end) starts[first + i] = start;
      start += items[i];
    }
    __syncthreads();
  }
  if (threadIdx.x == 0) starts[c.matrices] = before;
  __syncthreads();
}

/// The items of a cluster, one after the other: tiles of rows within a batch of rows of x, batches
/// within a matrix. For whole warps. Found once; after that no step divides.
template <int kBatch>
class TileCursor {
 public:
  __device__ TileCursor(const ProductCall& call, const PersistentPlan& plan, const int* starts)
      : c_(call), row_tiles_(plan.row_tiles), starts_(starts) {
    const auto items = static_cast<uint32_t>(
        c_.offsets != nullptr ? starts[c_.matrices] : plan.row_tiles * plan.batches * c_.matrices);
    const uint32_t clusters = gridDim.x / static_cast<uint32_t>(plan.split);
    const uint32_t cluster = blockIdx.x / static_cast<uint32_t>(plan.split);
    const uint32_t each = items / clusters;
    const uint32_t more = items - each * clusters;  // clusters with one more
    const auto begin = static_cast<int>(cluster * each + min(cluster, more));
    left_ = static_cast<int>(each + (cluster < more ? 1 : 0));
    end_item_ = begin + left_;
    if (left_ > 0) find(begin, plan.batches);
  }

  __device__ __forceinline__ bool more() const { return left_ > 0; }

  __device__ __forceinline__ bool more_than_one() const { return left_ > 1; }

  __device__ __forceinline__ const TileItem& item() const { return it_; }

  /// Tiles of the same rows of x from this item on.
  __device__ __forceinline__ int run() const { return min(left_, row_tiles_ - it_.tile); }

  __device__ __forceinline__ bool is_last_run() const { return run() == left_; }

  /// To the item behind a run.
  __device__ __forceinline__ void next_run() {
    const int more = run() - 1;
    it_.tile += more;
    left_ -= more;
    next();
  }

  __device__ __forceinline__ void next() {
    if (--left_ == 0 || ++it_.tile < row_tiles_) return;
    it_.tile = 0;
    it_.first += kBatch;
    if (it_.first >= end_) {
      it_.e = c_.offsets != nullptr ? expert_of(end_item_ - left_) : it_.e + 1;
      find_rows();
    }
    it_.count = min(kBatch, end_ - it_.first);
  }

 private:
  __device__ void find_rows() {
    it_.first = c_.offsets != nullptr ? c_.offsets[it_.e] : 0;
    end_ = c_.offsets != nullptr ? c_.offsets[it_.e + 1] : c_.T;
  }

  /// The last expert whose items begin with this one or before.
  __device__ int expert_of(int item) const {
    int count = 0;
#pragma unroll 8
    for (int e = 0; e < c_.matrices; e += 32) {
      const bool begins = e + lane_id() < c_.matrices && starts_[e + lane_id()] <= item;
      count += __popc(__ballot_sync(0xFFFFFFFFu, begins));
    }
    return count - 1;
  }

  __device__ void find(int item, int batches) {
    int before = 0;  // items of earlier matrices
    if (c_.offsets == nullptr) {
      it_.e = item / (row_tiles_ * batches);
      before = it_.e * row_tiles_ * batches;
    } else {
      it_.e = expert_of(item);
      before = starts_[it_.e];
    }
    find_rows();
    const int batch = (item - before) / row_tiles_;
    it_.tile = item - before - batch * row_tiles_;
    it_.first += batch * kBatch;
    it_.count = min(kBatch, end_ - it_.first);
  }

  const ProductCall& c_;
  int row_tiles_;
  const int* starts_;
  int left_;
  int end_item_;
  int end_ = 0;  ///< of the rows of x of the matrix
  TileItem it_{0, 0, 0, 0};
};

}  // namespace fathom::cuda
