#include "fathom/kernels/gemm/int8_gemm/int8_gemm.h"
#include "fathom/kernels/gemm/int8_gemm/int_rows.h"

namespace fathom {
namespace {

static_assert(kMostIntColumns == 131071, "the limit of the contract");

template <ProductLoop kLoop>
Status run_int8_gemm(Exec& ex, const Int8Gemm::Args& a) {
  Products p = make_products(a.x, a.w, a.y);
  const IntWeight w{.codes = IntCodes::kInt8, .values = p.codes, .n = p.n, .k = p.k};
  void* const whole = ex.workspace;
  WorkspaceCut cut(whole);
  const ResultScaling scaling{
      .row_scale = a.x_scales.as<const float>(),
      .col_scale = column_array(a.w.scales, p.n, cut.take<float>(padded_columns(p.n))),
      .bias = column_array(a.bias, p.n, cut.take<float>(padded_columns(p.n)))};
  p.scaling = &scaling;
  ex.workspace = static_cast<std::byte*>(whole) + cut.bytes();
  Status status = run_int_codes(ex, p, w, kLoop);
  ex.workspace = whole;
  return status;
}

}  // namespace

int64_t Int8Gemm::workspace(const Args& a, int num_threads) {
  const int64_t rows = a.x.dim(0);
  const int64_t k = a.w.cols();
  WorkspaceCut cut(nullptr);
  cut.take<float>(padded_columns(a.w.rows()));
  cut.take<float>(padded_columns(a.w.rows()));
  return cut.bytes() + int_codes_workspace(rows, k) +
         product_workspace(rows, align_up<int64_t>(k, 4), num_threads);
}

constinit const VariantTable<Int8Gemm> int8_gemm_cpu{
    {"avx512", Isa::kAvx512, "", kDeterministic | kBatchInvariant,
     run_int8_gemm<int8_products_avx512>, MathUnit::kInt8},
    {"portable", Isa::kPortable, "", kDeterministic | kBatchInvariant,
     run_int8_gemm<int_products_portable>, MathUnit::kInt8},
};

}  // namespace fathom
