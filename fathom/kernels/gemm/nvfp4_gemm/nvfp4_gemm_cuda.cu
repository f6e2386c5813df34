#include "fathom/kernels/cuda/products/any_products.cuh"
#include "fathom/kernels/cuda/products/stream_products.cuh"
#include "fathom/kernels/cuda/rows.cuh"
#include "fathom/kernels/gemm/nvfp4_gemm/nvfp4_gemm.h"

namespace fathom {
namespace {

using namespace cuda;  // NOLINT: device primitives, in this file's own namespace

using Args = Nvfp4Gemm::Args;

bool is_bf16(const Args& a) {
  return a.x.format == Format::kBf16 && streams(a, 64) &&
         reinterpret_cast<uintptr_t>(a.w.scales.data) % 4 == 0;
}

bool is_row_major(const Args& a) {
  return a.w.layout == WeightLayout::kRowMajor;
}

Status run_streamed(Exec& ex, const Args& a) {
  return run_stream<Nvfp4Codec>(ex, product_of(a));
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

Status run_each(Exec& ex, const Args& a) {
  AnyProduct p = any_product_of(product_of(a), Format::kNvfp4);
  const int64_t k = a.w.cols();
  if (a.w_scale_layout != BlockScaleLayout::kLinear)
    p.w = with_scales(p.w, a.w.scales, a.w_scale_layout, k);
  if (a.x_scales.present()) p.x = with_scales(p.x, a.x_scales, a.x_scale_layout, k);
  if (a.alpha.present()) p.call.factors[0] = a.alpha.as<const float>();
  return run_any(ex, p);
}

constexpr uint32_t kTraits = kDeterministic | kBatchInvariant | kGraphSafe;

}  // namespace

constinit const VariantTable<Nvfp4Gemm> nvfp4_gemm_cuda{
    {"streamed", sm(90), "K<=32768", kTraits, run_streamed, MathUnit::kBf16, is_bf16},
    {"each", sm(90), "", kTraits, run_each, MathUnit::kF32, is_row_major},
};

}  // namespace fathom
