// How a product of few rows of x is shared out over blocks that take half of a multiprocessor each:
// while one computes, one of the next launch beside it already brings its weights. Host arithmetic
// alone.
#pragma once

#include <algorithm>
#include <cstdint>

#include "fathom/kernels/cuda/products/product.cuh"

namespace fathom::cuda {

inline constexpr int kPrefetchedRows = 16;   ///< of w, a tile
inline constexpr int kPrefetchedTokens = 8;  ///< of x: columns of the tensor cores
inline constexpr int kMostPrefetchedTokens = 2 * kPrefetchedTokens;
inline constexpr int kPrefetchedWarps = 8;
inline constexpr int kPrefetchedThreads = kPrefetchedWarps * 32;
inline constexpr int kMostPrefetchedSlices = 4;  ///< of k: blocks of a cluster
/// Two blocks of so many bytes have room on a multiprocessor, which keeps 1 KiB of each.
inline constexpr int kMostPrefetchedShared = 113 << 10;

inline constexpr int kMostPrefetchedTiles = 32;      ///< of a block
inline constexpr int kMostReceivedBytes = 16 << 10;  ///< of sums, of a block
inline constexpr int kSwizzleAlign = 1024;           ///< of what the copy engine swizzles

/// A warp has 256 or 192 k of every `groups`-th tile of sixteen rows of w, and brings them itself
/// into slots of its own. Shared memory of a block:
///
///   codes [warp][slot][16 rows][128 or 96 bytes], of FP8 [128 k][16 rows][128 bytes]; then, as
///         nothing more comes into a slot, sums of its tile [token][16 rows] float
///   rows [warp]: x [block of 128 k][8 tokens][128 k], of the last 64 of 192 k [8 tokens][64 k],
///        bf16; then, as x is in registers, sums of tiles into whose slots others come
///        [tile of a round][token][16 rows] float
///   scales [warp][slot][16 rows][16 bytes]; of parts of 192 k, whose twelve bytes the copy engine
///          does not bring, [tile][16 rows][96 bytes] for all warps; none of FP8
///   received [slice][token][rows of the block / slices] float; only of more slices than one
///   barriers: slots full [warp][slot], x there [warp], sums received, scales of all warps there
///
/// x and codes of 256 k lie as the copy engine's swizzle of 128 bytes has it. Of matrices that are
/// stacked each has `blocks` of its own.
struct PrefetchedPlan {
  int part_k = 0;       ///< of a warp
  int slices = 1;       ///< of k: blocks of a cluster
  int parts = 0;        ///< warps that share the k of a slice
  int groups = 0;       ///< of such warps, each with other tiles
  int row_tiles = 0;    ///< of w
  int blocks = 0;       ///< or clusters of them
  int tiles = 0;        ///< of a block
  int fuller = 0;       ///< blocks with so many; others have one fewer, or the last what is left
  int left = 0;         ///< tiles of a warp, with the one at which the next kernel is let start
  int slots = 0;        ///< of a warp
  int code_bytes = 0;   ///< of a slot
  int scale_bytes = 0;  ///< of a slot
  int shared_scale_bytes = 0;  ///< of a tile, for all warps
  int rows_bytes = 0;          ///< of a warp; at least x_bytes()
  int received_bytes = 0;
  int group_shift = 0;         ///< groups are 1 << group_shift
  int token_shift = 0;         ///< rows of x are 1 << token_shift at most
  int round = 0;               ///< tiles of a warp whose sums have room in its rows
  uint32_t slots_inverse = 0;  ///< 2^32 / slots, rounded up: quotients without a division
  int share = 0;               ///< rows of w of a block whose sums it adds up over the slices
  uint32_t share_inverse = 0;  ///< the same of it
  bool y_in_fours = false;     ///< sums times their factor are stored, four rows at once

  static constexpr int kSumBytes = kPrefetchedTokens * kPrefetchedRows * 4;  // of 8 rows of x

  /// Of the sums of a tile and so many rows of x.
  static constexpr int sum_bytes(int tokens) {
    return tokens <= kPrefetchedTokens ? kSumBytes : 2 * kSumBytes;
  }

  FATHOM_HD static constexpr int x_bytes(int part_k) { return kPrefetchedTokens * part_k * 2; }

  FATHOM_HD constexpr int warps() const { return parts * groups; }

  /// Tiles of a warp that have no slot at the beginning.
  constexpr int late_tiles() const { return (tiles + groups - 1) / groups - slots; }

  FATHOM_HD constexpr int codes_at(int warp) const { return warp * slots * code_bytes; }

  FATHOM_HD constexpr int rows_at(int warp = 0) const {
    return codes_at(warps()) + warp * rows_bytes;
  }

  FATHOM_HD constexpr int scales_at(int warp = 0) const {
    return rows_at(warps()) + warp * slots * scale_bytes;
  }

  FATHOM_HD constexpr int received_at() const {
    return scales_at(warps()) + tiles * shared_scale_bytes;
  }

  FATHOM_HD constexpr int barriers_at() const { return received_at() + received_bytes; }

  /// The barrier of a warp's first slot; those of the others follow.
  FATHOM_HD constexpr int full_at(int warp) const { return barriers_at() + warp * slots * 8; }

  FATHOM_HD constexpr int x_full_at(int warp) const { return full_at(warps()) + warp * 8; }

  FATHOM_HD constexpr int received_full_at() const { return x_full_at(warps()); }

  FATHOM_HD constexpr int scales_full_at() const { return received_full_at() + 8; }

  FATHOM_HD constexpr int shared_bytes() const { return scales_full_at() + 8; }
};

/// How k is shared out: blocks of a cluster have a slice each, warps of a block a part of it. From
/// the matrix alone, so that a row has the same bits on every GPU and in every batch.
struct PrefetchedSplit {
  int slices = 0;  ///< 0: there is none that fits
  int part_k = 0;
};

struct PrefetchedNvfp4Plan {
  static constexpr int kScaleBytes = kPrefetchedRows * 16;  // of a slot
  static constexpr int kSharedScaleRow = 96;
  static constexpr int kSharedScaleBytes = kPrefetchedRows * kSharedScaleRow;  // of a tile
  static constexpr int kMostTilesOfWarp = kMostPrefetchedTiles;
  static constexpr int kMostRounds = 1;

  FATHOM_HD static constexpr int code_bytes(int part_k) { return kPrefetchedRows * part_k / 2; }

  FATHOM_HD static constexpr bool shares_scales(int part_k) { return part_k == 192; }

  /// Bytes of scales that a row of w has in shared memory.
  FATHOM_HD static constexpr int scale_row(int part_k) {
    return shares_scales(part_k) ? kSharedScaleRow : kScaleBytes / kPrefetchedRows;
  }

  static int work_left(int T, int /*slices*/) { return T <= kPrefetchedTokens ? 15360 : 12288; }

  static PrefetchedSplit split(int K) {
    for (const int part_k : {192, 256}) {  // 192 where eight warps have all, as no scheduler waits
      for (int slices = 1; slices <= kMostPrefetchedSlices; slices *= 2) {
        if (K % (slices * part_k) != 0) continue;
        const int parts = K / (slices * part_k);
        if (parts == kPrefetchedWarps || (part_k == 256 && parts <= kPrefetchedWarps))
          return {.slices = slices, .part_k = part_k};
      }
    }
    return {};
  }

  static void find_slot(PrefetchedPlan* plan) {
    plan->code_bytes = code_bytes(plan->part_k);
    const bool shares = shares_scales(plan->part_k);
    plan->scale_bytes = shares ? 0 : kScaleBytes;
    plan->shared_scale_bytes = shares ? kSharedScaleBytes : 0;
  }

  static bool takes(const ProductCall& c) {
    return c.in_pairs && c.matrices == 1 && c.w_row == c.K / 2 && c.scale_row == c.K / 16 &&
           reinterpret_cast<uintptr_t>(c.scales) % 16 == 0;
  }
};

/// 2^32 / d, rounded up, for d > 1: the upper half of its product with n is n / d for n * d < 2^32.
/// Of 1 it is 0: right for n = 0 alone, which is what a warp with one slot asks.
constexpr uint32_t inverse_of(int d) {
  const auto divisor = static_cast<uint32_t>(d);
  return static_cast<uint32_t>(((uint64_t{1} << 32) + divisor - 1) / divisor);
}

/// Shares tiles out over blocks, plan.tiles each at most. Evenly, unless the kernel is short: one
/// slice, up to eight rows of x, no late tiles. Then blocks with most tiles leave some
/// multiprocessors empty, where the next launch begins; beside a long kernel two of that launch's
/// blocks may be there. Tiles only become fewer, so what was laid out for them still has room.
inline void share_tiles(PrefetchedPlan& plan, int T, int64_t places) {
  plan.blocks = (plan.row_tiles + plan.tiles - 1) / plan.tiles;
  plan.fuller = plan.blocks;
  if (plan.slices == 1 && T <= kPrefetchedTokens && plan.late_tiles() <= 0) return;
  const int64_t waves = (plan.blocks + places - 1) / places;  // one, if all have a place
  plan.blocks = static_cast<int>(std::min<int64_t>(plan.row_tiles, waves * places));
  plan.tiles = (plan.row_tiles + plan.blocks - 1) / plan.blocks;
  plan.fuller = plan.row_tiles - plan.blocks * (plan.tiles - 1);
}

/// `places`: blocks, or clusters of them, that the GPU runs at once with one on a multiprocessor.
/// On a small GPU blocks may be more than have a place: others follow them.
///
/// When a block lets the next kernel start, if some of its own tiles come late (have no slot at the
/// beginning): with some 5 us of work left (work_left). The next kernel needs 4 us until its blocks
/// run and know that this one is done. Let start sooner, its weights would come before the last
/// ones of this one. Work is counted in tiles times the k that a block has at once.
template <class Weights>
PrefetchedPlan prefetched_plan(const ProductCall& c, int64_t all_places) {
  const PrefetchedSplit split = Weights::split(c.K);
  const int64_t places = std::max<int64_t>(1, all_places / c.matrices);  // of a matrix
  PrefetchedPlan plan{.part_k = split.part_k, .slices = split.slices};
  Weights::find_slot(&plan);
  plan.parts = c.K / (plan.slices * plan.part_k);
  plan.groups = kPrefetchedWarps / plan.parts;
  while (2 << plan.group_shift <= plan.groups)
    ++plan.group_shift;
  plan.groups = 1 << plan.group_shift;
  while (1 << plan.token_shift < c.T)
    ++plan.token_shift;
  plan.row_tiles = c.N / kPrefetchedRows;
  // As for eight rows of x or sixteen: the same slots whatever their number.
  const int sum_bytes = PrefetchedPlan::sum_bytes(c.T);
  const int of_warps = std::min(kMostPrefetchedTiles, Weights::kMostTilesOfWarp * plan.groups);
  const int most_tiles =
      plan.slices == 1 ? of_warps : std::min(of_warps, kMostReceivedBytes / sum_bytes);
  plan.tiles =
      static_cast<int>(std::min<int64_t>((plan.row_tiles + places - 1) / places, most_tiles));
  if (plan.slices > 1) plan.received_bytes = plan.tiles * sum_bytes;
  plan.y_in_fours = c.y_format == Format::kBf16 && c.y_row % 4 == 0 && c.y_matrix % 4 == 0 &&
                    reinterpret_cast<uintptr_t>(c.y) % 8 == 0 && c.is_bare();
  const int most = (plan.tiles + plan.groups - 1) / plan.groups;
  plan.rows_bytes = PrefetchedPlan::x_bytes(plan.part_k);
  while (plan.slots < most) {
    ++plan.slots;
    if (plan.shared_bytes() <= kMostPrefetchedShared) continue;
    --plan.slots;
    break;
  }
  // What is left has room for sums of tiles that have no slot to themselves.
  while (plan.rows_bytes < plan.late_tiles() * sum_bytes) {
    plan.rows_bytes += kSwizzleAlign;
    if (plan.shared_bytes() <= kMostPrefetchedShared) continue;
    plan.rows_bytes -= kSwizzleAlign;
    break;
  }
  plan.round = plan.rows_bytes / sum_bytes;
  share_tiles(plan, c.T, places);
  const int work = Weights::work_left(c.T, plan.slices);
  const int k_at_once = plan.part_k * plan.warps();
  plan.left = (work + k_at_once / 2) / k_at_once - (plan.slices > 1 ? 1 : 0);  // sums are sent
  plan.left = std::max(plan.left, plan.slots + 1);  // it is let start where tiles are asked for
  plan.slots_inverse = inverse_of(plan.slots);
  plan.share = plan.tiles * kPrefetchedRows / plan.slices;
  plan.share_inverse = inverse_of(plan.share);
  return plan;
}

/// Whether this is the fastest kernel for a product that takes_prefetched(): half of every
/// multiprocessor has room for so much of the matrix that all blocks run at once and add up sums
/// once (FP8, whose other kernels are slower: up to four times); from nine rows of x on twice, as
/// tiles for so many rows are slower than that.
///
/// Clusters are counted as if every multiprocessor had a place in one. A GPU runs somewhat fewer
/// (an H200 30 of four blocks, not 33), which changes the choice for no matrix of a preset.
template <class Weights>
bool prefetched_pays(const ProductCall& c, int num_sms) {
  const int places = num_sms / Weights::split(c.K).slices;
  if (places < c.matrices) return false;
  const auto plan = prefetched_plan<Weights>(c, places);
  const int most_rounds = std::max(Weights::kMostRounds, c.T > kPrefetchedTokens ? 2 : 1);
  return plan.blocks <= places / c.matrices && plan.late_tiles() <= plan.round * most_rounds;
}

/// Whether the copy engine can bring everything.
template <class Weights>
bool takes_prefetched(const ProductCall& c) {
  const auto aligned = [](const void* p) { return reinterpret_cast<uintptr_t>(p) % 16 == 0; };
  return !c.w_is_made && c.offsets == nullptr && c.x_format == Format::kBf16 && c.T > 0 &&
         c.T <= kMostPrefetchedTokens && c.N > 0 && c.K > 0 && Weights::split(c.K).slices > 0 &&
         c.N % kPrefetchedRows == 0 && Weights::takes(c) && aligned(c.w) && aligned(c.x) &&
         c.x_row % kVector == 0;
}

}  // namespace fathom::cuda
