#include "fathom/kernels/cuda/products/any_products.cuh"
#include "fathom/kernels/cuda/products/stream_products.cuh"
#include "fathom/kernels/cuda/rows.cuh"
#include "fathom/kernels/moe/nvfp4_group_gemm/nvfp4_group_gemm.h"

namespace fathom {
namespace {

using namespace cuda;  // NOLINT: device primitives, in this file's own namespace

using Args = Nvfp4GroupGemm::Args;

bool is_row_major(const Args& a) {
  return a.w.layout == WeightLayout::kRowMajor;
}

bool is_bf16(const Args& a) {
  return a.x.format == Format::kBf16 && streams(a, 64) &&
         reinterpret_cast<uintptr_t>(a.w.scales.data) % 4 == 0;
}

ProductCall product(const Args& a) {
  ProductCall c = product_of(a);
  c.offsets = a.offsets.as<const int32_t>();
  return c;
}

Status run_streamed(Exec& ex, const Args& a) {
  return run_stream<Nvfp4Codec>(ex, product(a));
}

AnyMatrix swizzled(AnyMatrix m, const View& scales, int64_t k) {
  m.scales = scales.as<const uint8_t>();
  m.scale_format = Format::kE4m3;
  m.places = ScalePlaces::kSwizzled;
  m.scale_columns = static_cast<int32_t>(k / 16);
  return m;
}

Status run_each(Exec& ex, const Args& a) {
  AnyProduct p = any_product_of(product(a), Format::kNvfp4);
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

constexpr uint32_t kTraits = kDeterministic | kGraphSafe;

}  // namespace

constinit const VariantTable<Nvfp4GroupGemm> nvfp4_group_gemm_cuda{
    {"streamed", sm(90), "E<=1024, K<=32768", kTraits, run_streamed, MathUnit::kBf16, is_bf16},
    {"each", sm(90), "", kTraits, run_each, MathUnit::kF32, is_row_major},
};

}  // namespace fathom
