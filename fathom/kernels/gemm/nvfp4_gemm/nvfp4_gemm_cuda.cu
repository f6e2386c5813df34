#include "fathom/kernels/cuda/products/any_products.cuh"
#include "fathom/kernels/cuda/products/block_per_tile.cuh"
#include "fathom/kernels/cuda/products/persistent/persistent_products.cuh"
#include "fathom/kernels/cuda/products/prefetched/prefetched_products.cuh"
#include "fathom/kernels/cuda/products/run_tiles.cuh"
#include "fathom/kernels/cuda/products/warp_split_k/split_k_products.cuh"
#include "fathom/kernels/cuda/rows.cuh"
#include "fathom/kernels/gemm/nvfp4_gemm/nvfp4_gemm.h"
#include "fathom/kernels/gemm/nvfp4_gemm/nvfp4_gemm_sm100.h"
#include "fathom/kernels/gemm/nvfp4_gemm/reorder_nvfp4.cuh"

namespace fathom {
namespace {

using namespace cuda;  // NOLINT: device primitives, in this file's own namespace

using Args = Nvfp4Gemm::Args;

bool is_bf16(const Args& a) {
  return a.x.format == Format::kBf16 && a.w.layout == WeightLayout::kPairs &&
         loads_in_vectors(a, 64) && reinterpret_cast<uintptr_t>(a.w.scales.data) % 4 == 0;
}

/// From so many rows of x on `tiles` is the fastest: nine, or five where w has many short rows.
int64_t fewest_rows(const Args& a) {
  constexpr int64_t kFewest = 9;
  constexpr int64_t kFewestOfShortRows = 5;
  return a.w.rows() >= 16384 && a.w.cols() <= 1024 ? kFewestOfShortRows : kFewest;
}

bool fills_tiles(const Args& a) {
  return is_bf16(a) && a.y.format != Format::kF32 &&
         takes_tiles<TileNvfp4Matrix>(product_of(a), fewest_rows(a));
}

/// With few rows of x, blocks share tiles and lend each other sums, for which this is. A call of
/// many rows lends none and asks for as much: the memory of a step is planned for the longest one,
/// and a short one must find enough.
int64_t tiles_workspace(const Args& /*a*/, const Exec& ex) {
  return lent_bytes(*ex.device);
}

Status run_in_tiles(Exec& ex, const Args& a) {
  const TileRoom room{static_cast<float4*>(ex.workspace), ex.stream->counters()};
  return run_tiles<TileNvfp4Matrix>(ex, product_of(a), room);
}

bool is_prefetched(const Args& a) {
  return is_bf16(a) && takes_prefetched<PrefetchedNvfp4Plan>(product_of(a));
}

bool suits_prefetched(const Args& a, const DeviceInfo& gpu) {
  return prefetched_pays<PrefetchedNvfp4Plan>(product_of(a), gpu.num_sms);
}

Status run_prefetched_blocks(Exec& ex, const Args& a) {
  const ProductCall c = product_of(a);
  return PrefetchedNvfp4Plan::split(c.K).part_k == 192
             ? run_prefetched<PrefetchedNvfp4<192>>(ex, c)
             : run_prefetched<PrefetchedNvfp4<256>>(ex, c);
}

bool is_split_k(const Args& a) {
  return is_bf16(a) && takes_split_k<SplitKNvfp4>(product_of(a));
}

bool suits_split_k(const Args& a, const DeviceInfo& gpu) {
  return split_k_pays(product_of(a), gpu.num_sms);
}

Status run_warp_split_k(Exec& ex, const Args& a) {
  return run_split_k<SplitKNvfp4>(ex, product_of(a));
}

bool is_persistent(const Args& a) {
  return is_bf16(a) && takes_persistent<Nvfp4Codec>(product_of(a));
}

Status run_persistent_blocks(Exec& ex, const Args& a) {
  return run_persistent<Nvfp4Codec>(ex, product_of(a));
}

Status run_blocks_per_tile(Exec& ex, const Args& a) {
  return run_block_per_tile<Nvfp4Codec>(ex, product_of(a));
}

/// The operands of a reference call (x in codes, w row-major, scales swizzled) are copied into the
/// order that `tiles` and `persistent` read.
Status run_reordered(Exec& ex, const Args& a) {
  ProductCall c = product_of(a);
  FATHOM_TRY(reorder(ex, a, nullptr, &c));
  if (a.alpha.present()) c.factors[0] = a.alpha.as<const float>();
  if (a.y.format != Format::kF32 && takes_tiles<TileNvfp4Matrix>(c, kFewestTileRows))
    return run_tiles<TileNvfp4Matrix>(ex, c);
  return run_persistent<Nvfp4Codec>(ex, c);
}

int64_t reordered_workspace(const Args& a, const Exec&) {
  return nvfp4_copies(a).bytes();
}

AnyMatrix with_scales(AnyMatrix m, const View& scales, BlockScaleLayout layout, int64_t k) {
  m.scales = scales.as<const uint8_t>();
  m.scale_format = Format::kE4m3;
  if (layout == BlockScaleLayout::kLinear) {
    m.places = ScalePlaces::kPerGroup;
    m.scale_row = scales.stride(0);
  } else {
    m.places = ScalePlaces::kSwizzled;
    m.scale_columns = static_cast<int32_t>(k / 16);
  }
  return m;
}

Status run_any_layout(Exec& ex, const Args& a) {
  AnyProduct p = any_product_of(product_of(a), a.w.format());
  const int64_t k = a.w.cols();
  if (a.w_scale_layout != BlockScaleLayout::kLinear)
    p.w = with_scales(p.w, a.w.scales, a.w_scale_layout, k);
  if (a.x_scales.present()) p.x = with_scales(p.x, a.x_scales, a.x_scale_layout, k);
  if (a.alpha.present()) p.call.factors[0] = a.alpha.as<const float>();
  return run_any(ex, p);
}

constexpr uint32_t kTraits = kDeterministic | kBatchInvariant | kGraphSafe;
constexpr uint32_t kTileTraits = kDeterministic | kGraphSafe;

}  // namespace

constinit const VariantTable<Nvfp4Gemm> nvfp4_gemm_cuda{
#ifdef FATHOM_SM100
    {"native_sm100_never_run", sm(100), "", kTileTraits, run_nvfp4_sm100<Args>, MathUnit::kFp4,
     fits_nvfp4_sm100<Args>, nvfp4_sm100_workspace<Args>},
#endif
    {"prefetched", sm(90), "T<=16, K<=8192", kTraits | kSomeRowCounts, run_prefetched_blocks,
     MathUnit::kBf16, is_prefetched, nullptr, suits_prefetched},
    {"tiles", sm(90), "", kTileTraits, run_in_tiles, MathUnit::kBf16, fills_tiles, tiles_workspace},
    {"warp_split_k", sm(90), "T<=8, K>=1536, K<=7680", kTraits | kSomeRowCounts, run_warp_split_k,
     MathUnit::kBf16, is_split_k, nullptr, suits_split_k},
    {"persistent", sm(90), "N>=7168, K>=2048, K<=16384", kTraits, run_persistent_blocks,
     MathUnit::kBf16, is_persistent},
    {"block_per_tile", sm(90), "K<=32768", kTraits, run_blocks_per_tile, MathUnit::kBf16, is_bf16},
    {"reordered", sm(90), "K<=16384", kTileTraits, run_reordered, MathUnit::kBf16, reorders,
     reordered_workspace},
    {"any_layout", sm(90), "", kTraits, run_any_layout, MathUnit::kF32, has_rows},
};

}  // namespace fathom
