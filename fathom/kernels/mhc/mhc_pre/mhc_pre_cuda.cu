#include <algorithm>

#include "fathom/kernels/core/elements.h"
#include "fathom/kernels/cuda/clusters_at_once.h"
#include "fathom/kernels/cuda/device_code.cuh"
#include "fathom/kernels/cuda/reduce.cuh"
#include "fathom/kernels/cuda/rows.cuh"
#include "fathom/kernels/mhc/mhc_pre/any_token.cuh"
#include "fathom/kernels/mhc/mhc_pre/few_tokens.cuh"
#include "fathom/kernels/mhc/mhc_pre/mhc_pre.h"
#include "fathom/kernels/mhc/mhc_pre/resident_tiles.cuh"
#include "fathom/kernels/mhc/mhc_pre/token_tiles.cuh"

namespace fathom {
namespace {

using namespace cuda;  // NOLINT: device primitives, in this file's own namespace

template <class Args>
inline constexpr int kRowsOf = std::is_same_v<Args, MhcPre::Args> ? kPreRows : kHeadRows;

/// bf16 in vectors of eight channels, fn in vectors of four.
template <class Args>
bool is_aligned(const Args& a) {
  return a.streams.format == Format::kBf16 && takes_vectors(a.streams) && takes_vectors(a.fn) &&
         takes_vectors(result_of(a));
}

// ---- few tokens ----

template <class Args>
bool takes_few_tokens(const Args& a) {
  return is_aligned(a) && is_few_width(a.streams.dim(2));
}

template <int kRows, int kQuads, bool kPair>
ClusterNeeds few_tokens_needs() {
  return {.kernel = reinterpret_cast<const void*>(read_few_tokens<kRows, kQuads, kPair>),
          .threads = kFewThreads,
          .shared_bytes = static_cast<int64_t>(sizeof(FewMemory<kRows>)),
          .cluster = kFewBlocks};
}

/// Where the GPU has such clusters. One that is described is taken to: all that plans name do.
template <class Args>
bool suits_few_tokens(const Args& a, const DeviceInfo& gpu) {
  if (gpu.ordinal < 0) return true;
  return with_few_width(a.streams.dim(2), [&]<int kQuads, bool kPair>() {
    return clusters_at_once(gpu.ordinal, few_tokens_needs<kRowsOf<Args>, kQuads, kPair>()) > 0;
  });
}

template <class Args>
Status run_few_tokens(Exec& ex, const Args& a) {
  constexpr int kRows = kRowsOf<Args>;
  const int64_t T = a.streams.dim(0);
  if (T == 0) return {};
  return with_few_width(a.streams.dim(2), [&]<int kQuads, bool kPair>() -> Status {
    const ClusterNeeds needs = few_tokens_needs<kRows, kQuads, kPair>();
    FATHOM_TRY(allow_large_cluster(needs.kernel));
    return launch_kernel(ex, read_few_tokens<kRows, kQuads, kPair>,
                         {.blocks = few_clusters(ex, T, needs) * kFewBlocks,
                          .threads = needs.threads,
                          .shared_bytes = needs.shared_bytes,
                          .cluster = kFewBlocks},
                         stream_call_of(a));
  });
}

// ---- tiles of tokens ----

/// Calls f.template operator()<kTokens>() for a number of tokens in a tile.
template <class F>
auto with_tile_tokens(int tokens, F f) {
  switch (tokens) {
    case 16:
      return f.template operator()<16>();
    case 32:
      return f.template operator()<32>();
    case 64:
      return f.template operator()<64>();
    default:
      return f.template operator()<128>();
  }
}

template <int kRows, int kTokens>
ClusterNeeds tile_needs(int cluster) {
  return {.kernel = reinterpret_cast<const void*>(read_token_tiles<kRows, kTokens>),
          .threads = kTileThreads,
          .shared_bytes = static_cast<int64_t>(sizeof(typename Tile<kRows, kTokens>::Memory)),
          .cluster = cluster};
}

struct TilePlan {
  int tokens = 0;  ///< of a tile
  int cluster = 0;
  int64_t clusters = 0;
};

/// Microseconds of a tile beyond those that memory takes: waits, the two exchanges, Sinkhorn.
constexpr double kTileOverhead = 4;

/// The tiles that take the least time: rounds of all clusters, in each of which memory brings the
/// tile's streams and takes its results, 32 KB a microsecond and multiprocessor. No result depends
/// on it.
template <int kRows>
TilePlan tile_plan(int64_t T, int64_t D, int device) {
  TilePlan best;
  double least = 0;
  for (const int tokens : {16, 32, 64, 128}) {
    with_tile_tokens(tokens, [&]<int kTokens>() {
      int cluster = kMostTileCluster;
      int64_t room = clusters_at_once(device, tile_needs<kRows, kTokens>(cluster));
      if (room == 0) {
        cluster = kLeastTileCluster;
        room = std::max<int64_t>(1, clusters_at_once(device, tile_needs<kRows, kTokens>(cluster)));
      }
      const int64_t tiles = ceil_div(T, int64_t{kTokens});
      const double bytes = static_cast<double>(kTokens * (kStreams + 1) * D * 2);
      const double us =
          static_cast<double>(ceil_div(tiles, room)) * (kTileOverhead + bytes / (32e3 * cluster));
      if (best.tokens != 0 && us >= least) return;
      least = us;
      best = {.tokens = kTokens, .cluster = cluster, .clusters = std::min(tiles, room)};
    });
  }
  return best;
}

template <class Args>
Status run_token_tiles(Exec& ex, const Args& a) {
  constexpr int kRows = kRowsOf<Args>;
  const int64_t T = a.streams.dim(0);
  const int64_t D = a.streams.dim(2);
  if (T == 0) return {};
  const TilePlan plan = tile_plan<kRows>(T, D, ex.device->ordinal);
  return with_tile_tokens(plan.tokens, [&]<int kTokens>() -> Status {
    const ClusterNeeds needs = tile_needs<kRows, kTokens>(plan.cluster);
    if (plan.cluster > kLeastTileCluster) FATHOM_TRY(allow_large_cluster(needs.kernel));
    const int64_t channels = D / plan.cluster;
    const TileCut cut{.cluster = plan.cluster,
                      .channels = static_cast<int>(channels),
                      .blocks = FastDivide(channels / kBlockChannels),
                      .vectors = FastDivide(channels / kVector),
                      .blocks_of_all = static_cast<int>(channels / kBlockChannels) * kStreams,
                      .tiles = static_cast<int>(ceil_div(T, int64_t{kTokens}))};
    return launch_kernel(ex, read_token_tiles<kRows, kTokens>,
                         {.blocks = plan.clusters * plan.cluster,
                          .threads = needs.threads,
                          .shared_bytes = needs.shared_bytes,
                          .cluster = plan.cluster},
                         stream_call_of(a), cut);
  });
}

// ---- tiles that stay in shared memory ----

/// Blocks of 32 channels of a warp; with more its weights would not fit into its registers.
constexpr int kResidentOwn = 4;
static_assert(ResidentShape<kResidentOwn>::kWidth == 4096, "the limit of the variant");

ClusterNeeds resident_needs() {
  using Memory = ResidentShape<kResidentOwn>::Memory;
  static_assert(sizeof(Memory) <= 227 << 10, "what a block of Hopper may take");
  return {.kernel = reinterpret_cast<const void*>(read_resident_tiles<kResidentOwn>),
          .threads = kResidentThreads,
          .shared_bytes = static_cast<int64_t>(sizeof(Memory)),
          .cluster = kResidentBlocks};
}

/// As suits_few_tokens.
bool suits_resident_tiles(const MhcPre::Args&, const DeviceInfo& gpu) {
  return gpu.ordinal < 0 || clusters_at_once(gpu.ordinal, resident_needs()) > 0;
}

Status run_resident_tiles(Exec& ex, const MhcPre::Args& a) {
  const int64_t T = a.streams.dim(0);
  if (T == 0) return {};
  const ClusterNeeds needs = resident_needs();
  const int64_t room = std::max<int64_t>(1, clusters_at_once(ex.device->ordinal, needs));
  const int64_t clusters = std::min(room, ceil_div(T, int64_t{kResidentTokens}));
  FATHOM_TRY(allow_large_cluster(needs.kernel));
  return launch_kernel(ex, read_resident_tiles<kResidentOwn>,
                       {.blocks = clusters * kResidentBlocks,
                        .threads = needs.threads,
                        .shared_bytes = needs.shared_bytes,
                        .cluster = kResidentBlocks},
                       stream_call_of(a));
}

// ---- any number of streams, format and layout: a block a token ----

__global__ void __launch_bounds__(kAnyThreads) read_any_layout(const __grid_constant__ AnyCall c) {
  __shared__ AnyMemory m;
  let_next_start();
  wait_for_previous();
  const int64_t t = blockIdx.x;
  sum_token(c, t, m);
  if (warp_id() == 0) find_numbers(c, t, m);
  __syncthreads();
  for (int64_t d = threadIdx.x; d < c.D; d += kAnyThreads)
    c.x.store(t, d, mixed_channel(c, m, t, d));
}

template <class Args>
Status run_any_layout(Exec& ex, const Args& a) {
  return launch_kernel(ex, read_any_layout, {.blocks = a.streams.dim(0), .threads = kAnyThreads},
                       any_call_of(a));
}

constexpr uint32_t kTraits = kDeterministic | kBatchInvariant | kGraphSafe;

}  // namespace

constinit const VariantTable<MhcPre> mhc_pre_cuda{
    {"few_tokens", sm(90), "n==4, T<=32", kTraits | kSomeRowCounts, run_few_tokens<MhcPre::Args>,
     MathUnit::kF32, takes_few_tokens<MhcPre::Args>, nullptr, suits_few_tokens<MhcPre::Args>},
    {"resident_tiles", sm(90), "n==4, D==4096, T<=16777216", kTraits, run_resident_tiles,
     MathUnit::kBf16, is_aligned<MhcPre::Args>, nullptr, suits_resident_tiles},
    {"token_tiles", sm(90), "n==4, D%512==0, T<=16777216", kTraits, run_token_tiles<MhcPre::Args>,
     MathUnit::kBf16, is_aligned<MhcPre::Args>},
    {"any_layout", sm(90), "", kTraits, run_any_layout<MhcPre::Args>},
};

constinit const VariantTable<MhcHead> mhc_head_cuda{
    {"few_tokens", sm(90), "n==4, T<=32", kTraits | kSomeRowCounts, run_few_tokens<MhcHead::Args>,
     MathUnit::kF32, takes_few_tokens<MhcHead::Args>, nullptr, suits_few_tokens<MhcHead::Args>},
    {"token_tiles", sm(90), "n==4, D%512==0, T<=16777216", kTraits, run_token_tiles<MhcHead::Args>,
     MathUnit::kBf16, is_aligned<MhcHead::Args>},
    {"any_layout", sm(90), "", kTraits, run_any_layout<MhcHead::Args>},
};

}  // namespace fathom
