// Sparse attention of few tokens: the clusters of mla_decode_few_rows.cuh over the entries of
// lists. A block has 16 heads of a token and a piece of its entries, as they stand in the lists:
// pieces are of equal length whether entries name rows or not, so that nothing has to be known of a
// list before its rows are asked for. A warp turns the codes of its own panel of 64 channels into
// bf16, and has the loads of the next tile under way meanwhile.
#pragma once

#include "fathom/kernels/attn/mla_decode/cuda/mla_decode_few_rows.cuh"
#include "fathom/kernels/attn/sparse_mla/cuda/sparse_mla_rows.cuh"

namespace fathom::sparse_mla {

using mla_decode::FewRows;
using mla_decode::FewRowsBlock;
using mla_decode::FewSums;
using mla_decode::kChunkKeys;
using mla_decode::kTileKeys;
using mla_decode::RowPair;
using namespace cuda;  // NOLINT: device primitives

/// Two tiles: one is read while copies fill the other one.
template <class Rows>
using FewListsMemory = mla_decode::FewRowsMemory<kWidthOf<Rows> / kPanelColumns, 2>;

/// A call for clusters of few rows: `f` of a request for each token.
struct FewLists {
  FewRows f;
  DeviceCall lists;
};

/// The entries of a block.
template <class Rows>
struct FewListedKeys {
  /// Rows of a panel are loaded eight at a time, four lanes each.
  static constexpr int kSteps = kTileKeys / 8;
  static constexpr int kCodePanels = Rows::kCodes / kPanelColumns;
  static constexpr int kPanelBytesOfCodes = Rows::kBytes / (kCodePanels > 0 ? kCodePanels : 1);

  const FewLists& call;
  const FewRowsBlock& block;
  FewListsMemory<Rows>& m;

  /// What a lane has of a tile of its panel, if that is one of codes, and which of the tile's
  /// entries name a row.
  struct Tile {
    Unit units[kSteps];
    uint32_t named[2];  ///< of entries 0 .. 31 and 32 .. 63
  };

  __device__ __forceinline__ bool is_code_panel() const { return block.warp < kCodePanels; }

  /// Entries of the piece, a multiple of 16 but for the last piece that has any.
  __device__ __forceinline__ int2 piece() const {
    const int pieces = 1 << block.f.log2_pieces;
    const int each = (block.f.room + kChunkKeys * pieces - 1) / kChunkKeys >> block.f.log2_pieces;
    const int first = min(block.rank * each * kChunkKeys, block.f.room);
    return {first, min(first + each * kChunkKeys, block.f.room)};
  }

  /// The row that an entry of both lists names. Past the first cache: what an earlier kernel may
  /// still write must not stay there.
  __device__ __forceinline__ RowName name(int entry) const {
    const int of_first = call.lists.sources[0].width;
    const bool second = entry >= of_first;
    const Source& source = call.lists.sources[second ? 1 : 0];
    const int32_t* list = source.slots + block.b * source.slots_stride;
    return name_row(call.lists, second, __ldcg(list + (second ? entry - of_first : entry)));
  }

  /// Where this warp's panel of a row lies, or, of codes, where all of them and their scales do;
  /// null where there is no row.
  __device__ __forceinline__ RowAddress panel_of(RowName row) const {
    const RowAddress at = address_of(call.lists, row);
    if (is_code_panel() || !at.exists()) return at;
    const unsigned char* panel = Rows::kCodes > 0 ? at.rope : at.values + 128 * block.warp;
    return {panel, panel, panel};
  }

  /// Starts to load the panel of entries [first, end), at most a tile: codes to registers, bf16 to
  /// `panel`. Entries that name no row give zeros.
  __device__ __forceinline__ void ask(int first, int end, Tile& tile, uint32_t panel) const {
    RowAddress mine[2];
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const int entry = first + 32 * h + lane_id();
      const RowName row = entry < end ? name(entry) : kNoRow;
      tile.named[h] = __ballot_sync(0xFFFFFFFFu, row != kNoRow);
      mine[h] = panel_of(row);
    }
    const int quarter = lane_id() & 3;
#pragma unroll
    for (int i = 0; i < kSteps; ++i) {
      const RowAddress& from = mine[i / (kSteps / 2)];
      const int lane = 8 * (i % (kSteps / 2)) + lane_id() / 4;
      const auto* values = shuffled(from.values, lane);
      const auto* scales = shuffled(from.scales, lane);
      const bool exists = values != nullptr;
      if constexpr (Rows::kCodes > 0) {
        if (is_code_panel()) {
          tile.units[i] = Rows::load(values, scales, 4 * block.warp + quarter, exists);
          continue;
        }
      }
      const unsigned char* some = call.lists.sources[0].values.data;
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        copy_chunk(panel + panel_offset(8 * i + lane_id() / 4, quarter + 4 * h),
                   exists ? values + 16 * (quarter + 4 * h) : some, exists);
      }
    }
    commit_copies();
  }

  /// What was asked for is in the panel behind it, codes as bf16, as far as chunks are read.
  __device__ __forceinline__ void put(const Tile& tile, int num_chunks, uint32_t panel) const {
    if constexpr (Rows::kCodes > 0) {
      if (is_code_panel()) {
#pragma unroll
        for (int i = 0; i < kSteps; ++i) {
          if (i >= num_chunks * (kChunkKeys / 8)) break;
          uint4 wide[2];
          Rows::decode(tile.units[i], wide);
#pragma unroll
          for (int h = 0; h < 2; ++h) {
            store_shared_16(panel + panel_offset(8 * i + lane_id() / 4, 2 * (lane_id() & 3) + h),
                            wide[h]);
          }
        }
      }
    }
    wait_copies<0>();
    __syncwarp();
  }

  __device__ __forceinline__ static const unsigned char* shuffled(const unsigned char* p,
                                                                  int lane) {
    return reinterpret_cast<const unsigned char*>(
        __shfl_sync(0xFFFFFFFFu, reinterpret_cast<uint64_t>(p), lane));
  }

  /// Brings the rows of this piece into the last cache, as far as they can be known.
  __device__ __forceinline__ void prefetch() const {
    const int2 range = piece();
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const int entry = range.x + 32 * h + lane_id();
      if (entry >= range.y) continue;
      const RowAddress at = panel_of(name(entry));
      if (!at.exists()) continue;
      prefetch_line(at.values + (is_code_panel() ? kPanelBytesOfCodes * block.warp : 0));
      prefetch_line(at.scales);
    }
  }

  __device__ __forceinline__ void run(bool rehearsal) const {
    const TurnTable& turn = call.lists.turn;
    const int position = turn.position(block.b);
    TurnedColumns<1> turned{};
    const auto add = [&](const uint32_t(&queries)[16], RowPair& state, FewSums& o) {
      // All warps take the same way, which depends on no list. In a rehearsal no entry is read.
      int2 range = piece();
      if (rehearsal) range = {0, min(kChunkKeys, block.f.room)};
      const auto panel = [&](int number) { return shared_address(m.keys[number & 1][block.warp]); };
      const int end = rehearsal ? 0 : range.y;
      Tile tile;
      ask(range.x, end, tile, panel(0));
      turned = turn.columns<1>(position, mla_decode::column_of_lane(block.f, block.rank));
#pragma unroll 1
      for (int number = 0; range.x + number * kTileKeys < range.y; ++number) {
        const int first = range.x + number * kTileKeys;
        const int num_chunks = mla_decode::chunks_between(first, range.y);
        put(tile, num_chunks, panel(number));
        const uint32_t named = tile.named[0];
        const uint32_t more = tile.named[1];
        ask(first + kTileKeys, end, tile, panel(number + 1));
        block.attend(m, panel(number), num_chunks, queries, state, o, [&](int, int key) {
          return ((key < 32 ? named : more) >> (key & 31) & 1) != 0;
        });
      }
      wait_copies<0>();  // of nothing, behind the last tile
    };
    block.run(m, rehearsal, add, turned);
  }
};

template <class Rows>
__global__ void __launch_bounds__(FewListsMemory<Rows>::kWarps * 32, 1)
    attend_few_lists(const __grid_constant__ FewLists call) {
  extern __shared__ __align__(1024) unsigned char few_lists_memory[];
  auto& m = *reinterpret_cast<FewListsMemory<Rows>*>(few_lists_memory);
  static_assert(sizeof(FewListsMemory<Rows>) <= 227 << 10, "what a block of Hopper may take");
  let_next_start();
  const FewRowsBlock block = mla_decode::begin_few_rows(call.f, m);
  const FewListedKeys<Rows> keys{call, block, m};
  keys.prefetch();
  cluster_wait();
#pragma unroll 1
  for (int turn = 0; turn < 2; ++turn) {
    if (turn == 1) wait_for_previous();
    keys.run(turn == 0);
    __syncwarp();
  }
}

}  // namespace fathom::sparse_mla
