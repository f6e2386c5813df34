// What brings the stages of products in tiles (tile_products.cuh) to shared memory, ahead of the
// warpgroups that compute.
#pragma once

#include "fathom/kernels/cuda/products/tile_walk.cuh"

namespace fathom::cuda {

/// Whether weights may come before the kernel that makes x is done: neither they nor the choice of
/// experts is the result of a kernel.
__device__ __forceinline__ bool begins_early(const ProductCall& c) {
  return c.offsets == nullptr && !c.w_is_made;
}

/// What comes beside stages, by warps that do nothing else: loaded a stage ahead.
template <class Scales, class Codec, int kTokens>
__device__ __forceinline__ void bring_scales(TileWalk<Codec, kTokens> walk,
                                             const TilePlaces<Codec, kTokens>& at,
                                             int thread) {
  constexpr bool kOwnRing = TileMemory<Codec, kTokens>::kOwnRing;
  if (Codec::kSide != TileSide::kRowScales) wait_for_previous();  // for the scales of x
  for (; walk.more(); walk.next_item()) {
    const ProductTile tile = walk.tile();
    Scales scales;
    const auto load = [&](int k) { scales.template load<kGated<Codec>>(walk.c, tile, k, thread); };
    if (walk.begin < walk.end) load(walk.begin);
    for (int k = walk.begin; k < walk.end; k += Codec::kWEvery) {
      const int stage = kOwnRing ? walk.w_stage : walk.stage;
      barrier_wait(kOwnRing ? at.w_free(stage) : at.free(stage),
                   (kOwnRing ? walk.w_parity : walk.parity) ^ 1);
      scales.keep(at.side(stage), thread);
      barrier_arrive(kOwnRing ? at.w_full(stage) : at.full(stage));
      if (k + Codec::kWEvery < walk.end) load(k + Codec::kWEvery);
      kOwnRing ? walk.next_w_stage() : walk.next_stage();
    }
  }
}

/// Scales of x and w, loaded two stages ahead.
template <class Codec, int kTokens>
__device__ __forceinline__ void bring_token_scales(TileWalk<Codec, kTokens> walk,
                                                   const TilePlaces<Codec, kTokens>& at,
                                                   int thread) {
  wait_for_previous();
  for (; walk.more(); walk.next_item()) {
    if (walk.begin >= walk.end) continue;
    TokenScales<Codec> scales(walk.c, walk.tile(), thread);
    scales.load(0, walk.begin);
    if (walk.begin + 1 < walk.end) scales.load(1, walk.begin + 1);
    for (int first = walk.begin; first < walk.end; first += 2) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const int k = first + i;
        if (k >= walk.end) break;
        barrier_wait(at.free(walk.stage), walk.parity ^ 1);
        scales.keep(i, at.side(walk.stage), thread);
        barrier_arrive(at.full(walk.stage));
        if (k + 2 < walk.end) scales.load(i, k + 2);
        walk.next_stage();
      }
    }
  }
}

/// Weights and x, by one thread, which waits for nothing but room in the ring.
template <class Codec, int kTokens>
__device__ __forceinline__ void bring_boxes(const TileMaps& maps,
                                            TileWalk<Codec, kTokens> walk,
                                            const TilePlaces<Codec, kTokens>& at) {
  using Memory = TileMemory<Codec, kTokens>;
  constexpr int kWElements = Codec::kWRow / (Codec::kXElement == 2 && !Codec::kDecoded ? 2 : 1);
  const uint64_t policy = weights_policy(walk.c.offsets == nullptr && walk.c.T <= kTokens);
  constexpr int kEarly = 2;  // stages of weights asked for before x is
  bool x_may_be_in_the_making = true;
  int early = 0;
  for (; walk.more(); walk.next_item()) {
    if (walk.is_last()) let_next_start();
    const ProductTile tile = walk.tile();
    const int first_row = tile.row_tile * kTileRows<Codec>;
    const int x_matrix = walk.c.offsets != nullptr || walk.c.x_matrix == 0 ? 0 : tile.e;
    const auto copy_weights = [&](uint32_t to, int k, uint32_t full) {
      if constexpr (kGated<Codec>) {
        copy_gated_box(to, maps.w, k * kWElements, first_row / kGatedRows, tile.e, full, policy);
      } else {
        copy_box(to, maps.w, k * kWElements, first_row, tile.e, full, policy);
      }
    };
    const auto bring_weights = [&](int k) {
      barrier_wait(at.w_free(walk.w_stage), walk.w_parity ^ 1);
      barrier_expect(at.w_full(walk.w_stage), Memory::kWBytes);
      copy_weights(at.w(walk.w_stage), k, at.w_full(walk.w_stage));
      walk.next_w_stage();
    };
    for (int k = walk.begin; k < walk.end; k += Memory::kXEvery, walk.next_stage()) {
      if constexpr (Memory::kOwnRing) {
        if ((k - walk.begin) % Codec::kWEvery == 0) {
          if (early > 0) {
            --early;
          } else {
            bring_weights(k);
          }
        }
        if (x_may_be_in_the_making) {
          for (; early + 1 < kEarly && k + (early + 1) * Codec::kWEvery < walk.end; ++early)
            bring_weights(k + (early + 1) * Codec::kWEvery);
        }
      }
      barrier_wait(at.free(walk.stage), walk.parity ^ 1);
      const uint32_t full = at.full(walk.stage);
      barrier_expect(full, Memory::kStageBytes);
      if constexpr (!Memory::kOwnRing) copy_weights(at.w(walk.stage), k, full);
      if (x_may_be_in_the_making) wait_for_previous();
      x_may_be_in_the_making = false;
#pragma unroll
      for (int panel = 0; panel < Memory::kXPanels; ++panel) {
        copy_box(at.x(walk.stage) + static_cast<uint32_t>(panel * Memory::kXPanelBytes), maps.x,
                 k * Codec::kStageK + panel * (kPanelRowBytes / Codec::kXElement), tile.first,
                 x_matrix, full);
      }
    }
  }
}

/// Weights and x by one lane, what comes beside them by some warps.
template <class Codec, int kTokens>
__device__ __forceinline__ void bring_tiles(const TileMaps& maps,
                                            const TileWalk<Codec, kTokens>& walk,
                                            const TilePlaces<Codec, kTokens>& at) {
  const int thread = static_cast<int>(threadIdx.x) % kWarpgroup;
  if (thread == 0) {
    bring_boxes(maps, walk, at);
  } else if (thread >= kWarpgroup - kSideThreads) {
    if constexpr (Codec::kSide == TileSide::kRowScales)
      bring_scales<RowScales<Codec>>(walk, at, thread - (kWarpgroup - kSideThreads));
    if constexpr (Codec::kSide == TileSide::kTokenScales)
      bring_token_scales(walk, at, thread - (kWarpgroup - kSideThreads));
    if constexpr (Codec::kSide == TileSide::kTables)
      bring_scales<typename Codec::Side>(walk, at, thread - (kWarpgroup - kSideThreads));
  }
}

}  // namespace fathom::cuda
