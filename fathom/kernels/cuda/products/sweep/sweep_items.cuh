// What blocks that sweep over the tiles of a product do: tiles of rows of w within a batch of rows
// of x, batches within a matrix, shared out evenly over clusters of blocks.
#pragma once

#include "fathom/kernels/cuda/device_code.cuh"
#include "fathom/kernels/cuda/products/product.cuh"
#include "fathom/kernels/cuda/rows.cuh"

namespace fathom::cuda {

struct SweepPlan {
  int row_tiles = 0;     ///< of w
  int batches = 1;       ///< of rows of x, of one matrix; with offsets, of none
  int split = 1;         ///< slices of k: blocks in a cluster
  int slice_blocks = 0;  ///< blocks of 128 k in a slice, whole slots of them
  int num_blocks = 0;    ///< in K
};

/// A tile of the sweep: of matrix e, the rows of tile `tile` of w, `count` rows of x.
struct SweepItem {
  int e;
  int tile;
  int first;  ///< row of x within the matrix; with offsets, of all of x
  int count;
};

/// For all threads of a block: the first item of every expert; starts[matrices] is their number.
/// Offsets come cold from memory, so that all are asked for at once.
template <int kBatch>
__device__ __forceinline__ void find_expert_items(const ProductCall& c,
                                                  int row_tiles,
                                                  int threads,
                                                  int* starts) {
  __shared__ int warp_items[32];
  int before = 0;
#pragma unroll 1
  for (int e0 = 0; e0 < c.matrices; e0 += threads) {
    const int e = e0 + static_cast<int>(threadIdx.x);
    const int rows = e < c.matrices ? c.offsets[e + 1] - c.offsets[e] : 0;
    const int items = (rows + kBatch - 1) / kBatch * row_tiles;
    int up_to = items;
#pragma unroll
    for (int step = 1; step < 32; step *= 2) {
      const int other = __shfl_up_sync(0xFFFFFFFFu, up_to, step);
      if (lane_id() >= step) up_to += other;
    }
    if (lane_id() == 31) warp_items[warp_id()] = up_to;
    __syncthreads();
    int start = before + up_to - items;
#pragma unroll
    for (int warp = 0; warp < threads / 32; ++warp) {
      if (warp < warp_id()) start += warp_items[warp];
      before += warp_items[warp];
    }
    if (e < c.matrices) starts[e] = start;
    if (threadIdx.x == 0) starts[c.matrices] = before;
    __syncthreads();
  }
}

/// The items of a cluster, one after the other: tiles of rows within a batch of rows of x, batches
/// within a matrix. Found once; after that no step divides or searches.
template <int kBatch>
class SweepCursor {
 public:
  __device__ SweepCursor(const ProductCall& call, const SweepPlan& plan, const int* starts)
      : c_(call), row_tiles_(plan.row_tiles), starts_(starts) {
    const int64_t items = c_.offsets != nullptr
                              ? starts[c_.matrices]
                              : int64_t{plan.row_tiles} * plan.batches * c_.matrices;
    const int64_t clusters = static_cast<int>(gridDim.x) / plan.split;
    const int64_t cluster = static_cast<int>(blockIdx.x) / plan.split;
    const auto begin = static_cast<int>(items * cluster / clusters);
    left_ = static_cast<int>(items * (cluster + 1) / clusters) - begin;
    if (left_ > 0) find(begin, plan.batches);
  }

  __device__ __forceinline__ bool more() const { return left_ > 0; }

  __device__ __forceinline__ bool more_than_one() const { return left_ > 1; }

  __device__ __forceinline__ const SweepItem& item() const { return it_; }

  /// Tiles of the same rows of x from this item on.
  __device__ __forceinline__ int run() const { return min(left_, row_tiles_ - it_.tile); }

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
      do {
        ++it_.e;
      } while (c_.offsets != nullptr && starts_[it_.e + 1] == starts_[it_.e]);
      find_rows();
    }
    it_.count = min(kBatch, end_ - it_.first);
  }

 private:
  __device__ void find_rows() {
    it_.first = c_.offsets != nullptr ? c_.offsets[it_.e] : 0;
    end_ = c_.offsets != nullptr ? c_.offsets[it_.e + 1] : c_.T;
  }

  __device__ void find(int item, int batches) {
    int before = 0;  // items of earlier matrices
    if (c_.offsets == nullptr) {
      it_.e = item / (row_tiles_ * batches);
      before = it_.e * row_tiles_ * batches;
    } else {
      int high = c_.matrices;
      while (high - it_.e > 1) {
        const int middle = (it_.e + high) / 2;
        if (starts_[middle] <= item) {
          it_.e = middle;
        } else {
          high = middle;
        }
      }
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
  int end_ = 0;  ///< of the rows of x of the matrix
  SweepItem it_{0, 0, 0, 0};
};

}  // namespace fathom::cuda
