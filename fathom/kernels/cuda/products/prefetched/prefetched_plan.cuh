// How an NVFP4 product is shared out over blocks of which a multiprocessor has room for two: one
// computes, one of the next launch already brings its weights. Host arithmetic alone.
#pragma once

#include <algorithm>
#include <cstdint>

#include "fathom/kernels/cuda/products/product.cuh"

namespace fathom::cuda {

inline constexpr int kPrefetchedK = 256;     ///< of a warp
inline constexpr int kPrefetchedRows = 16;   ///< of w, a tile
inline constexpr int kPrefetchedTokens = 8;  ///< of x: columns of the tensor cores
inline constexpr int kMostPrefetchedTokens = 2 * kPrefetchedTokens;
inline constexpr int kPrefetchedWarps = 8;
inline constexpr int kPrefetchedThreads = kPrefetchedWarps * 32;
inline constexpr int kMostPrefetchedSlices = 4;  ///< of k: blocks of a cluster
/// Two blocks of so many bytes have room on a multiprocessor, which keeps 1 KiB of each.
inline constexpr int kMostPrefetchedShared = 113 << 10;

inline constexpr int kMostReceivedBytes = 16 << 10;  ///< of sums, of a block
inline constexpr int kSwizzleAlign = 1024;           ///< of what the copy engine swizzles

/// A warp has 256 k of every `groups`-th tile of sixteen rows of w, and brings them itself into
/// slots of its own. Shared memory of a block:
///
///   codes [warp][slot][16 rows][128 bytes]
///   rows [warp]: x [2 blocks of 128 k][8 tokens][128 k] bf16; then, as x is in registers, sums
///        [tile of a round][token][16 rows] float
///   scales [warp][slot][16 rows][16 bytes]
///   received [slice][token][rows of the block / slices] float; only of more slices than one
///   barriers: slots full [warp][slot], x there [warp], sums received
///
/// Codes and x lie as the copy engine's swizzle of 128 bytes has it.
struct PrefetchedPlan {
  int slices = 1;     ///< of k: blocks of a cluster
  int parts = 0;      ///< warps that share the k of a slice
  int groups = 0;     ///< of such warps, each with other tiles
  int row_tiles = 0;  ///< of w
  int tiles = 0;      ///< of a block
  int slots = 0;      ///< of a warp
  int received_bytes = 0;
  uint32_t share_inverse = 0;  ///< 2^32 / share(), rounded up: quotients without a division
  bool y_in_fours = false;     ///< sums times their factor are stored, four rows at once

  static constexpr int kCodeBytes = kPrefetchedRows * kPrefetchedK / 2;  // of a slot
  static constexpr int kScaleBytes = kPrefetchedRows * kPrefetchedK / 16;
  static constexpr int kXBytes = kPrefetchedTokens * kPrefetchedK * 2;  // of a warp
  static constexpr int kSumBytes = kPrefetchedTokens * kPrefetchedRows * 4;

  FATHOM_HD constexpr int warps() const { return parts * groups; }

  /// Tiles of a warp that have no slot at the beginning.
  constexpr int late_tiles() const { return (tiles + groups - 1) / groups - slots; }

  /// Tiles of a warp whose sums have room at once.
  FATHOM_HD static constexpr int round(int token_groups) {
    return kXBytes / (kSumBytes * token_groups);
  }

  FATHOM_HD constexpr int rows_at() const { return warps() * slots * kCodeBytes; }

  FATHOM_HD constexpr int scales_at() const { return rows_at() + warps() * kXBytes; }

  FATHOM_HD constexpr int received_at() const {
    return scales_at() + warps() * slots * kScaleBytes;
  }

  FATHOM_HD constexpr int barriers_at() const { return received_at() + received_bytes; }

  /// The barrier of a warp's first slot; those of the others follow.
  FATHOM_HD constexpr int full_at(int warp) const { return barriers_at() + warp * slots * 8; }

  FATHOM_HD constexpr int x_full_at(int warp) const { return full_at(warps()) + warp * 8; }

  FATHOM_HD constexpr int received_full_at() const { return x_full_at(warps()); }

  FATHOM_HD constexpr int shared_bytes() const { return received_full_at() + 8; }

  /// Rows of w of a block whose sums it adds up over the slices.
  FATHOM_HD constexpr int share() const { return tiles * kPrefetchedRows / slices; }
};

/// Slices of k, of whole warps; 0: there are none that fit. From the matrix alone, so that a row
/// has the same bits on every GPU and in every batch.
inline int prefetched_slices(int K) {
  const int parts = K / kPrefetchedK;
  for (int slices = 1; slices <= kMostPrefetchedSlices; slices *= 2)
    if (parts % slices == 0 && parts / slices <= kPrefetchedWarps) return slices;
  return 0;
}

/// Blocks, or clusters of them, that an H200 runs at once with one on a multiprocessor, as it said
/// itself (clusters_at_once).
inline int prefetched_places_of_h200(int slices) {
  return slices == 1 ? 132 : slices == 2 ? 66 : 30;
}

/// `places`: blocks, or clusters of them, that the GPU runs at once with one on a multiprocessor.
/// On a small GPU blocks of a cluster may be more than have a place: others follow them.
inline PrefetchedPlan prefetched_plan(const ProductCall& c, int64_t places) {
  PrefetchedPlan plan{.slices = prefetched_slices(c.K)};
  plan.parts = c.K / kPrefetchedK / plan.slices;
  plan.groups = kPrefetchedWarps / plan.parts;
  plan.row_tiles = c.N / kPrefetchedRows;
  plan.tiles = static_cast<int>((plan.row_tiles + places - 1) / places);
  if (plan.slices > 1) {
    const int tile_bytes = kPrefetchedRows * c.T * 4;
    plan.tiles = std::min(plan.tiles, kMostReceivedBytes / tile_bytes);
    plan.received_bytes = plan.tiles * tile_bytes;
  }
  plan.share_inverse =
      static_cast<uint32_t>(((uint64_t{1} << 32) + plan.share() - 1) / plan.share());
  plan.y_in_fours = c.y_format == Format::kBf16 && c.y_row % 4 == 0 &&
                    reinterpret_cast<uintptr_t>(c.y) % 8 == 0 && c.is_bare();
  const int most = (plan.tiles + plan.groups - 1) / plan.groups;
  while (plan.slots < most) {
    ++plan.slots;
    if (plan.shared_bytes() <= kMostPrefetchedShared) continue;
    --plan.slots;
    break;
  }
  return plan;
}

/// Whether the copy engine can bring everything.
inline bool takes_prefetched(const ProductCall& c) {
  const auto aligned = [](const void* p) { return reinterpret_cast<uintptr_t>(p) % 16 == 0; };
  return c.in_pairs && !c.w_is_made && c.offsets == nullptr && c.matrices == 1 &&
         c.x_format == Format::kBf16 && c.T > 0 && c.T <= kMostPrefetchedTokens && c.N > 0 &&
         c.K > 0 && c.K % kPrefetchedK == 0 && prefetched_slices(c.K) > 0 &&
         c.N % kPrefetchedRows == 0 && c.w_row == c.K / 2 && c.scale_row == c.K / 16 &&
         aligned(c.w) && aligned(c.scales) && aligned(c.x) && c.x_row % kVector == 0;
}

}  // namespace fathom::cuda
