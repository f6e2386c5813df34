// How a product's K and rows of w are shared out over the warps of blocks that spread them. Host
// arithmetic alone.
#pragma once

#include <algorithm>
#include <cstdint>

#include "fathom/kernels/cuda/products/product.cuh"
#include "fathom/kernels/cuda/products/sweep/sweep_items.cuh"

namespace fathom::cuda {

inline constexpr int kSpreadK = 512;         // of a warp
inline constexpr int kSpreadRows = 16;       // of w, a tile
inline constexpr int kSpreadTokens = 8;      // of a warp
inline constexpr int kMostSpreadWarps = 15;  // that multiply; one more brings weights
inline constexpr int kMostSpreadThreads = (kMostSpreadWarps + 1) * 32;
inline constexpr int kWarpsOfSm = 16;  // with as many registers as the threads of this kernel have
inline constexpr int kFewestSpreadParts = 3;  // of fewer one warp in three would bring weights
inline constexpr int kSpreadLag = 2;          // tiles between the sums of a tile and their use
inline constexpr int kSpreadBuffers = 4;      // of sums: twice the lag
inline constexpr int kMostSpreadSlots = 5;
inline constexpr int kMostSpreadExperts = 1024;  // whose items have room in shared memory
inline constexpr int kSpreadSumRow = 20;         // sums of a token: 16, and 4 that keep banks apart

/// A block has `parts` warps, 512 k each, and one that brings weights, tile after tile, into slots
/// of shared memory. That of a block:
///
///   slots [slots]: codes [16 rows][K/2], scales [16 rows][K/16]
///   sums [buffer][warp][8 tokens][16 rows and 4] float
///   barriers: slots full, slots free, buffers of sums
///   starts [experts + 1]
struct SpreadPlan : SweepPlan {
  int parts = 0;
  int slots = 0;
  int blocks = 0;      ///< of a multiprocessor
  int code_bytes = 0;  ///< of a tile
  int scale_row = 0;   ///< bytes
  int slot_bytes = 0;
  bool y_in_pairs = false;  ///< two elements of a row of y are stored at once
  bool y_is_plain = false;  ///< the same, of one matrix: sums times its factor and nothing else

  static constexpr int kSums = kSpreadTokens * kSpreadSumRow;  // of a warp

  FATHOM_HD constexpr int threads() const { return (parts + 1) * 32; }

  FATHOM_HD constexpr int sums_at() const { return slots * slot_bytes; }

  FATHOM_HD constexpr int buffer_bytes() const { return parts * kSums * 4; }

  FATHOM_HD constexpr int barriers_at() const {
    return sums_at() + kSpreadBuffers * buffer_bytes();
  }

  FATHOM_HD constexpr int starts_at() const {
    return barriers_at() + (2 * slots + kSpreadBuffers) * 8;
  }

  constexpr int shared_bytes(const ProductCall& c) const {
    return starts_at() + (c.offsets == nullptr ? 0 : (c.matrices + 1) * 4);
  }
};

/// Whether so many blocks with so many slots each fit on a multiprocessor.
inline bool spread_fits(SpreadPlan plan, const ProductCall& c, int blocks, int slots) {
  constexpr int kAllShared = 227 << 10;
  constexpr int kSharedBesides = 1 << 10;
  plan.slots = slots;
  return blocks * (plan.shared_bytes(c) + kSharedBesides) <= kAllShared;
}

/// As many blocks a multiprocessor as registers allow and as have room for two slots each; then as
/// many slots as there is room for. Blocks of few tiles have two: their first tiles come sooner.
inline SpreadPlan spread_plan(const ProductCall& c, int num_sms) {
  constexpr int64_t kFewTiles = 4;
  SpreadPlan plan;
  plan.parts = c.K / kSpreadK;
  plan.batches = (c.T + kSpreadTokens - 1) / kSpreadTokens;
  plan.row_tiles = c.N / kSpreadRows;
  plan.code_bytes = kSpreadRows * (c.K / 2);
  plan.scale_row = c.K / 16;
  plan.slot_bytes = (plan.code_bytes + kSpreadRows * plan.scale_row + 127) / 128 * 128;
  plan.blocks = kWarpsOfSm / (plan.parts + 1);
  while (plan.blocks > 1 && !spread_fits(plan, c, plan.blocks, 2))
    --plan.blocks;
  plan.y_in_pairs = c.y_format == Format::kBf16 && c.y_row % 2 == 0 && c.y_matrix % 2 == 0 &&
                    reinterpret_cast<uintptr_t>(c.y) % 4 == 0;
  plan.y_is_plain = plan.y_in_pairs && c.offsets == nullptr && c.matrices == 1 && c.is_bare();
  plan.slots = 2;
  const int64_t tiles = int64_t{plan.row_tiles} * plan.batches * c.matrices;
  if (c.offsets == nullptr && tiles <= kFewTiles * plan.blocks * num_sms) return plan;
  while (plan.slots < kMostSpreadSlots && spread_fits(plan, c, plan.blocks, plan.slots + 1))
    ++plan.slots;
  return plan;
}

/// Whether the copy engine brings whole tiles of matrices that follow each other. Two tiles fit
/// then.
inline bool takes_spread(const ProductCall& c) {
  const auto aligned = [](const void* p) { return reinterpret_cast<uintptr_t>(p) % 16 == 0; };
  return c.in_pairs && c.x_format == Format::kBf16 && c.K % kSpreadK == 0 &&
         c.K >= kFewestSpreadParts * kSpreadK && c.K <= kMostSpreadWarps * kSpreadK &&
         c.N % kSpreadRows == 0 && c.w_row == c.K / 2 && c.scale_row == c.K / 16 &&
         c.w_matrix == c.w_row * c.N && c.scale_matrix == c.scale_row * c.N && aligned(c.w) &&
         aligned(c.scales) && aligned(c.x) && c.x_row % kVector == 0 && c.x_matrix % kVector == 0 &&
         c.matrices <= kMostSpreadExperts &&
         (c.offsets == nullptr ? c.T <= kSpreadTokens : c.T <= int64_t{4} * c.matrices);
}

}  // namespace fathom::cuda
