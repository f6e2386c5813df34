#include <algorithm>
#include <limits>

#include "fathom/base/checked_math.h"
#include "fathom/kernels/attn/sparse_mla/cuda/sparse_mla_few_rows.cuh"
#include "fathom/kernels/attn/sparse_mla/cuda/sparse_mla_lists.h"
#include "fathom/kernels/attn/sparse_mla/cuda/sparse_mla_tiles.cuh"
#include "fathom/kernels/cuda/clusters_at_once.h"
#include "fathom/kernels/cuda/launch_cuda.h"
#include "fathom/kernels/cuda/rows.cuh"

namespace fathom::sparse_mla {
namespace {

using mla_decode::kMostInCluster;
using mla_decode::kMostPieces;

bool takes_source(const SparseRows& rows) {
  constexpr int64_t kMost = std::numeric_limits<int32_t>::max() / 4;
  const int64_t of_values = rows.values.format == Format::kU8 ? 8 : 16;
  return is_aligned(rows.values, of_values) &&
         (!rows.rope.present() || is_aligned(rows.rope, 16)) &&
         rows.values.dim(0) * rows.values.dim(1) <= kMostRows && rows.slots.dim(1) <= kMost;
}

// ---- the kernel's call ----

mla_decode::HeadRows tile_rows(const View& v) {
  if (!v.present()) return {};
  return {v.data, v.format, {v.stride(0), 0, v.rank == 3 ? v.stride(1) : 1}};
}

/// The call as mla_decode_tiles.cuh has it: a request of one query for each token, whose keys come
/// from elsewhere.
mla_decode::Call tile_call(const Call& c) {
  return {.q = tile_rows(c.q),
          .q_pe = {},
          .o = tile_rows(c.o),
          .lse = tile_rows(c.lse),
          .keys = {},
          .kv_lens = nullptr,
          .sinks = c.sink.present() ? c.sink.as<const float>() : nullptr,
          .slots = nullptr,
          .slots_strides = {},
          .num_slots = 0,
          .B = c.q.dim(0),
          .Q = 1,
          .N = c.q.dim(1),
          .D = static_cast<int>(c.q.dim(2)),
          .L = kTileL,
          .first_width = static_cast<int>(c.q.dim(2)),
          .score_scale = c.scale,
          .out_scale = 1.0f,
          .lse_factor = c.lse_factor,
          .lse_has_sink = false};
}

Status launch_lists(Exec& ex, const Call& c, const Cuts& cuts, const ListsKernels& kernels) {
  const auto kernel = cuts.side == 2 ? kernels.paired : kernels.alone;
  const int cluster = cuts.side * (cuts.merge == Merge::kCluster ? cuts.splits : 1);
  if (cluster > 8) {
    FATHOM_TRY(cuda_status(cudaFuncSetAttribute(reinterpret_cast<const void*>(kernel),
                                                cudaFuncAttributeNonPortableClusterSizeAllowed, 1),
                           "asking for a large cluster"));
  }
  return launch_kernel(ex, kernel,
                       {.blocks = c.q.dim(0) * cuts.splits * cuts.row_tiles,
                        .threads = kernels.threads,
                        .shared_bytes = kernels.shared_bytes,
                        .cluster = cluster,
                        .alone = c.q.dim(0) * cuts.row_tiles >= 32},
                       tile_call(c), device_call(c), cuts);
}

// ---- the plan ----

/// How the list of every token is cut, and its heads.
struct Plan {
  int pieces = 1;
  Merge merge = Merge::kNone;
  int rows_each = kTileRows;
  int side = 1;  ///< 2: the blocks of 128 heads gather for each other
};

int64_t row_tiles(const Call& c, int rows_each) {
  return ceil_div<int64_t>(c.q.dim(1), rows_each);
}

/// Clusters of `size` blocks that the GPU runs at once; 0 if it runs none or cannot be asked.
int64_t clusters_of(const DeviceInfo& gpu, const ListsKernels& kernels, int side, int size) {
  const auto kernel = side == 2 ? kernels.paired : kernels.alone;
  return cuda::clusters_at_once(gpu.ordinal, {.kernel = reinterpret_cast<const void*>(kernel),
                                              .threads = kernels.threads,
                                              .shared_bytes = kernels.shared_bytes,
                                              .cluster = size});
}

/// Blocks side by side of a plan: two, if rows are of codes and heads fill pairs of blocks.
int most_side(const Call& c, const DeviceInfo& gpu, const ListsKernels& kernels) {
  const bool pairs = kernels.paired != nullptr && row_tiles(c, kTileRows) % 2 == 0;
  return pairs && clusters_of(gpu, kernels, 2, 2) > 0 ? 2 : 1;
}

/// The plan of the least time, in tiles of one block: from shapes and the GPU alone, so that a
/// captured graph stays right. Lists count as full. Constants are fitted to times on an H200: those
/// of bf16 in mla_decode, those of codes in the notes.
Plan plan_of(const Call& c, const DeviceInfo& gpu, const ListsKernels& kernels) {
  const bool coded = kernels.paired != nullptr;
  constexpr double kStart = 3;                 // until the first products run, and the results
  const double rests = coded ? 2 : 0;          // of large weights, where they have one term
  const double cluster_merge = coded ? 2 : 1;  // of 64 rows
  const double kernel_merge = coded ? 3 : 2;
  const double piece_traffic = coded ? 0 : 1.0 / 48;
  const double second_term = coded ? 0.15 : 0.4;  // of every weight
  const double alone = coded ? 1.35 : 1;          // a tile that one block gathers
  const int64_t T = c.q.dim(0);
  const int64_t tiles = std::max<int64_t>(1, ceil_div<int64_t>(list_width(c), kTileKeys));
  const auto time_of = [&](int64_t pieces, int side) {
    const auto each = static_cast<double>(ceil_div(tiles, pieces));
    const double tile = side == 2 ? 1 : alone;
    return each <= mla_decode::kTwoTermTiles ? kStart + each * (tile + second_term)
                                             : kStart + rests + each * tile;
  };
  const auto rounds = [](int64_t items, int64_t at_once) {
    return static_cast<double>(ceil_div(items, at_once));
  };
  const int most = most_side(c, gpu, kernels);
  Plan best{.side = most};
  const int64_t blocks = T * row_tiles(c, kTileRows);
  const int64_t at_once = most == 2 ? 2 * clusters_of(gpu, kernels, 2, 2) : gpu.num_sms;
  double best_time = rounds(blocks, at_once) * time_of(1, most);
  const auto consider = [&](const Plan& plan, double time) {
    if (time >= best_time) return;
    best_time = time;
    best = plan;
  };
  for (int side = most; side >= 1; --side) {
    for (int pieces = 2; pieces * side <= kMostInCluster && pieces <= tiles; ++pieces) {
      const int size = pieces * side;
      if (side == 1 && size > 8 && size < kMostInCluster) continue;
      const int64_t clusters_at_once = clusters_of(gpu, kernels, side, size);
      if (clusters_at_once == 0) continue;
      // Fewer rows a block: no tile takes less time, but there is less to add up.
      for (int rows_each = kTileRows; rows_each >= (side == 2 ? kTileRows : 16); rows_each /= 2) {
        const int64_t clusters = T * row_tiles(c, rows_each) / side;
        const double merge = cluster_merge * rows_each / kTileRows;
        consider({pieces, Merge::kCluster, rows_each, side},
                 rounds(clusters, clusters_at_once) * (time_of(pieces, side) + merge));
      }
    }
  }
  for (int pieces = 2; pieces <= kMostPieces && pieces <= tiles; ++pieces) {
    if (blocks * pieces > at_once) break;
    consider({pieces, Merge::kKernel, kTileRows, most},
             time_of(pieces, most) + kernel_merge +
                 piece_traffic * static_cast<double>(blocks * pieces));
  }
  return best;
}

int64_t piece_bytes(const DeviceInfo& gpu) {
  return int64_t{gpu.num_sms} * kTileRows * (kTileL * 4 + 8);
}

Status run_plan(Exec& ex, const Call& c, const Plan& plan, const ListsKernels& kernels) {
  Cuts cuts{.splits = plan.pieces,
            .merge = plan.merge,
            .row_tiles = static_cast<int>(row_tiles(c, plan.rows_each)),
            .sums = nullptr,
            .states = nullptr,
            .by_engine = false,
            .copy_queries = is_aligned(c.q, 16),
            .rows_each = plan.rows_each,
            .side = plan.side};
  if (cuts.merge != Merge::kKernel) return launch_lists(ex, c, cuts, kernels);
  const int64_t rows = c.q.dim(0) * c.q.dim(1);
  cuts.sums = static_cast<float*>(ex.workspace);
  cuts.states = reinterpret_cast<float2*>(cuts.sums + rows * cuts.splits * kTileL);
  FATHOM_TRY(launch_lists(ex, c, cuts, kernels));
  return launch_kernel(ex, kernels.merge, {.blocks = rows, .threads = mla_decode::kMergeThreads},
                       tile_call(c), cuts, turn_table(c));
}

bool takes_call(const Call& c) {
  return c.o.format == Format::kBf16 && takes_operands(c);
}

Status run(Exec& ex, const Call& c, RunLists run_lists) {
  if (c.o.numel() == 0) return {};
  return with_rows(c, Status{}, [&]<class Rows>(Rows) {
    ListsKernels kernels{.alone = attend_lists<Rows, false>,
                         .paired = nullptr,
                         .merge = mla_decode::merge_pieces<TurnTable>,
                         .threads = kThreadsWith<kHopperGatherers<Rows>>,
                         .shared_bytes = kListsSharedBytes};
    if constexpr (Rows::kCodes > 0) kernels.paired = attend_lists<Rows, true>;
    return run_lists(ex, c, kernels);
  });
}

// ---- few tokens ----

int64_t few_clusters(const Call& c) {
  return c.q.dim(0) * row_tiles(c, mla_decode::kFewRows);
}

template <class Rows>
Status run_few_rows(Exec& ex, const Call& c) {
  const int64_t clusters = few_clusters(c);
  const auto kernel = attend_few_lists<Rows>;
  LaunchShape shape{.threads = FewListsMemory<Rows>::kWarps * kWarp,
                    .shared_bytes = sizeof(FewListsMemory<Rows>)};
  FATHOM_TRY(
      mla_decode::choose_clusters(ex, reinterpret_cast<const void*>(kernel), clusters, &shape));
  return launch_kernel(ex, kernel, shape,
                       FewLists{.f = {.c = tile_call(c),
                                      .num_rows = static_cast<uint32_t>(c.q.dim(1)),
                                      .num_queries = 1,
                                      .room = static_cast<int>(list_width(c)),
                                      .heads = cuda::FastDivide(c.q.dim(1)),
                                      .page_size = cuda::FastDivide(1),
                                      .row_tiles = cuda::FastDivide(clusters / c.q.dim(0)),
                                      .log2_pieces = shape.cluster == 8 ? 3 : 4},
                                .lists = device_call(c)});
}

}  // namespace

bool takes_operands(const Call& c) {
  for (int i = 0; i < c.num_sources; ++i)
    if (!takes_source(c.sources[i])) return false;
  return c.q.format == Format::kBf16 && c.o.dim(2) == kTileL && c.scale > 0.0f &&
         is_aligned(c.o, 8) && (!c.table.present() || turned_channels(c) == kTurned) &&
         with_rows(c, false, [](auto) { return true; });
}

Status run_cut(Exec& ex, const Call& c, const ListsKernels& kernels) {
  return run_plan(ex, c, plan_of(c, *ex.device, kernels), kernels);
}

Status run_whole(Exec& ex, const Call& c, const ListsKernels& kernels) {
  return run_plan(ex, c, {.side = most_side(c, *ex.device, kernels)}, kernels);
}

bool takes_lists(const SparseMlaDecode::Args& a) {
  return takes_call(make_call(a));
}

bool takes_lists(const SparseMlaPrefill::Args& a) {
  return takes_call(make_call(a));
}

int64_t lists_workspace(const SparseMlaDecode::Args& a, const Exec& ex) {
  return a.o.numel() == 0 ? 0 : piece_bytes(*ex.device);
}

Status run_lists(Exec& ex, const SparseMlaDecode::Args& a) {
  return run(ex, make_call(a), run_cut);
}

/// Not cut: the largest score of a row stays within its block.
Status run_lists(Exec& ex, const SparseMlaPrefill::Args& a) {
  return run(ex, make_call(a), run_whole);
}

Status run_uncut_lists(Exec& ex, const SparseMlaDecode::Args& a) {
  return run(ex, make_call(a), run_whole);
}

/// The bounds of mla_decode, where they were measured: more clusters, or longer pieces, are those
/// of the larger tiles. Queries are loaded four bytes at a time.
bool takes_few_lists(const SparseMlaDecode::Args& a) {
  constexpr int64_t kMostClusters = 8;
  constexpr int64_t kMostEntries = 4608;  // of a token
  constexpr int64_t kMostOfAll = 12'288;  // of all clusters
  const Call c = make_call(a);
  const int64_t clusters = few_clusters(c);
  return takes_call(c) && is_aligned(c.q, 4) && clusters <= kMostClusters &&
         list_width(c) <= kMostEntries && clusters * list_width(c) <= kMostOfAll;
}

Status run_few_lists(Exec& ex, const SparseMlaDecode::Args& a) {
  const Call c = make_call(a);
  if (c.o.numel() == 0) return {};
  return with_rows(c, Status{}, [&]<class Rows>(Rows) { return run_few_rows<Rows>(ex, c); });
}

}  // namespace fathom::sparse_mla
