#include "fathom/kernels/cuda/products/any_products.cuh"
#include "fathom/kernels/cuda/products/run_tiles.cuh"
#include "fathom/kernels/cuda/products/stream_products.cuh"
#include "fathom/kernels/cuda/rows.cuh"
#include "fathom/kernels/moe/fp8_group_gemm/fp8_group_gemm.h"

namespace fathom {
namespace {

using namespace cuda;  // NOLINT: device primitives, in this file's own namespace

using Args = Fp8GroupGemm::Args;

bool is_row_major(const Args& a) {
  return a.w.layout == WeightLayout::kRowMajor;
}

bool is_bf16(const Args& a) {
  return a.x.format == Format::kBf16 && streams(a, 16);
}

ProductCall product(const Args& a) {
  ProductCall c = product_of(a);
  c.offsets = a.offsets.as<const int32_t>();
  if (a.x_scales.present()) c.scale_x_by(a.x_scales);
  return c;
}

bool fills_tiles(const Args& a) {
  const ProductCall c = product(a);
  return is_bf16(a) && takes_tiles<TileFp8>(c, int64_t{kFewestExpertRows} * c.matrices);
}

/// Tensor cores add E4M3 products with about 14 bits: enough for outputs of two bytes.
bool fills_code_tiles(const Args& a) {
  return a.x.format == Format::kFp8Group && is_row_major(a) && a.y.format != Format::kF32 &&
         takes_tiles<TileFp8Pair<true>>(product(a), 1);
}

Status run_in_tiles(Exec& ex, const Args& a) {
  return run_tiles<TileFp8, 128>(ex, product(a));
}

Status run_code_tiles(Exec& ex, const Args& a) {
  return run_tiles<TileFp8Pair<true>, 128>(ex, product(a));
}

Status run_streamed(Exec& ex, const Args& a) {
  return run_stream<Fp8Codec<__NV_E4M3, true>>(ex, product(a));
}

Status run_each(Exec& ex, const Args& a) {
  return run_any(ex, any_product_of(product(a), Format::kE4m3));
}

constexpr uint32_t kTraits = kDeterministic | kGraphSafe;

/// On a GPU both kernels have one schedule: blocks take tiles and experts as they come, so that a
/// heavy expert is shared out among all of them anyway.
template <class K>
constexpr VariantTable<K> group_table() {
  return {
      {"tiles", sm(90), "E<=1024", kTraits, run_in_tiles, MathUnit::kBf16, fills_tiles},
      {"code_tiles", sm(90), "E<=1024", kTraits, run_code_tiles, MathUnit::kFp8, fills_code_tiles},
      {"streamed", sm(90), "E<=1024, K<=32768", kTraits, run_streamed, MathUnit::kBf16, is_bf16},
      {"each", sm(90), "", kTraits, run_each, MathUnit::kF32, is_row_major},
  };
}

}  // namespace

constinit const VariantTable<Fp8GroupGemm> fp8_group_gemm_cuda = group_table<Fp8GroupGemm>();
constinit const VariantTable<Fp8GroupGemmSkewed> fp8_group_gemm_skewed_cuda =
    group_table<Fp8GroupGemmSkewed>();

}  // namespace fathom
