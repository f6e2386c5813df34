#include <utility>

#include "fathom/kernels/cpu/products/decoded_rows.h"
#include "fathom/kernels/gemm/fp8_bmm/fp8_bmm.h"

namespace fathom {
namespace {

/// [B, T, K] as make_products wants it, [T, B, K].
View rows_first(View v) {
  std::swap(v.dims[0], v.dims[1]);
  std::swap(v.strides[0], v.strides[1]);
  return v;
}

Status run(Exec& ex, const Fp8Bmm::Args& a, ProductLoop loop, ElementType type) {
  const QuantView w = QuantView::dense(a.w);
  Products p = make_products(rows_first(a.x), w, rows_first(a.y));
  p.weight = &w;
  const ResultScaling scaling{.factor =
                                  *a.x_scale.as<const float>() * *a.w_scale.as<const float>()};
  p.scaling = &scaling;
  return run_fp8_codes(ex, p, a.x.format, loop, type);
}

Status run_avx512(Exec& ex, const Fp8Bmm::Args& a) {
  return run(
      ex, a,
      a.w.format == Format::kE5m2 ? e5m2_row_major_products_avx512 : e4m3_row_major_products_avx512,
      ElementType::kBf16);
}

Status run_portable(Exec& ex, const Fp8Bmm::Args& a) {
  return run(ex, a, products_portable, ElementType::kF32);
}

}  // namespace

int64_t Fp8Bmm::workspace(const Args& a, int num_threads) {
  const int64_t rows = a.x.dim(1);
  const int64_t k = a.x.dim(2);
  return fp8_codes_workspace(a.x.dim(0), rows, k) +
         product_workspace(rows, align_up<int64_t>(k, 4), num_threads);
}

Status Fp8Bmm::check(const Args& a) {
  if (!a.w.contiguous()) {
    return invalid_argument(str_cat("w is ", describe(a.w), " with gaps, but must be packed"));
  }
  if (a.x.format == Format::kE5m2 && a.w.format == Format::kE5m2) {
    return invalid_argument("x and w are both e5m2, but at most one of them may be");
  }
  return {};
}

constinit const VariantTable<Fp8Bmm> fp8_bmm_cpu{
    {"avx512", Isa::kAvx512, "", kDeterministic | kBatchInvariant, run_avx512, MathUnit::kBf16},
    {"portable", Isa::kPortable, "", kDeterministic | kBatchInvariant, run_portable},
};

}  // namespace fathom
