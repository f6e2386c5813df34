// What products in tiles (tile_products.cuh) are made of: the stages in shared memory, the tiles
// that a block takes, and the scales that come beside them.
#pragma once

#include <algorithm>

#include "fathom/kernels/cuda/launch_cuda.h"
#include "fathom/kernels/cuda/products/tile_codecs.cuh"
#include "fathom/kernels/cuda/rows.cuh"
#include "fathom/kernels/cuda/tensor_map.cuh"

namespace fathom::cuda {

template <class Codec>
inline constexpr int kTileRows = 64 * Codec::kGroups* Codec::kRowBlocks;  ///< of w
template <class Codec>
inline constexpr int kTileThreadsOfProduct = (Codec::kGroups + 1) * kWarpgroup;
inline constexpr int kSideThreads = kWarpgroup - 32;  ///< that bring what comes beside stages
inline constexpr int kMostTileWarps = 16;             ///< that compute
inline constexpr int kBand = 8;  ///< tiles of x that share the weights they read in the last cache

struct TileMaps {
  CUtensorMap x;
  CUtensorMap w;
};

struct TilePlan {
  int row_tiles = 0;    ///< of w
  int token_tiles = 0;  ///< of x, of one matrix; with offsets, of none
  int stages = 0;       ///< of k
  int split = 1;        ///< slices of k: blocks in a cluster, which then take one tile
  int slice = 0;        ///< stages of a slice
  /// Blocks that share the stages of weights of all tiles equally, one behind the other.
  int shares = 0;
  int units = 0;              ///< stages of weights of a tile
  float4* parts = nullptr;    ///< sums of tiles that another block finishes
  uint32_t* ready = nullptr;  ///< [block][warp]: 1 while they wait to be taken

  FATHOM_HD int all_units() const { return row_tiles * token_tiles * units; }

  /// The first unit of a block's share.
  FATHOM_HD int share_begin(int block) const { return block * all_units() / shares; }

  /// The block that has a unit.
  FATHOM_HD int block_of(int unit) const { return ((unit + 1) * shares - 1) / all_units(); }
};

/// Whether x is the first operand. A lane then has sums of two rows of x, not of 32, and so two of
/// the scales that change with every stage; few rows of x would leave rows of the operand empty.
template <class Codec, int kTokens>
inline constexpr bool kXFirst = kTokens == 128 && Codec::kSide == TileSide::kTokenScales;

/// The first row of x and of w of a tile that block `block` of a warpgroup's sums is of.
struct SumsPlace {
  int token;
  int row;
};

template <class Codec, int kTokens>
__device__ __forceinline__ SumsPlace sums_place(int wg, int block) {
  if constexpr (!kXFirst<Codec, kTokens>) return {0, (wg * Codec::kRowBlocks + block) * 64};
  return Codec::kRowBlocks > 1 ? SumsPlace{64 * block, 128 * wg} : SumsPlace{64 * wg, 0};
}

/// What comes beside a row of w in a stage: its scales, or its tables of codes.
inline constexpr int kSideRowBytes = 64;

template <class Codec, int kTokens>
struct TileMemory {
  static constexpr bool kOwnRing = Codec::kWEvery > 1;  ///< of w
  /// Stages of k that a slot of the ring of x has. With few rows of x a slot has as many k as one
  /// of w: what every slot costs is then paid less often.
  static constexpr int kXEvery = kOwnRing && kTokens <= kFewTokens ? Codec::kWEvery : 1;
  static constexpr int kXPanels = kXEvery * Codec::kStageK * Codec::kXElement / kPanelRowBytes;
  static constexpr int kXPanelBytes = kTokens * kPanelRowBytes;
  static constexpr int kXBytes = kXPanels * kXPanelBytes;
  static constexpr int kWBytes = kTileRows<Codec> * Codec::kWRow * Codec::kWEvery;
  static constexpr int kStageBytes = kXBytes + (kOwnRing ? 0 : kWBytes);
  static constexpr int kSideBytes =
      Codec::kSide == TileSide::kNone        ? 0
      : Codec::kSide == TileSide::kRowScales ? kTileRows<Codec> * kSideRowBytes
      : Codec::kSide == TileSide::kTables    ? kTileRows<Codec> * kSideRowBytes + 128 * 4
                                             : Codec::kRowBlocks * 128 * 4;
  static constexpr int kWStages = !kOwnRing ? 0 : kTokens <= 64 ? 3 : 2;
  /// 64 rows of w of up to 64 outputs a warpgroup.
  static constexpr int kOutOfGroup = std::min(64, kTokens) * kPanelRowBytes;
  static constexpr int kOutBytes = Codec::kGroups * kOutOfGroup;
  static constexpr int kWRingBytes = kWStages * (kWBytes + kSideBytes);
  static constexpr int kRoom = (224 << 10) - kOutBytes - kWRingBytes;
  static constexpr int kMostStages = kXEvery > 1 ? 8 : 10;
  static constexpr int kStages =
      std::min(kMostStages, kRoom / (kStageBytes + (kOwnRing ? 0 : kSideBytes)));
  static constexpr int kSides = kOwnRing ? kWStages : kStages;
  static constexpr int kWRingAt = kStages * kStageBytes;
  static constexpr int kOutAt = kWRingAt + kWStages * kWBytes;
  static constexpr int kSideAt = kOutAt + kOutBytes;
  static constexpr int kBarriersAt = kSideAt + kSides * kSideBytes;
  static constexpr int kWBarriersAt = kBarriersAt + 16 * kStages;
  static constexpr int kStartsAt = kWBarriersAt + 16 * kWStages;
  static constexpr int kSumPitch = kTileRows<Codec> + 4;  // floats

  static constexpr int kAlign = 1024;  ///< of the first stage
  /// Of a call with offsets: more have no room for their table.
  static constexpr int kMostMatrices = ((227 << 10) - kAlign - kStartsAt) / 4 - 1;

  static int64_t bytes(int matrices) { return kStartsAt + (matrices + 1) * 4 + kAlign; }

  static_assert(kXPanels * kPanelRowBytes == kXEvery * Codec::kStageK * Codec::kXElement);
  static_assert(kTokens > 128 || kTokens * kSumPitch * 4 <= kSideAt,
                "sums of a split tile lie over the stages");
  static_assert(kMostMatrices >= 384, "as many experts as models of today have");
};

// ---- which tile ----

struct ProductTile {
  int e;
  int row_tile;
  int first;  ///< row of x within the matrix; with offsets, of all of x
  int count;  ///< rows of x, at most kTokens
};

/// The first tile of every expert, in a table; starts[matrices] is their number. For all threads.
template <int kTokens>
__device__ void find_expert_tiles(const ProductCall& c, const TilePlan& plan, int* starts) {
  if (warp_id() == 0) {
    int before = 0;
    for (int e0 = 0; e0 < c.matrices; e0 += 32) {
      const int e = e0 + lane_id();
      const int rows = e < c.matrices ? c.offsets[e + 1] - c.offsets[e] : 0;
      const int tiles = (rows + kTokens - 1) / kTokens * plan.row_tiles;
      int up_to = tiles;
#pragma unroll
      for (int step = 1; step < 32; step *= 2) {
        const int other = __shfl_up_sync(0xFFFFFFFFu, up_to, step);
        if (lane_id() >= step) up_to += other;
      }
      if (e < c.matrices) starts[e] = before + up_to - tiles;
      before += __shfl_sync(0xFFFFFFFFu, up_to, 31);
    }
    if (lane_id() == 0) starts[c.matrices] = before;
  }
  __syncthreads();
}

/// Tile number `item` of an expert that holds it: the tiles of x of the same weights follow each
/// other.
template <int kTokens>
__device__ ProductTile expert_tile(const ProductCall& c, const int* starts, int item) {
  int low = 0;
  int high = c.matrices;
  while (high - low > 1) {
    const int middle = (low + high) / 2;
    if (starts[middle] <= item) {
      low = middle;
    } else {
      high = middle;
    }
  }
  const int first = c.offsets[low];
  const int rows = c.offsets[low + 1] - first;
  const int token_tiles = (rows + kTokens - 1) / kTokens;
  const int at = item - starts[low];
  const int row_tile = at / token_tiles;
  const int done = (at - row_tile * token_tiles) * kTokens;
  return {low, row_tile, first + done, min(kTokens, rows - done)};
}

/// Tile number `item` without offsets: bands of kBand tiles of x walk along the rows of w.
template <int kTokens>
__device__ ProductTile matrix_tile(const ProductCall& c, const TilePlan& plan, int item) {
  const int each = plan.row_tiles * plan.token_tiles;
  const int e = item / each;
  const int at = item - e * each;
  const int band = at / (kBand * plan.row_tiles);
  const int rest = at - band * kBand * plan.row_tiles;
  const int width = min(kBand, plan.token_tiles - band * kBand);
  const int row_tile = rest / width;
  const int first = (band * kBand + rest - row_tile * width) * kTokens;
  return {e, row_tile, first, min(kTokens, c.T - first)};
}

/// Walks over the tiles and stages of a block, the same way in every warpgroup. Of a share, the
/// last tile comes first: its beginning is what another block waits for.
template <class Codec, int kTokens>
struct TileWalk {
  const ProductCall& c;
  const TilePlan& plan;
  const int* starts;
  int item;
  int bound;  ///< the item behind the last; of a share, the last, which is its lowest
  int begin;  ///< of the stages of k that this block takes
  int end;
  int stage = 0;
  uint32_t parity = 0;
  int w_stage = 0;  ///< of a ring of its own
  uint32_t w_parity = 0;

  __device__ TileWalk(const ProductCall& call, const TilePlan& p, const int* s)
      : c(call), plan(p), starts(s) {
    if constexpr (Codec::kBlocksShare) {
      bound = p.share_begin(static_cast<int>(blockIdx.x)) / p.units;
      item = (p.share_begin(static_cast<int>(blockIdx.x) + 1) - 1) / p.units;
      find_stages();
      return;
    }
    item = static_cast<int>(blockIdx.x) / p.split;
    bound = c.offsets != nullptr ? s[c.matrices] : p.row_tiles * p.token_tiles * c.matrices;
    const int slice = static_cast<int>(blockIdx.x) % p.split;
    begin = min(slice * p.slice, p.stages);
    end = min(begin + p.slice, p.stages);
  }

  __device__ bool more() const { return Codec::kBlocksShare ? item >= bound : item < bound; }

  __device__ bool is_last() const {
    return Codec::kBlocksShare ? item == bound
                               : item + static_cast<int>(gridDim.x) / plan.split >= bound;
  }

  __device__ void next_item() {
    if constexpr (Codec::kBlocksShare) {
      --item;
      find_stages();
    } else {
      item += static_cast<int>(gridDim.x) / plan.split;
    }
  }

  /// The stages of this tile that are this block's share.
  __device__ void find_stages() {
    const int first = item * plan.units;
    const auto block = static_cast<int>(blockIdx.x);
    begin = max(plan.share_begin(block) - first, 0) * Codec::kWEvery;
    end = min(min(plan.share_begin(block + 1) - first, plan.units) * Codec::kWEvery, plan.stages);
  }

  __device__ ProductTile tile() const {
    return c.offsets != nullptr ? expert_tile<kTokens>(c, starts, item)
                                : matrix_tile<kTokens>(c, plan, item);
  }

  __device__ __forceinline__ void next_stage() {
    if (++stage == TileMemory<Codec, kTokens>::kStages) {
      stage = 0;
      parity ^= 1;
    }
  }

  __device__ __forceinline__ void next_w_stage() {
    if (++w_stage == TileMemory<Codec, kTokens>::kWStages) {
      w_stage = 0;
      w_parity ^= 1;
    }
  }
};

/// Addresses in shared memory.
template <class Codec, int kTokens>
struct TilePlaces {
  using Memory = TileMemory<Codec, kTokens>;
  uint32_t base;

  __device__ uint32_t x(int stage) const {
    return base + static_cast<uint32_t>(stage * Memory::kStageBytes);
  }

  __device__ uint32_t w(int stage) const {
    if constexpr (Memory::kOwnRing)
      return base + static_cast<uint32_t>(Memory::kWRingAt + stage * Memory::kWBytes);
    return x(stage) + Memory::kXBytes;
  }

  __device__ uint32_t out(int wg) const {
    return base + static_cast<uint32_t>(Memory::kOutAt + wg * Memory::kOutOfGroup);
  }

  __device__ uint32_t side(int stage) const {
    return base + static_cast<uint32_t>(Memory::kSideAt + stage * Memory::kSideBytes);
  }

  __device__ uint32_t full(int stage) const {
    return base + static_cast<uint32_t>(Memory::kBarriersAt + 16 * stage);
  }

  __device__ uint32_t free(int stage) const { return full(stage) + 8; }

  __device__ uint32_t w_full(int stage) const {
    return base + static_cast<uint32_t>(Memory::kWBarriersAt + 16 * stage);
  }

  __device__ uint32_t w_free(int stage) const { return w_full(stage) + 8; }

  __device__ void init() const {
    constexpr int kSideArrivals = Codec::kSide == TileSide::kNone ? 0 : kSideThreads;
    for (int stage = 0; stage < Memory::kStages; ++stage) {
      barrier_init(full(stage), 1 + (Memory::kOwnRing ? 0 : kSideArrivals));
      barrier_init(free(stage), 4 * Codec::kGroups * kWarpArrivals);  // warps that compute
    }
    for (int stage = 0; stage < Memory::kWStages; ++stage) {
      barrier_init(w_full(stage), 1 + kSideArrivals);
      barrier_init(w_free(stage), 4 * Codec::kGroups * kWarpArrivals);
    }
    fence_barriers();
  }
};

// ---- what comes beside stages ----

/// The scales of rows of x and of 128 rows of w, for the threads that bring them: where those of a
/// tile lie, and the scales of two stages that are on their way. Nothing uses a loaded scale before
/// keep(); a load and a wait for it in every stage would take as long as a stage does. Rows behind
/// the last one have its scale, for sums that nobody stores.
template <class Codec>
class TokenScales {
 public:
  __device__ __forceinline__ TokenScales(const ProductCall& c, const ProductTile& tile, int thread)
      : c_(c), wide_(c.scale_format == Format::kF32) {
#pragma unroll
    for (int j = 0; j < kEach; ++j) {
      const int row = min(thread + j * kSideThreads, tile.count - 1);
      x_[j] = c.x_scales + (int64_t{tile.first} + row) * c.x_scale_row;
    }
    const int last = (c.N - 1) / 128;
#pragma unroll
    for (int i = 0; i < Codec::kRowBlocks; ++i) {
      const int row = min(tile.row_tile * Codec::kRowBlocks + i, last);
      w_[i] = c.scales + (tile.e * c.scale_matrix + row * c.scale_row) * (wide_ ? 4 : 1);
    }
  }

  /// Asks for those of stage `stage` of x, whose 128 k share a scale.
  __device__ __forceinline__ void load(int slot, int stage) {
#pragma unroll
    for (int j = 0; j < kEach; ++j)
      x_scale_[slot][j] = x_[j][stage * c_.x_scale_block];
    if (wide_) {
#pragma unroll
      for (int i = 0; i < Codec::kRowBlocks; ++i)
        w_scale_[slot][i] = reinterpret_cast<const uint32_t*>(w_[i])[stage];
    } else {
#pragma unroll
      for (int i = 0; i < Codec::kRowBlocks; ++i)
        w_scale_[slot][i] = w_[i][stage];
    }
  }

  __device__ __forceinline__ void keep(int slot, uint32_t to, int thread) const {
#pragma unroll
    for (int i = 0; i < Codec::kRowBlocks; ++i) {
      const uint32_t bits = w_scale_[slot][i];
      const float w = wide_ ? __uint_as_float(bits) : to_float(Ue8m0{static_cast<uint8_t>(bits)});
#pragma unroll
      for (int j = 0; j < kEach; ++j) {
        const int row = thread + j * kSideThreads;
        if (row < kRows) {
          asm volatile(
              "st.shared.f32 [%0], %1;" ::"r"(to + 512 * i + 4 * static_cast<uint32_t>(row)),
              "f"(x_scale_[slot][j] * w)
              : "memory");
        }
      }
    }
  }

 private:
  static constexpr int kRows = 128;
  static constexpr int kEach = (kRows + kSideThreads - 1) / kSideThreads;

  const ProductCall& c_;
  bool wide_;
  const float* x_[kEach];
  const uint8_t* w_[Codec::kRowBlocks];
  float x_scale_[2][kEach];
  uint32_t w_scale_[2][Codec::kRowBlocks];  // bits
};

/// The scales of rows of w for a stage of weights: widened here once instead of by every lane that
/// needs them.
template <class Codec>
struct RowScales {
  static constexpr int kRows = kTileRows<Codec>;
  static constexpr int kEach = (kRows + kSideThreads - 1) / kSideThreads;
  uint4 codes[kEach];

  /// Those of stage `stage` of x and what follows. What is behind the end of a row counts as zero.
  template <bool kGatedRows>
  __device__ __forceinline__ void load(const ProductCall& c,
                                       const ProductTile& tile,
                                       int stage,
                                       int thread) {
    const int k = stage * Codec::kStageK;
    const bool aligned = c.scale_row % 16 == 0 && reinterpret_cast<uintptr_t>(c.scales) % 16 == 0;
    const uint8_t* const first = c.scales + tile.e * c.scale_matrix + k / 16;
#pragma unroll
    for (int j = 0; j < kEach; ++j) {
      const int n = row_of_w<kGatedRows>(c, tile.row_tile * kRows + thread + j * kSideThreads);
      const uint8_t* const from = first + n * c.scale_row;
      if (aligned) {
        codes[j] = *reinterpret_cast<const uint4*>(from);
        continue;
      }
      const auto* words = reinterpret_cast<const uint32_t*>(from);
      codes[j].x = words[0];
      codes[j].y = k + 64 < c.K ? words[1] : 0;
      codes[j].z = k + 128 < c.K ? words[2] : 0;
      codes[j].w = k + 192 < c.K ? words[3] : 0;
    }
  }

  __device__ __forceinline__ void keep(uint32_t to, int thread) const {
#pragma unroll
    for (int j = 0; j < kEach; ++j) {
      if (thread + j * kSideThreads >= kRows) return;
      const uint32_t row = to + Codec::side_place(static_cast<uint32_t>(thread + j * kSideThreads));
      const uint32_t words[4] = {codes[j].x, codes[j].y, codes[j].z, codes[j].w};
#pragma unroll
      for (uint32_t part = 0; part < 4; ++part) {
        const uint32_t low = lifted_scales(words[part]);
        const uint32_t high = lifted_scales(words[part] >> 16);
        asm volatile("st.shared.v4.b32 [%0], {%1, %2, %3, %4};" ::"r"(row ^ part << 4),
                     "r"(__byte_perm(low, 0, 0x1010)), "r"(__byte_perm(low, 0, 0x3232)),
                     "r"(__byte_perm(high, 0, 0x1010)), "r"(__byte_perm(high, 0, 0x3232))
                     : "memory");
      }
    }
  }
};

}  // namespace fathom::cuda
