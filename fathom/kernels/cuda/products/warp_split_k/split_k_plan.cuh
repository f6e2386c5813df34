// How a product's K and rows of w are shared out where the warps of a block split K. Host
// arithmetic alone.
#pragma once

#include <algorithm>
#include <cstdint>

#include "fathom/kernels/cuda/products/persistent/tile_cursor.cuh"
#include "fathom/kernels/cuda/products/product.cuh"

namespace fathom::cuda {

inline constexpr int kSplitK = 512;          // of a warp
inline constexpr int kSplitKRows = 16;       // of w, a tile; with a gate, a group (kGatedRows)
inline constexpr int kSplitKTokens = 8;      // of a warp
inline constexpr int kMostSplitKWarps = 15;  // that multiply; one more brings weights
inline constexpr int kMostSplitKThreads = (kMostSplitKWarps + 1) * 32;
inline constexpr int kWarpsOfSm = 16;  // with as many registers as the threads of this kernel have
inline constexpr int kFewestSplitKParts = 3;     // of fewer one warp in three would bring weights
inline constexpr int kSplitKLag = 2;             // tiles between the sums of a tile and their use
inline constexpr int kSplitKBuffers = 4;         // of sums: twice the lag
inline constexpr int kMostSplitKExperts = 1024;  // whose items have room in shared memory
inline constexpr int kSplitKSumRow = 20;         // sums of a token: 16, and 4 that keep banks apart
inline constexpr int kSplitKAlign = 128;         // bytes, of the shared memory that a kernel gets

/// A block has `parts` warps, 512 k each, and one that brings weights, tile after tile, into slots
/// of shared memory. That of a block:
///
///   slots [slots]: what SplitKNvfp4 or SplitKFp8 says, a tile or a quarter of one
///   sums [buffer][warp][8 tokens][16 rows and 4] float
///   barriers: slots full, slots free, buffers of sums
///   starts [experts + 1]
struct SplitKPlan : PersistentPlan {
  int parts = 0;
  int slots = 0;
  int blocks = 0;      ///< of a multiprocessor
  int code_bytes = 0;  ///< of a slot
  int scale_row = 0;   ///< bytes of a slot's scales of a row
  int slot_bytes = 0;
  int align = 0;            ///< bytes, of the first slot
  bool y_in_pairs = false;  ///< two elements of a row of y are stored at once
  bool y_is_plain = false;  ///< the same, of one matrix: sums times its factor and nothing else

  static constexpr int kSums = kSplitKTokens * kSplitKSumRow;  // of a warp

  FATHOM_HD constexpr int threads() const { return (parts + 1) * 32; }

  FATHOM_HD constexpr int sums_at() const { return slots * slot_bytes; }

  FATHOM_HD constexpr int buffer_bytes() const { return parts * kSums * 4; }

  FATHOM_HD constexpr int barriers_at() const {
    return sums_at() + kSplitKBuffers * buffer_bytes();
  }

  FATHOM_HD constexpr int starts_at() const {
    return barriers_at() + (2 * slots + kSplitKBuffers) * 8;
  }

  constexpr int shared_bytes(const ProductCall& c) const {
    return starts_at() + (c.offsets == nullptr ? 0 : (c.matrices + 1) * 4) +
           (align > kSplitKAlign ? align : 0);
  }
};

/// Whether so many blocks with so many slots each fit on a multiprocessor.
inline bool split_k_fits(SplitKPlan plan, const ProductCall& c, int blocks, int slots) {
  constexpr int kAllShared = 227 << 10;
  constexpr int kSharedBesides = 1 << 10;
  plan.slots = slots;
  return blocks * (plan.shared_bytes(c) + kSharedBesides) <= kAllShared;
}

/// NVFP4 in layout kPairs. A slot has a tile: codes [16 rows][K/2], scales [16 rows][K/16].
struct SplitKNvfp4Plan {
  static constexpr int kSlotsOfTile = 1;
  static constexpr int kMostSlots = 5;

  static void find_slot(const ProductCall& c, SplitKPlan* plan) {
    plan->code_bytes = kSplitKRows * (c.K / 2);
    plan->scale_row = c.K / 16;
    plan->slot_bytes = (plan->code_bytes + kSplitKRows * plan->scale_row + 127) / 128 * 128;
    plan->align = kSplitKAlign;
  }

  static bool takes(const ProductCall& c) {
    return c.in_pairs && c.w_row == c.K / 2 && c.scale_row == c.K / 16 &&
           c.scale_matrix == c.scale_row * c.N && reinterpret_cast<uintptr_t>(c.scales) % 16 == 0;
  }
};

/// E4M3 with a scale for 128 x 128. A slot has 128 k of each part: panels [parts][16 rows][128
/// bytes] with the swizzle of the copy engine, for which it begins at a multiple of 1,024. Its four
/// slots a tile leave room for more copies on their way than two whole tiles would.
struct SplitKFp8Plan {
  static constexpr int kSlotsOfTile = kSplitK / kBlockK;
  static constexpr int kMostSlots = 8;

  static void find_slot(const ProductCall& c, SplitKPlan* plan) {
    plan->code_bytes = kSplitKRows * (c.K / kSlotsOfTile);
    plan->slot_bytes = plan->code_bytes;
    plan->align = 1024;
  }

  static bool takes(const ProductCall& c) {
    return !c.in_pairs && c.w_row == c.K && c.scale_format != Format::kNone &&
           c.scale_row == c.K / kBlockK && int64_t{c.N} * c.matrices < (int64_t{1} << 31);
  }
};

/// As many blocks a multiprocessor as registers allow and as have room for two tiles each, or for
/// six slots of parts of tiles; then as many slots as there is room for. Blocks of few tiles have
/// room for two: their first tiles come sooner.
template <class Weights>
SplitKPlan split_k_plan(const ProductCall& c, int num_sms) {
  constexpr int64_t kFewTiles = 4;
  constexpr int kFewestSlots = Weights::kSlotsOfTile == 1 ? 2 : 6;
  SplitKPlan plan;
  plan.parts = c.K / kSplitK;
  plan.batches = (c.T + kSplitKTokens - 1) / kSplitKTokens;
  plan.row_tiles = c.N / kSplitKRows;
  Weights::find_slot(c, &plan);
  plan.blocks = kWarpsOfSm / (plan.parts + 1);
  while (plan.blocks > 1 && !split_k_fits(plan, c, plan.blocks, kFewestSlots))
    --plan.blocks;
  plan.y_in_pairs = c.y_format == Format::kBf16 && c.y_row % 2 == 0 && c.y_matrix % 2 == 0 &&
                    reinterpret_cast<uintptr_t>(c.y) % 4 == 0;
  plan.y_is_plain = plan.y_in_pairs && c.offsets == nullptr && c.matrices == 1 && c.is_bare();
  plan.slots = 2;
  const int64_t tiles = int64_t{plan.row_tiles} * plan.batches * c.matrices;
  const bool few = c.offsets == nullptr && tiles <= kFewTiles * plan.blocks * num_sms;
  const int most = few ? 2 * Weights::kSlotsOfTile : Weights::kMostSlots;
  while (plan.slots < most && split_k_fits(plan, c, plan.blocks, plan.slots + 1))
    ++plan.slots;
  return plan;
}

/// Whether this is the fastest kernel for one matrix of NVFP4 that takes_split_k(), by the bytes of
/// codes that a multiprocessor has to bring. From 124 KiB on every block has many tiles, and memory
/// is what bounds it: 94 % of the copy rate where a multiprocessor has 1 MB (36864 x 7168, one row
/// of x, H200). From 31 KiB on it pays if no multiprocessor has more than one tile, or if a
/// multiprocessor has two blocks (few k) and there are five rows of x, which others decode for more
/// slowly. A row may so have other bits among four rows of x than among five.
inline bool split_k_pays(const ProductCall& c, int num_sms) {
  constexpr int64_t kManyBytes = 124 << 10;
  constexpr int64_t kFewestBytes = 31 << 10;
  constexpr int kFewestTokens = 5;
  const int64_t bytes = c.w_row * c.N / num_sms;
  if (bytes >= kManyBytes || bytes < kFewestBytes) return bytes >= kManyBytes;
  return c.N <= num_sms * kSplitKRows ||
         (c.T >= kFewestTokens && split_k_plan<SplitKNvfp4Plan>(c, num_sms).blocks >= 2);
}

/// The same for a matrix of FP8, whose other kernels are slower: from 31 KiB on.
inline bool split_k_pays_for_fp8(const ProductCall& c, int num_sms) {
  constexpr int64_t kFewestBytes = 31 << 10;
  return c.w_row * c.N / num_sms >= kFewestBytes;
}

/// Whether the copy engine brings whole tiles of matrices that follow each other. Two tiles fit
/// then.
template <class Weights>
bool takes_split_k(const ProductCall& c) {
  const auto aligned = [](const void* p) { return reinterpret_cast<uintptr_t>(p) % 16 == 0; };
  return c.x_format == Format::kBf16 && c.K % kSplitK == 0 && c.K >= kFewestSplitKParts * kSplitK &&
         c.K <= kMostSplitKWarps * kSplitK && c.N % kSplitKRows == 0 &&
         c.w_matrix == c.w_row * c.N && Weights::takes(c) && aligned(c.w) && aligned(c.x) &&
         c.x_row % kVector == 0 && c.x_matrix % kVector == 0 && c.matrices <= kMostSplitKExperts &&
         (!c.gated || gates_by_groups(c)) &&
         (c.offsets == nullptr ? c.T <= kSplitKTokens : c.T <= int64_t{4} * c.matrices);
}

}  // namespace fathom::cuda
