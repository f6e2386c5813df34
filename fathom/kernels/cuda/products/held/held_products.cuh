// Products of NVFP4 weights with few rows of x: a block asks the copy engine for all of its weights
// at once, without waiting for the kernel before, and holds them in shared memory until x is there.
//
// A block has some chunks of sixteen rows of w (or somewhat fewer, so that multiprocessors get
// equal shares), whole in k. A chunk is two pieces of rows that follow each other in memory, two
// copies each, and announces itself by a barrier of its own. Lanes take the rows of a product like
// this, piece by piece, so that eight lanes read 128 bytes of different banks:
//
//   lane / 4 = 0 1 2 3 4 5 6 7    piece 0 1 0 1 0 1 0 1, row 0 0 1 1 2 2 3 3 and four more
//
// Warps that share the k of a chunk leave their sums in shared memory, and they are added up in
// order. Which k a warp has follows from K alone: a row has the same bits in every batch.
#pragma once

#include "fathom/base/check.h"
#include "fathom/kernels/cuda/codecs.cuh"
#include "fathom/kernels/cuda/launch_cuda.h"
#include "fathom/kernels/cuda/products/held/held_plan.cuh"
#include "fathom/kernels/cuda/tensor_map.cuh"

namespace fathom::cuda {

/// The expert whose rows of x begin with `row`, for all threads of a block; -1 if there is none.
__device__ __forceinline__ int expert_that_begins_at(const ProductCall& c, int row) {
  int e = 0;  // experts that end before the row does
#pragma unroll 1
  for (int e0 = 0; e0 < c.matrices; e0 += kHeldThreads) {
    const int other = e0 + static_cast<int>(threadIdx.x);
    e += __syncthreads_count(other < c.matrices && c.offsets[other + 1] <= row);
  }
  return e < c.matrices && c.offsets[e] == row ? e : -1;
}

/// Asks for the rows of w from n on that belong to a chunk; for one thread. They are there when
/// `arrived` says so.
__device__ __forceinline__ void ask_for_chunk(
    const ProductCall& c, const HeldPlan& plan, int e, int n, uint32_t to, uint32_t arrived) {
  const int rows = min(plan.chunk_rows(), c.N - n);
  if (rows <= 0) return;
  barrier_init(arrived, 1);
  fence_barriers();
  const int code_row = c.K / 2;
  const int scale_row = c.K / 16;
  barrier_expect(arrived, static_cast<uint32_t>(rows * (code_row + scale_row)));
  const uint64_t policy = weights_policy(true);
  const int64_t row = int64_t{e} * c.N + n;
  const uint8_t* codes = c.w + row * code_row;
  const uint8_t* scales = c.scales + row * scale_row;
#pragma unroll 1
  for (int left = rows; left > 0; left -= plan.piece_rows) {
    const int here = min(plan.piece_rows, left);
    copy_bytes(to, codes, static_cast<uint32_t>(here * code_row), arrived, policy);
    copy_bytes(to + static_cast<uint32_t>(plan.piece_rows * code_row), scales,
               static_cast<uint32_t>(here * scale_row), arrived, policy);
    codes += here * code_row;
    scales += here * scale_row;
    to += static_cast<uint32_t>(plan.piece_bytes);
  }
}

/// Brings rows of x in the order in which lanes need them, a thread 32 k: of each eight the two
/// that follow each other in the pairs of a group.
///
///   x_shared[block of 128 k][group 0..3][token][t 0..3]: 16 bytes, eight of the 32 k of lane t
__device__ __forceinline__ void stage_rows(
    const ProductCall& c, int64_t first, int count, int tokens, uint4* x_shared) {
  const auto spans = static_cast<unsigned>(c.K) / 32;  // of a row
#pragma unroll 1
  for (unsigned i = threadIdx.x; i < static_cast<unsigned>(count) * spans; i += kHeldThreads) {
    const unsigned token = i / spans;
    const unsigned span = i - token * spans;
    const auto* from = reinterpret_cast<const uint4*>(static_cast<const Bf16*>(c.x) + first +
                                                      token * c.x_row + span * 32);
    const uint4 h[4] = {from[0], from[1], from[2], from[3]};
    uint4* to = x_shared + (span / 4 * 4 * static_cast<unsigned>(tokens) + token) * 4 + span % 4;
    to[0] = {h[0].x, h[1].x, h[2].x, h[3].x};
    to[4 * tokens] = {h[0].y, h[1].y, h[2].y, h[3].y};
    to[8 * tokens] = {h[0].z, h[1].z, h[2].z, h[3].z};
    to[12 * tokens] = {h[0].w, h[1].w, h[2].w, h[3].w};
  }
}

/// Where a lane reads, in bytes: of a chunk its two rows, of x its token.
class HeldLane {
 public:
  __device__ HeldLane(const ProductCall& c, const HeldPlan& plan, int count) {
    const int g = lane_id() >> 2;
    const int t = lane_id() & 3;
    const int piece = (g & 1) * plan.piece_bytes;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      // Rows past those of a piece read its last one; nothing of them is stored.
      const int row = min((g >> 1) + 4 * i, plan.piece_rows - 1);
      codes_[i] = piece + row * (c.K / 2) + t * 16;
      scales_[i] = piece + plan.piece_rows * (c.K / 2) + row * (c.K / 16) + t * 2;
    }
    x_ = g * 4 + t;
    x_group_ = plan.tokens * 4;
    has_token_ = g < count;
  }

  /// Adds the products of blocks of 128 k to two sums, so that products need not wait for each
  /// other.
  __device__ __forceinline__ void multiply(const unsigned char* chunk,
                                           const uint4* x_shared,
                                           int begin,
                                           int end,
                                           float (&sums)[4],
                                           float (&others)[4]) const {
    const uint4* x = x_shared + x_ + begin * 4 * x_group_;
#pragma unroll 1
    for (int block = begin; block < end; ++block) {
      const uint4 row_g = *reinterpret_cast<const uint4*>(chunk + codes_[0] + block * 64);
      const uint4 row_g8 = *reinterpret_cast<const uint4*>(chunk + codes_[1] + block * 64);
      const auto* scale_g = reinterpret_cast<const uint16_t*>(chunk + scales_[0] + block * 8);
      const auto* scale_g8 = reinterpret_cast<const uint16_t*>(chunk + scales_[1] + block * 8);
      multiply_groups(row_g, row_g8, lifted_scales(*scale_g), lifted_scales(*scale_g8), x, sums,
                      others);
      x += 4 * x_group_;
    }
  }

 private:
  template <int i = 0>
  __device__ __forceinline__ void multiply_groups(const uint4& row_g,
                                                  const uint4& row_g8,
                                                  uint32_t scale_g,
                                                  uint32_t scale_g8,
                                                  const uint4* x,
                                                  float (&sums)[4],
                                                  float (&others)[4]) const {
    if constexpr (i < Nvfp4Codec::kGroups) {
      uint32_t a[4];
      uint32_t b[4];
      Nvfp4Codec::decode<i>(row_g, scale_g, a);
      Nvfp4Codec::decode<i>(row_g8, scale_g8, b);
      const uint4 v = has_token_ ? x[i * x_group_] : uint4{};
      mma_16x8x16(sums, a[0], b[0], a[1], b[1], v.x, v.y);
      mma_16x8x16(others, a[2], b[2], a[3], b[3], v.z, v.w);
      multiply_groups<i + 1>(row_g, row_g8, scale_g, scale_g8, x, sums, others);
    }
  }

  int codes_[2];
  int scales_[2];
  int x_;
  int x_group_;  // from group to group
  bool has_token_;
};

/// Leaves the sums of a warp for `count` tokens, [token][piece][8 rows].
__device__ __forceinline__ void keep_held_sums(const float (&sums)[4],
                                               const float (&others)[4],
                                               int count,
                                               float* to) {
  const int g = lane_id() >> 2;
  const int t = lane_id() & 3;
#pragma unroll
  for (int j = 0; j < 4; ++j) {
    const int token = 2 * t + (j & 1);
    if (token < count) to[token * 16 + (g & 1) * 8 + (g >> 1) + (j >> 1) * 4] = sums[j] + others[j];
  }
}

/// Adds up the parts of k and stores the rows of w from first_n on of `count` rows of y.
__device__ __forceinline__ void store_held(const ProductCall& c,
                                           const HeldPlan& plan,
                                           int e,
                                           int first_n,
                                           int64_t first_row,
                                           int count,
                                           float factor,
                                           const float* sums) {
  constexpr int kTokenSums = kMostHeldChunks * 16;
#pragma unroll 1
  for (int i = static_cast<int>(threadIdx.x); i < count * kTokenSums; i += kHeldThreads) {
    const int token = i / kTokenSums;
    const int chunk = (i >> 4) % kMostHeldChunks;
    const int row = i & 7;
    const int n = first_n + (2 * chunk + (i >> 3 & 1)) * plan.piece_rows + row;
    if (chunk >= plan.chunks || row >= plan.piece_rows || n >= c.N) continue;
    const float* mine = sums + (chunk * plan.parts * plan.tokens + token) * 16 + (i & 15);
    float sum = 0.0f;
#pragma unroll
    for (int part = 0; part < kHeldWarps; ++part)
      sum += part < plan.parts ? mine[min(part, plan.parts - 1) * plan.tokens * 16] : 0.0f;
    const int64_t x_row = first_row + token;
    store_any(c.y, c.y_format,
              (c.offsets != nullptr ? 0 : e * c.y_matrix) + c.row_of_y(x_row) * c.y_row + n,
              c.finished_of(e, sum * factor, x_row, n));
  }
}

static __global__ void __launch_bounds__(kHeldThreads, 4)
    held_products(ProductCall c, HeldPlan plan) {
  extern __shared__ __align__(128) unsigned char held_shared[];
  __shared__ uint64_t arrived[kMostHeldChunks];  // the weights of a chunk
  __shared__ float factor;
  let_next_start();
  const int item = static_cast<int>(blockIdx.x) / plan.row_blocks;
  const int first_n = (static_cast<int>(blockIdx.x) - item * plan.row_blocks) * plan.rows();
  int e = item;
  RowRange rows{0, c.T};
  if (c.offsets != nullptr) {
    wait_for_previous();
    e = expert_that_begins_at(c, item);
    if (e < 0) return;
    rows = rows_of_matrix(c, e);
  }
  if (warp_id() < plan.chunks && lane_id() == 0) {
    ask_for_chunk(c, plan, e, first_n + warp_id() * plan.chunk_rows(),
                  shared_address(held_shared + warp_id() * 2 * plan.piece_bytes),
                  shared_address(&arrived[warp_id()]));
  }
  if (c.offsets == nullptr) wait_for_previous();
  // A thread that seldom has x to bring.
  if (threadIdx.x == kHeldThreads - 1) factor = c.factor(e) * Nvfp4Codec::kFactor;
  auto* const x_shared = reinterpret_cast<uint4*>(held_shared + plan.x_at);
  auto* const sums = reinterpret_cast<float*>(held_shared + plan.sums_at);
  const int part = warp_id() & (plan.parts - 1);
  const int begin = part * (c.K / kBlockK) / plan.parts;
  const int end = (part + 1) * (c.K / kBlockK) / plan.parts;
#pragma unroll 1
  for (int done = 0; done < rows.count; done += plan.tokens) {
    const int count = min(plan.tokens, rows.count - done);
    const int64_t first_row = int64_t{rows.first} + done;
    stage_rows(c, (c.offsets != nullptr ? 0 : e * c.x_matrix) + first_row * c.x_row, count,
               plan.tokens, x_shared);
    const HeldLane lane(c, plan, count);
    __syncthreads();  // after it barriers, x and the factor are everybody's
#pragma unroll 1
    for (int chunk = warp_id() / plan.parts;
         chunk < plan.chunks && first_n + chunk * plan.chunk_rows() < c.N;
         chunk += kHeldWarps / plan.parts) {
      barrier_wait(shared_address(&arrived[chunk]), 0);
      float total[4] = {};
      float others[4] = {};
      lane.multiply(held_shared + chunk * 2 * plan.piece_bytes, x_shared, begin, end, total,
                    others);
      keep_held_sums(total, others, count, sums + (chunk * plan.parts + part) * plan.tokens * 16);
    }
    __syncthreads();
    store_held(c, plan, e, first_n, first_row, count, factor, sums);
  }
}

/// Runs a product that takes_held.
inline Status run_held(Exec& ex, const ProductCall& c) {
  FATHOM_CHECK(!c.w_is_made, "weights are asked for before earlier kernels are done");
  if (c.T == 0 || c.N == 0 || c.matrices == 0) return {};
  const HeldPlan plan = held_plan(c, ex.device->num_sms);
  // With offsets a block for every row of x: those of rows that begin no expert end at once.
  const int64_t items = c.offsets != nullptr ? c.T : c.matrices;
  return launch_kernel(ex, held_products,
                       {.blocks = items * plan.row_blocks,
                        .threads = kHeldThreads,
                        .shared_bytes = plan.shared_bytes},
                       c, plan);
}

}  // namespace fathom::cuda
