// From the arguments of a product kernel to its loop, and the table rows all of them share.
#pragma once

#include "fathom/kernels/core/variants.h"
#include "fathom/kernels/gemm/products.h"
#include "fathom/tensor/quant_view.h"

namespace fathom {

/// x[T,K] w[N,K] y[T,N], or x[T,H,K] w[H,N,K] y[T,H,N].
Products make_products(const View& x, const QuantView& w, const View& y);

/// x[R,K] w[E,N,K] y[R,N] with offsets[E+1].
/// Errors: InvalidArgument for offsets that decrease or leave [0, R].
Result<Products> make_grouped_products(const View& x,
                                       const QuantView& w,
                                       const View& offsets,
                                       const View& y);

/// Cuts the products over the threads of `ex` and runs them. How they are cut never shows in the
/// result.
Status run_products(Exec& ex, const Products& products, ProductLoop loop);

/// The run function of a table row.
template <class Args, ProductLoop kLoop>
Status run_product_kernel(Exec& ex, const Args& a) {
  if constexpr (requires { a.offsets; }) {
    FATHOM_ASSIGN(Products products, make_grouped_products(a.x, a.w, a.offsets, a.y));
    products.portable_weight = &a.w;
    return run_products(ex, products, kLoop);
  } else {
    Products products = make_products(a.x, a.w, a.y);
    products.portable_weight = &a.w;
    return run_products(ex, products, kLoop);
  }
}

/// accepts() of the AVX-512 rows: bf16 activations, kRows16.
template <class Args>
bool is_rows16_bf16(const Args& a) {
  return a.w.layout == WeightLayout::kRows16 && a.x.format == Format::kBf16;
}

/// accepts() of the AVX2 rows: any activations, kRows16.
template <class Args>
bool is_rows16(const Args& a) {
  return a.w.layout == WeightLayout::kRows16;
}

/// The table of a product kernel with the loops of its weight format.
template <class K, ProductLoop kAvx512, ProductLoop kAvx2>
constexpr VariantTable<K> product_variants() {
  constexpr uint32_t kTraits = kDeterministic | kBatchInvariant;
  using Args = typename K::Args;
  return {
      {"avx512", Isa::kAvx512, "", kTraits, run_product_kernel<Args, kAvx512>, MathUnit::kBf16,
       is_rows16_bf16<Args>},
      {"avx2", Isa::kAvx2, "", kTraits, run_product_kernel<Args, kAvx2>, MathUnit::kF32,
       is_rows16<Args>},
      {"portable", Isa::kPortable, "", kTraits, run_product_kernel<Args, products_portable>},
  };
}

}  // namespace fathom
