#include "fathom/kernels/cuda/products/any_products.cuh"
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
  return c;
}

Status run_streamed(Exec& ex, const Args& a) {
  return run_stream<Fp8Codec<__NV_E4M3, true>>(ex, product(a));
}

Status run_each(Exec& ex, const Args& a) {
  AnyProduct p = any_product_of(product(a), Format::kE4m3);
  if (a.x_scales.present()) {
    p.x = {.values = a.x.data,
           .format = Format::kE4m3,
           .scales = a.x_scales.as<const uint8_t>(),
           .scale_format = Format::kF32,
           .places = ScalePlaces::kPerGroup,
           .scale_row = a.x_scales.stride(0),
           .scale_column = a.x_scales.stride(1)};
  }
  return run_any(ex, p);
}

constexpr uint32_t kTraits = kDeterministic | kGraphSafe;

}  // namespace

constinit const VariantTable<Fp8GroupGemm> fp8_group_gemm_cuda{
    {"streamed", sm(90), "E<=1024, K<=32768", kTraits, run_streamed, MathUnit::kBf16, is_bf16},
    {"each", sm(90), "", kTraits, run_each, MathUnit::kF32, is_row_major},
};

}  // namespace fathom
