// Products of NVFP4 weights with few rows of x: a block asks the copy engine for all of its weights
// at once, without waiting for the kernel before, and holds them in shared memory until x is there.
//
// A block has some chunks of sixteen rows of w (or somewhat fewer, so that multiprocessors get
// equal shares), whole in k. A chunk is one copy of codes and two of scales, those of two pieces of
// rows that follow each other, and announces itself by a barrier of its own. Lanes take the rows of
// a product like this, piece by piece, so that scales of rows a multiple of 128 bytes apart come
// from twice as many banks:
//
//   lane / 4 = 0 1 2 3 4 5 6 7    piece 0 1 0 1 0 1 0 1, row 0 0 1 1 2 2 3 3 and four more
//
// Warps that share the k of a chunk leave their sums in shared memory, and they are added up in
// order; other warps do not wait for them. Which k a warp has follows from the matrix alone: a
// row has the same bits in every batch.
#pragma once

#include "fathom/base/check.h"
#include "fathom/kernels/cuda/codecs.cuh"
#include "fathom/kernels/cuda/launch_cuda.h"
#include "fathom/kernels/cuda/products/held/held_plan.cuh"
#include "fathom/kernels/cuda/products/sweep/sweep_items.cuh"
#include "fathom/kernels/cuda/tensor_map.cuh"

namespace fathom::cuda {

/// The expert of a block.
struct HeldExpert {
  int e;      ///< -1: none
  int count;  ///< of its rows of x
};

/// The expert whose rows of x begin with `row`, for all threads of a block, which wait for earlier
/// kernels meanwhile.
__device__ __forceinline__ void find_expert(const ProductCall& c, int row, HeldExpert& found) {
  const auto tid = static_cast<int>(threadIdx.x);
  if (tid == 0) found = {-1, 0};
  bring_offsets_nearer(c);
  __syncthreads();
  wait_for_previous();
#pragma unroll 1
  for (int e = tid; e < c.matrices; e += kHeldThreads) {
    const int first = c.offsets[e];
    const int end = c.offsets[e + 1];
    if (first == row && end > row) found = {e, end - first};
  }
  __syncthreads();
}

/// What is announced of a chunk.
struct HeldBarriers {
  uint64_t arrived;  ///< its weights, by the copy engine
  uint64_t summed;   ///< its parts of k, by each warp that has one
};

/// Asks for the rows of w from n on that belong to a chunk; for one thread.
__device__ __forceinline__ void ask_for_chunk(
    const ProductCall& c, const HeldPlan& plan, int e, int n, uint32_t to, HeldBarriers& barriers) {
  const int rows = min(plan.chunk_rows(), c.N - n);
  if (rows <= 0) return;
  const uint32_t arrived = shared_address(&barriers.arrived);
  barrier_init(arrived, 1);
  fence_barriers();
  const int code_row = c.K / 2;
  const int scale_row = c.K / 16;
  barrier_expect(arrived, static_cast<uint32_t>(rows * (code_row + scale_row)));
  const uint64_t policy = weights_policy(true);
  const int64_t row = int64_t{e} * c.N + n;
  copy_bytes(to, c.w + row * code_row, static_cast<uint32_t>(rows * code_row), arrived, policy);
  const uint8_t* scales = c.scales + row * scale_row;
  to += static_cast<uint32_t>(plan.chunk_rows() * code_row);
#pragma unroll 1
  for (int left = rows; left > 0; left -= plan.piece_rows) {
    const int bytes = min(plan.piece_rows, left) * scale_row;
    copy_bytes(to, scales, static_cast<uint32_t>(bytes), arrived, policy);
    scales += bytes;
    to += static_cast<uint32_t>(plan.scale_bytes);
  }
  // Long before it is used.
  barrier_init(shared_address(&barriers.summed), plan.parts() * kWarpArrivals);
}

/// Brings rows of x in the order in which lanes need them, a thread 32 k: of each eight the two
/// that follow each other in the pairs of a group.
///
///   x_shared[block of 128 k][group 0..3][token][t 0..3]: 16 bytes, eight of the 32 k of lane t
template <bool kAlone>
__device__ __forceinline__ void stage_rows(
    const ProductCall& c, int64_t first, int count, unsigned tokens, uint4* x_shared) {
  const auto spans = static_cast<unsigned>(c.K) / 32;  // of a row
#pragma unroll 1
  for (unsigned i = threadIdx.x; i < static_cast<unsigned>(count) * spans; i += kHeldThreads) {
    const unsigned token = kAlone ? 0 : i / spans;
    const unsigned span = i - token * spans;
    const auto* from = reinterpret_cast<const uint4*>(static_cast<const Bf16*>(c.x) + first +
                                                      token * c.x_row + span * 32);
    const uint4 h[4] = {from[0], from[1], from[2], from[3]};
    uint4* to = x_shared + (span / 4 * 4 * tokens + token) * 4 + span % 4;
    to[0] = {h[0].x, h[1].x, h[2].x, h[3].x};
    to[4 * tokens] = {h[0].y, h[1].y, h[2].y, h[3].y};
    to[8 * tokens] = {h[0].z, h[1].z, h[2].z, h[3].z};
    to[12 * tokens] = {h[0].w, h[1].w, h[2].w, h[3].w};
  }
}

/// Where a lane reads, in bytes: of a chunk its two rows, of x its token.
template <bool kAlone>
class HeldLane {
 public:
  __device__ HeldLane(const ProductCall& c, const HeldPlan& plan, int count) {
    const int g = lane_id() >> 2;
    const int t = lane_id() & 3;
    const int piece = g & 1;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      // Rows past those of a piece read its last one; nothing of them is stored.
      const int row = min((g >> 1) + 4 * i, plan.piece_rows - 1);
      codes_[i] = (piece * plan.piece_rows + row) * (c.K / 2) + t * 16;
      scales_[i] =
          plan.chunk_rows() * (c.K / 2) + piece * plan.scale_bytes + row * (c.K / 16) + t * 2;
    }
    // Columns past the tokens have the last one again; nothing of them is stored.
    x_ = (kAlone ? 0 : min(g, count - 1)) * 4 + t;
    x_group_ = kAlone ? 4 : plan.tokens * 4;
  }

  /// Adds the products of blocks of 128 k to two sums, so that products need not wait for each
  /// other.
  __device__ __forceinline__ void multiply(const unsigned char* chunk,
                                           const uint4* x_shared,
                                           int begin,
                                           int end,
                                           float (&sums)[4],
                                           float (&others)[4]) const {
    const uint4* x = x_shared + x_ + begin * 4 * x_group();
    const unsigned char* codes[2] = {chunk + codes_[0] + begin * 64,
                                     chunk + codes_[1] + begin * 64};
    const unsigned char* scales[2] = {chunk + scales_[0] + begin * 8,
                                      chunk + scales_[1] + begin * 8};
#pragma unroll 1
    for (int block = begin; block < end; ++block) {
      const uint4 row_g = *reinterpret_cast<const uint4*>(codes[0]);
      const uint4 row_g8 = *reinterpret_cast<const uint4*>(codes[1]);
      const uint32_t scale_g = lifted_scales(*reinterpret_cast<const uint16_t*>(scales[0]));
      const uint32_t scale_g8 = lifted_scales(*reinterpret_cast<const uint16_t*>(scales[1]));
      multiply_groups(row_g, row_g8, scale_g, scale_g8, x, sums, others);
      x += 4 * x_group();
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        codes[i] += 64;
        scales[i] += 8;
      }
    }
  }

 private:
  __device__ __forceinline__ int x_group() const {
    return kAlone ? 4 : x_group_;
  }

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
      const uint4 v = x[i * x_group()];
      mma_16x8x16(sums, a[0], b[0], a[1], b[1], v.x, v.y);
      mma_16x8x16(others, a[2], b[2], a[3], b[3], v.z, v.w);
      multiply_groups<i + 1>(row_g, row_g8, scale_g, scale_g8, x, sums, others);
    }
  }

  int codes_[2];
  int scales_[2];
  int x_;
  int x_group_;  // from group to group
};

/// Leaves the sums of a warp for `count` tokens, [token][part][piece][8 rows]; `to` is its part.
__device__ __forceinline__ void keep_held_sums(
    const float (&sums)[4], const float (&others)[4], int count, int part_bits, float* to) {
  const int g = lane_id() >> 2;
  const int t = lane_id() & 3;
#pragma unroll
  for (int j = 0; j < 4; ++j) {
    const int token = 2 * t + (j & 1);
    if (token < count)
      to[(token << part_bits) * 16 + (g & 1) * 8 + (g >> 1) + (j >> 1) * 4] = sums[j] + others[j];
  }
}

/// Adds up the parts of k of a chunk, whose rows of w begin with first_n, and stores `count` rows
/// of y; for the threads of the warps that computed it.
__device__ __forceinline__ void store_chunk(const ProductCall& c,
                                            const HeldPlan& plan,
                                            int e,
                                            int first_n,
                                            int64_t first_row,
                                            int count,
                                            float factor,
                                            const float* sums) {
  const int threads = 32 << plan.part_bits;
#pragma unroll 1
  for (int i = static_cast<int>(threadIdx.x) & (threads - 1); i < count * 16; i += threads) {
    const int token = i >> 4;
    const int row = i & 7;
    const int n = first_n + (i >> 3 & 1) * plan.piece_rows + row;
    if (row >= plan.piece_rows || n >= c.N) continue;
    const float* mine = sums + (token << plan.part_bits) * 16 + (i & 15);
    float parts[kHeldWarps];
#pragma unroll
    for (int part = 0; part < kHeldWarps; ++part)
      parts[part] = part < plan.parts() ? mine[part * 16] : 0.0f;
    float sum = parts[0];
#pragma unroll
    for (int part = 1; part < kHeldWarps; ++part)
      sum += parts[part];
    const int64_t x_row = first_row + token;
    store_any(c.y, c.y_format,
              (c.offsets != nullptr ? 0 : e * c.y_matrix) + c.row_of_y(x_row) * c.y_row + n,
              c.finished_of(e, sum * factor, x_row, n));
  }
}

/// kAlone: there is room for one row of x.
template <bool kAlone>
static __global__ void __launch_bounds__(kHeldThreads, kHeldBlocks)
    held_products(ProductCall c, HeldPlan plan) {
  extern __shared__ __align__(128) unsigned char held_shared[];
  __shared__ HeldBarriers barriers[kMostHeldChunks];  // of chunks
  __shared__ HeldExpert expert;
  __shared__ float factor;
  let_next_start();
  int item = 0;
  int share = static_cast<int>(blockIdx.x);
  if (plan.row_blocks != static_cast<int>(gridDim.x)) {  // not for nothing: a division is long
    item = share / plan.row_blocks;
    share -= item * plan.row_blocks;
  }
  const int first_n = share * plan.rows();
  int e = item;
  RowRange rows{0, c.T};
  if (c.offsets != nullptr) {
    find_expert(c, item, expert);
    e = expert.e;
    if (e < 0) return;
    rows = {item, expert.count};
  }
  if (warp_id() < plan.chunks && lane_id() == 0) {
    ask_for_chunk(c, plan, e, first_n + warp_id() * plan.chunk_rows(),
                  shared_address(held_shared + warp_id() * plan.chunk_bytes), barriers[warp_id()]);
  }
  const int group = warp_id() >> plan.part_bits;  // of warps that share chunks
  const int part = warp_id() & (plan.parts() - 1);
  const int begin = part * (c.K / kBlockK) >> plan.part_bits;
  const int end = (part + 1) * (c.K / kBlockK) >> plan.part_bits;
  const int tokens = kAlone ? 1 : plan.tokens;
  auto* const x_shared = reinterpret_cast<uint4*>(held_shared + plan.x_at);
  auto* const sums = reinterpret_cast<float*>(held_shared + plan.sums_at);
  const auto sums_of = [&](int chunk) { return sums + (chunk * tokens << plan.part_bits) * 16; };
  if (c.offsets == nullptr) {
    bring_x_nearer(c, e, static_cast<int>(threadIdx.x), kHeldThreads);
    wait_for_previous();
  }
  // A thread that seldom has x to bring.
  if (threadIdx.x == kHeldThreads - 1) factor = c.factor(e) * Nvfp4Codec::kFactor;
  uint32_t parity = 1;  // of the barriers of sums, in a turn of rows of x
#pragma unroll 1
  for (int done = 0; done < rows.count; done += tokens) {
    const int count = kAlone ? 1 : min(tokens, rows.count - done);
    parity ^= 1;
    const int64_t first_row = int64_t{rows.first} + done;
    if (done > 0) __syncthreads();  // all have multiplied with the rows before
    stage_rows<kAlone>(c, (c.offsets != nullptr ? 0 : e * c.x_matrix) + first_row * c.x_row, count,
                       static_cast<unsigned>(tokens), x_shared);
    const HeldLane<kAlone> lane(c, plan, count);
    __syncthreads();  // after it barriers, x and the factor are everybody's
    const int step = kHeldWarps >> plan.part_bits;
#pragma unroll 1
    for (int chunk = group; chunk < plan.chunks; chunk += step) {
      const int n = first_n + chunk * plan.chunk_rows();
      if (n >= c.N) break;
      barrier_wait(shared_address(&barriers[chunk].arrived), 0);
      float total[4] = {};
      float others[4] = {};
      lane.multiply(held_shared + chunk * plan.chunk_bytes, x_shared, begin, end, total, others);
      keep_held_sums(total, others, count, plan.part_bits, sums_of(chunk) + part * 16);
      const uint32_t summed = shared_address(&barriers[chunk].summed);
      warp_arrive(summed);
      if (part * 32 >= count * 16) continue;  // nothing for this warp to store
      barrier_wait(summed, parity);
      store_chunk(c, plan, e, n, first_row, count, factor, sums_of(chunk));
    }
  }
}

/// Runs a product that takes_held.
inline Status run_held(Exec& ex, const ProductCall& c) {
  FATHOM_CHECK(!c.w_is_made, "weights are asked for before earlier kernels are done");
  if (c.T == 0 || c.N == 0 || c.matrices == 0) return {};
  const HeldPlan plan = held_plan(c, ex.device->num_sms);
  // With offsets a block for every row of x: those of rows that begin no expert end at once.
  const int64_t items = c.offsets != nullptr ? c.T : c.matrices;
  const LaunchShape shape{.blocks = items * plan.row_blocks,
                          .threads = kHeldThreads,
                          .shared_bytes = plan.shared_bytes};
  return plan.tokens == 1 ? launch_kernel(ex, held_products<true>, shape, c, plan)
                          : launch_kernel(ex, held_products<false>, shape, c, plan);
}

}  // namespace fathom::cuda
