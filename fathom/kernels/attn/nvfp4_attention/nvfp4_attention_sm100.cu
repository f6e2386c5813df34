// Attention over codes by Blackwell's FP4 units; scores and sums are in tensor memory. Compiled,
// never run.
//
//   warps 0-3   a thread a query: weights from scores; sums shrunk and stored
//   warps 4-6   bring codes, scales and values
//   warp 7      issues products: scores of a block, then sums of the one before
#include <cmath>
#include <utility>

#include <cuda/ptx>

#include "cute/tensor.hpp"
#include "cutlass/arch/barrier.h"
#include "cutlass/detail/sm100_blockscaled_layout.hpp"
#include "fathom/kernels/attn/nvfp4_attention/nvfp4_attention_call.cuh"
#include "fathom/kernels/attn/nvfp4_attention/nvfp4_attention_tiles.h"
#include "fathom/kernels/attn/ragged_attention/ragged_attention_rows.cuh"
#include "fathom/kernels/cuda/launch_cuda.h"
#include "fathom/kernels/cuda/products/mma.cuh"
#include "fathom/kernels/cuda/rows.cuh"

namespace fathom::nvfp4_attention {
namespace {

using namespace cuda;  // NOLINT: device primitives
using cute::_, cute::_1, cute::Int, cute::Layout, cute::Shape, cute::Stride;
using cute::make_coord, cute::make_tensor, cute::UMMA::Major, cute::UMMA::ScaleOut;
namespace UMMA = cute::UMMA;
namespace ptx = ::cuda::ptx;

using Code = cutlass::float_e2m1_t;
using Scale = cutlass::float_ue4m3_t;
using Value = cutlass::bfloat16_t;

constexpr int kQueries = 128;  ///< of a tile: lanes of tensor memory
constexpr int kStages = 2;
constexpr int kBringers = 96;
constexpr int kThreads = kQueries + kBringers + 32;  // a ninth warp: 168 registers a thread
constexpr int kTensorColumns = 512;

// A thread reaches its lane; register i is column i.
using Load = cute::SM100_TMEM_LOAD_32dp32b32x;
using Store = cute::SM100_TMEM_STORE_32dp32b32x;  // of the same layout
static_assert(cute::Copy_Traits<Load>::ValID{} ==
              Layout<Shape<Int<1024>, Int<32>>, Stride<_1, UMMA::TMEM::DP_b>>{});
using Registers = std::make_index_sequence<32>;

/// Orders accesses to tensor memory, too.
struct Barrier {
  uint64_t word;

  __device__ uint32_t at() const { return shared_address(&word); }

  __device__ void init(int arrivals) { barrier_init(at(), arrivals); }

  __device__ void arrive() const {
    ptx::tcgen05_fence_before_thread_sync();
    barrier_arrive(at());
  }

  /// Until phase `phase`, from 0 on, is over; -1 is.
  __device__ void wait(int phase) const {
    barrier_wait(at(), phase & 1);
    ptx::tcgen05_fence_after_thread_sync();
  }
};

__device__ void sync_all() {
  ptx::tcgen05_fence_before_thread_sync();
  __syncthreads();
  ptx::tcgen05_fence_after_thread_sync();
}

template <class T, class Layout>
__device__ auto tile_at(uint8_t* data, Layout layout) {
  return make_tensor(cute::make_smem_ptr(cute::recast_ptr<T>(data)), layout);
}

/// `count` rows, `stride` bytes apart, by kBytes to place(row, piece); zeros to other rows.
template <int kBytes, int kRows, int kPieces, class Place>
__device__ void copy_rows(const void* from, int64_t stride, int64_t count, Place place) {
#pragma unroll 4
  for (int i = threadIdx.x - kQueries; i < kRows * kPieces; i += kBringers) {
    const int row = i / kPieces;
    const int piece = i % kPieces;
    const bool exists = row < count;
    const int64_t at = (exists ? row * stride : 0) + piece * kBytes;
    copy_async<kBytes>(place(row, piece), static_cast<const uint8_t*>(from) + at, exists);
  }
}

/// Scales to all four parts of tensor memory.
template <class From, class To>
__device__ void copy_scales(const From& from, const To& to) {
  using Copy = cute::SM100_UTCCP_4x32dp128bit_1cta;
  const auto source = make_tensor(from.data(), filter_zeros(from.layout()));
  const auto target = make_tensor(to.data(), filter_zeros(to.layout()));
  const auto copier = make_utccp_copy(Copy{}, target);
  const auto slice = copier.get_slice(0);
  auto places = slice.partition_D(target);
  const auto pieces = get_utccp_smem_desc_tensor<Copy>(slice.partition_S(source));
  if (cute::elect_one_sync()) copy(copier, pieces, places);
}

template <int kCount>
__device__ __forceinline__ void load_columns(uint32_t from, float (&to)[kCount]) {
  uint32_t words[kCount];
  __syncwarp();  // a warp loads as one, also behind branches that not all lanes took
#pragma unroll
  for (uint32_t first = 0; first < kCount; first += 32) {
    [&]<size_t... i>(std::index_sequence<i...>) {
      Load::copy(from + first, words[first + i]...);
    }
    (Registers());
  }
  cutlass::arch::fence_view_async_tmem_load();
#pragma unroll
  for (int i = 0; i < kCount; ++i)
    to[i] = __uint_as_float(kept(words[i]));  // uses stay behind the wait
}

/// word(i) to column i of 32.
template <class Word>
__device__ __forceinline__ void store_columns(uint32_t to, Word word) {
  [&]<size_t... i>(std::index_sequence<i...>) {
    Store::copy(word(i)..., to);
  }
  (Registers());
}

/// Turns scores into weights, in place, and returns what earlier sums shrink by.
template <int kKeys>
__device__ __forceinline__ float weigh(float (&s)[kKeys], float& max, float& sum) {
  const float before = max;
#pragma unroll
  for (int k = 0; k < kKeys; ++k)
    max = fmaxf(max, s[k]);
  const float base = max == -INFINITY ? 0.0f : max;
  const float shrink = exp2_approx(before - base);
  sum *= shrink;
#pragma unroll
  for (int k = 0; k < kKeys; ++k) {
    s[k] = exp2_approx(s[k] - base);
    sum += s[k];
  }
  return shrink;
}

/// A block's work, on one of kParts parts of the values' columns; all parts make scores.
template <int kChannels, int kKeys, int kColumns, int kParts>
struct Attention {
  static constexpr int kBlockKeys = kKeys;
  static constexpr int kValueParts = kParts;
  static constexpr int kSteps = kChannels / 64;  ///< products; each has a word of scales a row

  using ScoreTile = Shape<Int<kQueries>, Int<kKeys>, Int<kChannels>>;
  using SumTile = Shape<Int<kQueries>, Int<kColumns>, Int<kKeys>>;
  using ScoreProduct =
      cute::SM100_MMA_MXF4_SS<Code, Code, float, Scale, kQueries, kKeys, 16, Major::K, Major::K>;
  using SumProduct =
      cute::SM100_MMA_F16BF16_TS<Value, Value, float, kQueries, kColumns, Major::K, Major::MN>;
  using ScoreMma = decltype(make_tiled_mma(ScoreProduct{}));
  using SumMma = decltype(make_tiled_mma(SumProduct{}));
  using CodeAtom = UMMA::Layout_K_SW32_Atom<Code>;
  using ValueAtom = UMMA::Layout_MN_SW128_Atom<Value>;
  using Queries = decltype(UMMA::tile_to_mma_shape(
      CodeAtom{}, partition_shape_A(ScoreMma{}, select<0, 2>(ScoreTile{}))));
  using Keys = decltype(UMMA::tile_to_mma_shape(
      CodeAtom{}, partition_shape_B(ScoreMma{}, select<1, 2>(ScoreTile{}))));
  using Values = decltype(UMMA::tile_to_mma_shape(
      ValueAtom{}, partition_shape_B(SumMma{}, select<1, 2>(SumTile{}))));
  // A step's scales are 128 words: 64 keys leave half of them unread.
  using Scaled = cutlass::detail::Sm1xxBlockScaledConfig<16>;
  using QueryScales = decltype(Scaled::deduce_smem_layoutSFA(ScoreMma{}, ScoreTile{}));
  using KeyScales = decltype(Scaled::deduce_smem_layoutSFB(ScoreMma{}, ScoreTile{}));

  // ---- tensor memory: row m of a product is lane m, column n its column n ----

  using Scores = decltype(partition_fragment_C(ScoreMma{}, select<0, 1>(ScoreTile{})));
  using Sums = decltype(partition_fragment_C(SumMma{}, select<0, 1>(SumTile{})));
  using Weights = decltype(make_tensor<typename SumMma::FrgTypeA>(
      partition_shape_A(SumMma{}, select<0, 2>(SumTile{}))));
  template <class T, int kWidth>
  using Plain = Layout<Shape<Int<kQueries>, Int<kWidth>>, Stride<UMMA::TMEM::DP<T>, _1>>;
  static_assert(coalesce(Scores{}.layout()) == Plain<float, kKeys>{} &&
                coalesce(Sums{}.layout()) == Plain<float, kColumns>{} &&
                coalesce(Weights{}.layout()) == Plain<Value, kKeys>{});

  // First columns; that of scores is 0. Rests are what rounding left of weights.
  static constexpr uint32_t kWeightsAt = kKeys;
  static constexpr uint32_t kRestsAt = kWeightsAt + kKeys / 2;
  static constexpr uint32_t kSumsAt = kRestsAt + kKeys / 2;
  static constexpr uint32_t kQueryScalesAt = kSumsAt + kColumns;
  static constexpr uint32_t kKeyScalesAt = kQueryScalesAt + 4 * kSteps;
  static_assert(kKeyScalesAt + 4 * kSteps <= kTensorColumns);

  struct Memory {
    // Swizzles repeat every 256 bytes, of values 1,024.
    alignas(1024) uint8_t values[kStages][2 * kColumns * kKeys];
    uint8_t queries[kQueries * kChannels / 2];
    uint8_t keys[kStages][kKeys * kChannels / 2];
    uint8_t query_scales[cute::cosize_v<QueryScales>];
    uint8_t key_scales[kStages][cute::cosize_v<KeyScales>];
    Barrier keys_ready[kStages];  ///< the first time queries, too
    Barrier values_ready[kStages];
    Barrier scored[kStages];  ///< keys are out of use, too
    Barrier summed[kStages];  ///< weights and values are out of use, too
    Barrier scores_read;
    Barrier weights_ready;
    uint32_t tensor_memory;

    static_assert(sizeof(values[0]) % 1024 == 0 && sizeof(keys[0]) % 256 == 0);

    __device__ void init() {
      scores_read.init(kQueries);
      weights_ready.init(kQueries);
      for (int i = 0; i < kStages; ++i) {
        keys_ready[i].init(kBringers);
        values_ready[i].init(kBringers);
        scored[i].init(1);
        summed[i].init(1);
      }
      fence_barriers();
    }
  };

  const Call& call;
  const ragged::Tile& t;
  Memory& m;
  int part;
  bool two_terms;  ///< of weights, for some query

  // ---- warps 4-6 ----

  template <int kRows, class Codes, class Scales>
  __device__ void bring_coded(
      const Coded& x, int64_t row, int64_t head, int64_t count, uint8_t* codes, uint8_t* scales) {
    const auto tile = cute::recast<cute::uint128_t>(tile_at<Code>(codes, Codes{}));
    copy_rows<16, kRows, kChannels / 32>(
        x.codes_of(row, head), x.codes.token_stride, count,
        [&](int r, int chunk) { return &tile(make_coord(r, chunk % 2), 0, chunk / 2); });
    copy_rows<4, kRows, kSteps>(
        x.scales_of(row, head), x.scales.token_stride, count, [&](int r, int step) {
          return scales + Scales{}(make_coord(make_coord(r, 0), 0, make_coord(0, step)));
        });
  }

  __device__ void bring() {
    const auto& v = call.rows.v;
    const int64_t head = t.head / call.rows.group;
    bring_coded<kQueries, Queries, QueryScales>(call.q, t.request.first_query + t.first, t.head,
                                                t.num_queries, m.queries, m.query_scales);
    for (int i = 0; i < t.num_blocks; ++i) {
      const int stage = i % kStages;
      const int64_t row = t.request.first_key + i * kKeys;
      const int64_t left = t.request.keys - i * kKeys;
      m.scored[stage].wait(i / kStages - 1);
      bring_coded<kKeys, Keys, KeyScales>(call.k, row, head, left, m.keys[stage],
                                          m.key_scales[stage]);
      arrive_after_copies(m.keys_ready[stage].at());
      m.summed[stage].wait(i / kStages - 1);
      const auto tile = cute::recast<cute::uint128_t>(tile_at<Value>(m.values[stage], Values{}));
      const auto* from = static_cast<Bf16*>(v.data) + v.offset(row, head) + part * kColumns;
      copy_rows<16, kKeys, kColumns / 8>(from, 2 * v.token_stride, left, [&](int key, int chunk) {
        return &tile(make_coord(chunk, key % 16), 0, key / 16);
      });
      arrive_after_copies(m.values_ready[stage].at());
    }
    wait_copies_all();
  }

  // ---- warp 7, one thread of it: an arrival tells of all products so far ----

  __device__ void issue() {
    ScoreMma score;
    SumMma sum;
    Scores scores;
    Sums sums;
    Weights weights;
    auto q_scales = make_tensor<typename ScoreMma::FrgTypeSFA>(shape(QueryScales{}));
    auto k_scales = make_tensor<typename ScoreMma::FrgTypeSFB>(shape(KeyScales{}));
    const uint32_t base = m.tensor_memory;
    scores.data() = base;
    sums.data() = base + kSumsAt;
    q_scales.data() = base + kQueryScalesAt;
    k_scales.data() = base + kKeyScalesAt;
    const auto queries = score.make_fragment_A(tile_at<Code>(m.queries, Queries{}));
    for (int i = 0; i <= t.num_blocks; ++i) {
      if (i < t.num_blocks) {
        const int stage = i % kStages;
        m.keys_ready[stage].wait(i / kStages);
        m.scores_read.wait(i - 1);
        fence_for_products();
        if (i == 0) copy_scales(tile_at<Scale>(m.query_scales, QueryScales{}), q_scales);
        copy_scales(tile_at<Scale>(m.key_scales[stage], KeyScales{}), k_scales);
        const auto keys = score.make_fragment_B(tile_at<Code>(m.keys[stage], Keys{}));
#pragma unroll
        for (int k = 0; k < kSteps; ++k) {
          const auto add = k == 0 ? ScaleOut::Zero : ScaleOut::One;
          gemm(score.with(add, q_scales(_, _, k), k_scales(_, _, k)), queries(_, _, k),
               keys(_, _, k), scores);
        }
        cutlass::arch::umma_arrive(&m.scored[stage].word);
      }
      if (i == 0) continue;
      const int last = i - 1;
      const int stage = last % kStages;
      m.values_ready[stage].wait(last / kStages);
      m.weights_ready.wait(last);
      fence_for_products();
      const auto values = sum.make_fragment_B(tile_at<Value>(m.values[stage], Values{}));
      sum.accumulate_ = last == 0 ? ScaleOut::Zero : ScaleOut::One;
      for (const uint32_t at : {kWeightsAt, kRestsAt}) {
        if (at == kRestsAt && !two_terms) break;
        weights.data() = base + at;
#pragma unroll
        for (int k = 0; k < kKeys / 16; ++k) {
          gemm(sum, weights(_, _, k), values(_, _, k), sums);
          sum.accumulate_ = ScaleOut::One;
        }
      }
      cutlass::arch::umma_arrive(&m.summed[stage].word);
    }
  }

  // ---- warps 0-3 ----

  __device__ void attend() {
    const int query = threadIdx.x;
    const bool exists = query < t.num_queries;
    const int64_t end = exists ? t.first + query + 1 : 0;  // of the keys that it sees
    const uint32_t base = m.tensor_memory + warp_id() * 32 * UMMA::TMEM::DP<float>::value;
    const float scale = call.logit_scale(t.head) * 1.44269504f;
    float max = -INFINITY;
    float sum = 0.0f;
    const auto wait_for_sums = [&](int i) { m.summed[i % kStages].wait(i / kStages); };
    for (int i = 0; i < t.num_blocks; ++i) {
      float s[kKeys];
      m.scored[i % kStages].wait(i / kStages);
      load_columns(base, s);
      m.scores_read.arrive();
#pragma unroll
      for (int k = 0; k < kKeys; ++k)
        s[k] = i * kKeys + k < end ? s[k] * scale : -INFINITY;
      const float shrink = weigh(s, max, sum);
      if (i > 0) wait_for_sums(i - 1);
      if (i > 0 && __any_sync(0xFFFFFFFFu, shrink != 1.0f)) {
#pragma unroll
        for (uint32_t first = kSumsAt; first < kSumsAt + kColumns; first += 32) {
          float o[32];
          load_columns(base + first, o);
          store_columns(base + first, [&](int k) { return __float_as_uint(o[k] * shrink); });
        }
      }
#pragma unroll
      for (uint32_t first = 0; first < kKeys / 2; first += 32) {
        const float* x = s + 2 * first;
        const auto word = [&](int k) { return pack_bf16(x[2 * k], x[2 * k + 1]); };
        store_columns(base + kWeightsAt + first, word);
        if (!two_terms) continue;
        store_columns(base + kRestsAt + first, [&](int k) {
          return end > ragged::kTwoTermKeys ? 0 : pack_bf16_rest(x[2 * k], x[2 * k + 1], word(k));
        });
      }
      cutlass::arch::fence_view_async_tmem_store();
      m.weights_ready.arrive();
    }
    wait_for_sums(t.num_blocks - 1);  // there is one: a query sees itself
    const float factor = sum == 0.0f ? 0.0f : 1.0f / sum;
    const int64_t token = t.request.first_query + t.first + query;
    const auto& o = call.rows.o;
    const int64_t offset = o.offset(token, t.head) + part * kColumns;
    for (uint32_t column = 0; column < kColumns; column += 32) {
      float x[32];
      load_columns(base + kSumsAt + column, x);
#pragma unroll
      for (int i = 0; i < 32; i += kVector) {
        float y[kVector];
#pragma unroll
        for (int k = 0; k < kVector; ++k)
          y[k] = x[i + k] * factor;
        const int64_t at = offset + column + i;
        if (!exists) continue;
        if (o.format == Format::kBf16) store8(static_cast<Bf16*>(o.data) + at, y);
        if (o.format == Format::kF32) store8(static_cast<float*>(o.data) + at, y);
      }
    }
    const auto& lse = call.rows.lse;
    if (!exists || part != 0 || lse.data == nullptr) return;
    static_cast<float*>(lse.data)[lse.offset(token, t.head)] =
        sum == 0.0f ? -INFINITY : (max + log2f(sum)) * 0.693147181f;
  }
};

template <class Block>
__global__ void __launch_bounds__(kThreads, 1)
    attend_tiles(const __grid_constant__ Call c, int64_t tiles_each_head) {
  extern __shared__ unsigned char raw_shared[];
  wait_for_previous();
  ragged::Tile t = ragged::tile_of<kQueries, Block::kBlockKeys>(c.rows, tiles_each_head);
  if (t.num_queries == 0) return;
  constexpr int kParts = Block::kValueParts;
  const int part = t.head % kParts;
  t.head /= kParts;
  auto* aligned = raw_shared + (0u - shared_address(raw_shared)) % 1024;
  auto& m = *reinterpret_cast<typename Block::Memory*>(aligned);
  const int warp = __shfl_sync(0xFFFFFFFFu, warp_id(), 0);
  UMMA::TMEM::Allocator1Sm allocator;
  if (warp == 7) {
    allocator.allocate(kTensorColumns, &m.tensor_memory);
    allocator.release_allocation_lock();
  }
  if (threadIdx.x == 0) m.init();
  sync_all();
  let_next_start();  // not before: another kernel might take tensor memory, then wait for this one
  Block block{c, t, m, part, t.first < ragged::kTwoTermKeys};
  if (warp < 4) {
    block.attend();
  } else if (warp < 7) {
    block.bring();
  } else {
    block.issue();
  }
  sync_all();
  if (warp == 7) allocator.free(m.tensor_memory, kTensorColumns);
}

template <class Block>
Status run(Exec& ex, const Nvfp4QkAttention::Args& a) {
  const Call c = call_of(a);
  const int64_t tiles = ragged::most_tiles(c.rows, kQueries);
  return launch_kernel(ex, attend_tiles<Block>,
                       {.blocks = tiles * c.rows.N * Block::kValueParts,
                        .threads = kThreads,
                        .shared_bytes = sizeof(typename Block::Memory) + 1024},
                       c, tiles);
}

}  // namespace

bool takes_tcgen05(const Nvfp4QkAttention::Args& a) {
  const int64_t P = a.q.dim(2);
  const int64_t Dv = a.v.dim(2);
  return ((P == 96 && Dv == 128) || (P == 256 && Dv == 512)) && takes_tiles(a) &&
         is_aligned(a.q, 16) && is_aligned(a.k, 16) && is_aligned(a.q_scales, 4) &&
         is_aligned(a.k_scales, 4);
}

Status run_tcgen05(Exec& ex, const Nvfp4QkAttention::Args& a) {
  return a.q.dim(2) == 96 ? run<Attention<192, 128, 128, 1>>(ex, a)
                          : run<Attention<512, 64, 256, 2>>(ex, a);
}

}  // namespace fathom::nvfp4_attention
