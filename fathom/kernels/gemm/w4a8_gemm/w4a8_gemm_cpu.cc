#include "fathom/kernels/gemm/int8_gemm/int_rows.h"
#include "fathom/kernels/gemm/w4a8_gemm/w4a8_gemm.h"

namespace fathom {
namespace {

/// Each operand once; the scales and zeros of w are operands of their own here.
template <class K>
void count_bytes(const typename K::Args& a, Cost& cost) {
  const auto operands = K::operands(a);
  for (const View* v : operands) {
    if (v == &a.w) {
      cost.bytes_read += value_bytes_for(v->format, v->dim(0), v->dim(1));
    } else if (v == &a.y) {
      cost.bytes_written += operand_bytes(*v);
    } else {
      cost.bytes_read += operand_bytes(*v);
    }
  }
}

/// Scales of rows and columns and their shifts, in float32.
int64_t column_workspace(const View& x, const View& w) {
  WorkspaceCut cut(nullptr);
  for (int i = 0; i < 2; ++i) {
    cut.take<float>(x.dim(0));
    cut.take<float>(padded_columns(w.dim(0)));
  }
  return cut.bytes();
}

int64_t whole_workspace(const View& x, const View& w, int num_threads) {
  return column_workspace(x, w) + int_codes_workspace(x.dim(0), x.dim(1)) +
         product_workspace(x.dim(0), x.dim(1), num_threads);
}

Status check_packed(std::string_view name, const View& v) {
  if (v.contiguous()) [[likely]]
    return {};
  return invalid_argument(str_cat(name, " is ", describe(v), " with gaps, but must be packed"));
}

/// Runs the product of x with w once the scaling has been filled in.
template <class Args, class FillScaling>
Status run(Exec& ex, const Args& a, const IntWeight& w, ProductLoop loop, FillScaling&& fill) {
  Products p = make_products(a.x, QuantView::dense(a.w), a.y);
  void* const whole = ex.workspace;
  WorkspaceCut cut(whole);
  const auto rows = [&](const View& v) {
    return row_array(v, a.x.dim(0), cut.take<float>(a.x.dim(0)));
  };
  const auto columns = [&](const View& v) {
    return column_array(v, p.n, cut.take<float>(padded_columns(p.n)));
  };
  const ResultScaling scaling = fill(rows, columns);
  p.scaling = &scaling;
  ex.workspace = static_cast<std::byte*>(whole) + cut.bytes();
  Status status = run_int_codes(ex, p, w, loop);
  ex.workspace = whole;
  return status;
}

template <ProductLoop kLoop>
Status run_channel(Exec& ex, const W4a8GemmChannel::Args& a) {
  const IntWeight w{.codes = IntCodes::kW4a8Channel,
                    .values = a.w.as<const uint8_t>(),
                    .n = a.w.dim(0),
                    .k = a.w.dim(1)};
  return run(ex, a, w, kLoop, [&](auto&& rows, auto&& columns) {
    return ResultScaling{.row_scale = rows(a.x_scales),
                         .col_scale = columns(a.w_scales),
                         .row_shift = rows(a.x_sums),
                         .col_shift = columns(a.w_zeros)};
  });
}

template <ProductLoop kLoop>
Status run_group(Exec& ex, const W4a8GemmGroup::Args& a) {
  const IntWeight w{.codes = IntCodes::kW4a8Group,
                    .values = a.w.as<const uint8_t>(),
                    .n = a.w.dim(0),
                    .k = a.w.dim(1),
                    .group_scales = a.group_scales.as<const int8_t>(),
                    .group_zeros = a.group_zeros.as<const int8_t>()};
  return run(ex, a, w, kLoop, [&](auto&& rows, auto&& columns) {
    return ResultScaling{.row_scale = rows(a.x_scales), .col_scale = columns(a.w_scales)};
  });
}

}  // namespace

void W4a8GemmChannel::bytes(const Args& a, Cost& cost) {
  count_bytes<W4a8GemmChannel>(a, cost);
}

int64_t W4a8GemmChannel::workspace(const Args& a, int num_threads) {
  return whole_workspace(a.x, a.w, num_threads);
}

Status W4a8GemmChannel::check(const Args& a) {
  return check_packed("w", a.w);
}

void W4a8GemmGroup::bytes(const Args& a, Cost& cost) {
  count_bytes<W4a8GemmGroup>(a, cost);
}

int64_t W4a8GemmGroup::workspace(const Args& a, int num_threads) {
  return whole_workspace(a.x, a.w, num_threads);
}

Status W4a8GemmGroup::check(const Args& a) {
  FATHOM_TRY(check_packed("w", a.w));
  FATHOM_TRY(check_packed("group_scales", a.group_scales));
  return check_packed("group_zeros", a.group_zeros);
}

constinit const VariantTable<W4a8GemmChannel> w4a8_gemm_channel_cpu{
    {"avx512", Isa::kAvx512, "", kDeterministic | kBatchInvariant,
     run_channel<w4a8_channel_products_avx512>, MathUnit::kInt8},
    {"portable", Isa::kPortable, "", kDeterministic | kBatchInvariant,
     run_channel<int_products_portable>, MathUnit::kInt8},
};

constinit const VariantTable<W4a8GemmGroup> w4a8_gemm_group_cpu{
    {"avx512", Isa::kAvx512, "", kDeterministic | kBatchInvariant,
     run_group<w4a8_group_products_avx512>, MathUnit::kInt8},
    {"portable", Isa::kPortable, "", kDeterministic | kBatchInvariant,
     run_group<int_products_portable>, MathUnit::kInt8},
};

}  // namespace fathom
