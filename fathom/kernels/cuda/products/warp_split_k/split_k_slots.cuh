// The ring of slots of a block whose warps split K, and the barriers that say what is in it.
#pragma once

#include "fathom/kernels/cuda/products/warp_split_k/split_k_plan.cuh"
#include "fathom/kernels/cuda/tensor_core.cuh"

namespace fathom::cuda {

using SplitKCursor = TileCursor<kSplitKTokens>;

/// The barriers of a block.
struct SplitKBarriers {
  uint32_t first;
  int slots;

  __device__ SplitKBarriers(const SplitKPlan& plan, uint32_t shared)
      : first(shared + static_cast<uint32_t>(plan.barriers_at())), slots(plan.slots) {}

  /// A tile has come.
  __device__ __forceinline__ uint32_t full(int slot) const { return at(slot); }

  /// All warps that multiply have read it.
  __device__ __forceinline__ uint32_t free(int slot) const { return at(slots + slot); }

  /// All parts of the sums of tile i are there.
  __device__ __forceinline__ uint32_t summed(int i) const {
    return at(2 * slots + (i & (kSplitKBuffers - 1)));
  }

  __device__ void init(int warps) const {
    for (int i = 0; i < slots; ++i) {
      barrier_init(full(i), 1);
      barrier_init(free(i), warps * kWarpArrivals);
    }
    for (int i = 0; i < kSplitKBuffers; ++i)
      barrier_init(summed(i), warps * kWarpArrivals);
    fence_barriers();
  }

 private:
  __device__ __forceinline__ uint32_t at(int i) const {
    return first + static_cast<uint32_t>(i) * 8;
  }
};

/// A slot of the ring, and the parity of how often the ring has gone round.
struct SplitKSlot {
  int slot = 0;
  uint32_t parity = 0;

  __device__ __forceinline__ void next(int slots) {
    if (++slot < slots) return;
    slot = 0;
    parity ^= 1;
  }
};

inline constexpr int kSplitKBlocks = kSplitK / kBlockK;  // of a warp

/// x of a warp's blocks, `step` k apart from k `first` on: lane 4 g + t has 32 k of row g for each,
/// by eights. Rows that do not exist are zeros.
__device__ __forceinline__ void load_split_k_rows(const ProductCall& c,
                                                  const TileItem& it,
                                                  int first,
                                                  int step,
                                                  uint4 (&eights)[kSplitKBlocks][4]) {
  const int g = lane_id() >> 2;
  const int64_t row = (c.offsets != nullptr ? 0 : it.e * c.x_matrix) + (it.first + g) * c.x_row;
  const Bf16* x = static_cast<const Bf16*>(c.x) + row + first + (lane_id() & 3) * 32;
#pragma unroll
  for (int block = 0; block < kSplitKBlocks; ++block) {
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      eights[block][j] =
          g < it.count ? *reinterpret_cast<const uint4*>(x + block * step + j * 8) : uint4{};
    }
  }
}

/// What a warp that multiplies needs to take what is in the ring.
struct SplitKRing {
  const SplitKPlan& plan;
  const SplitKBarriers& barriers;
  uint32_t zero;  ///< 0, which the compiler does not know
  SplitKSlot at{};

  __device__ __forceinline__ void wait() const { barrier_wait(barriers.full(at.slot), at.parity); }

  /// Gives the slot back, once `loaded` of it is there (warp_arrive_after).
  __device__ __forceinline__ void give_back(uint32_t loaded) {
    warp_arrive_after(barriers.free(at.slot), loaded, zero);
    at.next(plan.slots);
  }
};

}  // namespace fathom::cuda
