#include <algorithm>

#include "fathom/base/checked_math.h"
#include "fathom/kernels/attn/attend_row.cuh"
#include "fathom/kernels/attn/mla_decode/cuda/mla_decode_call.cuh"
#include "fathom/kernels/attn/mla_decode/cuda/mla_decode_few_paged.cuh"
#include "fathom/kernels/attn/mla_decode/cuda/mla_decode_paged.cuh"
#include "fathom/kernels/cuda/clusters_at_once.h"
#include "fathom/kernels/cuda/launch_cuda.h"
#include "fathom/kernels/cuda/rows.cuh"

namespace fathom {
namespace {

using namespace mla_decode;  // the parts of this kernel

// ---- the tensor cores' variant ----

int64_t row_tiles(const MlaDecode::Args& a) {
  return ceil_div<int64_t>(a.q.dim(1) * a.q.dim(2), kTileRows);
}

/// Clusters of `size` blocks that the GPU `device` runs at once; 0 if it runs none, or is a GPU
/// that is described and cannot be asked.
template <class C>
int64_t clusters_of(int device, int size) {
  const auto* kernel = reinterpret_cast<const void*>(decode_tiles<C, SeenKeys>);
  return cuda::clusters_at_once(device, {.kernel = kernel,
                                         .threads = mla_decode::kTileThreads,
                                         .shared_bytes = kSharedBytes,
                                         .cluster = size});
}

/// How every request is cut.
struct Plan {
  int pieces = 1;
  Merge merge = Merge::kNone;
};

/// The plan of the least time, in tiles of one block. From shapes and the GPU alone, so that a
/// captured graph stays right. Requests count as a quarter of what their table has room for, where
/// that is more than 4,096 keys: shorter ones want few pieces, which one kernel adds, longer ones
/// many.
Plan plan_of(const MlaDecode::Args& a, const DeviceInfo& gpu) {
  constexpr int64_t kFewKeys = 4096;
  constexpr int64_t kManyKeys = 16384;
  constexpr double kStart = 3;                // until the first products run, and the results
  constexpr double kClusterMerge = 1;         // 128 KB into shared memory and out, two barriers
  constexpr double kKernelMerge = 2;          // another kernel
  constexpr double kPieceTraffic = 1.0 / 48;  // 256 KB written and read, of 12 MB while a tile runs
  const int64_t room = a.block_table.dim(1) * keys_per_entry(a);
  const int64_t keys = std::min(room, std::clamp(room / 4, kFewKeys, kManyKeys));
  const int64_t tiles = std::max<int64_t>(1, ceil_div<int64_t>(keys, kTileKeys));
  const int64_t blocks = a.q.dim(0) * row_tiles(a);
  const auto tiles_of_piece = [&](int64_t pieces) {
    const int64_t each = ceil_div(tiles, pieces);
    return static_cast<double>(each == 1 ? 1 : align_up<int64_t>(each, 2));
  };
  const auto rounds = [](int64_t items, int64_t at_once) {
    return static_cast<double>(ceil_div(items, at_once));
  };
  Plan best;
  double best_time = rounds(blocks, gpu.num_sms) * (static_cast<double>(tiles) + kStart);
  // Of equal clusters the larger one: requests that do not fill their table then have less to do.
  const auto consider = [&](int pieces, Merge merge, double time) {
    const bool both_clusters = merge == Merge::kCluster && best.merge == Merge::kCluster;
    if (time > best_time || (time == best_time && !both_clusters)) return;
    best_time = time;
    best = {pieces, merge};
  };
  for (int pieces = 2; pieces <= kMostInCluster && pieces <= tiles; ++pieces) {
    if (pieces > 8 && pieces < kMostInCluster) continue;
    const int64_t at_once = a.cache.format == Format::kE4m3
                                ? clusters_of<E4m3>(gpu.ordinal, pieces)
                                : clusters_of<Bf16>(gpu.ordinal, pieces);
    if (at_once == 0) continue;
    consider(pieces, Merge::kCluster,
             rounds(blocks, at_once) * (tiles_of_piece(pieces) + kStart + kClusterMerge));
  }
  for (int pieces = 2; pieces <= kMostPieces && pieces <= ceil_div<int64_t>(tiles, 2); ++pieces) {
    consider(pieces, Merge::kKernel,
             rounds(blocks * pieces, gpu.num_sms) * (tiles_of_piece(pieces) + kStart) +
                 kKernelMerge + kPieceTraffic * static_cast<double>(blocks * pieces));
  }
  return best;
}

int64_t piece_rows(const MlaDecode::Args& a, int pieces) {
  return a.q.dim(0) * pieces * a.q.dim(1) * a.q.dim(2);
}

int64_t tiles_workspace(const MlaDecode::Args& args, const Exec& ex) {
  const MlaDecode::Args a = with_query_axis(args);
  if (a.o.numel() == 0) return 0;
  const Plan plan = plan_of(a, *ex.device);
  return plan.merge == Merge::kKernel ? piece_rows(a, plan.pieces) * (kTileL * 4 + 8) : 0;
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

/// What tiles of a call have, if it is not cut.
Cuts uncut(const MlaDecode::Args& a) {
  return {.splits = 1,
          .merge = Merge::kNone,
          .row_tiles = static_cast<int>(row_tiles(a)),
          .sums = nullptr,
          .states = nullptr,
          .by_engine = tiles_lie_in_pages(a),
          .copy_queries = a.q.format == Format::kBf16 && is_aligned(a.q, 16) &&
                          (!a.q_pe.present() || is_aligned(a.q_pe, 16))};
}

template <class C, class Seen>
Status launch_tiles(Exec& ex, const Call& call, const Cuts& cuts, const CUtensorMap& map) {
  const bool in_cluster = cuts.merge == Merge::kCluster;
  if (in_cluster && cuts.splits > 8) {
    FATHOM_TRY(
        cuda_status(cudaFuncSetAttribute(reinterpret_cast<const void*>(decode_tiles<C, Seen>),
                                         cudaFuncAttributeNonPortableClusterSizeAllowed, 1),
                    "asking for a large cluster"));
  }
  return launch_kernel(ex, decode_tiles<C, Seen>,
                       {.blocks = call.B * cuts.splits * cuts.row_tiles,
                        .threads = mla_decode::kTileThreads,
                        .shared_bytes = kSharedBytes,
                        .cluster = in_cluster ? cuts.splits : 1,
                        .alone = call.B * cuts.row_tiles >= 32},
                       call, cuts, map);
}

Status run_tiles(Exec& ex, const MlaDecode::Args& args) {
  const MlaDecode::Args a = with_query_axis(args);
  if (a.o.numel() == 0) return {};
  const Call call = call_of(a);
  const Plan plan = plan_of(a, *ex.device);
  Cuts cuts = uncut(a);
  cuts.splits = plan.pieces;
  cuts.merge = plan.merge;
  CUtensorMap map{};
  if (cuts.by_engine) FATHOM_TRY(map_pages(a, &map));
  if (cuts.merge == Merge::kKernel) {
    cuts.sums = static_cast<float*>(ex.workspace);
    cuts.states = reinterpret_cast<float2*>(cuts.sums + piece_rows(a, cuts.splits) * kTileL);
  }
  const auto launch = [&]<class C>(C) {
    return a.tree_masks.present() ? launch_tiles<C, SeenOfTrees>(ex, call, cuts, map)
                                  : launch_tiles<C, SeenKeys>(ex, call, cuts, map);
  };
  FATHOM_TRY(a.cache.format == Format::kE4m3 ? launch(E4m3{}) : launch(Bf16{}));
  if (cuts.merge != Merge::kKernel) return {};
  return launch_kernel(ex, merge_pieces<Unturned>,
                       {.blocks = call.B * call.Q * call.N, .threads = kMergeThreads}, call, cuts,
                       Unturned{});
}

/// Not cut, and a block has rows of one query alone: the bits of a query follow from its own rows
/// and keys, however many others there are and whether it is one of a chain, of a tree or alone.
Status run_uncut(Exec& ex, const MlaDecode::Args& args) {
  const MlaDecode::Args a = with_query_axis(args);
  if (a.o.numel() == 0) return {};
  const Call call = call_of(a);
  Cuts cuts = uncut(a);
  cuts.row_tiles = static_cast<int>(a.q.dim(1) * ceil_div<int64_t>(a.q.dim(2), kTileRows));
  // Keys of a path do not lie side by side.
  cuts.by_engine = cuts.by_engine && !a.tree_masks.present();
  CUtensorMap map{};
  if (cuts.by_engine) FATHOM_TRY(map_pages(a, &map));
  return a.cache.format == Format::kE4m3 ? launch_tiles<E4m3, SeenByQuery>(ex, call, cuts, map)
                                         : launch_tiles<Bf16, SeenByQuery>(ex, call, cuts, map);
}

/// Keys are copied sixteen bytes at a time, results written eight.
bool takes_tiles(const MlaDecode::Args& args) {
  const MlaDecode::Args a = with_query_axis(args);
  const auto holds = [](Format f) { return f == Format::kBf16 || f == Format::kE4m3; };
  return !a.slots.present() && holds(a.q.format) && holds(a.cache.format) &&
         a.o.format == Format::kBf16 && a.cache.dim(2) == kTileD && a.o.dim(3) == kTileL &&
         first_width(a) % 8 == 0 && a.scale > 0.0f &&
         a.q.dim(1) * a.q.dim(2) < (int64_t{1} << 31) &&
         a.block_table.dim(1) * keys_per_entry(a) < (int64_t{1} << 31) && is_aligned(a.cache, 16) &&
         is_aligned(a.o, 8);
}

// ---- few rows and keys ----

int64_t few_rows_clusters(const MlaDecode::Args& a) {
  return a.q.dim(0) * ceil_div<int64_t>(a.q.dim(1) * a.q.dim(2), kFewRows);
}

template <class Seen>
Status launch_few_rows(Exec& ex, const MlaDecode::Args& a) {
  const int64_t clusters = few_rows_clusters(a);
  LaunchShape shape{.threads = FewPagedMemory::kWarps * kWarp,
                    .shared_bytes = sizeof(FewPagedMemory)};
  FATHOM_TRY(
      choose_clusters(ex, reinterpret_cast<const void*>(decode_few_rows<Seen>), clusters, &shape));
  return launch_kernel(ex, decode_few_rows<Seen>, shape,
                       FewRows{.c = call_of(a),
                               .num_rows = static_cast<uint32_t>(a.q.dim(1) * a.q.dim(2)),
                               .num_queries = static_cast<uint32_t>(a.q.dim(1)),
                               .room = static_cast<int>(a.block_table.dim(1) * keys_per_entry(a)),
                               .heads = cuda::FastDivide(a.q.dim(2)),
                               .page_size = cuda::FastDivide(a.cache.dim(1)),
                               .row_tiles = cuda::FastDivide(clusters / a.q.dim(0)),
                               .log2_pieces = shape.cluster == 8 ? 3 : 4});
}

Status run_few_rows(Exec& ex, const MlaDecode::Args& args) {
  const MlaDecode::Args a = with_query_axis(args);
  if (a.o.numel() == 0) return {};
  return a.tree_masks.present() ? launch_few_rows<FewInTrees>(ex, a)
                                : launch_few_rows<FewInChains>(ex, a);
}

/// Queries are loaded four bytes at a time, a panel of them from one operand, and results written
/// so. More clusters, or longer pieces, are those of the larger tiles: eight clusters took 12.9 us
/// for 1,024 keys and 19.4 for 2,048, tiles 15.7 and 17.4 (H200).
bool takes_few_rows(const MlaDecode::Args& args) {
  constexpr int64_t kMostClusters = 8;
  constexpr int64_t kMostKeys = 4608;        // of a request
  constexpr int64_t kMostTileKeys = 12'288;  // of all clusters: eight of 1,536 keys
  const MlaDecode::Args a = with_query_axis(args);
  const int64_t clusters = few_rows_clusters(a);
  const int64_t room = a.block_table.dim(1) * keys_per_entry(a);
  return takes_tiles(args) && a.q.format == Format::kBf16 && a.cache.format == Format::kBf16 &&
         a.table == KeyTable::kPages && first_width(a) % kPanelColumns == 0 && is_aligned(a.q, 4) &&
         (!a.q_pe.present() || is_aligned(a.q_pe, 4)) && clusters <= kMostClusters &&
         room <= kMostKeys && clusters * room <= kMostTileKeys;
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
  const int64_t length = slots == nullptr ? c.length(b) : 0;
  const bool in_tree = c.tree_masks != nullptr;
  const TreeToken token = in_tree ? c.tree_token(b, length, j) : TreeToken{c.visible(length, j), 0};
  const int64_t end = slots == nullptr ? num_seen(token) : c.num_slots;
  const auto place = [&](int64_t i) {
    if (slots != nullptr) return c.keys.slot_place(slots[i]);
    const int64_t at = in_tree ? place_of_seen(token, i) : i;
    return at < length ? c.keys.place(b, static_cast<uint32_t>(at)) : int64_t{-1};
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

/// What the kernels for tensor cores are written for; kTileD and kTileL of mla_decode_keys.cuh.
constexpr const char* kTileShape = "D==576, L==512";
static_assert(mla_decode::kTileD == 576 && mla_decode::kTileL == 512);
constexpr uint32_t kTileTraits = kDeterministic | kGraphSafe;
constexpr uint32_t kRowTraits = kDeterministic | kBatchInvariant | kGraphSafe;

}  // namespace

constinit const VariantTable<MlaDecode> mla_decode_cuda{
    {"few_rows", sm(90), kTileShape, kTileTraits, run_few_rows, MathUnit::kBf16, takes_few_rows},
    {"wgmma", sm(90), kTileShape, kTileTraits, run_tiles, MathUnit::kBf16, takes_tiles,
     tiles_workspace},
    {"uncut", sm(90), kTileShape, kRowTraits, run_uncut, MathUnit::kBf16, takes_tiles},
    {"rows", sm(90), "D<=16384", kRowTraits, run_rows},
};

constinit const VariantTable<MlaDecodeMulti> mla_decode_multi_cuda{
    {"few_rows", sm(90), kTileShape, kTileTraits, run_few_rows, MathUnit::kBf16, takes_few_rows},
    {"wgmma", sm(90), kTileShape, kTileTraits, run_tiles, MathUnit::kBf16, takes_tiles,
     tiles_workspace},
    {"uncut", sm(90), kTileShape, kRowTraits, run_uncut, MathUnit::kBf16, takes_tiles},
    {"rows", sm(90), "D<=16384", kRowTraits, run_rows},
};

}  // namespace fathom
