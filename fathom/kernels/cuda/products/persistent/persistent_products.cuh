// Products of few rows: weights stream once from memory through shared memory and registers into
// the tensor cores.
//
// A cluster of blocks shares the k of its tiles of 128 rows of w; a block of eight warps keeps its
// slice of the activations in shared memory and walks over tiles, sixteen rows a warp. The copies
// of weights (and of their scales) run ahead over the ends of tiles, so that memory never waits for
// a tile to be finished. The sums of a tile are added up through distributed shared memory, in the
// order of the slices, while the next tile is on its way. The activations lie in the order in which
// lanes need them:
//
//   x_shared[block of 128 k][group 0..3][8 tokens][lane]: 16 bytes, eight k of token lane/4
//
// Which slices there are follows from the matrix and the GPU alone, so that a row has the same bits
// in every batch.
#pragma once

#include <algorithm>

#include "fathom/kernels/cuda/clusters_at_once.h"
#include "fathom/kernels/cuda/codecs.cuh"
#include "fathom/kernels/cuda/launch_cuda.h"
#include "fathom/kernels/cuda/products/block_per_tile.cuh"
#include "fathom/kernels/cuda/products/cluster.cuh"
#include "fathom/kernels/cuda/products/persistent/tile_cursor.cuh"
#include "fathom/kernels/cuda/rows.cuh"

namespace fathom::cuda {

inline constexpr int kPersistentRows = 128;  // of w, in a tile
inline constexpr int kPersistentThreads = 256;
inline constexpr int kPersistentPitch =
    kPersistentRows + 4;                     // floats: lanes of a quad in different banks
inline constexpr int kMostSliceBlocks = 16;  // of 128 k

/// Blocks of 128 k of a slot: two where these are few bytes, so that what every slot costs is paid
/// half as often.
template <class Codec>
inline constexpr int kSlotBlocks = Codec::kLoads == 1 ? 2 : 1;

template <class Codec, int kTiles>
struct PersistentMemory {
  static constexpr int kLoads = Codec::kLoads * kSlotBlocks<Codec>;
  static constexpr int kWeights = 2 * kLoads * kPersistentThreads * 16;  // bytes of a slot
  static constexpr bool kHasScales = Codec::kScale == ScaleKind::kOneASixteen;
  static constexpr int kRowScales = 8 * kSlotBlocks<Codec>;  // bytes
  static constexpr int kScales = kHasScales ? kPersistentRows * kRowScales : 0;
  static constexpr int kSlot = kWeights + kScales;
  /// So many slots that two or three blocks of threads have room on a multiprocessor.
  static constexpr int kAhead = kSlot > (16 << 10) || (kSlot > (9 << 10) && kTiles > 1) ? 2 : 3;
  static constexpr int kXAt = kAhead * kSlot;
  static constexpr int kBlockX = kTiles * 4 * 32 * 16;
  static constexpr int kSums = 8 * kTiles * kPersistentPitch;  // floats of one buffer

  __host__ __device__ static int sums_at(int slice_blocks) { return kXAt + slice_blocks * kBlockX; }

  __host__ __device__ static int starts_at(int slice_blocks) {
    return sums_at(slice_blocks) + 2 * kSums * 4;
  }
};

// ---- weights ----

/// The scale of a block of the weights of a warp, sixteen rows; with a gate one of its eight gate
/// rows and one of its up rows (kGatedRows).
template <bool kGated>
struct WarpScale {
  float scale = 1.0f;

  /// For sum j of a lane.
  __device__ __forceinline__ float of(int /*j*/) const { return scale; }
};

template <>
struct WarpScale<true> {
  float gate = 1.0f;
  float up = 1.0f;

  __device__ __forceinline__ float of(int j) const { return j < 2 ? gate : up; }
};

/// The weights of a block's items, one block of 128 k after the other, on their way through slots
/// of shared memory. What a warp brings, it alone reads.
///
///   slot: [row lane/4, that + 8][block, load][thread]: 16 bytes; [row]: eight E4M3 scales a block
template <class Codec, int kTiles, bool kGated>
class PersistentWeights {
 public:
  using Memory = PersistentMemory<Codec, kTiles>;
  using Cursor = TileCursor<8 * kTiles>;

  __device__ PersistentWeights(const ProductCall& call,
                               const Cursor& items,
                               int begin_block,
                               int end_block,
                               unsigned char* slots)
      : c_(call),
        items_(items),
        slots_(slots + threadIdx.x * 16),
        scales_(slots + Memory::kWeights + warp_id() * 16 * Memory::kRowScales),
        begin_(begin_block),
        end_(end_block) {
    go_to_item();
#pragma unroll
    for (int slot = 0; slot < Memory::kAhead; ++slot)
      start(slot);
  }

  /// Adds a slot of k, the next in order, to the sums; it is filled again.
  __device__ __forceinline__ void multiply(int slot,
                                           const uint4* x,
                                           const WarpScale<kGated>& block_scale,
                                           float (&total)[kTiles][4]) {
    wait_copy_groups<Memory::kAhead - 1>();
    if constexpr (Memory::kHasScales) __syncwarp();
    float sums[kTiles][4] = {};
    float others[kTiles][4] = {};  // a second chain, so that products need not wait for each other
    const auto* mine = reinterpret_cast<const uint4*>(slots_ + slot * Memory::kSlot);
#pragma unroll
    for (int block = 0; block < kSlotBlocks<Codec>; ++block) {
      const uint32_t scale_g = lane_scales(slot, 0, block);
      const uint32_t scale_g8 = lane_scales(slot, 8, block);
#pragma unroll
      for (int l = block * Codec::kLoads; l < (block + 1) * Codec::kLoads; ++l) {
        const uint4 a = mine[l * kPersistentThreads];
        const uint4 b = mine[(Memory::kLoads + l) * kPersistentThreads];
        multiply_groups(a, b, scale_g, scale_g8, x + l * Codec::kGroups * kTiles * 32, sums,
                        others);
      }
    }
#pragma unroll
    for (int tile = 0; tile < kTiles; ++tile) {
#pragma unroll
      for (int j = 0; j < 4; ++j)
        total[tile][j] = fmaf(block_scale.of(j), sums[tile][j] + others[tile][j], total[tile][j]);
    }
    if constexpr (Memory::kHasScales) __syncwarp();
    start(slot);
  }

 private:
  static constexpr int kLaneScales = Memory::kRowScales / 2;  // bytes that a lane brings

  __device__ __forceinline__ void go_to_item() {
    block_ = begin_;
    if (!items_.more()) {
      block_ = end_;
      return;
    }
    const ProductCall& c = c_;
    const TileItem it = items_.item();
    items_.next();
    const int n = it.tile * kPersistentRows + warp_id() * 16;
    const int g = lane_id() >> 2;
    // Rows past the end read the last one and are not stored.
    const uint8_t* w = c.w + it.e * c.w_matrix;
    const int64_t at = begin_ * (kBlockK * 16 / Codec::kLoadK) + (lane_id() & 3) * 16;
    rows_[0] = w + row_of_w<kGated>(c, n + g) * c.w_row + at;
    rows_[1] = w + row_of_w<kGated>(c, n + g + 8) * c.w_row + at;
    if constexpr (Memory::kHasScales) {
      scale_row_ = c.scales + it.e * c.scale_matrix +
                   row_of_w<kGated>(c, n + (lane_id() >> 1)) * c.scale_row + begin_ * 8 +
                   (lane_id() & 1) * kLaneScales;
    }
  }

  /// Starts the next slot that has not been started.
  __device__ __forceinline__ void start(int slot) {
    if (block_ < end_) {
      const int K = c_.K;
      auto* mine = reinterpret_cast<uint4*>(slots_ + slot * Memory::kSlot);
      const int first_k = block_ * kBlockK + (lane_id() & 3) * Codec::kLoadK;
#pragma unroll
      for (int l = 0; l < Memory::kLoads; ++l) {
        const bool exists = first_k + l * 4 * Codec::kLoadK < K;
        const int more = exists ? l * 64 : 0;
        copy_async<16>(mine + l * kPersistentThreads, rows_[0] + more, exists);
        copy_async<16>(mine + (Memory::kLoads + l) * kPersistentThreads, rows_[1] + more, exists);
      }
      rows_[0] += Memory::kLoads * 64;
      rows_[1] += Memory::kLoads * 64;
      if constexpr (Memory::kHasScales) {
        const bool exists = block_ * 8 + (lane_id() & 1) * kLaneScales < K / 16;
        copy_async<kLaneScales>(scales_ + slot * Memory::kSlot + lane_id() * kLaneScales,
                                exists ? scale_row_ : c_.scales, exists);
        scale_row_ += Memory::kRowScales;
      }
      block_ += kSlotBlocks<Codec>;
      if (block_ >= end_) go_to_item();
    }
    end_copy_group();
  }

  /// The two scales of this lane's 32 k in a block, of row lane / 4 + more.
  __device__ __forceinline__ uint32_t lane_scales(int slot, int more, int block) const {
    if constexpr (Memory::kHasScales) {
      const int row = (lane_id() >> 2) + more;
      return lifted_scales(*reinterpret_cast<const uint16_t*>(scales_ + slot * Memory::kSlot +
                                                              row * Memory::kRowScales + block * 8 +
                                                              (lane_id() & 3) * 2));
    }
    return 0;
  }

  template <int i = 0>
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
      multiply_groups<i + 1>(row_g, row_g8, scale_g, scale_g8, x, sums, others);
    }
  }

  const ProductCall& c_;
  Cursor items_;  // those to start
  unsigned char* slots_;
  unsigned char* scales_;
  const uint8_t* rows_[2];
  const uint8_t* scale_row_ = nullptr;
  int block_;  // the next to start
  int begin_;
  int end_;
};

/// The scale of 128 x 128 weights; 1 where there is none.
template <class Codec, bool kGated>
__device__ __forceinline__ WarpScale<kGated> persistent_scale(const ProductCall& c,
                                                              const TileItem& it,
                                                              int block) {
  if constexpr (Codec::kScale != ScaleKind::kOneABlock) {
    return {};
  } else if constexpr (kGated) {
    const int output = (it.tile * kPersistentRows + warp_id() * kGatedRows) / 2;
    return {block_scale(c, it.e, output / kBlockK, block),
            block_scale(c, it.e, (c.N / 2 + output) / kBlockK, block)};
  } else {
    return {block_scale(c, it.e, it.tile, block)};
  }
}

// ---- sums ----

/// The sums of a block's part of a tile, [token][row].
template <int kTiles>
__device__ __forceinline__ void keep_persistent_sums(const float (&total)[kTiles][4], float* sums) {
  const int g = lane_id() >> 2;
  const int t = lane_id() & 3;
#pragma unroll
  for (int i = 0; i < kTiles; ++i) {
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      const int token = i * 8 + 2 * t + (j & 1);
      sums[token * kPersistentPitch + warp_id() * 16 + g + (j >> 1) * 8] = total[i][j];
    }
  }
}

/// The sum of all slices at a place of theirs.
__device__ __forceinline__ float sum_of_slices(float* sums, int at, int split) {
  if (split == 1) return sums[at];
  float sum = 0.0f;
#pragma unroll 4
  for (int s = 0; s < split; ++s)
    sum += in_block(sums, static_cast<unsigned>(s))[at];
  return sum;
}

/// Adds up a tile's slices and stores this block's share of its gated outputs, half as many as it
/// has rows: whole groups, as a block has sixteen rows or more.
__device__ __forceinline__ void finish_gated_item(
    const ProductCall& c, const TileItem& it, float factor, int split, float* sums) {
  const int rank = split > 1 ? static_cast<int>(cluster_rank()) : 0;
  const int share = kPersistentRows / 2 / split;  // of outputs; a power of two
  const int shift = __ffs(share) - 1;
  for (int i = static_cast<int>(threadIdx.x); i < it.count * share; i += kPersistentThreads) {
    const int token = i >> shift;
    const int output = rank * share + (i & (share - 1));
    const int n = it.tile * (kPersistentRows / 2) + output;
    if (n >= c.width()) continue;
    const int at = token * kPersistentPitch + output / 8 * kGatedRows + (output & 7);
    const float gate = sum_of_slices(sums, at, split) * factor;
    const float up = sum_of_slices(sums, at + 8, split) * factor;
    static_cast<Bf16*>(c.y)[(it.first + token) * c.y_row + n] =
        bf16_from_float(swiglu(gate, up, c.gate_limit));
  }
}

/// Adds up a tile's slices and stores this block's share of its rows.
inline __device__ void finish_item(
    const ProductCall& c, const TileItem& it, float factor, int split, float* sums) {
  const int rank = split > 1 ? static_cast<int>(cluster_rank()) : 0;
  const int share = kPersistentRows / split;  // a power of two
  const int shift = __ffs(share) - 1;
  for (int i = static_cast<int>(threadIdx.x); i < it.count * share; i += kPersistentThreads) {
    const int token = i >> shift;
    const int row = rank * share + (i & (share - 1));
    const int n = it.tile * kPersistentRows + row;
    if (n >= c.N) continue;
    const int at = token * kPersistentPitch + row;
    const float sum = sum_of_slices(sums, at, split);
    const int64_t x_row = it.first + token;
    store_any(c.y, c.y_format,
              (c.offsets != nullptr ? 0 : it.e * c.y_matrix) + c.row_of_y(x_row) * c.y_row + n,
              c.finished_of(it.e, sum * factor, x_row, n));
  }
}

template <bool kGated>
__device__ __forceinline__ void finish(
    const ProductCall& c, const TileItem& it, float factor, int split, float* sums) {
  if constexpr (kGated) {
    finish_gated_item(c, it, factor, split, sums);
  } else {
    finish_item(c, it, factor, split, sums);
  }
}

/// Between the sums of an item and their use: all blocks of the cluster, or of one alone.
struct PersistentBarrier {
  bool cluster;

  __device__ void arrive() const {
    if (cluster) asm volatile("barrier.cluster.arrive.release;" ::: "memory");
  }

  __device__ void wait() const {
    if (cluster) {
      asm volatile("barrier.cluster.wait.acquire;" ::: "memory");
    } else {
      __syncthreads();
    }
  }
};

// ---- the kernel ----

template <class Codec, int kTiles, bool kGated>
__global__ void __launch_bounds__(kPersistentThreads, kTiles == 1 ? 3 : 2)
    persistent_products(ProductCall c, PersistentPlan plan) {
  using Memory = PersistentMemory<Codec, kTiles>;
  constexpr int kPer = kSlotBlocks<Codec>;
  extern __shared__ __align__(16) unsigned char persistent_shared[];
  auto* const x_shared = reinterpret_cast<uint4*>(persistent_shared + Memory::kXAt);
  auto* const sums =
      reinterpret_cast<float*>(persistent_shared + Memory::sums_at(plan.slice_blocks));
  auto* const starts =
      reinterpret_cast<int*>(persistent_shared + Memory::starts_at(plan.slice_blocks));
  const bool waits = c.offsets != nullptr || c.w_is_made;
  if (waits) wait_for_previous();
  if (c.offsets != nullptr) {
    find_expert_items<8 * kTiles>(c, plan.row_tiles, kPersistentThreads, starts);
  }
  TileCursor<8 * kTiles> items(c, plan, starts);
  // Blocks of the next kernel would take room from those that have yet to come.
  if (!items.more_than_one()) let_next_start();
  const int slice = static_cast<int>(blockIdx.x) % plan.split;
  const int begin = min(slice * plan.slice_blocks, plan.num_blocks);
  const int end = min(begin + plan.slice_blocks, plan.num_blocks);
  PersistentWeights<Codec, kTiles, kGated> weights(c, items, begin, end, persistent_shared);
  if (!waits) wait_for_previous();
  const PersistentBarrier barrier{plan.split > 1};
  TileItem before{};
  TileItem it{-1, 0, 0, 0};
  float factor = 1.0f;
  int slot = 0;
  int done = 0;
  for (; items.more(); items.next(), ++done) {
    const int e = it.e;
    const int first = it.first;
    const float factor_before = factor;
    before = it;
    it = items.item();
    if (!items.more_than_one()) let_next_start();
    factor = c.factor(it.e) * Codec::kFactor;
    if (it.e != e || it.first != first) {
      __syncthreads();
      stage_x<Codec, kTiles, kPersistentThreads>(
          c, (c.offsets != nullptr ? 0 : it.e * c.x_matrix) + it.first * c.x_row, it.count, begin,
          (end - begin + kPer - 1) / kPer * kPer, x_shared);
      __syncthreads();
    }
    float total[kTiles][4] = {};
    WarpScale<kGated> scale;
    if (begin < end) scale = persistent_scale<Codec, kGated>(c, it, begin);
    for (int b = begin; b < end; b += kPer) {
      const WarpScale<kGated> now = scale;
      if (b + kPer < end) scale = persistent_scale<Codec, kGated>(c, it, b + kPer);
      weights.multiply(slot, x_shared + (b - begin) * kTiles * 128 + lane_id(), now, total);
      slot = slot + 1 == Memory::kAhead ? 0 : slot + 1;
    }
    if (done > 0) {
      barrier.wait();
      finish<kGated>(c, before, factor_before, plan.split, sums + ((done - 1) & 1) * Memory::kSums);
    }
    keep_persistent_sums(total, sums + (done & 1) * Memory::kSums);
    barrier.arrive();
  }
  if (done > 0) {
    barrier.wait();
    finish<kGated>(c, it, factor, plan.split, sums + ((done - 1) & 1) * Memory::kSums);
  }
  wait_copy_groups<0>();
  barrier.arrive();
  barrier.wait();  // nobody leaves what another still reads
}

// ---- the host ----

/// The slices of a matrix that need the least time: the blocks of k that a multiprocessor has, and
/// about four more for every tile that follows another.
inline PersistentPlan persistent_plan(const ProductCall& c, int num_sms, int slot_blocks) {
  PersistentPlan plan;
  plan.row_tiles = (c.N + kPersistentRows - 1) / kPersistentRows;
  plan.num_blocks = std::max(1, (c.K + kBlockK - 1) / kBlockK);
  const int64_t tiles = int64_t{plan.row_tiles} * (c.offsets == nullptr ? c.matrices : 8);
  int64_t best = -1;
  for (int split = 1; split <= 8; split *= 2) {
    const int whole = (plan.num_blocks + split - 1) / split;
    const int slice = (whole + slot_blocks - 1) / slot_blocks * slot_blocks;
    if (slice > kMostSliceBlocks && split < 8) continue;
    constexpr int64_t kItem = 4;
    const int64_t clusters = 3 * num_sms / split;
    const int64_t cost =
        (tiles * split + num_sms - 1) / num_sms * slice + (tiles + clusters - 1) / clusters * kItem;
    if (best >= 0 && cost >= best) continue;
    best = cost;
    plan.split = split;
    plan.slice_blocks = slice;
  }
  return plan;
}

template <class Codec, int kTiles, bool kGated>
Status launch_persistent(Exec& ex, const ProductCall& c, PersistentPlan plan) {
  using Memory = PersistentMemory<Codec, kTiles>;
  plan.batches = (c.T + 8 * kTiles - 1) / (8 * kTiles);
  const int shared = Memory::starts_at(plan.slice_blocks) +
                     (c.offsets == nullptr ? 0 : (c.matrices + 1) * static_cast<int>(sizeof(int)));
  int64_t clusters = std::max<int64_t>(
      1, clusters_at_once(ex.device->ordinal, {.kernel = reinterpret_cast<const void*>(
                                                   persistent_products<Codec, kTiles, kGated>),
                                               .threads = kPersistentThreads,
                                               .shared_bytes = shared,
                                               .cluster = plan.split}));
  if (c.offsets == nullptr)
    clusters = std::min(clusters, int64_t{plan.row_tiles} * plan.batches * c.matrices);
  return launch_kernel(ex, persistent_products<Codec, kTiles, kGated>,
                       {.blocks = clusters * plan.split,
                        .threads = kPersistentThreads,
                        .shared_bytes = shared,
                        .cluster = plan.split,
                        .alone = c.is_long()},
                       c, plan);
}

/// Whether copies of sixteen bytes fit: scales of a row come by eight bytes, those of 128 k.
template <class Codec>
bool takes_persistent(const ProductCall& c) {
  if (c.gated && !gates_by_groups(c)) return false;
  return Codec::kScale != ScaleKind::kOneASixteen ||
         (c.K % kBlockK == 0 && reinterpret_cast<uintptr_t>(c.scales) % 8 == 0);
}

/// Runs a product. More than 16 rows go in batches, each of which reads the weights again.
template <class Codec, bool kGated = false>
Status run_persistent(Exec& ex, const ProductCall& c) {
  if (c.T == 0 || c.N == 0 || c.matrices == 0) return {};
  const PersistentPlan plan = persistent_plan(c, ex.device->num_sms, kSlotBlocks<Codec>);
  // Of experts with four rows on average two in a hundred have more than eight.
  const bool few = c.offsets == nullptr ? c.T <= 8 : c.T <= 4 * int64_t{c.matrices};
  if (few) return launch_persistent<Codec, 1, kGated>(ex, c, plan);
  return launch_persistent<Codec, 2, kGated>(ex, c, plan);
}

}  // namespace fathom::cuda
