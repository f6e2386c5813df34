// Scores of e4m3 and e2m1 rows on the tensor cores of Blackwell. Compiled, never run.
//
// A block takes some tokens of a request, whose queries stay in shared memory, and 128 keys at a
// time. Keys are the rows of products and heads their columns, so thread i reads the products of
// key i from its lane of tensor memory and weighs them alone, while those of the next token run.
//
//   columns of tensor memory     64 i ..             products of token i
//                                S .. S+3            of e2m1: scales of the keys;  S = 64 tokens
//                                S+4+4i .. S+7+4i    scales of the heads of token i
#include <bit>
#include <utility>

#include <cuda/ptx>

#include "cute/atom/mma_traits_sm100.hpp"
#include "cute/tensor.hpp"
#include "cutlass/arch/barrier.h"
#include "fathom/kernels/cuda/products/mma.cuh"
#include "fathom/kernels/sparse/index_logits/index_logits_cuts.cuh"

namespace fathom {
namespace {

using namespace index_logits;  // the parts of these kernels
namespace ptx = ::cuda::ptx;

constexpr int kTileKeys = kThreads;
constexpr uint32_t kAtom = 1024;  ///< bytes that swizzled rows are aligned to
constexpr uint32_t kScaleColumns = 4;

// ---- products ----

namespace umma = cute::UMMA;
using cute::_1;
using cute::_2;
using cute::Int;
using cute::Shape;
using Scale = cute::float_ue8m0_t;
using Keys = Int<kTileKeys>;
constexpr auto kMajor = umma::Major::K;

/// e4m3 as it is.
struct E4m3Codes {
  using Code = cute::float_e4m3_t;
  using Atom = umma::Layout_K_SW128_Atom<Code>;
  static constexpr bool kScaled = false;
  static constexpr int kRowBytes = kChannels;
  static constexpr int kQueries = kMostQueries;  ///< most of a block
  static constexpr int kStages = 2;

  __device__ static void multiply(
      uint64_t a, uint64_t b, uint32_t at, int step, uint32_t, uint32_t) {
    cute::SM100_MMA_F8F6F4_SS::fma(
        a, b, at, step,
        umma::make_runtime_instr_desc<Code, Code, float, kTileKeys, kMostHeads, kMajor, kMajor>());
  }
};

/// e2m1 with a ue8m0 for each 32 channels of keys and heads.
struct E2m1Codes {
  using Code = cute::float_e2m1_t;
  using Atom = umma::Layout_K_SW64_Atom<Code>;
  static constexpr bool kScaled = true;
  static constexpr int kRowBytes = kChannels / 2;
  static constexpr int kQueries = 3;  ///< whose products and scales take half of the columns
  static constexpr int kStages = 3;

  __device__ static void multiply(
      uint64_t a, uint64_t b, uint32_t at, int step, uint32_t key_scales, uint32_t head_scales) {
    // The highest two bits of an address say from which byte of a word on.
    key_scales |= static_cast<uint32_t>(step) << 31;
    head_scales |= static_cast<uint32_t>(step) << 31;
    using Product = cute::SM100_MMA_MXF4_SS<Code, Code, float, Scale, kTileKeys, kMostHeads, 32,
                                            kMajor, kMajor>;
    Product::fma(
        a, b, at, step,
        umma::make_runtime_instr_desc_block_scaled<Code, Code, float, Scale, kTileKeys, kMostHeads,
                                                   kMajor, kMajor>(key_scales, head_scales),
        key_scales, head_scales);
  }
};

/// Rows of keys or heads in shared memory, one behind the other, their sixteen bytes swizzled.
template <class Codes>
using Rows = decltype(cute::tile_to_shape(typename Codes::Atom{}, Shape<Keys, Int<kChannels>>{}));
template <class Codes>
constexpr int kChunks = Codes::kRowBytes / 16;

template <class Codes>
__device__ __forceinline__ constexpr uint32_t chunk_offset(int row, int chunk) {
  const decltype(cute::as_position_independent_swizzle_layout(Rows<Codes>{})) rows{};
  const int at = rows(row, chunk * (kChannels / kChunks<Codes>));
  return static_cast<uint32_t>(at * Codes::kRowBytes / kChannels);
}

static_assert(chunk_offset<E4m3Codes>(13, 6) == 128 * 13 + 16 * (6 ^ 5), "by 8 rows of 128 bytes");
static_assert(chunk_offset<E2m1Codes>(13, 3) == 64 * 13 + 16 * (3 ^ 2), "by 4 pairs of 64 bytes");

/// Which of 128 words has the scales of a row: 32 lines of four words become the lanes of four
/// columns, the same in each quarter of the lanes.
constexpr int scale_word(int row) {
  return row % 32 * 4 + row / 32;
}

using KeysByHeads = Shape<Shape<Keys, Int<kMostHeads>>, _1, _1>;
using Sums = decltype(cute::make_tensor<umma::tmem_frg_1sm<float>>(KeysByHeads{}))::layout_type;
static_assert(Sums{}(cute::make_coord(cute::make_coord(5, 7), 0, 0)) == (5 << 16) + 7,
              "key 5 is lane 5, head 7 column 7");

using Scales = decltype(cute::make_tensor<umma::tmem_sf_frg<Scale, 32, 1, true>>(
    Shape<Shape<Keys, Shape<Int<32>, _2>>, _1, _2>{}))::layout_type;
constexpr auto kRow101Channel96 = cute::make_coord(cute::make_coord(101, 32), 0, 1);
static_assert(scale_word(101) == 5 * 4 + 3 && Scales{}(kRow101Channel96) == (5 << 18) + 3 * 4 + 3,
              "line 5 is lane 5, its word 3 column 3");

/// Brings the scales of 128 rows to four columns. By the thread that issues products.
__device__ __forceinline__ void place_scales(const uint32_t* scales, uint32_t at) {
  using Lines = cute::Layout<Shape<Int<32>, Int<16>>, cute::Stride<Int<16>, _1>>;
  const auto* bytes = reinterpret_cast<const uint8_t*>(scales);
  const auto lines = cute::make_tensor(cute::make_smem_ptr(bytes), Lines{});
  cute::SM100_UTCCP_4x32dp128bit_1cta::copy(umma::make_umma_desc<kMajor>(lines), at);
}

/// The descriptor of rows, from their first channels on.
template <class Codes>
__device__ __forceinline__ umma::DescriptorIterator describe(const std::byte* rows) {
  const auto codes = cute::recast_ptr<const typename Codes::Code>(rows);
  return {
      umma::make_umma_desc<kMajor>(cute::make_tensor(cute::make_smem_ptr(codes), Rows<Codes>{}))};
}

// ---- blocks ----

/// What a block has in shared memory; its queries lie behind it.
template <class Codes>
struct Memory {
  struct Tile {
    alignas(kAtom) std::byte codes[kTileKeys * Codes::kRowBytes];
    alignas(16) uint32_t scales[kTileKeys];  ///< at scale_word(row): four ue8m0, or one f32
  };

  struct Query {
    alignas(kAtom) std::byte codes[kMostHeads * Codes::kRowBytes];
    alignas(16) uint32_t scales[kTileKeys];  ///< at scale_word(head)
    alignas(16) float weights[kMostHeads];
  };

  Tile tiles[Codes::kStages];
  uint64_t products_done[kMostQueries];  ///< barriers
  uint32_t tensor_memory;                ///< the block's first column

  __device__ Query& query(int i) { return reinterpret_cast<Query*>(this + 1)[i]; }
};

template <class Codes>
constexpr uint32_t num_columns(int queries) {
  const uint32_t scales = Codes::kScaled ? kScaleColumns * (1 + queries) : 0;
  return std::bit_ceil(kMostHeads * queries + scales);
}

/// A block's work, on the tokens of one request at a time.
template <class Codes>
struct Scorer {
  const Call& c;
  const Cuts& cuts;
  Memory<Codes>& memory;
  uint32_t products;  ///< columns of tensor memory
  uint32_t key_scales;
  const int32_t* pages = nullptr;
  TreeToken tree{};     ///< if the token is one of a tree
  uint32_t phases = 0;  ///< bit i: the parity that products_done[i] is waited for with

  /// The columns of a stretch.
  __device__ void run(const Stretch<kTileKeys>& stretch, int request) {
    stretch.hide_others(c);
    if (stretch.tiles == 0) return;
    pages = c.pages_of(request);
    const Queries& queries = stretch.queries;
    if (c.tree_masks != nullptr) tree = c.tree_token(queries.token, queries.range(0).end);

    __syncthreads();  // weights of the request before have been read
    load_queries(queries.token, queries.count);
    // A group of copies for each tile, empty behind the last; queries come with the first.
    int next = stretch.first_tile;
    Call::Place place = find(stretch, next);
    const auto copy_next = [&](int stage) {
      if (next < stretch.end_tile()) copy_tile(stage, place);
      cuda::commit_copies();
      next += kTileKeys;
      place = find(stretch, next);
    };
    for (int stage = 0; stage + 1 < Codes::kStages; ++stage)
      copy_next(stage);
    int stage = 0;
#pragma unroll 1
    for (int tile = stretch.first_tile; tile < stretch.end_tile(); tile += kTileKeys) {
      // The stage of the tile before is free: every thread has waited for its products.
      copy_next(stage == 0 ? Codes::kStages - 1 : stage - 1);
      cuda::wait_copies<Codes::kStages - 1>();
      cuda::fence_for_products();
      ptx::tcgen05_fence_before_thread_sync();
      __syncthreads();
      score_tile(queries, tile, stage);
      stage = stage + 1 == Codes::kStages ? 0 : stage + 1;
    }
  }

  /// Where this thread's key of the tile that begins at `begin` lies.
  __device__ Call::Place find(const Stretch<kTileKeys>& stretch, int begin) const {
    const int key = begin + static_cast<int>(threadIdx.x);
    const int j = inside(key, stretch.first_key, stretch.end_key);
    return c.place(pages, c.tree_masks == nullptr ? j : c.place_in_tree(tree, j));
  }

  /// Starts to copy a tile. Each thread knows the place of one row, which a warp copies together.
  __device__ void copy_tile(int stage, const Call::Place& place) const {
    auto& tile = memory.tiles[stage];
    const auto row = reinterpret_cast<uint64_t>(cuts.keys.at(place.page, place.row));
    const int chunk = cuda::lane_id() % kChunks<Codes>;
#pragma unroll
    for (int pass = 0; pass < kChunks<Codes>; ++pass) {
      const int lane = (32 * pass + cuda::lane_id()) / kChunks<Codes>;
      const uint64_t from = __shfl_sync(kAllLanes, row, lane);
      const uint32_t to = chunk_offset<Codes>(32 * cuda::warp_id() + lane, chunk);
      cuda::copy_async<16>(tile.codes + to, reinterpret_cast<const std::byte*>(from) + 16 * chunk,
                           true);
    }
    cuda::copy_async<4>(&tile.scales[scale_word(static_cast<int>(threadIdx.x))],
                        cuts.key_scales.at(place.page, place.row), true);
  }

  /// Starts to bring queries. Heads that do not exist have codes, scales and weights of zero.
  __device__ void load_queries(int token, int count) {
    const auto tid = static_cast<int>(threadIdx.x);
#pragma unroll 1
    for (int i = 0; i < count; ++i) {
      auto& query = memory.query(i);
      for (int n = tid; n < kMostHeads * kChunks<Codes>; n += kThreads) {
        const int head = n / kChunks<Codes>;
        const int chunk = n % kChunks<Codes>;
        const bool exists = head < c.H;
        cuda::copy_async<16>(query.codes + chunk_offset<Codes>(head, chunk),
                             c.q.at(token + i, exists ? head : 0) + 16 * chunk, exists);
      }
      const bool exists = tid < c.H;
      if constexpr (Codes::kScaled)
        query.scales[scale_word(tid)] = exists ? load_bytes(c.q_scales.at(token + i, tid)) : 0;
      // Half, since x + |x| is twice what a negative x is cut off to.
      if (tid < kMostHeads) query.weights[tid] = exists ? 0.5f * c.w[token + i][tid] : 0.0f;
    }
  }

  /// Starts the products of a tile with all queries. By the first warp.
  __device__ void start_products(int stage, int count) {
    const auto& tile = memory.tiles[stage];
    ptx::tcgen05_fence_after_thread_sync();
    const auto keys = describe<Codes>(tile.codes);
#pragma unroll 1
    for (int i = 0; i < count; ++i) {
      const uint32_t head_scales = key_scales + (1 + i) * kScaleColumns;
      if (Codes::kScaled && cute::elect_one_sync()) {
        if (i == 0) place_scales(tile.scales, key_scales);
        place_scales(memory.query(i).scales, head_scales);
      }
      __syncwarp();
      const auto heads = describe<Codes>(memory.query(i).codes);
#pragma unroll
      for (int step = 0; step < Codes::kRowBytes / 32; ++step)  // 32 bytes of each row
        Codes::multiply(keys[2 * step], heads[2 * step], products + kMostHeads * i, step,
                        key_scales, head_scales);
      cutlass::arch::umma_arrive(&memory.products_done[i]);
    }
  }

  /// The logits of a tile, whose copies all threads have waited for.
  __device__ void score_tile(const Queries& queries, int begin, int stage) {
    if (cutlass::canonical_warp_idx_sync() == 0) start_products(stage, queries.count);
    const auto tid = static_cast<int>(threadIdx.x);
    const uint32_t scale = memory.tiles[stage].scales[scale_word(tid)];
    const float factor = Codes::kScaled ? 1.0f : __uint_as_float(scale);
    const int j = begin + tid;
#pragma unroll 1
    for (int i = 0; i < queries.count; ++i) {
      const uint32_t barrier = cuda::shared_address(&memory.products_done[i]);
      cuda::barrier_wait(barrier, phases >> i & 1);
      phases ^= 1u << i;
      __syncwarp();  // instructions of tensor memory take whole warps
      ptx::tcgen05_fence_after_thread_sync();
      const float logit = weigh_heads(i) * factor;
      const Call::Range range = queries.range(i);
      if (j < c.columns) c.logits[queries.token + i][j] = range.sees(j) ? logit : -INFINITY;
    }
  }

  /// The heads of token i, weighed and added up for this thread's key: every fourth in one sum.
  __device__ float weigh_heads(int i) const {
    constexpr int kAtOnce = 32;
    float sums[4] = {};
#pragma unroll
    for (int first = 0; first < kMostHeads; first += kAtOnce) {
      const uint32_t own =
          products + kMostHeads * i + first + (static_cast<uint32_t>(32 * cuda::warp_id()) << 16);
      uint32_t words[kAtOnce];  // word h: head first + h
      const auto load = [&]<size_t... kHead>(std::index_sequence<kHead...>) {
        cute::SM100_TMEM_LOAD_32dp32b32x::copy(own, words[kHead]...);
      };
      load(std::make_index_sequence<kAtOnce>{});
      cutlass::arch::fence_view_async_tmem_load();
#pragma unroll
      for (int h = 0; h < kAtOnce; ++h) {
        // Kept: the wait does not name what must not precede it.
        const float x = __uint_as_float(cuda::kept(words[h]));
        sums[h % 4] =
            fmaf(x + fabsf(x), memory.query(i).weights[first + h], sums[h % 4]);  // NaN stays
      }
    }
    return (sums[0] + sums[1]) + (sums[2] + sums[3]);
  }
};

template <class Codes>
__global__ void __launch_bounds__(kThreads, kBlocksOfSm)
    score_keys(const __grid_constant__ Call c, const __grid_constant__ Cuts cuts) {
  extern __shared__ unsigned char keys_shared[];
  const uint32_t raw = cuda::shared_address(keys_shared);
  auto& memory = *reinterpret_cast<Memory<Codes>*>(keys_shared + (kAtom - raw % kAtom) % kAtom);
  const auto columns = static_cast<int>(num_columns<Codes>(cuts.queries));
  const bool allocates = cutlass::canonical_warp_idx_sync() == 0;
  cute::TMEM::Allocator1Sm allocator;
  // Tensor memory is taken when the kernel before is done, and the next one may only start when
  // all blocks have theirs: no two kernels hold some and wait for each other.
  cuda::wait_for_previous();
  if (allocates) {
    allocator.allocate(columns, &memory.tensor_memory);
    allocator.release_allocation_lock();
  }
  if (threadIdx.x == 0) {
    for (uint64_t& barrier : memory.products_done)
      cuda::barrier_init(cuda::shared_address(&barrier), 1);
    cuda::fence_barriers();
  }
  ptx::tcgen05_fence_before_thread_sync();
  __syncthreads();
  ptx::tcgen05_fence_after_thread_sync();
  cuda::let_next_start();

  const uint32_t key_scales = memory.tensor_memory + kMostHeads * cuts.queries;
  Scorer<Codes> scorer{c, cuts, memory, memory.tensor_memory, key_scales};
  for_requests<kTileKeys, false>(c, cuts, [&](const Stretch<kTileKeys>& stretch, int request) {
    scorer.run(stretch, request);
  });

  ptx::tcgen05_fence_before_thread_sync();
  __syncthreads();
  ptx::tcgen05_fence_after_thread_sync();
  if (allocates) allocator.free(memory.tensor_memory, columns);
}

template <class Codes>
Status launch_scores(Exec& ex, const IndexLogitsCall& call) {
  using Query = typename Memory<Codes>::Query;
  const Cuts cuts = cuts_of(call, *ex.device, kTileKeys, Codes::kQueries);
  const size_t bytes = sizeof(Memory<Codes>) + sizeof(Query) * cuts.queries + kAtom;
  return launch_kernel(ex, score_keys<Codes>,
                       {.blocks = num_blocks(call, cuts, kTileKeys),
                        .threads = kThreads,
                        .shared_bytes = static_cast<int64_t>(bytes)},
                       device_call(call), cuts);
}

}  // namespace

Status run_index_logits_sm100(Exec& ex, const IndexLogitsCall& call) {
  if (call.num_tokens == 0 || call.columns == 0) return {};
  return call.keys.format == Format::kU8 ? launch_scores<E2m1Codes>(ex, call)
                                         : launch_scores<E4m3Codes>(ex, call);
}

}  // namespace fathom
