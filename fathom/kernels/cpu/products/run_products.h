// From the arguments of a product kernel to its loop, and the table rows all of them share.
#pragma once

#include "fathom/kernels/core/kernel_set/variants.h"
#include "fathom/kernels/cpu/products/products.h"
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

/// The run function of a table row. Contracts with x_scales take quantised x as well and have
///   Status run_quantised_x(Exec&, const Args&, ProductLoop, ElementType that the loop reads)
template <class Args, ProductLoop kLoop>
Status run_product_kernel(Exec& ex, const Args& a) {
  if constexpr (requires { a.offsets; }) {
    FATHOM_ASSIGN(Products products, make_grouped_products(a.x, a.w, a.offsets, a.y));
    products.weight = &a.w;
    return run_products(ex, products, kLoop);
  } else {
    if constexpr (requires { a.x_scales; }) {
      if (a.x_scales.present()) return run_quantised_x(ex, a, kLoop, ElementType::kF32);
    }
    Products products = make_products(a.x, a.w, a.y);
    products.weight = &a.w;
    return run_products(ex, products, kLoop);
  }
}

/// The run function of a loop for quantised x that reads it as bf16.
template <class Args, ProductLoop kLoop>
Status run_quantised_x_as_bf16(Exec& ex, const Args& a) {
  return run_quantised_x(ex, a, kLoop, ElementType::kBf16);
}

/// accepts() of the AMX and AVX-512 rows: bf16 activations, kRows16.
template <class Args>
bool is_rows16_bf16(const Args& a) {
  return a.w.layout == WeightLayout::kRows16 && a.x.format == Format::kBf16;
}

/// accepts() of the AVX2 rows: any activations, kRows16.
template <class Args>
bool is_rows16(const Args& a) {
  return a.w.layout == WeightLayout::kRows16;
}

/// accepts() of the AVX-512 rows for weights as they lie in a checkpoint: packed rows of bf16 or of
/// fp8_block, bf16 activations, k in whole units of a tile.
template <class Args>
bool is_row_major_bf16(const Args& a) {
  return a.w.layout == WeightLayout::kRowMajor && a.x.format == Format::kBf16 &&
         (a.w.format() == Format::kBf16 || a.w.format() == Format::kFp8Block) &&
         a.w.cols() % 4 == 0;
}

/// accepts() of the portable rows: weights that do not lie as only a GPU reads them.
template <class Args>
bool is_for_cpu(const Args& a) {
  return a.w.layout != WeightLayout::kPairs;
}

/// A table with rows in front of `base`: those that take what no row of it takes faster.
template <class K>
constexpr VariantTable<K> with_rows(std::initializer_list<VariantRow<K>> rows,
                                    const VariantTable<K>& base) {
  VariantTable<K> table(rows);
  for (const Variant<K>& v : base)
    table.add(v);
  return table;
}

/// The table of a product kernel with the loops of its weight format.
template <class K, ProductLoop kAmx, ProductLoop kAvx512, ProductLoop kAvx2>
constexpr VariantTable<K> product_variants() {
  constexpr uint32_t kTraits = kDeterministic | kBatchInvariant;
  using Args = typename K::Args;
  return {
      {"amx", Isa::kAmx, "", kTraits, run_product_kernel<Args, kAmx>, MathUnit::kBf16,
       is_rows16_bf16<Args>},
      {"avx512", Isa::kAvx512, "", kTraits, run_product_kernel<Args, kAvx512>, MathUnit::kBf16,
       is_rows16_bf16<Args>},
      {"avx2", Isa::kAvx2, "", kTraits, run_product_kernel<Args, kAvx2>, MathUnit::kF32,
       is_rows16<Args>},
      {"portable", Isa::kPortable, "", kTraits, run_product_kernel<Args, products_portable>,
       MathUnit::kF32, is_for_cpu<Args>},
  };
}

/// The table of the kernels with bf16 weights.
template <class K>
constexpr VariantTable<K> bf16_product_variants() {
  using Args = typename K::Args;
  return with_rows<K>(
      {{"avx512_row_major", Isa::kAvx512, "", kDeterministic | kBatchInvariant,
        run_product_kernel<Args, bf16_row_major_products_avx512>, MathUnit::kBf16,
        is_row_major_bf16<Args>}},
      product_variants<K, bf16_products_amx, bf16_products_avx512, bf16_products_avx2>());
}

}  // namespace fathom
