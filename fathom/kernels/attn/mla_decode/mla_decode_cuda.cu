#include <algorithm>

#include "fathom/base/checked_math.h"
#include "fathom/kernels/attn/attend_row.cuh"
#include "fathom/kernels/attn/mla_decode/mla_decode_call.cuh"
#include "fathom/kernels/attn/mla_decode/mla_decode_tiles.cuh"
#include "fathom/kernels/cuda/launch_cuda.h"

namespace fathom {
namespace {

using namespace mla_decode;  // the parts of this kernel

// ---- the tensor cores' variant ----

/// Adds the pieces of a row in order, its sink, divides and writes. One block a row, four columns a
/// thread.
__global__ void __launch_bounds__(cuda::kRowThreads)
    merge_pieces(const __grid_constant__ Call c, const __grid_constant__ Cuts cuts) {
  cuda::let_next_start();
  cuda::wait_for_previous();
  const int64_t rows = c.Q * c.N;
  const auto block = static_cast<int64_t>(blockIdx.x);
  const int64_t b = block / rows;
  const int64_t row = block - b * rows;
  const int64_t j = row / c.N;
  const int64_t n = row - j * c.N;
  const int64_t first = b * cuts.splits * rows + row;
  float most = c.sinks != nullptr ? c.sinks[n] * 1.44269504f : -INFINITY;
  const float sink = most;
  for (int s = 0; s < cuts.splits; ++s)
    most = fmaxf(most, cuts.states[first + s * rows].x);
  const float bias = most == -INFINITY ? 0.0f : most;
  float sum = cuda::exp2_approx(sink - bias);
  float4 total = {};
  for (int s = 0; s < cuts.splits; ++s) {
    const float2 state = cuts.states[first + s * rows];
    if (state.y == 0.0f) continue;
    const float share = cuda::exp2_approx(state.x - bias);
    const float4 part =
        reinterpret_cast<const float4*>(cuts.sums + (first + s * rows) * kTileL)[threadIdx.x];
    sum += share * state.y;
    total.x += share * part.x;
    total.y += share * part.y;
    total.z += share * part.z;
    total.w += share * part.w;
  }
  const float factor = sum == 0.0f ? 0.0f : c.out_scale / sum;
  Bf16* out = static_cast<Bf16*>(c.o.data) + c.o.offset(b, j, n) + 4 * threadIdx.x;
  *reinterpret_cast<uint2*>(out) = {cuda::pack_bf16(total.x * factor, total.y * factor),
                                    cuda::pack_bf16(total.z * factor, total.w * factor)};
  if (c.lse.data != nullptr && threadIdx.x == 0) {
    static_cast<float*>(c.lse.data)[c.lse.offset(b, j, n)] =
        sum == 0.0f ? -INFINITY : most * 0.693147181f + logf(sum);
  }
}

int64_t row_tiles(const MlaDecode::Args& a) {
  return ceil_div<int64_t>(a.q.dim(1) * a.q.dim(2), kTileRows);
}

/// Pieces of every request: the number that takes the fewest rounds of tiles on this GPU, where a
/// piece costs a few tiles of its own. From shapes alone, so that a captured graph stays right;
/// long tables count as 4,096 keys.
int num_splits(const MlaDecode::Args& a, int num_sms) {
  constexpr int64_t kTypicalKeys = 4096;
  constexpr int64_t kPieceTiles = 4;
  const int64_t keys = std::min(a.block_table.dim(1) * keys_per_entry(a), kTypicalKeys);
  const int64_t tiles = std::max<int64_t>(1, ceil_div<int64_t>(keys, kTileKeys));
  const int64_t blocks = a.q.dim(0) * row_tiles(a);
  int64_t best = 1;
  int64_t best_cost = ceil_div<int64_t>(blocks, num_sms) * (tiles + kPieceTiles);
  for (int64_t s = 2; s <= std::min<int64_t>(64, ceil_div<int64_t>(tiles, 2)); ++s) {
    const int64_t each = align_up<int64_t>(ceil_div(tiles, s), 2);
    const int64_t cost = ceil_div<int64_t>(blocks * s, num_sms) * (each + 2 * kPieceTiles);
    if (cost < best_cost) {
      best_cost = cost;
      best = s;
    }
  }
  return static_cast<int>(best);
}

int64_t piece_rows(const MlaDecode::Args& a, int splits) {
  return a.q.dim(0) * splits * a.q.dim(1) * a.q.dim(2);
}

int64_t tiles_workspace(const MlaDecode::Args& args, const Exec& ex) {
  const MlaDecode::Args a = with_query_axis(args);
  const int splits = num_splits(a, ex.device->num_sms);
  return splits == 1 ? 0 : piece_rows(a, splits) * (kTileL * 4 + 8);
}

/// True if a tile of keys is a box of one page. Then the copy engine brings it.
bool tiles_lie_in_pages(const MlaDecode::Args& a) {
  const int64_t bytes = element_bytes(a.cache.format);
  return a.cache.format == Format::kBf16 && a.table == KeyTable::kPages &&
         a.cache.dim(1) % kTileKeys == 0 && a.cache.dim(0) > 0 &&
         cuda::takes_tensor_map(a.cache.data, a.cache.stride(1) * bytes, a.cache.stride(0) * bytes);
}

Status map_pages(const MlaDecode::Args& a, CUtensorMap* map) {
  const int64_t bytes = element_bytes(a.cache.format);
  return cuda::make_tensor_map({.data = a.cache.data,
                                .type = CU_TENSOR_MAP_DATA_TYPE_BFLOAT16,
                                .dims = {a.cache.dim(2), a.cache.dim(1), a.cache.dim(0)},
                                .strides = {a.cache.stride(1) * bytes, a.cache.stride(0) * bytes},
                                .box = {kPanelColumns, kTileKeys},
                                .swizzle = CU_TENSOR_MAP_SWIZZLE_128B},
                               map);
}

Status run_tiles(Exec& ex, const MlaDecode::Args& args) {
  const MlaDecode::Args a = with_query_axis(args);
  if (a.q.numel() == 0) return {};
  const Call call = call_of(a);
  Cuts cuts{.splits = num_splits(a, ex.device->num_sms),
            .row_tiles = static_cast<int>(row_tiles(a)),
            .sums = nullptr,
            .states = nullptr,
            .by_engine = tiles_lie_in_pages(a)};
  CUtensorMap map{};
  if (cuts.by_engine) FATHOM_TRY(map_pages(a, &map));
  if (cuts.splits > 1) {
    cuts.sums = static_cast<float*>(ex.workspace);
    cuts.states = reinterpret_cast<float2*>(cuts.sums + piece_rows(a, cuts.splits) * kTileL);
  }
  const LaunchShape shape{.blocks = a.q.dim(0) * cuts.splits * cuts.row_tiles,
                          .threads = mla_decode::kTileThreads,
                          .shared_bytes = kSharedBytes};
  FATHOM_TRY(a.cache.format == Format::kE4m3
                 ? launch_kernel(ex, decode_tiles<E4m3>, shape, call, cuts, map)
                 : launch_kernel(ex, decode_tiles<Bf16>, shape, call, cuts, map));
  if (cuts.splits == 1) return {};
  return launch_kernel(ex, merge_pieces,
                       {.blocks = a.q.dim(0) * call.Q * call.N, .threads = cuda::kRowThreads}, call,
                       cuts);
}

/// True if addresses and strides, but that of the last axis, are multiples of `bytes`.
bool is_aligned(const View& v, int64_t bytes) {
  if (reinterpret_cast<uintptr_t>(v.data) % static_cast<uintptr_t>(bytes) != 0) return false;
  for (int i = 0; i + 1 < v.rank; ++i) {
    if (v.dim(i) > 1 && v.stride(i) * element_bytes(v.format) % bytes != 0) return false;
  }
  return true;
}

/// Keys are copied sixteen bytes at a time, results written eight.
bool takes_tiles(const MlaDecode::Args& args) {
  const MlaDecode::Args a = with_query_axis(args);
  const auto holds = [](Format f) { return f == Format::kBf16 || f == Format::kE4m3; };
  return !a.slots.present() && holds(a.q.format) && holds(a.cache.format) &&
         a.o.format == Format::kBf16 && a.cache.dim(2) == kTileD && a.o.dim(3) == kTileL &&
         first_width(a) % 8 == 0 && a.scale > 0.0f &&
         a.block_table.dim(1) * keys_per_entry(a) < (int64_t{1} << 31) && is_aligned(a.cache, 16) &&
         is_aligned(a.o, 8);
}

// ---- any formats and widths ----

__global__ void __launch_bounds__(cuda::kRowThreads) decode_rows(const __grid_constant__ Call c) {
  extern __shared__ float row_shared[];
  cuda::let_next_start();
  cuda::wait_for_previous();
  const int64_t rows = c.Q * c.N;
  const auto block = static_cast<int64_t>(blockIdx.x);
  const int64_t b = block / rows;
  const int64_t j = (block - b * rows) / c.N;
  const int64_t n = block - b * rows - j * c.N;
  const auto tid = static_cast<int>(threadIdx.x);
  for (int d = tid; d < c.D; d += cuda::kRowThreads) {
    const bool in_first = d < c.first_width;
    const HeadRows& part = in_first ? c.q : c.q_pe;
    row_shared[d] = cuda::load_any(part.data, part.format,
                                   part.offset(b, j, n) + (in_first ? d : d - c.first_width));
  }
  __syncthreads();
  const int32_t* slots =
      c.slots == nullptr ? nullptr : c.slots + b * c.slots_strides[0] + j * c.slots_strides[1];
  const int64_t end = slots == nullptr ? c.visible(c.length(b), j) : c.num_slots;
  const auto place = [&](int64_t i) {
    return slots == nullptr ? c.keys.place(b, static_cast<uint32_t>(i))
                            : c.keys.slot_place(slots[i]);
  };
  const cuda::Elements keys{c.keys.data, c.keys.format};
  cuda::RowState state =
      cuda::attend_row(row_shared, c.D, c.L, 0, end, c.score_scale, keys, keys, place, place);
  const float shrink = c.sinks == nullptr ? 1.0f : state.add_sink(c.sinks[n]);
  const float factor = state.inverse_sum() * shrink * c.out_scale;
  for (int d = tid; d < c.L; d += cuda::kRowThreads)
    cuda::store_any(c.o.data, c.o.format, c.o.offset(b, j, n) + d, row_shared[c.D + d] * factor);
  if (c.lse.data != nullptr && tid == 0)
    static_cast<float*>(c.lse.data)[c.lse.offset(b, j, n)] = state.lse();
}

Status run_rows(Exec& ex, const MlaDecode::Args& args) {
  const Call call = call_of(with_query_axis(args));
  return launch_kernel(ex, decode_rows,
                       {.blocks = call.B * call.Q * call.N,
                        .threads = cuda::kRowThreads,
                        .shared_bytes = cuda::attend_row_floats(call.D, call.L) * 4},
                       call);
}

constexpr uint32_t kTileTraits = kDeterministic | kGraphSafe;
constexpr uint32_t kRowTraits = kDeterministic | kBatchInvariant | kGraphSafe;

}  // namespace

constinit const VariantTable<MlaDecode> mla_decode_cuda{
    {"wgmma", sm(90), "D==576, L==512", kTileTraits, run_tiles, MathUnit::kBf16, takes_tiles,
     tiles_workspace},
    {"rows", sm(90), "D<=16384", kRowTraits, run_rows},
};

constinit const VariantTable<MlaDecodeMulti> mla_decode_multi_cuda{
    {"wgmma", sm(90), "D==576, L==512", kTileTraits, run_tiles, MathUnit::kBf16, takes_tiles,
     tiles_workspace},
    {"rows", sm(90), "D<=16384", kRowTraits, run_rows},
};

}  // namespace fathom
