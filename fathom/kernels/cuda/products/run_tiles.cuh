// How the host plans and launches products in tiles (tile_products.cuh).
#pragma once

#include <algorithm>
#include <limits>

#include "fathom/device/stream.h"
#include "fathom/kernels/cuda/clusters_at_once.h"
#include "fathom/kernels/cuda/products/tile_products.cuh"

namespace fathom::cuda {

/// From so many rows of x (of a matrix, on average) tiles are faster than kernels of few rows.
inline constexpr int kFewestTileRows = 17;
/// Where a matrix makes less tiles than suits, `persistent` is faster up to 32 rows, though it
/// reads w twice.
inline constexpr int kFewestTileRowsOfOthers = 33;
inline constexpr int kFewestExpertRows = 17;  ///< the same for experts

/// Clusters of blocks of a tile of `tokens` rows of x that the GPU runs at once.
template <class Codec, int kTokens>
int64_t tile_clusters(const DeviceInfo& gpu, int split) {
  return clusters_at_once(gpu.ordinal,
                          {.kernel = reinterpret_cast<const void*>(tile_products<Codec, kTokens>),
                           .threads = kTileThreadsOfProduct<Codec>,
                           .shared_bytes = TileMemory<Codec, kTokens>::bytes(0),
                           .cluster = split});
}

/// Stages of each of `split` slices of k, whole stages of weights.
template <class Codec>
int slice_of(int stages, int split) {
  const int slice = (stages + split - 1) / split;
  return (slice + Codec::kWEvery - 1) / Codec::kWEvery * Codec::kWEvery;
}

/// Into how many slices to cut k: the shortest slices of at least four stages whose blocks are all
/// on the GPU at once.
template <class Codec, int kTokens>
int tile_split(const DeviceInfo& gpu, int64_t tiles, int stages) {
  constexpr int kFewestStages = 4;
  constexpr int kMostSplit = 8;  // blocks of a cluster on every GPU that has them
  int best = 1;
  for (int split = 2; split <= kMostSplit && tiles * split <= gpu.num_sms; ++split) {
    const int slice = slice_of<Codec>(stages, split);
    if (slice < kFewestStages) break;
    if (slice < slice_of<Codec>(stages, best) && tiles <= tile_clusters<Codec, kTokens>(gpu, split))
      best = split;
  }
  return best;
}

/// What blocks need to share tiles: memory for the sums that they lend each other, and counters
/// that are zero. Without it, tiles are not shared.
struct TileRoom {
  float4* parts = nullptr;
  uint32_t* ready = nullptr;
};

/// Bytes of sums that the blocks of a GPU lend each other at most.
inline int64_t lent_bytes(const DeviceInfo& gpu) {
  constexpr int kRowsOfWarp = 16;
  return int64_t{gpu.num_sms} * kMostTileWarps * kRowsOfWarp * kFewTokens * 4;
}

/// Clocks of a stage of k in a tile, roughly: those of its products (2,048 a clock; 4,096 with E4M3
/// on both sides) or of decoding, whichever are more.
template <class Codec, int kTokens>
constexpr int64_t stage_clocks() {
  constexpr int64_t kDecoding = (!Codec::kDecoded         ? 0
                                 : Codec::kCodes          ? 5  // counted, of 128 rows of w
                                 : kHasBlockScales<Codec> ? (kTokens <= 64 ? 9 : 11)
                                 : kTokens <= kFewTokens  ? 2 * Codec::kGroups + 3
                                                          : (Codec::kGroups == 4 ? 13 : 14)) *
                                Codec::kStageK;
  constexpr int64_t kProducts = int64_t{kTileRows<Codec>} * Codec::kStageK * kTokens;
  constexpr int64_t kBarriers = 40;
  return std::max(kProducts / (Codec::kCodes ? 4096 : 2048), kDecoding) + kBarriers;
}

/// Plans equal shares of all tiles for all multiprocessors, if there is room and no tile falls to
/// more blocks than a warp has lanes.
template <class Codec>
void share_tiles(const ProductCall& c, int num_sms, const TileRoom& room, TilePlan* plan) {
  if (room.parts == nullptr || c.matrices > 1) return;
  plan->units = (plan->stages + Codec::kWEvery - 1) / Codec::kWEvery;
  const int64_t units = int64_t{plan->row_tiles} * plan->token_tiles * plan->units;
  const int64_t blocks = std::min<int64_t>({units, num_sms, Stream::kCounters / kMostTileWarps});
  if ((units + 1) * blocks > std::numeric_limits<int>::max()) return;
  if (plan->units * blocks / units + 2 > 32) return;
  plan->shares = static_cast<int>(blocks);
  plan->parts = room.parts;
  plan->ready = room.ready;
}

template <class Codec, int kTokens>
TilePlan tile_plan(const ProductCall& c, const DeviceInfo& gpu, const TileRoom& room) {
  TilePlan plan;
  plan.row_tiles = (c.N + kTileRows<Codec> - 1) / kTileRows<Codec>;
  plan.stages = (c.K + Codec::kStageK - 1) / Codec::kStageK;
  plan.slice = plan.stages;
  if (c.offsets != nullptr) return plan;
  plan.token_tiles = (c.T + kTokens - 1) / kTokens;
  if constexpr (Codec::kBlocksShare) {
    share_tiles<Codec>(c, gpu.num_sms, room, &plan);
  } else if constexpr (kTokens <= 128) {
    const int64_t tiles = int64_t{plan.row_tiles} * plan.token_tiles * c.matrices;
    plan.split = tile_split<Codec, kTokens>(gpu, tiles, plan.stages);
    plan.slice = slice_of<Codec>(plan.stages, plan.split);
  }
  return plan;
}

template <class Codec>
Status make_maps(const ProductCall& c, int tokens, TileMaps* maps) {
  constexpr bool kWide = Codec::kXElement == 2;
  constexpr bool kWideWeights = kWide && !Codec::kDecoded;
  // Rows that are no whole panel lie as they come: lanes that read two of them need all banks.
  constexpr int kWBox = Codec::kWRow * Codec::kWEvery;
  const int64_t x_matrices = c.offsets == nullptr && c.x_matrix != 0 ? c.matrices : 1;
  FATHOM_TRY(make_tensor_map(
      {.data = c.x,
       .type = kWide ? CU_TENSOR_MAP_DATA_TYPE_BFLOAT16 : CU_TENSOR_MAP_DATA_TYPE_UINT8,
       .dims = {c.K, c.T, x_matrices},
       .strides = {c.x_row * Codec::kXElement, c.x_matrix * Codec::kXElement},
       .box = {kPanelRowBytes / Codec::kXElement, tokens},
       .swizzle = CU_TENSOR_MAP_SWIZZLE_128B},
      &maps->x));
  constexpr auto kSwizzle =
      kWBox == kPanelRowBytes ? CU_TENSOR_MAP_SWIZZLE_128B : CU_TENSOR_MAP_SWIZZLE_NONE;
  if constexpr (kGated<Codec>) {
    static_assert(!kWideWeights, "a map of bytes");
    return make_gated_map({.data = c.w,
                           .row_bytes = c.w_row,
                           .half_rows = c.N / 2,
                           .columns = c.w_row,
                           .groups = c.N / kGatedRows,
                           .lasts = c.matrices,
                           .last_bytes = c.w_matrix,
                           .box = {kWBox, kTileRows<Codec> / kGatedRows, 1},
                           .swizzle = kSwizzle},
                          &maps->w);
  } else {
    const int element = kWideWeights ? 2 : 1;
    return make_tensor_map(
        {.data = c.w,
         .type = kWideWeights ? CU_TENSOR_MAP_DATA_TYPE_BFLOAT16 : CU_TENSOR_MAP_DATA_TYPE_UINT8,
         .dims = {c.w_row / element, c.N, c.matrices},
         .strides = {c.w_row, c.w_matrix},
         .box = {kWBox / element, kTileRows<Codec>},
         .swizzle = kSwizzle},
        &maps->w);
  }
}

template <class Codec, int kTokens>
Status launch_tiles(Exec& ex, const ProductCall& c, const TileRoom& room) {
  using Memory = TileMemory<Codec, kTokens>;
  static_assert(kPanelRowBytes % (Codec::kWRow * Codec::kWEvery) == 0);
  static_assert(4 * Codec::kGroups <= kMostTileWarps);
  static_assert(!Codec::kBlocksShare || (Codec::kRowBlocks == 1 && kTokens <= kFewTokens),
                "one block of sums a warpgroup is lent, and there is memory for few rows of x");
  const TilePlan plan = tile_plan<Codec, kTokens>(c, *ex.device, room);
  TileMaps maps;
  FATHOM_TRY(make_maps<Codec>(c, kTokens, &maps));
  const int64_t tiles = int64_t{plan.row_tiles} * plan.token_tiles * c.matrices;
  // With offsets the number of tiles is in memory of the GPU: every multiprocessor looks.
  const bool stays = c.offsets != nullptr || plan.split == 1;
  const int64_t most = ex.device->num_sms;
  LaunchShape shape{.blocks = c.offsets != nullptr  ? most
                              : Codec::kBlocksShare ? plan.shares
                              : stays               ? std::min(tiles, most)
                                                    : tiles * plan.split,
                    .threads = kTileThreadsOfProduct<Codec>,
                    .shared_bytes = Memory::bytes(c.offsets != nullptr ? c.matrices : 0),
                    .cluster = plan.split,
                    .alone = c.is_long()};
  return launch_kernel(ex, tile_products<Codec, kTokens>, shape, maps, c, plan);
}

inline constexpr int64_t kNoWay = int64_t{1} << 60;  ///< clocks of what cannot be

/// Clocks of a product in tiles, roughly. Multiprocessors go through rounds of tiles, each of which
/// takes the stages of a tile, a slice or a share; in all no less than memory takes to give the
/// weights. Then sums of other blocks are added up.
template <class Codec, int kTokens>
int64_t tile_cost(const ProductCall& c, const DeviceInfo& gpu, const TileRoom& room) {
  constexpr int64_t kStart = 2500;  // and end of a tile
  constexpr int64_t kCombine =      // sums of slices
      kHasBlockScales<Codec> ? 2000 + kTileRows<Codec> * kTokens * 17 / 20 : 6000;
  constexpr int64_t kWait = 4000;          // for sums that are lent
  constexpr int64_t kTake = 25 * kTokens;  // those of a block
  constexpr int64_t kBytesPerClock = 16;   // of a multiprocessor's share
  constexpr int64_t kStage = stage_clocks<Codec, kTokens>();
  const TilePlan plan = tile_plan<Codec, kTokens>(c, gpu, room);
  const int64_t reading = c.w_row * c.N * c.matrices / (kBytesPerClock * gpu.num_sms);
  if constexpr (Codec::kBlocksShare) {
    if (plan.shares == 0) return kNoWay;
    const int64_t units = (plan.all_units() + plan.shares - 1) / plan.shares;
    const int64_t lenders = (int64_t{plan.units} * plan.shares - 1) / plan.all_units() + 1;
    return std::max(units * Codec::kWEvery * kStage + kStart, reading) + kWait + lenders * kTake;
  }
  const int64_t tiles = int64_t{plan.row_tiles} * plan.token_tiles * c.matrices * plan.split;
  const int64_t rounds = (tiles + gpu.num_sms - 1) / gpu.num_sms;
  const int64_t multiplying = rounds * (plan.slice * kStage + kStart);
  return std::max(multiplying, reading) + (plan.split > 1 ? rounds * kCombine : 0);
}

/// The product with rows first .. first+count-1 of w alone.
inline ProductCall rows_of_product(const ProductCall& c, int first, int count) {
  ProductCall part = c;
  part.N = count;
  part.w += first * c.w_row;
  part.y = static_cast<uint8_t*>(c.y) + int64_t{first} * element_bytes(c.y_format);
  if (c.scales != nullptr) {
    const bool blocks = c.scale_row == (c.K + 127) / 128;  // of 128 x 128, not of 16
    const int64_t element = c.scale_format == Format::kF32 ? 4 : 1;
    part.scales += (blocks ? first / 128 : first) * c.scale_row * element;
  }
  if (c.column_scales != nullptr) part.column_scales += first;
  if (c.bias != nullptr) {
    part.bias = static_cast<const uint8_t*>(c.bias) + int64_t{first} * element_bytes(c.bias_format);
  }
  return part;
}

/// One kind of tiles of a product that a TileShapes has, by its number.
struct TileShape {
  int number = 0;
  int64_t cost = kNoWay;

  void consider(const TileShape& other) {
    if (other.cost <= cost) *this = other;
  }
};

/// How a product is cut: the first `rows` of w in tiles of a shape, what is left in those of
/// another.
struct TileChoice {
  TileShape first;
  TileShape rest;
  int rows = 0;
};

/// Rows of w whose tiles fill whole rounds over the multiprocessors: all of them if there is no
/// whole round, or nothing would be left.
template <class Codec, int kTokens>
int rows_of_whole_rounds(const ProductCall& c, int num_sms) {
  if (c.offsets != nullptr || c.matrices > 1) return c.N;
  const int token_tiles = (c.T + kTokens - 1) / kTokens;
  const int64_t tiles = int64_t{(c.N - 1) / kTileRows<Codec> + 1} * token_tiles;
  const int64_t rounds = tiles / num_sms;
  if (rounds == 0 || tiles % num_sms == 0) return c.N;
  const int64_t rows = rounds * num_sms / token_tiles * kTileRows<Codec>;
  return rows > 0 && rows < c.N ? static_cast<int>(rows) : c.N;
}

/// Whether tiles of `tokens` rows of x suit T rows. Tiles of few rows must have room for all rows;
/// others must be more than half full, unless there are no smaller ones (`smallest`).
inline bool suits_rows(int tokens, bool smallest, int T) {
  return (tokens > kFewTokens || T <= tokens) && (smallest || 2 * T > tokens);
}

/// The cheapest shape for a product as a whole.
template <class Shapes>
TileShape cheapest_shape(const ProductCall& c, const DeviceInfo& gpu, const TileRoom& room) {
  TileShape best;
  Shapes::each([&]<class Codec, int kTokens>(int number) {
    if (suits_rows(kTokens, kTokens == Shapes::kFewestTokens, c.T))
      best.consider({number, tile_cost<Codec, kTokens>(c, gpu, room)});
  });
  return best;
}

/// The cheapest tiles of a family. With offsets, they follow from the rows that experts have on
/// average.
template <class Family>
TileChoice choose_tiles(const ProductCall& c, const DeviceInfo& gpu, const TileRoom& room) {
  using Shapes = typename Family::Shapes;
  constexpr int64_t kLaunch = 3000;  // clocks
  TileChoice best;
  best.rows = c.N;
  if (c.offsets != nullptr) {
    best.first.number = Shapes::number_for_experts(c.T / c.matrices);
    return best;
  }
  best.first = cheapest_shape<Shapes>(c, gpu, room);
  int64_t least = best.first.cost;
  Shapes::each([&]<class Codec, int kTokens>(int number) {
    if (!suits_rows(kTokens, kTokens == Shapes::kFewestTokens, c.T)) return;
    const int whole = rows_of_whole_rounds<Codec, kTokens>(c, gpu.num_sms);
    if (whole == c.N) return;
    const TileShape first{number,
                          tile_cost<Codec, kTokens>(rows_of_product(c, 0, whole), gpu, room)};
    const TileShape rest =
        cheapest_shape<typename Family::Rest>(rows_of_product(c, whole, c.N - whole), gpu, room);
    if (first.cost + rest.cost + kLaunch > least) return;
    least = first.cost + rest.cost + kLaunch;
    best = {first, rest, whole};
  });
  return best;
}

template <class Shapes>
Status launch_shape(Exec& ex, const ProductCall& c, const TileShape& shape, const TileRoom& room) {
  Status status;
  Shapes::each([&]<class Codec, int kTokens>(int number) {
    if (number == shape.number) (void)(status = launch_tiles<Codec, kTokens>(ex, c, room));
  });
  return status;
}

/// `room`: for blocks that share tiles, of lent_bytes() and the counters of the stream.
template <class Family>
Status run_tiles(Exec& ex, const ProductCall& c, const TileRoom& room = {}) {
  if (c.T == 0 || c.N == 0 || c.matrices == 0) return {};
  const TileChoice choice = choose_tiles<Family>(c, *ex.device, room);
  using Shapes = typename Family::Shapes;
  if (choice.rows == c.N) return launch_shape<Shapes>(ex, c, choice.first, room);
  FATHOM_TRY(launch_shape<Shapes>(ex, rows_of_product(c, 0, choice.rows), choice.first, room));
  return launch_shape<typename Family::Rest>(ex, rows_of_product(c, choice.rows, c.N - choice.rows),
                                             choice.rest, room);
}

template <class... Kinds>
constexpr int most_experts(TileShapes<Kinds...>*) {
  return std::min({TileMemory<typename Kinds::Codec, Kinds::kTokens>::kMostMatrices...});
}

/// Experts that every tile of a family has room for.
template <class Family>
inline constexpr int kMostExperts = most_experts(static_cast<typename Family::Shapes*>(nullptr));

/// Whether the copy engine can bring x and w, there are rows enough and not too many experts.
template <class Family>
bool takes_tiles(const ProductCall& c, int64_t fewest_rows) {
  return c.T >= fewest_rows && c.K > 0 && c.N > 0 && c.x_matrix >= 0 && c.x_row > 0 &&
         (!c.gated || gates_by_groups(c)) &&
         (c.offsets == nullptr || c.matrices <= kMostExperts<Family>)&&takes_tensor_map(
             c.x, c.x_row * Family::kXElement, c.x_matrix * Family::kXElement) &&
         takes_tensor_map(c.w, c.w_row, c.w_matrix);
}

}  // namespace fathom::cuda
