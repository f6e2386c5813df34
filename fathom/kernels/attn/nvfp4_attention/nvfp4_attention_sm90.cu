// Attention over codes on the tensor cores of Hopper. A code times its block scale is exact in
// bf16, so codes are widened once for all queries of a tile, on their way to shared memory, and
// meet the products of ragged attention.
//
//            queries   keys of a block   stages   each of the two warpgroups that compute has
//   Tile192  128       128               2        64 queries and all 128 columns of the values
//   Tile512  64        64                1        all queries, and 256 of the 512 columns
//
// Where both have the same queries, both make all scores: sums of 512 columns are too many for one
// warpgroup, and what one would wait for the other's scores costs as much as to make them.
#include "fathom/kernels/attn/nvfp4_attention/nvfp4_attention_call.cuh"
#include "fathom/kernels/attn/nvfp4_attention/nvfp4_attention_tiles.h"
#include "fathom/kernels/attn/ragged_attention/ragged_attention_rows.cuh"
#include "fathom/kernels/attn/sparse_mla/cuda/sparse_mla_codes.cuh"
#include "fathom/kernels/cuda/launch_cuda.h"
#include "fathom/kernels/cuda/rows.cuh"

namespace fathom::nvfp4_attention {
namespace {

using namespace cuda;  // NOLINT: device primitives
using ragged::Barriers;
using ragged::RowPair;
using ragged::Tile;
using sparse_mla::E2m1Rows;
using sparse_mla::kUnit;
using sparse_mla::Unit;

struct Tile192 {
  static constexpr int kKeyPanels = 3;
  static constexpr int kValuePanels = 2;
  static constexpr int kQueries = 128;
  static constexpr int kBlockKeys = 128;
  static constexpr int kStages = 2;
  static constexpr bool kSharesQueries = false;
  static constexpr int kSums = 64;
  static constexpr int kBringRegisters = 72;
  static constexpr int kComputeRegisters = 216;
};

struct Tile512 {
  static constexpr int kKeyPanels = 8;
  static constexpr int kValuePanels = 8;
  static constexpr int kQueries = 64;
  static constexpr int kBlockKeys = 64;
  static constexpr int kStages = 1;
  static constexpr bool kSharesQueries = true;
  static constexpr int kSums = 128;
  static constexpr int kBringRegisters = 88;
  static constexpr int kComputeRegisters = 208;
};

/// Shared memory, in bytes from a multiple of 1024: queries, keys, values, barriers.
template <class Shape>
struct Memory {
  static_assert(Shape::kQueries == Shape::kBlockKeys, "panels are alike");
  // What 168 registers at launch add up to; the hardware waits for ever beyond it.
  static_assert(Shape::kBringRegisters + 2 * Shape::kComputeRegisters <= 3 * 168);

  static constexpr uint32_t kPanelBytes = Shape::kBlockKeys * kPanelRowBytes;
  static constexpr uint32_t kKeyBytes = Shape::kKeyPanels * kPanelBytes;
  static constexpr uint32_t kValueBytes = Shape::kValuePanels * kPanelBytes;
  static constexpr uint32_t kKeysAt = kKeyBytes;
  static constexpr uint32_t kValuesAt = kKeysAt + Shape::kStages * kKeyBytes;
  static constexpr uint32_t kBarriersAt = kValuesAt + Shape::kStages * kValueBytes;
  static constexpr int64_t kBytes = kBarriersAt + ragged::kBarrierBytes + 1024;

  uint32_t base;

  __device__ uint32_t keys(int stage) const {
    return base + kKeysAt + static_cast<uint32_t>(stage) * kKeyBytes;
  }

  __device__ uint32_t values(int stage) const {
    return base + kValuesAt + static_cast<uint32_t>(stage) * kValueBytes;
  }

  __device__ Barriers barriers() const { return {base + kBarriersAt}; }
};

/// A thread's units of consecutive rows of a head, between memory and panels. Four threads have a
/// panel of a row; thread 4 i + j of kThreads has unit j of rows i, i + kThreads / 4, ..
template <int kPanels, int kRows, int kThreads>
struct HeldCodes {
  static constexpr int kUnitsOfPanel = kPanelColumns / kUnit;
  static constexpr int kSteps = kRows * kUnitsOfPanel / kThreads;
  static_assert(kUnitsOfPanel == 4 && kSteps * kThreads == kRows * 4);

  Unit units[kSteps][kPanels];

  /// The first row stands in for those from `count` on: the mask hides such keys, and such queries
  /// are not stored.
  __device__ __forceinline__ void load(
      const Coded& from, int64_t first, int64_t head, int64_t count, int thread) {
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
      const int row = thread / 4 + step * (kThreads / 4);
      const int64_t t = first + (row < count ? row : 0);
      const uint8_t* codes = from.codes_of(t, head);
      const uint8_t* scales = from.scales_of(t, head);
#pragma unroll
      for (int panel = 0; panel < kPanels; ++panel)
        units[step][panel] =
            E2m1Rows::load(codes, scales, kUnitsOfPanel * panel + (thread & 3), true);
    }
  }

  template <uint32_t kPanelBytes>
  __device__ __forceinline__ void store(uint32_t to, int thread) const {
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
      const int row = thread / 4 + step * (kThreads / 4);
      const int chunk = 2 * (thread & 3);
#pragma unroll
      for (int panel = 0; panel < kPanels; ++panel) {
        uint4 out[2];
        E2m1Rows::decode(units[step][panel], out);
        const uint32_t at = to + static_cast<uint32_t>(panel) * kPanelBytes;
        store_shared_16(at + panel_offset(row, chunk), out[0]);
        store_shared_16(at + panel_offset(row, chunk + 1), out[1]);
      }
    }
  }
};

/// What the third warpgroup does. Codes of a block are in registers before the keys of an earlier
/// one are out of use.
template <class Shape>
__device__ __forceinline__ void bring_blocks(const Call& c, const Tile& t, Memory<Shape> m) {
  using M = Memory<Shape>;
  const int thread = static_cast<int>(threadIdx.x) & (kWarpgroup - 1);
  const int64_t kv_head = t.head / c.rows.group;
  const Barriers bars = m.barriers();
  for (int i = 0; i < t.num_blocks; ++i) {
    const int stage = i % Shape::kStages;
    const auto parity = static_cast<uint32_t>(i / Shape::kStages & 1) ^ 1u;
    const int64_t first = int64_t{t.first_block + i} * Shape::kBlockKeys;
    const int64_t row = t.request.first_key + first;
    const int64_t left = t.request.keys - first;
    HeldCodes<Shape::kKeyPanels, Shape::kBlockKeys, kWarpgroup> keys;
    keys.load(c.k, row, kv_head, left, thread);
    barrier_wait(bars.free(stage, 0), parity);
    keys.template store<M::kPanelBytes>(m.keys(stage), thread);
    fence_for_products();
    barrier_arrive(bars.full(stage, 0));
    barrier_wait(bars.free(stage, 1), parity);
    ragged::copy_rows<Shape::kValuePanels, M::kPanelBytes>(c.rows.v, row, kv_head, left,
                                                           m.values(stage), thread / 8,
                                                           Shape::kBlockKeys, kWarpgroup / 8);
    arrive_after_copies(bars.full(stage, 1));
  }
  wait_copies_all();
}

/// The queries of the tile to panels; returns when those of warpgroup `wg` are there.
template <class Shape>
__device__ __forceinline__ void bring_queries(const Call& c,
                                              const Tile& t,
                                              Memory<Shape> m,
                                              int wg) {
  constexpr int kThreads = Shape::kSharesQueries ? 2 * kWarpgroup : kWarpgroup;
  const int thread = static_cast<int>(threadIdx.x) & (kThreads - 1);
  const int first_row = Shape::kSharesQueries ? 0 : 64 * wg;
  HeldCodes<Shape::kKeyPanels, 64, kThreads> queries;
  // Where a warpgroup has none, the tile's first query stands in for all.
  const int64_t count = t.num_queries - first_row;
  queries.load(c.q, t.request.first_query + t.first + (count > 0 ? first_row : 0), t.head, count,
               thread);
  queries.template store<Memory<Shape>::kPanelBytes>(
      m.base + static_cast<uint32_t>(first_row) * kPanelRowBytes, thread);
  fence_for_products();
  named_sync(Shape::kSharesQueries ? 1 : 1 + wg, kThreads);
}

/// What the first two do.
template <class Shape>
__device__ __forceinline__ void attend_blocks(const Call& c,
                                              const Tile& t,
                                              Memory<Shape> m,
                                              int wg) {
  using M = Memory<Shape>;
  constexpr int kScores = Shape::kBlockKeys / 2;
  constexpr int kColumns = 2 * Shape::kSums;  // of the values that a warpgroup has
  const int first_row = Shape::kSharesQueries ? 0 : 64 * wg;
  const int first_column = Shape::kSharesQueries ? kColumns * wg : 0;
  const uint32_t queries = m.base + static_cast<uint32_t>(first_row) * kPanelRowBytes;
  const uint32_t columns = static_cast<uint32_t>(first_column / kPanelColumns) * M::kPanelBytes;
  const Barriers bars = m.barriers();
  const ragged::SeenByAll seen(c.rows, t, first_row);
  RowPair rows = ragged::rows_of_lane(c.rows, t, first_row);
  // Applied to the scores themselves: globals may be zero or negative.
  const float scale = c.logit_scale(t.head) * 1.44269504f;
  float o[Shape::kSums];
#pragma unroll
  for (int i = 0; i < Shape::kSums; ++i)
    o[i] = 0.0f;
  for (int i = 0; i < t.num_blocks; ++i) {
    const int stage = i % Shape::kStages;
    const auto parity = static_cast<uint32_t>(i / Shape::kStages & 1);
    const int first = (t.first_block + i) * Shape::kBlockKeys;
    float s[kScores];
    barrier_wait(bars.full(stage, 0), parity);
    ragged::score_block<Shape::kKeyPanels, M::kPanelBytes>(s, queries, m.keys(stage));
    ragged::free_stage(bars.free(stage, 0));
#pragma unroll
    for (int k = 0; k < kScores; ++k)
      s[k] *= scale;
    if (!seen.holds(first, Shape::kBlockKeys)) ragged::mask_block(s, rows, first);
    ragged::weigh(s, o, rows, 1.0f);
    ragged::add_weighted<M::kPanelBytes>(o, s, rows, seen.two_terms, m.values(stage) + columns,
                                         [&] {
                                           barrier_wait(bars.full(stage, 1), parity);
                                           fence_for_products();
                                         });
    ragged::free_stage(bars.free(stage, 1));
  }
  const bool has_lse = c.rows.lse.data != nullptr && first_column == 0;
  ragged::store_rows(c.rows, t, first_row, first_column, has_lse, 1.0f, o, rows);
}

template <class Shape>
__global__ void __launch_bounds__(ragged::kBlockThreads, 1)
    attend_tiles(const __grid_constant__ Call c, int64_t tiles_each_head) {
  extern __shared__ unsigned char raw_shared[];
  let_next_start();
  wait_for_previous();
  const Tile t = ragged::tile_of<Shape::kQueries, Shape::kBlockKeys>(c.rows, tiles_each_head);
  if (t.num_queries == 0) return;
  const Memory<Shape> m{(shared_address(raw_shared) + 1023) & ~1023u};
  if (threadIdx.x == 0) m.barriers().init();
  __syncthreads();
  const int wg = __shfl_sync(0xFFFFFFFFu, static_cast<int>(threadIdx.x) / kWarpgroup, 0);
  if (wg == 2) {
    give_registers<Shape::kBringRegisters>();
    bring_blocks(c, t, m);
  } else {
    take_registers<Shape::kComputeRegisters>();
    bring_queries(c, t, m, wg);
    attend_blocks(c, t, m, wg);
  }
}

template <class Shape>
Status run_tiles(Exec& ex, const Nvfp4QkAttention::Args& a) {
  const Call c = call_of(a);
  const int64_t tiles = ragged::most_tiles(c.rows, Shape::kQueries);
  return launch_kernel(ex, attend_tiles<Shape>,
                       {.blocks = tiles * c.rows.N,
                        .threads = ragged::kBlockThreads,
                        .shared_bytes = Memory<Shape>::kBytes},
                       c, tiles);
}

}  // namespace

bool takes_tiles(const Nvfp4QkAttention::Args& a) {
  return is_aligned(a.q, 8) && is_aligned(a.k, 8) && takes_vectors(a.v) && takes_vectors(a.o);
}

Status run_tiles_192(Exec& ex, const Nvfp4QkAttention::Args& a) {
  return run_tiles<Tile192>(ex, a);
}

Status run_tiles_512(Exec& ex, const Nvfp4QkAttention::Args& a) {
  return run_tiles<Tile512>(ex, a);
}

}  // namespace fathom::nvfp4_attention
