// How a product's K and rows of w are shared out over the warps of blocks that spread them. Host
// arithmetic alone.
#pragma once

#include <algorithm>
#include <cstdint>

#include "fathom/kernels/cuda/products/product.cuh"
#include "fathom/kernels/cuda/products/sweep/sweep_items.cuh"

namespace fathom::cuda {

inline constexpr int kSpreadK = 512;    // of a warp: 256 bytes of a row, which memory reads at once
inline constexpr int kSpreadRows = 16;  // of w, of a warp
inline constexpr int kSpreadTokens = 8;
inline constexpr int kMostSpreadWarps = 16;
inline constexpr int kFewestSpreadParts = 3;  // a warp has the sums of one tile to finish at a time
inline constexpr int kSpreadLag = 2;          // tiles between the sums of a tile and their use
inline constexpr int kSpreadBuffers = 4;      // of sums: twice the lag

/// A block has `groups` groups of `parts` warps. A group has 16 rows of w, each of its warps 512 k
/// of them. Shared memory of a block:
///
///   slots [warp][ahead]: codes [16 rows][256 bytes], scales [16 rows][32 bytes]
///   sums [buffer][warp][16 rows][8 tokens] float
///   barriers [group][buffer]
///   starts [experts + 1]
struct SpreadPlan : SweepPlan {
  int parts = 0;
  int groups = 0;
  int ahead = 0;  ///< slots of a warp

  static constexpr int kCodeBytes = kSpreadRows * kSpreadK / 2;
  static constexpr int kSlotBytes = kCodeBytes + kSpreadRows * kSpreadK / 16;
  static constexpr int kSums = kSpreadRows * kSpreadTokens;  // of a warp

  FATHOM_HD constexpr int warps() const { return parts * groups; }

  FATHOM_HD constexpr int tile_rows() const { return groups * kSpreadRows; }

  FATHOM_HD constexpr int sums_at() const { return warps() * ahead * kSlotBytes; }

  FATHOM_HD constexpr int buffer_bytes() const { return warps() * kSums * 4; }

  FATHOM_HD constexpr int barriers_at() const {
    return sums_at() + kSpreadBuffers * buffer_bytes();
  }

  FATHOM_HD constexpr int starts_at() const { return barriers_at() + groups * kSpreadBuffers * 8; }

  constexpr int shared_bytes(const ProductCall& c) const {
    return starts_at() + (c.offsets == nullptr ? 0 : (c.matrices + 1) * 4);
  }
};

/// The groups of a block that need the least time: what a multiprocessor has to bring, a little
/// more where there is room for two slots a warp alone. Tiles are whole.
inline SpreadPlan spread_plan(const ProductCall& c, int num_sms) {
  constexpr int kMostShared = 226 << 10;
  SpreadPlan best;
  int64_t least = -1;
  SpreadPlan plan;
  plan.parts = c.K / kSpreadK;
  plan.batches = (c.T + kSpreadTokens - 1) / kSpreadTokens;
  const int64_t matrices = c.offsets == nullptr ? c.matrices : std::min(c.T, c.matrices);
  for (plan.groups = 1; plan.warps() <= kMostSpreadWarps; ++plan.groups) {
    if (c.N % plan.tile_rows() != 0) continue;
    plan.row_tiles = c.N / plan.tile_rows();
    plan.ahead = 3;
    if (plan.shared_bytes(c) > kMostShared) plan.ahead = 2;
    const int64_t rounds = (plan.row_tiles * matrices + num_sms - 1) / num_sms;
    const int64_t on_the_way = std::min(plan.warps() * plan.ahead, 32);
    const int64_t cost = rounds * plan.groups * (plan.ahead == 2 ? 51 : 50) * 32 / on_the_way;
    if (least >= 0 && cost >= least) continue;
    least = cost;
    best = plan;
  }
  return best;
}

/// Whether copies of sixteen bytes bring codes and scales of whole warps.
inline bool takes_spread(const ProductCall& c) {
  const auto aligned = [](const void* p) { return reinterpret_cast<uintptr_t>(p) % 16 == 0; };
  return c.in_pairs && c.x_format == Format::kBf16 && c.K % kSpreadK == 0 &&
         c.K >= kFewestSpreadParts * kSpreadK && c.K <= kMostSpreadWarps * kSpreadK &&
         c.N % kSpreadRows == 0 && c.w_row == c.K / 2 && c.scale_row == c.K / 16 && aligned(c.w) &&
         aligned(c.scales) && aligned(c.x) && c.x_row % kVector == 0 && c.x_matrix % kVector == 0 &&
         c.matrices <= 1024 &&
         (c.offsets == nullptr ? c.T <= kSpreadTokens : c.T <= int64_t{4} * c.matrices);
}

}  // namespace fathom::cuda
