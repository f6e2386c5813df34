// Sparse attention on the tensor cores of Blackwell. Compiled, never run.
//
// A block is that of Hopper (cuda/sparse_mla_tiles.cuh): up to 64 heads of a token, tiles of 64
// rows. The sums of 128 heads would fill tensor memory. A product of 64 rows takes sixteen lanes of
// every 32 there, so two accumulators share columns:
//
//   columns           0 .. 255                  256 .. 319
//   lanes  0 .. 15    sums, channels 0 .. 255   scores of even tiles
//   lanes 16 .. 31    channels 256 .. 511       scores of odd tiles
//
//   warps 0 .. 3     scores of a tile to weights; sums shrink where a base was raised
//   warps 4, 5       products of the scores, a tile ahead, and of the values
//   warps 8 .. 11    gather
// clang-format off
#include <cstddef>
#include <cuda/ptx>
#include "cute/tensor.hpp"
#include "cute/atom/copy_traits_sm100.hpp"
#include "cute/atom/mma_traits_sm100.hpp"
#include "cutlass/arch/barrier.h"
// clang-format on

#include "fathom/kernels/attn/sparse_mla/cuda/sparse_mla_lists.h"
#include "fathom/kernels/attn/sparse_mla/cuda/sparse_mla_tiles.cuh"

namespace fathom::sparse_mla {
namespace {

namespace ptx = ::cuda::ptx;
using cute::_;
using cute::Int;
using cute::make_coord;
using cute::Shape;
using cute::UMMA::Major;
using cute::UMMA::ScaleOut;
using cutlass::arch::umma_arrive;
using Element = cute::bfloat16_t;

// ---- operands and accumulators ----

static_assert(kTileRows == 64 && kTileKeys == 64 && kTileL == 512 && kPanelBytes == 8192);

/// Over sixteen columns of both operands, or rows of the second.
template <int kColumns, Major kMajor>
using Product = decltype(cute::make_tiled_mma(
    cute::SM100_MMA_F16BF16_SS<Element, Element, float, 64, kColumns, Major::K, kMajor>{}));
using ScoresProduct = Product<64, Major::K>;
using ValuesProduct = Product<256, Major::MN>;

using Sums = decltype(ValuesProduct::make_fragment_C(
    cute::partition_shape_C(ValuesProduct{}, Shape<Int<64>, Int<512>>{})));
using Scores = decltype(ScoresProduct::make_fragment_C(
    cute::append(cute::partition_shape_C(ScoresProduct{}, Shape<Int<64>, Int<64>>{}), Int<2>{})));

constexpr uint32_t kScoresAt = 256;      ///< column
constexpr uint32_t kColumnsTaken = 512;  ///< of tensor memory, a power of two

/// Panels whose columns are summed over, and those of values, whose rows are.
template <int kColumns>
using RowsLayout = decltype(cute::UMMA::tile_to_mma_shape(
    cute::UMMA::Layout_K_SW128_Atom<Element>{},
    Shape<Shape<Int<64>, Int<16>>, Int<1>, Int<kColumns / 16>>{}));
using ValuesLayout =
    decltype(cute::UMMA::tile_to_mma_shape(cute::UMMA::Layout_MN_SW128_Atom<Element>{},
                                           Shape<Shape<Int<256>, Int<16>>, Int<2>, Int<4>>{},
                                           cute::Step<Int<2>, Int<1>>{}));

template <int kColumns>
__device__ __forceinline__ auto rows_to_multiply(Element* rows) {
  return ScoresProduct::make_fragment_A(
      cute::make_tensor(cute::make_smem_ptr(rows), RowsLayout<kColumns>{}));
}

__device__ __forceinline__ auto values_to_multiply(Element* rows) {
  return ValuesProduct::make_fragment_B(
      cute::make_tensor(cute::make_smem_ptr(rows), ValuesLayout{}));
}

/// Where a number lies in tensor memory. `half`: in the upper sixteen lanes.
__host__ __device__ constexpr int number_place(int row, int column, int half) {
  return (row / 16 * 32 + row % 16 + 16 * half) << 16 | column;
}

/// Operands lie in panels of the 128-byte swizzle, numbers at number_place(), and a lane loads of
/// an accumulator what tensor_core.cuh says of wgmma.
constexpr bool layouts_are_as_on_hopper() {
  const decltype(cute::as_position_independent_swizzle_layout(RowsLayout<576>{})) rows;
  const decltype(cute::as_position_independent_swizzle_layout(ValuesLayout{})) values;
  const Sums::layout_type sums;
  const Scores::layout_type scores;
  const cute::Copy_Traits<cute::SM100_TMEM_LOAD_16dp256b8x>::DstLayout few;
  const cute::Copy_Traits<cute::SM100_TMEM_LOAD_16dp256b32x>::DstLayout many;
  bool all = true;
  for (int row = 0; row < 64; row += 9) {
    for (int i = 0; i < 576; i += 8) {
      const int place = cute::Swizzle<3, 4, 3>{}(row * 128 + i % 64 * 2) + i / 64 * 8192;
      const auto of_row = make_coord(make_coord(row, i % 16), 0, i / 16);
      const auto value = make_coord(make_coord(i % 256, row % 16), i / 256, row / 16);
      all = all && 2 * rows(of_row) == place && (i >= 512 || 2 * values(value) == place);
    }
    for (int half = 0; half < 2; ++half) {
      const auto number = make_coord(row, row);
      all = all && sums(make_coord(number, 0, half)) == number_place(row, row, half) &&
            scores(make_coord(number, 0, 0, half)) == number_place(row, row, half);
    }
  }
  for (int lane = 0; lane < 32; ++lane) {
    for (int i = 0; i < kSums; ++i) {
      const int row = lane / 4 + 8 * (i / 2 % 2);
      const int column = 8 * (i / 4) + 2 * (lane % 4) + i % 2;
      all = all && many(lane, 32 * i) == 32 * (row * 256 + column) &&
            (i >= kScores || few(lane, 32 * i) == 32 * (row * 64 + column));
    }
  }
  return all;
}

static_assert(layouts_are_as_on_hopper());

/// The first of the sixteen rows that the calling warp may read.
__device__ __forceinline__ uint32_t warp_rows(int half) {
  return static_cast<uint32_t>(number_place((warp_id() & 3) * 16, 0, half));
}

/// Numbers of a warp's rows of an accumulator. kept() stops copies before the wait.
template <int kNumbers>
__device__ __forceinline__ void load_numbers(float (&numbers)[kNumbers], uint32_t from) {
  uint32_t words[kNumbers];
  ptx::tcgen05_ld_16x256b(words, from);
  ptx::tcgen05_wait_ld();
#pragma unroll
  for (int i = 0; i < kNumbers; ++i)
    numbers[i] = __uint_as_float(kept(words[i]));
}

/// Multiplies the sums of a warp's rows.
__device__ __forceinline__ void shrink_sums(uint32_t sums, const float (&shrink)[2]) {
#pragma unroll 1
  for (int column = 0; column < kTileL; column += 2 * kScores) {
    const uint32_t at = sums + warp_rows(column / 256) + static_cast<uint32_t>(column % 256);
    float numbers[kScores];
    load_numbers(numbers, at);
#pragma unroll
    for (int i = 0; i < kScores; ++i)
      numbers[i] *= shrink[i >> 1 & 1];
    ptx::tcgen05_st_16x256b(at, numbers);
  }
  ptx::tcgen05_wait_st();
}

// ---- the kernel ----

constexpr int kGatherers = 1;   ///< warpgroups
constexpr int kScoresWarp = 4;  ///< tensor memory is its own
constexpr int kValuesWarp = 5;
constexpr uint32_t kWeightsAt = (mla_decode::kPanels - 1) * kPanelBytes;  ///< in a tile

struct ListsMemory {
  alignas(1024) Element queries[kTileBytes / 2];
  Element tiles[2][kTileBytes / 2];  ///< weights lie over the last panel
  Element rests[kPanelBytes / 2];    ///< of weights
  float bases[kTileRows];            ///< of each row, after the last tile
  float sums[2 * kTileRows];
  float largest[2 * kTileRows];
  Angle angles[kTurnedPairs];
  uint64_t of_tiles[2 * (kGroups + 2)];  ///< mla_decode::Barriers
  uint64_t scored[2];                    ///< scores of a tile are in tensor memory
  uint64_t weighed[2];                   ///< they are read, and their weights are there
  uint64_t summed;                       ///< the values of a tile are added
  uint32_t tensor_memory;
  Entries entries;
  Findings findings;
};

constexpr int64_t kSharedBytes = sizeof(ListsMemory) + 1024;
static_assert(kSharedBytes <= 227 << 10);
static_assert(offsetof(ListsMemory, rests) == mla_decode::kMaximaAt, "what pieces are written to");

/// Before the instructions of tcgen05, which take whole warps.
__device__ __forceinline__ void wait_for(const uint64_t& barrier, int parity) {
  barrier_wait(shared_address(&barrier), static_cast<uint32_t>(parity & 1));
  __syncwarp();
  ptx::tcgen05_fence_after_thread_sync();
}

/// Warps 0 .. 7: what they did with tensor memory comes first for all.
__device__ __forceinline__ void meet_all() {
  ptx::tcgen05_fence_before_thread_sync();
  named_sync(mla_decode::kAll, mla_decode::kBoth);
  ptx::tcgen05_fence_after_thread_sync();
}

/// Scores of all tiles, each from the first panels that landed on.
template <int kWidth>
__device__ __forceinline__ void multiply_scores(ListsMemory& m, Barriers bars, int num_tiles) {
  ScoresProduct product;
  Scores scores;
  scores.data() = m.tensor_memory + kScoresAt;
  const auto queries = rows_to_multiply<kWidth>(m.queries);
  for (int tile = 0; tile < num_tiles; ++tile) {
    const int buffer = tile & 1;
    const auto keys = rows_to_multiply<kWidth>(m.tiles[buffer]);
    wait_for(m.weighed[buffer], (tile >> 1) + 1);  // of two tiles ago
    product.accumulate_ = ScaleOut::Zero;
    int group = 0;
#pragma unroll 4
    for (int k = 0; k < kWidth / 16; ++k) {
      if (k == 4 * first_panel(group))
        mla_decode::wait_group(bars.full(buffer, group++), tile >> 1 & 1, false);
      cute::gemm(product, queries(_, _, k), keys(_, _, k), scores(_, _, _, buffer));
      product.accumulate_ = ScaleOut::One;
    }
    umma_arrive(&m.scored[buffer]);
  }
}

/// Sums of all tiles; frees each of them.
template <bool kPaired>
__device__ __forceinline__ void multiply_values(ListsMemory& m, Barriers bars, int num_tiles) {
  ValuesProduct product;
  product.accumulate_ = ScaleOut::Zero;
  Sums sums;
  sums.data() = m.tensor_memory;
  const auto rests = rows_to_multiply<kTileKeys>(m.rests);
  for (int tile = 0; tile < num_tiles; ++tile) {
    const int buffer = tile & 1;
    Element* keys = m.tiles[buffer];
    const auto values = values_to_multiply(keys);
    const auto weights = rows_to_multiply<kTileKeys>(keys + kWeightsAt / 2);
    for (int group = 0; group < kGroups; ++group)
      barrier_wait(bars.full(buffer, group), static_cast<uint32_t>(tile >> 1 & 1));
    wait_for(m.weighed[buffer], tile >> 1);
    fence_for_products();
#pragma unroll
    for (int k = 0; k < kTileKeys / 16; ++k) {
      cute::gemm(product, weights(_, _, k), values(_, _, k), sums);
      product.accumulate_ = ScaleOut::One;
      cute::gemm(product, rests(_, _, k), values(_, _, k), sums);
    }
    umma_arrive(&m.summed);
    wait_for(m.summed, tile);
    mla_decode::free_tile<kPaired>(bars, buffer, 0);
  }
}

/// A lane's rows.
__device__ __forceinline__ int row_of(int h) {
  return (warp_id() & 3) * 16 + lane_id() / 4 + 8 * h;
}

/// Weights of all tiles. When it returns, all products of the block are done.
template <class Keys>
__device__ __forceinline__ void weigh_tiles(ListsMemory& m,
                                            const Keys& keys,
                                            const Piece& p,
                                            RowPair& state) {
  for (int tile = 0; tile < p.num_tiles; ++tile) {
    const int buffer = tile & 1;
    const int first_key = (p.first_tile + tile) * kTileKeys;
    const auto asked = keys.ask(first_key);
    wait_for(m.scored[buffer], tile >> 1);
    float s[kScores];
    load_numbers(s, m.tensor_memory + kScoresAt + warp_rows(buffer));
    keys.hide(s, first_key, asked);
    float most[2];
    float shrink[2];
    mla_decode::weigh_scores(s, keys.c.scale * mla_decode::kLog2E, state, most, shrink);
    uint32_t weights[kScores / 2];
    uint32_t rests[kScores / 2];
#pragma unroll
    for (int i = 0; i < kScores / 2; ++i) {
      weights[i] = pack_bf16(s[2 * i], s[2 * i + 1]);
      rests[i] = pack_bf16_rest(s[2 * i], s[2 * i + 1], weights[i]);
    }
    if (tile > 0) {
      // Until then, sums and rests are in use. The first tile's products make the sums.
      wait_for(m.summed, tile - 1);
      if (__any_sync(0xFFFFFFFFu, shrink[0] != 1.0f || shrink[1] != 1.0f))
        shrink_sums(m.tensor_memory, shrink);
    }
    mla_decode::store_weights(shared_address(m.tiles[buffer]) + kWeightsAt, weights);
    mla_decode::store_weights(shared_address(m.rests), rests);
    fence_for_products();
    ptx::tcgen05_fence_before_thread_sync();
    warp_arrive(shared_address(&m.weighed[buffer]));
  }
  if (p.num_tiles > 0) wait_for(m.summed, p.num_tiles - 1);
#pragma unroll
  for (int h = 0; h < 2; ++h)
    m.bases[row_of(h)] = state.base[h];  // the same in all lanes of a row
}

/// kPaired: as in attend_lists().
template <class Rows, bool kPaired>
__global__ void __launch_bounds__(kThreadsWith<kGatherers>, 1)
    attend_in_tensor_memory(const __grid_constant__ mla_decode::Call c,
                            const __grid_constant__ DeviceCall lists,
                            const __grid_constant__ Cuts cuts) {
  constexpr int kScored = kWidthOf<Rows> / kPanelColumns;
  constexpr bool kCoded = Rows::kCodes > 0;
  extern __shared__ unsigned char raw_shared[];
  const uint32_t raw = shared_address(raw_shared);
  const uint32_t shared = (raw + 1023) & ~1023u;
  unsigned char* base = raw_shared + (shared - raw);
  auto& m = *reinterpret_cast<ListsMemory*>(base);
  const Barriers bars{shared_address(m.of_tiles)};
  const int warp = __shfl_sync(0xFFFFFFFFu, warp_id(), 0);
  const int wg = warp / 4;
  const bool merges = cuts.merge == Merge::kCluster;
  if (threadIdx.x == 0) {
    for (int i = 0; i < 2; ++i) {
      for (int group = 0; group < kGroups; ++group)
        barrier_init(bars.full(i, group), kFillers<Rows, kGatherers>);
      for (int part = 0; part < 2; ++part)
        barrier_init(bars.free(i, part), kWarpArrivals * (kPaired ? 2 : 1));
      barrier_init(shared_address(&m.scored[i]), 1);
      barrier_init(shared_address(&m.weighed[i]), 4 * kWarpArrivals);
    }
    barrier_init(shared_address(&m.summed), 1);
    fence_barriers();
    m.findings.clear();
  }
  __syncthreads();
  if constexpr (kPaired) cluster_arrive_relaxed();
  wait_for_previous();
  Piece p = heads_of_block(c, cuts, blockIdx.x);
  if (!kCoded && wg < 2 && cuts.copy_queries) mla_decode::copy_queries<kScored>(c, p, shared);
  find_entries<kGatherers>(lists, p.b, p.split, cuts.splits, m.findings, m.entries);
  if constexpr (kPaired) cluster_wait();  // the other block has its barriers
  take_piece(m.entries, p);
  if (wg == 2) {
    give_registers<kGatherRegisters<Rows, kGatherers>>();
    gather<Rows, kPaired, kGatherers>(lists, m.entries, p, shared_address(m.tiles), bars);
    __syncwarp();
    if (merges) mla_decode::meet_cluster_relaxed();
  } else {
    take_registers<kComputeRegisters<Rows>>();
    // Not earlier: blocks of the previous kernel, which has ended, may have needed it first.
    if (warp == kScoresWarp) {
      ptx::tcgen05_alloc(ptx::cta_group_1, &m.tensor_memory, uint32_t{kColumnsTaken});
      ptx::tcgen05_relinquish_alloc_permit(ptx::cta_group_1);
    }
    bring_queries<Rows, kGatherers>(c, lists, p, cuts, shared, m.angles);
    meet_all();
    RowPair state;
    if (wg == 0) weigh_tiles(m, ListedKeys<kScored, kPaired>{lists, m.entries}, p, state);
    if (warp == kScoresWarp) multiply_scores<kWidthOf<Rows>>(m, bars, p.num_tiles);
    if (warp == kValuesWarp) multiply_values<kPaired>(m, bars, p.num_tiles);
    if (wg == 0) let_next_start();  // idle warps come early
    const bool has_largest = lists.max.data != nullptr;
    if (has_largest) lay_out_largest(m.largest, wg, state);
    ptx::tcgen05_fence_before_thread_sync();
    mla_decode::add_row_sums(m.sums, wg, state);  // all meet
    ptx::tcgen05_fence_after_thread_sync();
#pragma unroll
    for (int h = 0; h < 2; ++h)
      state.base[h] = m.bases[row_of(h)];
    float o[kSums] = {};
    if (p.num_tiles > 0) load_numbers(o, m.tensor_memory + warp_rows(wg));
    meet_all();
    if (warp == kScoresWarp)
      ptx::tcgen05_dealloc(ptx::cta_group_1, m.tensor_memory, uint32_t{kColumnsTaken});
    const TurnedRows turn{lists.turn.present(), m.angles};
    if (c.o.format == Format::kF32) {
      mla_decode::store_rows<float>(c, p, wg, o, state, turn);
    } else {
      mla_decode::give_rows(c, p, cuts, base, wg, o, state, turn);
    }
    if (has_largest) store_largest(lists, p, m.largest, wg);
  }
  // Shared memory that another block reads stays until it has.
  if (merges) mla_decode::meet_cluster_relaxed();
}

Status run(Exec& ex, const Call& c, RunLists run_lists) {
  if (c.o.numel() == 0) return {};
  return with_rows(c, Status{}, [&]<class Rows>(Rows) {
    ListsKernels kernels{.alone = attend_in_tensor_memory<Rows, false>,
                         .paired = nullptr,
                         .merge = mla_decode::merge_pieces<TurnTable>,
                         .threads = kThreadsWith<kGatherers>,
                         .shared_bytes = kSharedBytes};
    if constexpr (Rows::kCodes > 0) kernels.paired = attend_in_tensor_memory<Rows, true>;
    return run_lists(ex, c, kernels);
  });
}

}  // namespace

Status run_lists_sm100(Exec& ex, const SparseMlaDecode::Args& a) {
  return run(ex, make_call(a), a.o.format == Format::kBf16 ? run_cut : run_whole);
}

Status run_lists_sm100(Exec& ex, const SparseMlaPrefill::Args& a) {
  return run(ex, make_call(a), run_whole);
}

Status run_uncut_lists_sm100(Exec& ex, const SparseMlaDecode::Args& a) {
  return run(ex, make_call(a), run_whole);
}

}  // namespace fathom::sparse_mla
