// How the host plans and launches products in tiles (tile_products.cuh).
#pragma once

#include "fathom/kernels/cuda/clusters_at_once.h"
#include "fathom/kernels/cuda/products/tile_products.cuh"

namespace fathom::cuda {

/// From so many rows of x (of a matrix, on average) tiles are faster than streaming the weights.
inline constexpr int kFewestTileRows = 17;
/// Where a matrix makes less or more tiles than suits, two sweeps are faster up to 32 rows.
inline constexpr int kFewestTileRowsOfOthers = 33;
inline constexpr int kFewestExpertRows = 17;  ///< the same for experts

/// Clusters of blocks of a tile of `tokens` rows of x that the GPU runs at once.
template <class Codec, int kTokens>
int64_t tile_clusters(const DeviceInfo& gpu, int split) {
  return clusters_at_once(gpu.ordinal,
                          {.kernel = reinterpret_cast<const void*>(tile_products<Codec, kTokens>),
                           .threads = kTileThreadsOfProduct,
                           .shared_bytes = TileMemory<Codec, kTokens>::bytes(0),
                           .cluster = split});
}

/// Slices of k: a power of two that gives multiprocessors work, none shorter than four stages, all
/// at once.
template <class Codec>
int tile_split(const DeviceInfo& gpu, int tokens, int64_t tiles, int stages) {
  int split = 1;
  while (split < 8 && tiles * split * 2 <= gpu.num_sms && stages >= 8 * split) {
    const int64_t at_once = tokens == 64 ? tile_clusters<typename Codec::Narrow, 64>(gpu, 2 * split)
                                         : tile_clusters<Codec, 128>(gpu, 2 * split);
    if (tiles > at_once) break;
    split *= 2;
  }
  return split;
}

template <class Codec>
TilePlan tile_plan(const ProductCall& c, int tokens, const DeviceInfo& gpu) {
  TilePlan plan;
  plan.row_tiles = (c.N + kTileRows<Codec> - 1) / kTileRows<Codec>;
  plan.stages = (c.K + Codec::kStageK - 1) / Codec::kStageK;
  plan.slice = plan.stages;
  if (c.offsets != nullptr) return plan;
  plan.token_tiles = (c.T + tokens - 1) / tokens;
  if (tokens > 128) return plan;
  const int64_t tiles = int64_t{plan.row_tiles} * plan.token_tiles * c.matrices;
  plan.split = tile_split<Codec>(gpu, tokens, tiles, plan.stages);
  plan.slice = (plan.stages + plan.split - 1) / plan.split;
  plan.slice = (plan.slice + Codec::kWEvery - 1) / Codec::kWEvery * Codec::kWEvery;
  return plan;
}

template <class Codec>
Status make_maps(const ProductCall& c, int tokens, TileMaps* maps) {
  constexpr bool kWide = Codec::kXElement == 2;
  constexpr bool kWideWeights = kWide && !Codec::kDecoded;
  const int64_t x_matrices = c.offsets == nullptr && c.x_matrix != 0 ? c.matrices : 1;
  FATHOM_TRY(make_tensor_map(
      {.data = c.x,
       .type = kWide ? CU_TENSOR_MAP_DATA_TYPE_BFLOAT16 : CU_TENSOR_MAP_DATA_TYPE_UINT8,
       .dims = {c.K, c.T, x_matrices},
       .strides = {c.x_row * Codec::kXElement, c.x_matrix * Codec::kXElement},
       .box = {kPanelRowBytes / Codec::kXElement, tokens},
       .swizzle = CU_TENSOR_MAP_SWIZZLE_128B},
      &maps->x));
  const int element = kWideWeights ? 2 : 1;
  return make_tensor_map(
      {.data = c.w,
       .type = kWideWeights ? CU_TENSOR_MAP_DATA_TYPE_BFLOAT16 : CU_TENSOR_MAP_DATA_TYPE_UINT8,
       .dims = {c.w_row / element, c.N, c.matrices},
       .strides = {c.w_row, c.w_matrix},
       .box = {kPanelRowBytes / element, kTileRows<Codec>},
       .swizzle = CU_TENSOR_MAP_SWIZZLE_128B},
      &maps->w);
}

template <class Codec, int kTokens>
Status launch_tiles(Exec& ex, const ProductCall& c) {
  using Memory = TileMemory<Codec, kTokens>;
  static_assert(Codec::kWRow * Codec::kWEvery == kPanelRowBytes);
  const TilePlan plan = tile_plan<Codec>(c, kTokens, *ex.device);
  TileMaps maps;
  FATHOM_TRY(make_maps<Codec>(c, kTokens, &maps));
  const int64_t tiles = int64_t{plan.row_tiles} * plan.token_tiles * c.matrices;
  // With offsets the number of tiles is in memory of the GPU: every multiprocessor looks.
  const bool stays = c.offsets != nullptr || plan.split == 1;
  const int64_t most = ex.device->num_sms;
  LaunchShape shape{.blocks = c.offsets != nullptr ? most
                              : stays              ? std::min(tiles, most)
                                                   : tiles * plan.split,
                    .threads = kTileThreadsOfProduct,
                    .shared_bytes = Memory::bytes(c.offsets != nullptr ? c.matrices : 0),
                    .cluster = plan.split,
                    .alone = c.is_long()};
  return launch_kernel(ex, tile_products<Codec, kTokens>, shape, maps, c, plan);
}

/// Clocks of a product in tiles, roughly: rounds over the multiprocessors, and in each the stages
/// of a tile, which multiply (2048 or, E4M3 on both sides, 4096 products a clock) or wait for
/// decoding.
template <class Codec>
int64_t tile_cost(const ProductCall& c, int tokens, const DeviceInfo& gpu) {
  constexpr int64_t kStart = 2500;    // and end of a tile
  constexpr int64_t kCombine = 6000;  // sums of slices
  constexpr int64_t kDecoding = Codec::kDecoded ? 14 * Codec::kStageK : 0;
  constexpr int64_t kProducts = int64_t{kTileRows<Codec>} * Codec::kStageK;
  const TilePlan plan = tile_plan<Codec>(c, tokens, gpu);
  const int64_t tiles = int64_t{plan.row_tiles} * plan.token_tiles * c.matrices * plan.split;
  const int64_t stage = std::max(kProducts * tokens / (Codec::kCodes ? 4096 : 2048), kDecoding);
  return (tiles + gpu.num_sms - 1) / gpu.num_sms *
         (plan.slice * (stage + 40) + kStart + (plan.split > 1 ? kCombine : 0));
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

/// Rows of w whose tiles fill whole rounds, where what is left fits into one round of tiles of half
/// the size (or less) and there is more than one round; else all of them.
template <class Codec>
int rows_of_whole_rounds(const ProductCall& c, int tokens, int num_sms) {
  if (c.offsets != nullptr || c.matrices > 1 || tokens < 128) return c.N;
  const int rows = kTileRows<Codec>;
  const int64_t token_tiles = (c.T + tokens - 1) / tokens;
  const int64_t tiles = (c.N + rows - 1) / rows * token_tiles;
  const int64_t rounds = tiles / num_sms;
  if (rounds == 0 || tiles % num_sms == 0) return c.N;
  const int64_t whole = rounds * num_sms / token_tiles * rows;
  const int64_t rest = c.N - whole;
  const int64_t small = (rest + 127) / 128 * ((c.T + 127) / 128);
  return whole > 0 && small <= num_sms ? static_cast<int>(whole) : c.N;
}

/// Runs a product in tiles of 64, 128 or (kWidest) 256 rows of x. With offsets, tiles follow from
/// the rows that experts have on average.
template <class Codec, int kWidest>
Status run_tiles(Exec& ex, const ProductCall& c) {
  if (c.T == 0 || c.N == 0 || c.matrices == 0) return {};
  int tokens = 64;
  if (c.offsets != nullptr) {
    const int rows = c.T / c.matrices;
    tokens = rows <= 64 ? 64 : rows <= 192 || kWidest == 128 ? 128 : kWidest;
  } else {
    int64_t least = tile_cost<typename Codec::Narrow>(c, 64, *ex.device);
    for (int wider = 128; wider <= kWidest; wider *= 2) {
      if (c.T <= wider / 2) break;
      const int64_t cost = tile_cost<Codec>(c, wider, *ex.device);
      if (cost > least) continue;
      tokens = wider;
      least = cost;
    }
  }
  const bool halves = tokens == kWidest;  // what half of a tile is, is known for the widest
  const int whole = halves ? rows_of_whole_rounds<Codec>(c, tokens, ex.device->num_sms) : c.N;
  if (whole < c.N) {
    FATHOM_TRY((launch_tiles<Codec, kWidest>(ex, rows_of_product(c, 0, whole))));
    return launch_tiles<typename Codec::Narrow, 128>(ex, rows_of_product(c, whole, c.N - whole));
  }
  if constexpr (kWidest == 256) {
    if (tokens == 256) return launch_tiles<Codec, 256>(ex, c);
  }
  if (tokens == 128) return launch_tiles<Codec, 128>(ex, c);
  return launch_tiles<typename Codec::Narrow, 64>(ex, c);
}

/// Whether the copy engine can bring x and w, and there are rows enough.
template <class Codec>
bool takes_tiles(const ProductCall& c, int64_t fewest_rows) {
  return c.T >= fewest_rows && c.K > 0 && c.N > 0 && c.x_matrix >= 0 && c.x_row > 0 &&
         takes_tensor_map(c.x, c.x_row * Codec::kXElement, c.x_matrix * Codec::kXElement) &&
         takes_tensor_map(c.w, c.w_row, c.w_matrix);
}

}  // namespace fathom::cuda
