#include "fathom/kernels/cuda/products/any_products.cuh"
#include "fathom/kernels/cuda/products/persistent/persistent_products.cuh"
#include "fathom/kernels/cuda/products/run_tiles.cuh"
#include "fathom/kernels/cuda/rows.cuh"
#include "fathom/kernels/moe/bf16_group_gemm/bf16_experts.cuh"
#include "fathom/kernels/moe/bf16_group_gemm/bf16_group_gemm.h"

namespace fathom {
namespace {

using namespace cuda;  // NOLINT: device primitives, in this file's own namespace

using Args = Bf16GroupGemm::Args;

bool is_bf16(const Args& a) {
  return a.x.format == Format::kBf16 && a.w.format() == Format::kBf16 && loads_in_vectors(a, 8);
}

bool suits_tiles(const ProductCall& c) {
  return c.y_format != Format::kF32 &&
         takes_tiles<TileBf16<false>>(c, int64_t{kFewestExpertRows} * c.matrices);
}

bool fills_tiles(const Args& a) {
  return is_bf16(a) && suits_tiles(product_of(a));
}

Status run_in_tiles(Exec& ex, const Args& a) {
  return run_tiles<TileBf16<false>>(ex, product_of(a));
}

Status run_persistent_blocks(Exec& ex, const Args& a) {
  return run_persistent<Bf16Codec>(ex, product_of(a));
}

Status run_any_layout(Exec& ex, const Args& a) {
  return run_any(ex, any_product_of(product_of(a), a.w.format()));
}

constexpr uint32_t kTileTraits = kDeterministic | kGraphSafe;
constexpr uint32_t kTraits = kTileTraits | kBatchInvariant;
static_assert(kMostExperts<TileBf16<false>> >= 1024);

}  // namespace

namespace cuda {

Status run_bf16_experts(Exec& ex, const ProductCall& c) {
  if (suits_tiles(c)) return run_tiles<TileBf16<false>>(ex, c);
  return run_persistent<Bf16Codec>(ex, c);
}

}  // namespace cuda

constinit const VariantTable<Bf16GroupGemm> bf16_group_gemm_cuda{
    {"tiles", sm(90), "E<=1024", kTileTraits, run_in_tiles, MathUnit::kBf16, fills_tiles},
    {"persistent", sm(90), "E<=1024, K<=16384", kTraits, run_persistent_blocks, MathUnit::kBf16,
     is_bf16},
    {"any_layout", sm(90), "", kTraits, run_any_layout, MathUnit::kF32, has_rows},
};

}  // namespace fathom
