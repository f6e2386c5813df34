// How the weights of an NVFP4 product are shared out over blocks that hold all of theirs in shared
// memory. Host arithmetic alone.
#pragma once

#include <algorithm>
#include <cstdint>

#include "fathom/kernels/cuda/products/product.cuh"

namespace fathom::cuda {

inline constexpr int kHeldWarps = 8;
inline constexpr int kHeldThreads = kHeldWarps * 32;
inline constexpr int kHeldBlocks = 4;               ///< of a multiprocessor: registers for four
inline constexpr int kHeldTokens = 8;               ///< rows of x at once
inline constexpr int kMostHeldChunks = kHeldWarps;  ///< each is asked for by a warp of its own
inline constexpr int kFewestPieceRows = 4;          ///< fewer waste more of the tensor cores
inline constexpr int kMostPieceRows = 8;
inline constexpr int64_t kMostHeldBytes = 64 << 10;    ///< of weights, in a block
inline constexpr int64_t kMostHeldXBytes = 40 << 10;   ///< of rows of x
inline constexpr int64_t kMostHeldShared = 112 << 10;  ///< two blocks on a multiprocessor
/// The same where blocks follow others: three, so that some begin while others compute.
inline constexpr int64_t kMostSharedOfMany = 74 << 10;
inline constexpr int kManyBlocks = 4;  ///< a multiprocessor
/// Of a piece, where blocks fill all places: fewer waste too much of the tensor cores.
inline constexpr int kFewestRowsOfMany = 7;
inline constexpr int kMostHeldExpertRows = 32;  ///< of x: a grid has blocks for each
inline constexpr int kMostHeldExpertK = 2048;   ///< above, sweeps are faster
/// Weights that two blocks of every multiprocessor of an H200 hold. Three have room for as many
/// bytes of x as follow; more of them, and some blocks would begin when others have ended.
inline constexpr int64_t kMostBytesOfTwoBlocks = 16 << 20;
inline constexpr int64_t kMostXBytesOfThreeBlocks = 16 << 10;

/// A block holds `chunks` chunks of two pieces of `piece_rows` rows of w, and has room for `tokens`
/// rows of x. Its shared memory:
///
///   [chunk]: codes [2 pieces][piece_rows][K/2]
///            scales [2 pieces][piece_rows][K/16], each piece up to an odd multiple of 64 bytes
///   x [tokens * K] bf16, in the order of stage_rows
///   sums [chunk][token][part][16 rows] float
///
/// Codes begin at multiples of 128 bytes: the copy engine is slower to others.
struct HeldPlan {
  int piece_rows = 0;
  int chunks = 0;
  int row_blocks = 0;   ///< of a matrix
  int part_bits = 0;    ///< log2 of the warps that share the k of a chunk
  int tokens = 0;       ///< rows of x that there is room for
  int scale_bytes = 0;  ///< from the scales of a piece to those of the next
  int chunk_bytes = 0;
  int x_at = 0;
  int sums_at = 0;
  int shared_bytes = 0;

  FATHOM_HD constexpr int chunk_rows() const { return 2 * piece_rows; }

  FATHOM_HD constexpr int rows() const { return chunks * chunk_rows(); }

  FATHOM_HD constexpr int parts() const { return 1 << part_bits; }
};

/// Rows of x at once. With so few rows in all, most experts have one; others take them in turn.
inline int held_tokens(const ProductCall& c) {
  return c.offsets != nullptr ? 1 : std::min(c.T, kHeldTokens);
}

/// Bytes of a row of codes and scales.
inline int64_t held_row_bytes(int64_t K) {
  return K / 2 + K / 16;
}

/// From the matrices alone, so that a row has the same bits in every plan. A warp gets three to
/// seven blocks of 128 k of a chunk: of fewer, most of its time are waits and sums; more take long
/// after the last byte. Of small matrices it gets fewer, so that all warps have some.
inline int held_part_bits(const ProductCall& c) {
  constexpr int kMostBits = 3;
  constexpr int64_t kWarps = 1024;
  static_assert(1 << kMostBits == kHeldWarps, "a chunk of a block alone has all warps");
  const int64_t blocks = c.K / 128;
  const int64_t chunks = c.matrices * ((int64_t{c.N} + 15) / 16);
  int bits = blocks >= 32 ? kMostBits : blocks >= 12 ? 2 : blocks >= 8 ? 1 : 0;
  while (bits < kMostBits && (2 << bits) <= blocks && chunks << bits < kWarps)
    ++bits;
  return bits;
}

inline HeldPlan held_plan_of(const ProductCall& c, int piece_rows, int chunks) {
  HeldPlan plan{.piece_rows = piece_rows, .chunks = chunks};
  plan.row_blocks = (c.N + plan.rows() - 1) / plan.rows();
  plan.part_bits = held_part_bits(c);
  plan.tokens = held_tokens(c);
  constexpr int kBanks = 128;  // bytes
  const int scales = piece_rows * (c.K / 16);
  plan.scale_bytes = (scales + kBanks / 2 - 1) / kBanks * kBanks + kBanks / 2;
  plan.chunk_bytes = plan.chunk_rows() * (c.K / 2) + 2 * plan.scale_bytes;
  plan.x_at = chunks * plan.chunk_bytes;
  plan.sums_at = plan.x_at + plan.tokens * c.K * 2;
  plan.shared_bytes = plan.sums_at + ((chunks * plan.tokens * 16 * 4) << plan.part_bits);
  return plan;
}

/// Matrices that can have rows: experts without any are not known on the host.
inline int64_t held_matrices(const ProductCall& c) {
  return c.offsets != nullptr ? std::min(c.T, c.matrices) : c.matrices;
}

/// What a multiprocessor has to bring, in bytes. A block costs about as much as 4 KiB do; one alone
/// has too few warps. Many blocks take turns in as many places as there are. More than three a
/// multiprocessor that all have a place at once are counted on average, at five sixths of that
/// (measured): they have the most warps, and those of the next launch begin in the places left.
inline int64_t held_cost(const HeldPlan& plan, int64_t blocks, int64_t block_bytes, int num_sms) {
  constexpr int64_t kBlockCost = 4 << 10;
  constexpr int64_t kAloneCost = 8 << 10;
  constexpr int64_t kAllShared = 228 << 10;
  constexpr int64_t kSharedBesides = 2 << 10;  // of the system, and barriers
  const int64_t places =
      std::min<int64_t>(kHeldBlocks, kAllShared / (plan.shared_bytes + kSharedBesides));
  const int64_t cost = block_bytes + kBlockCost;
  if (blocks > kManyBlocks * num_sms) {
    const int64_t rounds = (blocks + places * num_sms - 1) / (places * num_sms);
    return rounds * places * cost;
  }
  if (places == kHeldBlocks && blocks > (kHeldBlocks - 1) * num_sms &&
      plan.piece_rows >= kFewestRowsOfMany)
    return blocks * cost * 5 / (6 * num_sms);
  const int64_t most = (blocks + num_sms - 1) / num_sms;  // blocks of a multiprocessor
  return most * cost + (most == 1 ? kAloneCost : 0);
}

/// The plan of the least cost.
inline HeldPlan held_plan(const ProductCall& c, int num_sms) {
  HeldPlan best = held_plan_of(c, kMostPieceRows, 1);
  int64_t least = -1;
  for (int piece_rows = kMostPieceRows; piece_rows >= kFewestPieceRows; --piece_rows) {
    // Scales of a piece are copied at once, sixteen bytes at a time.
    if (int64_t{piece_rows} * c.K % 256 != 0) continue;
    for (int chunks = 1; chunks <= kMostHeldChunks; ++chunks) {
      const HeldPlan plan = held_plan_of(c, piece_rows, chunks);
      // Warps would wait for those that have a chunk more.
      const int jobs = chunks << plan.part_bits;
      if (jobs > kHeldWarps && jobs % kHeldWarps != 0) continue;
      const int64_t bytes = plan.rows() * held_row_bytes(c.K);
      const int64_t blocks = held_matrices(c) * plan.row_blocks;
      const bool many = blocks > kManyBlocks * num_sms;
      if (bytes > kMostHeldBytes || plan.shared_bytes > kMostHeldShared) break;
      if (many && (plan.shared_bytes > kMostSharedOfMany || piece_rows < kFewestRowsOfMany))
        continue;
      const int64_t cost = held_cost(plan, blocks, bytes, num_sms);
      if (least >= 0 && cost >= least) continue;
      least = cost;
      best = plan;
    }
  }
  return best;
}

/// Rows of an expert take turns: so few rows in all that most experts have one.
inline bool takes_held_experts(const ProductCall& c) {
  return c.T <= kMostHeldExpertRows && c.T <= 4 * c.matrices && c.K <= kMostHeldExpertK;
}

/// Whether all blocks of a product without experts are on the GPU at once, or nearly: blocks of a
/// second round would begin to ask for weights when others have ended.
inline bool held_at_once(const ProductCall& c) {
  return int64_t{c.matrices} * c.N * held_row_bytes(c.K) <= kMostBytesOfTwoBlocks || c.T <= 2 ||
         int64_t{c.T} * c.K * 2 <= kMostXBytesOfThreeBlocks;
}

/// Whether a chunk of sixteen rows fits beside x and the copy engine can bring it: sixteen bytes
/// divide the addresses, and the scales of what is left of a matrix after whole pieces.
inline bool takes_held(const ProductCall& c) {
  const auto aligned = [](const void* p) { return reinterpret_cast<uintptr_t>(p) % 16 == 0; };
  return c.in_pairs && !c.w_is_made && c.x_format == Format::kBf16 && c.K > 0 && c.K % 128 == 0 &&
         int64_t{c.N} * c.K % 256 == 0 && c.w_row == c.K / 2 && c.scale_row == c.K / 16 &&
         c.w_matrix == c.w_row * c.N && c.scale_matrix == c.scale_row * c.N && aligned(c.w) &&
         aligned(c.scales) && aligned(c.x) && c.x_row % kVector == 0 && c.x_matrix % kVector == 0 &&
         16 * held_row_bytes(c.K) <= kMostHeldBytes &&
         int64_t{held_tokens(c)} * c.K * 2 <= kMostHeldXBytes &&
         (c.offsets == nullptr ? c.T <= kHeldTokens && held_at_once(c) : takes_held_experts(c));
}

}  // namespace fathom::cuda
