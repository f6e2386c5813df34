// Products of few rows: weights stream once from memory through registers into the tensor cores.
//
// A block of four warps has 64 rows of w (16 a warp) and a slice of K; the blocks of a cluster have
// the slices of the same rows and add up their sums in fixed order through distributed shared
// memory. The slice of the activations lies in shared memory in the order in which lanes need it:
//
//   x_shared[block of 128 k][group 0..3][8 tokens][lane]: 16 bytes, eight k of token lane/4
//
// Which slices there are follows from the matrix alone, so that a row has the same bits in every
// batch.
#pragma once

#include <algorithm>

#include "fathom/base/check.h"
#include "fathom/kernels/cuda/codecs.cuh"
#include "fathom/kernels/cuda/launch_cuda.h"
#include "fathom/kernels/cuda/products/cluster.cuh"
#include "fathom/kernels/cuda/rows.cuh"

namespace fathom::cuda {

inline constexpr int kBlockTileRows = 64;  // of w, in a block
inline constexpr int kBlockTileThreads = 128;
inline constexpr int kSumPitch = kBlockTileRows + 4;  // floats: lanes of a quad in different banks

struct BlockTilePlan {
  int row_tiles = 0;
  int split = 1;         ///< slices of K: blocks in a cluster
  int slice_blocks = 0;  ///< blocks of 128 k in a slice
  int num_blocks = 0;    ///< in K
  int x_at = 0;          ///< bytes of shared memory before x: weights and their scales
  int sums_at = 0;
  int active_at = 0;  ///< the numbers of experts that have rows
};

/// The slices of a matrix: enough blocks to fill the GPU, and at most `most` blocks of k in each.
inline BlockTilePlan block_tile_plan(const ProductCall& c, int num_sms, int most) {
  BlockTilePlan plan;
  plan.row_tiles = (c.N + kBlockTileRows - 1) / kBlockTileRows;
  plan.num_blocks = std::max(1, (c.K + kBlockK - 1) / kBlockK);
  const int64_t tiles = int64_t{plan.row_tiles} * (c.offsets == nullptr ? c.matrices : 8);
  const auto slices = [&] { return (plan.num_blocks + plan.split - 1) / plan.split; };
  while (plan.split < 8 && (slices() > most || (tiles * plan.split < 4 * num_sms && slices() >= 4)))
    plan.split *= 2;
  plan.slice_blocks = slices();
  return plan;
}

/// Eight elements of x as bf16.
__device__ __forceinline__ uint4 load_x8(const ProductCall& c, int64_t at) {
  if (c.x_format == Format::kBf16)
    return *reinterpret_cast<const uint4*>(static_cast<const Bf16*>(c.x) + at);
  float values[kVector];
  if (c.x_format == Format::kE4m3) {
    load8(static_cast<const E4m3*>(c.x) + at, values);
  } else {
    load8(static_cast<const E5m2*>(c.x) + at, values);
  }
  return {pair_of_floats(values[0], values[1]), pair_of_floats(values[2], values[3]),
          pair_of_floats(values[4], values[5]), pair_of_floats(values[6], values[7])};
}

/// Sixteen bytes of a row of x as bf16, or zeros past its end.
__device__ __forceinline__ uint4 load_x8_or_zeros(const ProductCall& c,
                                                  int64_t row,
                                                  int k,
                                                  bool exists) {
  return exists && k < c.K ? load_x8(c, row + k) : uint4{};
}

/// stage_x for codecs whose groups are not of neighbouring k: a lane loads the 32 k of its four
/// groups, and turns them over.
template <int kTiles, int kThreads>
__device__ void stage_x_transposed(
    const ProductCall& c, int64_t first, int count, int block0, int blocks, uint4* x_shared) {
  constexpr int kOnTheWay = 2;
  constexpr int kWarps = kThreads / 32;
  const int lane = lane_id();
  const int places = blocks * kTiles;
  for (int p0 = warp_id(); p0 < places; p0 += kWarps * kOnTheWay) {
    uint4 held[kOnTheWay][4];
#pragma unroll
    for (int j = 0; j < kOnTheWay; ++j) {
      const int p = p0 + j * kWarps;
      const int token = p % kTiles * 8 + lane / 4;
      const int k = (block0 + p / kTiles) * kBlockK + lane % 4 * 32;
#pragma unroll
      for (int part = 0; part < 4; ++part)
        held[j][part] =
            load_x8_or_zeros(c, first + token * c.x_row, k + 8 * part, p < places && token < count);
    }
#pragma unroll
    for (int j = 0; j < kOnTheWay; ++j) {
      const int p = p0 + j * kWarps;
      if (p >= places) continue;
      uint4* to = x_shared + (p / kTiles * 4 * kTiles + p % kTiles) * 32 + lane;
      const uint4(&h)[4] = held[j];
      to[0 * kTiles * 32] = {h[0].x, h[1].x, h[2].x, h[3].x};
      to[1 * kTiles * 32] = {h[0].y, h[1].y, h[2].y, h[3].y};
      to[2 * kTiles * 32] = {h[0].z, h[1].z, h[2].z, h[3].z};
      to[3 * kTiles * 32] = {h[0].w, h[1].w, h[2].w, h[3].w};
    }
  }
}

/// Brings `count` rows of x, and zeros up to 8 * kTiles, to shared memory: a warp fills one place
/// of 32 lanes after the other, with several loads on their way.
template <class Codec, int kTiles, int kThreads>
__device__ void stage_x(
    const ProductCall& c, int64_t first, int count, int block0, int blocks, uint4* x_shared) {
  if constexpr (Codec::kTransposed)
    return stage_x_transposed<kTiles, kThreads>(c, first, count, block0, blocks, x_shared);
  constexpr int kGroups = Codec::kGroups;
  constexpr int kOnTheWay = 8;
  constexpr int kWarps = kThreads / 32;
  const int lane = lane_id();
  const int places = blocks * 4 * kTiles;
  for (int p0 = warp_id(); p0 < places; p0 += kWarps * kOnTheWay) {
    uint4 held[kOnTheWay];
#pragma unroll
    for (int j = 0; j < kOnTheWay; ++j) {
      const int p = p0 + j * kWarps;
      const int group = p / kTiles % 4;
      const int token = p % kTiles * 8 + lane / 4;
      const int k = (block0 + p / (4 * kTiles)) * kBlockK + group / kGroups * 32 * kGroups +
                    lane % 4 * 8 * kGroups + group % kGroups * 8;
      held[j] = load_x8_or_zeros(c, first + token * c.x_row, k, p < places && token < count);
    }
#pragma unroll
    for (int j = 0; j < kOnTheWay; ++j) {
      const int p = p0 + j * kWarps;
      if (p < places) x_shared[p * 32 + lane] = held[j];
    }
  }
}

/// Shared memory of a block, beside x: weights on their way, and their scales.
///
///   slots[slot][row lane/4, that + 8][load][thread]: 16 bytes, of one thread alone
///   scales: [64 rows][pitch] E4M3, or one float a block of k
template <class Codec>
struct WeightSlots {
  static constexpr int kSlot = 2 * Codec::kLoads * kBlockTileThreads;  // of 16 bytes
  static constexpr int kSlotBytes = Codec::kAhead * kSlot * 16;

  __host__ __device__ static int scale_pitch(int slice_blocks) { return slice_blocks * 8 + 8; }

  __host__ __device__ static int scale_bytes(int slice_blocks) {
    if (Codec::kScale == ScaleKind::kOneASixteen) return kBlockTileRows * scale_pitch(slice_blocks);
    return Codec::kScale == ScaleKind::kOneABlock ? (slice_blocks * 4 + 15) / 16 * 16 : 0;
  }
};

/// The weights of 64 rows and a slice of k, on their way through shared memory.
template <class Codec>
class BlockTileWeights {
 public:
  using Slots = WeightSlots<Codec>;

  __device__ BlockTileWeights(
      const ProductCall& c, int e, int tile, int begin, int end, int slice_blocks, uint4* memory)
      : slots_(memory + threadIdx.x),
        scales_(reinterpret_cast<uint8_t*>(memory) + Slots::kSlotBytes),
        begin_(begin),
        end_(end),
        k_(begin * kBlockK + (lane_id() & 3) * Codec::kLoadK),
        K_(c.K),
        pitch_(Slots::scale_pitch(slice_blocks)) {
    const int n = tile * kBlockTileRows + warp_id() * 16 + (lane_id() >> 2);
    // Rows past the end read the last one; nothing of them is stored.
    const uint8_t* w = c.w + e * c.w_matrix;
    rows_[0] = w + min(n, c.N - 1) * c.w_row;
    rows_[1] = w + min(n + 8, c.N - 1) * c.w_row;
    start_scales(c, e, tile);
    end_copy_group();
    for (int slot = 0; slot < Codec::kAhead; ++slot)
      start(slot);
  }

  /// This thread's part of the scales has come. After a barrier all threads may use all of them.
  __device__ static void wait_for_scales() { wait_copy_groups<Codec::kAhead>(); }

  /// Adds block number `i` of the slice, whose place is `slot`, and starts the block that follows
  /// there.
  template <int kTiles>
  __device__ __forceinline__ void multiply(int i,
                                           int slot,
                                           const uint4* x,
                                           float (&total)[kTiles][4]) {
    wait_copy_groups<Codec::kAhead - 1>();
    float sums[kTiles][4] = {};
    float others[kTiles][4] = {};  // a second chain, so that products need not wait for each other
    const uint4* mine = slots_ + slot * Slots::kSlot;
    const uint32_t scale_g = lane_scales(i, 0);
    const uint32_t scale_g8 = lane_scales(i, 8);
#pragma unroll
    for (int l = 0; l < Codec::kLoads; ++l) {
      const uint4 a = mine[l * kBlockTileThreads];
      const uint4 b = mine[(Codec::kLoads + l) * kBlockTileThreads];
      multiply_groups<kTiles>(a, b, scale_g, scale_g8, x + l * Codec::kGroups * kTiles * 32, sums,
                              others);
    }
    const float scale =
        Codec::kScale == ScaleKind::kOneABlock ? reinterpret_cast<const float*>(scales_)[i] : 1.0f;
#pragma unroll
    for (int tile = 0; tile < kTiles; ++tile) {
#pragma unroll
      for (int j = 0; j < 4; ++j)
        total[tile][j] = fmaf(scale, sums[tile][j] + others[tile][j], total[tile][j]);
    }
    start(slot);
  }

 private:
  /// Starts the next block that has not been started.
  __device__ __forceinline__ void start(int slot) {
    if (begin_ < end_) {
      uint4* mine = slots_ + slot * Slots::kSlot;
#pragma unroll
      for (int l = 0; l < Codec::kLoads; ++l) {
        const int k = k_ + l * 4 * Codec::kLoadK;
        const int64_t at = int64_t{k} * 16 / Codec::kLoadK;
        copy_async<16>(mine + l * kBlockTileThreads, rows_[0] + (k < K_ ? at : 0), k < K_);
        copy_async<16>(mine + (Codec::kLoads + l) * kBlockTileThreads, rows_[1] + (k < K_ ? at : 0),
                       k < K_);
      }
      k_ += kBlockK;
      ++begin_;
    }
    end_copy_group();
  }

  __device__ void start_scales(const ProductCall& c, int e, int tile) {
    const int blocks = end_ - begin_;
    const int tid = static_cast<int>(threadIdx.x);
    if constexpr (Codec::kScale == ScaleKind::kOneASixteen) {
      const uint8_t* scales = c.scales + e * c.scale_matrix + begin_ * 8;
      // Four scales at a time: two threads a block and row.
      for (int i = tid; i < kBlockTileRows * blocks * 2; i += kBlockTileThreads) {
        const int row = i / (blocks * 2);
        const int word = i - row * blocks * 2;
        const bool exists = begin_ * 8 + word * 4 < c.K / 16;
        const int n = min(tile * kBlockTileRows + row, c.N - 1);
        copy_async<4>(scales_ + row * pitch_ + word * 4,
                      scales + n * c.scale_row + (exists ? word * 4 : 0), exists);
      }
    } else if constexpr (Codec::kScale == ScaleKind::kOneABlock) {
      const int64_t at = e * c.scale_matrix + tile * kBlockTileRows / 128 * c.scale_row + begin_;
      for (int i = tid; i < blocks; i += kBlockTileThreads) {
        reinterpret_cast<float*>(scales_)[i] =
            c.scale_format == Format::kF32 ? reinterpret_cast<const float*>(c.scales)[at + i]
                                           : to_float(Ue8m0{c.scales[at + i]});
      }
    }
  }

  /// The two scales of this lane's 32 k in block i, of row lane / 4 + more.
  __device__ __forceinline__ uint32_t lane_scales(int i, int more) const {
    if constexpr (Codec::kScale == ScaleKind::kOneASixteen) {
      const int row = warp_id() * 16 + (lane_id() >> 2) + more;
      return lifted_scales(
          *reinterpret_cast<const uint16_t*>(scales_ + row * pitch_ + i * 8 + (lane_id() & 3) * 2));
    }
    return 0;
  }

  template <int kTiles, int i = 0>
  __device__ __forceinline__ static void multiply_groups(const uint4& row_g,
                                                         const uint4& row_g8,
                                                         uint32_t scale_g,
                                                         uint32_t scale_g8,
                                                         const uint4* x,
                                                         float (&sums)[kTiles][4],
                                                         float (&others)[kTiles][4]) {
    if constexpr (i < Codec::kGroups) {
      uint32_t a[4];
      uint32_t b[4];
      Codec::template decode<i>(row_g, scale_g, a);
      Codec::template decode<i>(row_g8, scale_g8, b);
#pragma unroll
      for (int tile = 0; tile < kTiles; ++tile) {
        const uint4 v = x[(i * kTiles + tile) * 32];
        mma_16x8x16(sums[tile], a[0], b[0], a[1], b[1], v.x, v.y);
        mma_16x8x16(others[tile], a[2], b[2], a[3], b[3], v.z, v.w);
      }
      multiply_groups<kTiles, i + 1>(row_g, row_g8, scale_g, scale_g8, x, sums, others);
    }
  }

  uint4* slots_;
  uint8_t* scales_;
  const uint8_t* rows_[2];
  int begin_;  // the next block to start
  int end_;
  int k_;  // where this lane's part of it begins
  int K_;
  int pitch_;
};

template <class Codec, int kTiles>
__device__ void add_sums(const ProductCall& c,
                         int e,
                         int64_t first,
                         int count,
                         int tile,
                         int split,
                         float (&total)[kTiles][4],
                         float* sums) {
  const int g = lane_id() >> 2;
  const int t = lane_id() & 3;
#pragma unroll
  for (int i = 0; i < kTiles; ++i) {
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      const int token = i * 8 + 2 * t + (j & 1);
      sums[token * kSumPitch + warp_id() * 16 + g + (j >> 1) * 8] = total[i][j];
    }
  }
  if (split > 1) {
    cluster_sync();
  } else {
    __syncthreads();
  }
  const int rank = split > 1 ? static_cast<int>(cluster_rank()) : 0;
  const int share = kBlockTileRows / split;
  const float factor = c.factor(e);
  for (int i = static_cast<int>(threadIdx.x); i < count * share; i += kBlockTileThreads) {
    const int token = i / share;
    const int row = rank * share + i % share;
    if (tile * kBlockTileRows + row >= c.N) continue;
    const int at = token * kSumPitch + row;
    float sum = split == 1 ? sums[at] : 0.0f;
    for (int s = 0; split > 1 && s < split; ++s)
      sum += in_block(sums, static_cast<unsigned>(s))[at];
    const int n = tile * kBlockTileRows + row;
    store_any(c.y, c.y_format, e * c.y_matrix + c.row_of_y(first + token) * c.y_row + n,
              c.finished_of(e, sum * Codec::kFactor * factor, first + token, n));
  }
  if (split > 1) {
    cluster_sync();  // nobody overwrites or leaves what another still reads
  } else {
    __syncthreads();
  }
}

/// Rows `rows` of a matrix, 8 * kTiles at a time. `started` is called once the first weights are on
/// their way, before anything else is read.
template <class Codec, int kTiles, class Started>
__device__ void block_tile_tile(const ProductCall& c,
                                const BlockTilePlan& plan,
                                int e,
                                int tile,
                                int slice,
                                RowRange rows,
                                uint4* slots,
                                Started&& started) {
  const int begin = slice * plan.slice_blocks;
  const int end = max(begin, min(plan.num_blocks, begin + plan.slice_blocks));
  uint4* x_shared = slots + plan.x_at / 16;
  auto* sums = reinterpret_cast<float*>(slots + plan.sums_at / 16);
  constexpr int kBatch = 8 * kTiles;
  for (int done = 0; done < rows.count; done += kBatch) {
    BlockTileWeights<Codec> w(c, e, tile, begin, end, plan.slice_blocks, slots);
    started();
    const int count = min(kBatch, rows.count - done);
    const int64_t first = int64_t{rows.first} + done;
    stage_x<Codec, kTiles, kBlockTileThreads>(c, e * c.x_matrix + first * c.x_row, count, begin,
                                              end - begin, x_shared);
    w.wait_for_scales();
    __syncthreads();
    float total[kTiles][4] = {};
    for (int i = 0, slot = 0; i < end - begin; ++i) {
      w.multiply(i, slot, x_shared + i * 4 * kTiles * 32 + lane_id(), total);
      slot = slot + 1 == Codec::kAhead ? 0 : slot + 1;
    }
    add_sums<Codec, kTiles>(c, e, first, count, tile, plan.split, total, sums);
  }
}

template <class Codec, int kTiles>
__global__ void __launch_bounds__(kBlockTileThreads, kTiles == 1 ? 5 : 4)
    block_tile_products(ProductCall c, BlockTilePlan plan) {
  extern __shared__ uint4 slots[];
  let_next_start();
  const int item = static_cast<int>(blockIdx.x) / plan.split;
  const int slice = static_cast<int>(blockIdx.x) % plan.split;
  block_tile_tile<Codec, kTiles>(c, plan, item / plan.row_tiles, item % plan.row_tiles, slice,
                                 {0, c.T}, slots, [] { wait_for_previous(); });
}

/// The experts that have rows, in order; their number. For one warp's ballots at a time.
__device__ inline int find_active(const ProductCall& c, int16_t* active) {
  __shared__ int found;
  if (warp_id() == 0) {
    int n = 0;
    for (int e0 = 0; e0 < c.matrices; e0 += 32) {
      const int e = e0 + lane_id();
      const bool is_active = e < c.matrices && c.offsets[e + 1] > c.offsets[e];
      const unsigned mask = __ballot_sync(0xFFFFFFFFu, is_active);
      if (is_active) active[n + __popc(mask & ((1u << lane_id()) - 1))] = static_cast<int16_t>(e);
      n += __popc(mask);
    }
    if (lane_id() == 0) found = n;
  }
  __syncthreads();
  return found;
}

/// The same for experts: a fixed number of clusters shares out what there is.
template <class Codec, int kTiles>
__global__ void __launch_bounds__(kBlockTileThreads, kTiles == 1 ? 5 : 4)
    block_tile_expert_products(ProductCall c, BlockTilePlan plan) {
  extern __shared__ uint4 slots[];
  auto* active = reinterpret_cast<int16_t*>(reinterpret_cast<char*>(slots) + plan.active_at);
  let_next_start();
  wait_for_previous();
  const int items = find_active(c, active) * plan.row_tiles;
  const int slice = static_cast<int>(blockIdx.x) % plan.split;
  const int clusters = static_cast<int>(gridDim.x) / plan.split;
  for (int item = static_cast<int>(blockIdx.x) / plan.split; item < items; item += clusters) {
    const int e = active[item / plan.row_tiles];
    block_tile_tile<Codec, kTiles>(c, plan, e, item % plan.row_tiles, slice, rows_of_matrix(c, e),
                                   slots, [] {});
  }
}

template <class Codec, int kTiles>
Status launch_block_per_tile(Exec& ex, const ProductCall& c, BlockTilePlan plan) {
  using Slots = WeightSlots<Codec>;
  plan.x_at = Slots::kSlotBytes + Slots::scale_bytes(plan.slice_blocks);
  plan.sums_at = plan.x_at + plan.slice_blocks * kTiles * 4 * 32 * 16;
  plan.active_at = plan.sums_at + 8 * kTiles * kSumPitch * 4;
  const int64_t shared =
      plan.active_at + (c.offsets == nullptr ? 0 : c.matrices * int64_t{sizeof(int16_t)});
  LaunchShape shape{.threads = kBlockTileThreads, .shared_bytes = shared, .cluster = plan.split};
  if (c.offsets == nullptr) {
    shape.blocks = int64_t{c.matrices} * plan.row_tiles * plan.split;
    return launch_kernel(ex, block_tile_products<Codec, kTiles>, shape, c, plan);
  }
  const int64_t room = std::max<int64_t>(1, (int64_t{224} << 10) / (shared + (1 << 10)));
  const int64_t blocks = ex.device->num_sms * std::min<int64_t>(6, room);
  shape.blocks = std::max<int64_t>(1, blocks / plan.split) * plan.split;
  return launch_kernel(ex, block_tile_expert_products<Codec, kTiles>, shape, c, plan);
}

/// Runs a product. More than 32 rows go in batches, each of which reads the weights again.
template <class Codec>
Status run_block_per_tile(Exec& ex, const ProductCall& c) {
  FATHOM_CHECK(!c.w_is_made, "a stream of weights begins before earlier kernels are done");
  if (c.T == 0 || c.N == 0 || c.matrices == 0) return {};
  const BlockTilePlan plan = block_tile_plan(c, ex.device->num_sms, 16);
  const int tokens = c.offsets == nullptr ? c.T : (c.T <= 2 * c.matrices ? 8 : 16);
  if (tokens <= 8) return launch_block_per_tile<Codec, 1>(ex, c, plan);
  if (tokens <= 16 || plan.slice_blocks > 18) return launch_block_per_tile<Codec, 2>(ex, c, plan);
  return launch_block_per_tile<Codec, 4>(ex, c, plan);
}

/// Whether sixteen bytes of w lie in one row, and eight elements of x can be loaded at once.
template <class Args>
bool loads_in_vectors(const Args& a, int64_t k_multiple) {
  return has_rows(a) && a.w.cols() % k_multiple == 0 && a.w.cols() > 0 &&
         reinterpret_cast<uintptr_t>(a.w.values.data) % 16 == 0 && takes_vectors(a.x);
}

}  // namespace fathom::cuda
