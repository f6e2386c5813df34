// Blackwell's products of E4M3 (*_sm100.cu) as rows of tables of variants. Compiled only where
// FATHOM_CUDA_ARCHS has 100a; no such GPU has run them.
#pragma once

#include "fathom/kernels/cuda/products/product.cuh"

namespace fathom::sm100 {

/// A product of row-major weights. x in bf16 is two E4M3 numbers there (two_e4m3.h).
struct NativeProduct {
  bool (*fits)(const cuda::ProductCall& c);
  int64_t (*workspace)(const cuda::ProductCall& c, const Exec& ex);
  Status (*run)(Exec& ex, const cuda::ProductCall& c);
};

extern const NativeProduct kFp8Blocks;
extern const NativeProduct kMxfp4;

template <class Args>
cuda::ProductCall call_of(const Args& a) {
  cuda::ProductCall c = cuda::product_of(a);
  if constexpr (requires { a.x_scales; }) {
    if (a.x.format == Format::kFp8Group) c.scale_x_by(a.x_scales);
  }
  return c;
}

template <class K, const NativeProduct& kProduct>
constexpr VariantRow<K> native_row(std::string_view name = "native_sm100_never_run") {
  using Args = typename K::Args;
  return {name,
          sm(100),
          "",
          kDeterministic | kGraphSafe,
          [](Exec& ex, const Args& a) { return kProduct.run(ex, call_of(a)); },
          MathUnit::kFp8,
          [](const Args& a) {
            return a.w.layout == WeightLayout::kRowMajor && kProduct.fits(call_of(a));
          },
          [](const Args& a, const Exec& ex) { return kProduct.workspace(call_of(a), ex); }};
}

}  // namespace fathom::sm100
