#include "fathom/kernels/cuda/products/any_products.cuh"
#include "fathom/kernels/cuda/products/native/native_row.cuh"
#include "fathom/kernels/cuda/products/persistent/persistent_products.cuh"
#include "fathom/kernels/cuda/products/run_tiles.cuh"
#include "fathom/kernels/cuda/products/warp_split_k/split_k_products.cuh"
#include "fathom/kernels/cuda/rows.cuh"
#include "fathom/kernels/gemm/nvfp4_gemm/nvfp4_gemm_sm100.h"
#include "fathom/kernels/gemm/nvfp4_gemm/reorder_nvfp4.cuh"
#include "fathom/kernels/moe/nvfp4_group_gemm/nvfp4_experts.cuh"
#include "fathom/kernels/moe/nvfp4_group_gemm/nvfp4_gated.cuh"
#include "fathom/kernels/moe/nvfp4_group_gemm/nvfp4_group_gemm.h"

namespace fathom {
namespace {

using namespace cuda;  // NOLINT: device primitives, in this file's own namespace

using Args = Nvfp4GroupGemm::Args;

bool is_bf16(const Args& a) {
  return a.x.format == Format::kBf16 && a.w.layout == WeightLayout::kPairs &&
         loads_in_vectors(a, 64) && reinterpret_cast<uintptr_t>(a.w.scales.data) % 4 == 0;
}

bool fills_tiles(const Args& a) {
  const ProductCall c = product_of(a);
  return is_bf16(a) && a.y.format != Format::kF32 &&
         takes_tiles<TileNvfp4<2>>(c, int64_t{kFewestExpertRows} * c.matrices);
}

Status run_in_tiles(Exec& ex, const Args& a) {
  if (a.gate.on) return run_gated_nvfp4_tiles(ex, product_of(a));
  return run_tiles<TileNvfp4<2>>(ex, product_of(a));
}

bool is_split_k(const Args& a) {
  return is_bf16(a) && takes_split_k<SplitKNvfp4>(product_of(a));
}

Status run_warp_split_k(Exec& ex, const Args& a) {
  if (a.gate.on) return run_gated_nvfp4_split_k(ex, product_of(a));
  return run_split_k<SplitKNvfp4>(ex, product_of(a));
}

bool is_persistent(const Args& a) {
  return is_bf16(a) && takes_persistent<Nvfp4Codec>(product_of(a));
}

Status run_persistent_blocks(Exec& ex, const Args& a) {
  if (a.gate.on) return run_gated_nvfp4_persistent(ex, product_of(a));
  return run_persistent<Nvfp4Codec>(ex, product_of(a));
}

/// The operands of a reference call (x in codes, w row-major, scales swizzled) are copied into the
/// order that `tiles` and `persistent` read.
Status run_reordered(Exec& ex, const Args& a) {
  ProductCall c = product_of(a);
  const bool swizzled_x = a.x_scales.present() && a.x_scale_layout != BlockScaleLayout::kLinear;
  FATHOM_TRY(reorder(ex, a, swizzled_x ? a.scale_offsets.as<const int32_t>() : nullptr, &c));
  if (a.alphas.present()) c.matrix_factors = a.alphas.as<const float>();
  if (a.y.format != Format::kF32 &&
      takes_tiles<TileNvfp4<2>>(c, int64_t{kFewestExpertRows} * c.matrices)) {
    return run_tiles<TileNvfp4<2>>(ex, c);
  }
  return run_persistent<Nvfp4Codec>(ex, c);
}

int64_t reordered_workspace(const Args& a, const Exec&) {
  return nvfp4_copies(a).bytes();
}

AnyMatrix swizzled(AnyMatrix m, const View& scales, int64_t k) {
  m.scales = scales.as<const uint8_t>();
  m.scale_format = Format::kE4m3;
  m.places = ScalePlaces::kSwizzled;
  m.scale_columns = static_cast<int32_t>(k / 16);
  return m;
}

Status run_any_layout(Exec& ex, const Args& a) {
  AnyProduct p = any_product_of(product_of(a), a.w.format());
  const int64_t k = a.w.cols();
  if (a.w_scale_layout != BlockScaleLayout::kLinear) {
    p.w = swizzled(p.w, a.w.scales, k);
    p.w_scale_bytes = swizzled_128x4_bytes(a.w.rows(), k / 16);
  }
  if (a.x_scales.present() && a.x_scale_layout != BlockScaleLayout::kLinear) {
    p.x = swizzled(p.x, a.x_scales, k);
    p.x_scale_offsets = a.scale_offsets.as<const int32_t>();
  } else if (a.x_scales.present()) {
    p.x.scales = a.x_scales.as<const uint8_t>();
    p.x.scale_format = Format::kE4m3;
    p.x.places = ScalePlaces::kPerGroup;
    p.x.scale_row = a.x_scales.stride(0);
  }
  if (a.alphas.present()) p.call.matrix_factors = a.alphas.as<const float>();
  return run_any(ex, p);
}

constexpr uint32_t kTileTraits = kDeterministic | kGraphSafe;
constexpr uint32_t kTraits = kTileTraits | kBatchInvariant;
static_assert(kMostExperts<TileNvfp4<2>> == 475, "as the table says");

}  // namespace

namespace cuda {

Status run_nvfp4_experts(Exec& ex, const ProductCall& c, bool exact) {
  const bool aligned = c.in_pairs && c.K % 64 == 0 && c.x_format == Format::kBf16 &&
                       c.x_row % 8 == 0 && reinterpret_cast<uintptr_t>(c.x) % 16 == 0 &&
                       reinterpret_cast<uintptr_t>(c.w) % 16 == 0 &&
                       reinterpret_cast<uintptr_t>(c.scales) % 4 == 0;
  if (!aligned) return run_any(ex, any_product_of(c, Format::kNvfp4));
  if (!exact && takes_tiles<TileNvfp4<2>>(c, int64_t{kFewestExpertRows} * c.matrices))
    return run_tiles<TileNvfp4<2>>(ex, c);
  if (takes_split_k<SplitKNvfp4>(c)) return run_split_k<SplitKNvfp4>(ex, c);
  if (takes_persistent<Nvfp4Codec>(c)) return run_persistent<Nvfp4Codec>(ex, c);
  return run_any(ex, any_product_of(c, Format::kNvfp4));
}

}  // namespace cuda

constinit const VariantTable<Nvfp4GroupGemm> nvfp4_group_gemm_cuda{
#ifdef FATHOM_SM100
    {"native_sm100_never_run", sm(100), "", kTileTraits, run_nvfp4_sm100<Args>, MathUnit::kFp4,
     fits_nvfp4_sm100<Args>, nvfp4_sm100_workspace<Args>},
    sm100::native_row<Nvfp4GroupGemm, sm100::kMxfp4>("native_mxfp4_sm100_never_run"),
#endif
    {"tiles", sm(90), "E<=475", kTileTraits, run_in_tiles, MathUnit::kBf16, fills_tiles},
    {"warp_split_k", sm(90), "E<=1024, K>=1536, K<=7680", kTraits | kSomeRowCounts,
     run_warp_split_k, MathUnit::kBf16, is_split_k},
    {"persistent", sm(90), "E<=1024, K<=16384", kTraits, run_persistent_blocks, MathUnit::kBf16,
     is_persistent},
    {"reordered", sm(90), "E<=1024, K<=16384", kTileTraits, run_reordered, MathUnit::kBf16,
     ungated<Args, reorders<Args>>, reordered_workspace},
    {"any_layout", sm(90), "", kTraits, run_any_layout, MathUnit::kF32, has_rows},
};

}  // namespace fathom
