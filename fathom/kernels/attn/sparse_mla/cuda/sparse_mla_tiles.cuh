// Sparse attention on the tensor cores of Hopper: what computes is mla_decode_tiles.cuh, over tiles
// of the rows that a token's lists name. A block has up to 64 heads of one token and one piece of
// its entries.
#pragma once

#include "fathom/kernels/attn/sparse_mla/cuda/sparse_mla_gather.cuh"

namespace fathom::sparse_mla {

using mla_decode::Cuts;
using mla_decode::kBoth;
using mla_decode::kRestsAt;
using mla_decode::kRestsAtOnce;
using mla_decode::kScores;
using mla_decode::kSums;
using mla_decode::kTileL;
using mla_decode::kTileRows;
using mla_decode::Merge;
using mla_decode::RowPair;

/// Shared memory behind that of the tiles: the largest score of each row in either warpgroup's
/// tiles, or the angles of the token, since no call wants both; and what was found in the lists.
inline constexpr uint32_t kLargestAt = kRestsAt + 2 * kTileRows * kTileKeys;
static_assert(kTurnedPairs * sizeof(Angle) <= 2 * kTileRows * 4 && kLargestAt % sizeof(Angle) == 0);
static_assert(kFirstTurned + kTurned == kTileL);
inline constexpr int kAnglesWarp = 4;  ///< loads them
inline constexpr uint32_t kEntriesAt = kLargestAt + 2 * kTileRows * 4;
inline constexpr uint32_t kFindingsAt = kEntriesAt + sizeof(Entries);
inline constexpr int64_t kListsSharedBytes = kFindingsAt + sizeof(Findings) + 1024;
static_assert(kListsSharedBytes <= 227 << 10, "what a block of Hopper may take");

/// Entries that name a row count, for every head.
template <int kPanelsScored, bool kOfPair, bool kInHalves = false>
struct ListedKeys {
  static constexpr int kScored = kPanelsScored;
  static constexpr bool kPaired = kOfPair;
  static constexpr bool kHalves = kInHalves;

  const DeviceCall& c;
  const Entries& entries;

  /// The slots of two entries of a tile, 32 apart.
  struct Asked {
    int32_t slots[2];
  };

  __device__ __forceinline__ Asked ask(int first_key) const {
    Asked asked;
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const int at = first_key + lane_id() + 32 * h;
      asked.slots[h] = at < entries.count ? entries.slot(at) : -1;
    }
    return asked;
  }

  __device__ __forceinline__ void hide(float (&s)[kScores],
                                       int first_key,
                                       const Asked& asked) const {
    uint32_t named[2];
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const int at = first_key + lane_id() + 32 * h;
      named[h] = __ballot_sync(0xFFFFFFFFu, entries.name(c, at, asked.slots[h]) != kNoRow);
    }
    if ((named[0] & named[1]) == 0xFFFFFFFFu) return;
    // Number 4 k + 2 h + e is of column 8 k + 2 (lane % 4) + e.
    const int column = 2 * (lane_id() & 3);
    const uint32_t halves[2] = {named[0] >> column, named[1] >> column};
#pragma unroll
    for (int i = 0; i < kScores; ++i) {
      const uint32_t bit = 1u << (i / 4 % 4 * 8 + (i & 1));
      if ((halves[i / 16] & bit) == 0) s[i] = -INFINITY;
    }
  }
};

/// Token, heads and piece of a block. Blocks that share rows lie side by side; those of a cluster
/// must. `cuts.side` blocks have the same piece; then come, in a cluster, its other pieces.
__device__ __forceinline__ Piece heads_of_block(const mla_decode::Call& c,
                                                const Cuts& cuts,
                                                uint32_t block) {
  Piece p{};
  const auto splits = static_cast<uint32_t>(cuts.splits);
  const bool pieces_inside = cuts.merge == Merge::kCluster;
  const auto side = static_cast<uint32_t>(pieces_inside ? cuts.side : cuts.row_tiles);
  const uint32_t outers = static_cast<uint32_t>(cuts.row_tiles) / side;
  const uint32_t pieces = block / side;
  const uint32_t groups = pieces / splits;
  const uint32_t token = groups / outers;
  const uint32_t row_tile = (groups - token * outers) * side + (block - pieces * side);
  p.b = token;
  p.split = static_cast<int>(pieces - groups * splits);
  p.first_row = int64_t{row_tile} * cuts.rows_each;
  p.end_row = p.first_row + cuts.rows_each < c.N ? p.first_row + cuts.rows_each : c.N;
  return p;
}

/// What the entries say of the block.
__device__ __forceinline__ void take_piece(const Entries& entries, Piece& p) {
  p.length = entries.named;
  p.num_keys = entries.count;
  p.first_tile = entries.first_tile;
  p.num_tiles = entries.num_tiles;
}

// ---- the rests of large weights ----

/// Starts to bring 256 columns of the rows of sixteen rests, from column `first` on.
template <class Rows>
__device__ __forceinline__ void bring_rest_rows(const DeviceCall& c,
                                                const Entries& entries,
                                                int first,
                                                const uint2* rests,
                                                int left,
                                                uint32_t values) {
  const int mine = lane_id() & (kRestsAtOnce - 1);
  const RowName name = mine < left ? entries.name(c, static_cast<int>(rests[mine].x)) : kNoRow;
  if constexpr (Rows::kCodes == 0) {
    const Bf16* row = bf16_row(c, name);
    const auto* some = reinterpret_cast<const Bf16*>(c.sources[0].values.data);
    mla_decode::bring_values((row == nullptr ? some : row) + first,
                             __ballot_sync(0xFFFFFFFFu, row != nullptr), values);
  } else {
    // Sixteen lanes have a row, sixteen channels each.
    const int chunk = lane_id() & 15;
    const int column = first + kUnit * chunk;
    const bool coded = column < Rows::kCodes;
    // Loads before the stores of four rows, over which they are not moved.
    constexpr int kAtOnce = 4;
#pragma unroll
    for (int begin = 0; begin < kRestsAtOnce / 2; begin += kAtOnce) {
      Unit units[kAtOnce];
      uint4 seconds[kAtOnce] = {};  // of rotary channels, the upper eight
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) {
        const int key = 2 * (begin + i) + lane_id() / 16;
        const RowAddress at = address_of(c, __shfl_sync(0xFFFFFFFFu, name, key));
        if (coded) {
          units[i] = Rows::load(at.values, at.scales, column / kUnit, at.exists());
        } else {
          const unsigned char* from = at.rope + 2 * (column - Rows::kCodes);
          units[i] = {load_16_if(from, at.exists()), 0};
          seconds[i] = load_16_if(from + 16, at.exists());
        }
      }
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) {
        const int key = 2 * (begin + i) + lane_id() / 16;
        uint4 wide[2] = {units[i].words, seconds[i]};
        if (coded) Rows::decode(units[i], wide);
#pragma unroll
        for (int h = 0; h < 2; ++h)
          store_shared_16(mla_decode::value_place(values, key, 2 * chunk + h), wide[h]);
      }
    }
  }
}

// ---- the largest score ----

__device__ __forceinline__ void lay_out_largest(float* largest, int wg, const RowPair& state) {
  if ((lane_id() & 3) != 0) return;
#pragma unroll
  for (int h = 0; h < 2; ++h)
    largest[wg * kTileRows + (warp_id() & 3) * 16 + lane_id() / 4 + 8 * h] = state.largest[h];
}

/// Behind finish_rows(), where the warpgroups have met.
__device__ __forceinline__ void store_largest(const DeviceCall& c,
                                              const Piece& p,
                                              const float* largest,
                                              int wg) {
  const int row = static_cast<int>(threadIdx.x);
  const int64_t n = p.first_row + row;
  if (wg != 0 || row >= kTileRows || n >= p.end_row) return;
  static_cast<float*>(c.max.data)[c.max.offset(p.b, n)] =
      fmaxf(largest[row], largest[kTileRows + row]) * c.scale * c.lse_factor;
}

// ---- the kernel ----

/// Registers of a thread that computes and of one that gathers. Rows of codes pass through
/// registers, and the largest scores are of rows of bf16 alone.
template <class Rows>
inline constexpr int kComputeRegisters = Rows::kCodes > 0 ? 208 : 224;
template <class Rows, int kGatherers>
inline constexpr int kGatherRegisters = Rows::kCodes == 0 ? 56 : (kGatherers == 1 ? 88 : 48);

/// Whether a block has them: what its threads are launched with, in steps of eight, is all there is
/// of 64 K. Warps would wait for more for ever.
template <class Rows, int kGatherers>
inline constexpr bool kRegistersSuffice = 2 * kComputeRegisters<Rows> +
                                              kGatherers* kGatherRegisters<Rows, kGatherers> <=
                                          (2 + kGatherers) *
                                              ((64 << 10) / kThreadsWith<kGatherers> / 8 * 8);

/// Warpgroups that gather on Hopper. Copies of bf16 need one alone.
template <class Rows>
inline constexpr int kHopperGatherers = Rows::kCodes > 0 ? 2 : 1;

/// The queries of a piece, for the products of the two warpgroups that call it, and the angles of
/// its token. Where rows are not of codes, copies were begun before.
template <class Rows, int kGatherers>
__device__ __forceinline__ void bring_queries(const mla_decode::Call& c,
                                              const DeviceCall& lists,
                                              const Piece& p,
                                              const Cuts& cuts,
                                              uint32_t shared,
                                              Angle* angles) {
  constexpr int kScored = kWidthOf<Rows> / kPanelColumns;
  const int position = lists.turn.position(p.b);
  if constexpr (Rows::kCodes > 0) {
    // Ahead of them, queries would hold up lists and rows, which wait for each other.
    named_sync(kRowsAsked, kThreadsWith<kGatherers>);
    if (cuts.copy_queries) mla_decode::copy_queries<kScored>(c, p, shared);
  }
  if (lists.turn.present() && warp_id() == kAnglesWarp)
    angles[lane_id()] = lists.turn.angle(position, lane_id());
  if (cuts.copy_queries) {
    wait_copies_all();
  } else {
    mla_decode::convert_queries<kScored>(c, p, shared);
  }
  fence_for_products();
}

/// kPaired: two blocks of a cluster that lie side by side have the same piece (CodeGatherer).
template <class Rows, bool kPaired>
__global__ void __launch_bounds__(kThreadsWith<kHopperGatherers<Rows>>, 1)
    attend_lists(const __grid_constant__ mla_decode::Call c,
                 const __grid_constant__ DeviceCall lists,
                 const __grid_constant__ Cuts cuts) {
  constexpr int kScored = kWidthOf<Rows> / kPanelColumns;
  constexpr int kGatherers = kHopperGatherers<Rows>;
  static_assert(kRegistersSuffice<Rows, kGatherers>);
  extern __shared__ unsigned char raw_shared[];
  const uint32_t raw = shared_address(raw_shared);
  const uint32_t shared = (raw + 1023) & ~1023u;
  unsigned char* base = raw_shared + (shared - raw);
  const Barriers bars{shared + mla_decode::kBarriersAt};
  auto& entries = *reinterpret_cast<Entries*>(base + kEntriesAt);
  auto& findings = *reinterpret_cast<Findings*>(base + kFindingsAt);
  auto* largest = reinterpret_cast<float*>(base + kLargestAt);
  auto* angles = reinterpret_cast<Angle*>(base + kLargestAt);
  if (threadIdx.x == 0) {
    bars.init(kFillers<Rows, kGatherers>, kPaired ? 2 : 1);
    findings.clear();
  }
  __syncthreads();
  if constexpr (kPaired) cluster_arrive_relaxed();
  const bool merges = cuts.merge == Merge::kCluster;
  const int wg = __shfl_sync(0xFFFFFFFFu, static_cast<int>(threadIdx.x) / kWarpgroup, 0);
  wait_for_previous();
  Piece p = heads_of_block(c, cuts, blockIdx.x);
  constexpr bool kCoded = Rows::kCodes > 0;
  if (!kCoded && wg < 2 && cuts.copy_queries) mla_decode::copy_queries<kScored>(c, p, shared);
  find_entries<kGatherers>(lists, p.b, p.split, cuts.splits, findings, entries);
  if constexpr (kPaired) cluster_wait();  // the other block has its barriers
  take_piece(entries, p);
  // Blocks of the next kernel wait where those of this one still have to run.
  constexpr int kShort = 8;
  if (p.num_tiles <= kShort) let_next_start();
  if (wg >= 2) {
    give_registers<kGatherRegisters<Rows, kGatherers>>();
    gather<Rows, kPaired, kGatherers>(lists, entries, p, shared + mla_decode::kKeysAt, bars);
    __syncwarp();
    if (merges) mla_decode::meet_cluster_relaxed();
  } else {
    take_registers<kComputeRegisters<Rows>>();
    bring_queries<Rows, kGatherers>(c, lists, p, cuts, shared, angles);
    named_sync(mla_decode::kAll, kBoth);
    const bool has_largest = Rows::kCodes == 0 && lists.max.data != nullptr;
    float o[kSums];
    RowPair state;
    // The assembler takes products of 256 columns only where kernels are launched with 158
    // registers a thread or more.
    const ListedKeys<kScored, kPaired, (kGatherers > 1)> keys{lists, entries};
    mla_decode::attend_tiles(c, p, keys, base, shared, bars, wg, o, state);
    let_next_start();
    if (has_largest) lay_out_largest(largest, wg, state);
    // Found again: there are no registers to keep it in while tiles are computed.
    Piece done = heads_of_block(c, cuts, kept(blockIdx.x));
    take_piece(entries, done);
    mla_decode::finish_rows(
        c, done, cuts, base, shared, wg, o, state,
        [&](const uint2* rests, int left, uint32_t values) {
          bring_rest_rows<Rows>(lists, entries, wg * (kTileL / 2), rests, left, values);
        },
        TurnedRows{lists.turn.present(), angles});
    if (has_largest) store_largest(lists, done, largest, wg);
  }
  // Shared memory that another block reads stays until it has. What the other block of a pair
  // sends, warps here have waited for.
  if (merges) mla_decode::meet_cluster_relaxed();
}

// ---- launches, which sparse_mla_sm90.cu makes for kernels of Blackwell, too ----

/// What a file has compiled for a form of rows.
struct ListsKernels {
  using Attend = void (*)(mla_decode::Call, DeviceCall, Cuts);

  Attend alone;   ///< a block gathers its rows itself
  Attend paired;  ///< see CodeGatherer; null for rows without codes
  void (*merge)(mla_decode::Call, Cuts, TurnTable);  ///< adds the pieces of Merge::kKernel
  int threads;                                       ///< of a block
  int64_t shared_bytes;
};

/// With lists cut into pieces, for results in bf16, or not.
Status run_cut(Exec& ex, const Call& c, const ListsKernels& kernels);
Status run_whole(Exec& ex, const Call& c, const ListsKernels& kernels);
using RunLists = decltype(&run_cut);

}  // namespace fathom::sparse_mla
