#include "fathom/kernels/moe/gated_product.h"

#include "fathom/kernels/act/gated_act/gated_act.h"
#include "fathom/kernels/core/elements.h"
#include "fathom/kernels/core/row_parallel.h"

namespace fathom {

Status check_output_gate(const OutputGate& gate, const View& x, const QuantView& w, const View& y) {
  const int64_t n = w.rows();
  if (!(gate.limit >= 0.0f) || (!gate.on && gate.limit != 0.0f)) {
    return invalid_argument(str_cat("gate.limit is ", gate.limit, " of a product ",
                                    gate.on ? "with" : "without",
                                    " a gate, expected 0 (none), or more with one"));
  }
  if (!gate.on) {
    if (y.dim(1) == n) return {};
    return invalid_argument(
        str_cat("y is ", describe(y), ", expected ", n, " columns, as many as w has rows"));
  }
  if (n % 2 != 0 || y.dim(1) * 2 != n || y.format != Format::kBf16) {
    return invalid_argument(str_cat("y is ", describe(y), " of a product with a gate, expected ",
                                    "bf16 and half as many columns as w has rows, ", n));
  }
  if (x.format != Format::kNvfp4) return {};
  return invalid_argument("x is nvfp4, whose products have no gate; launch silu_mul behind them");
}

Status gate_outputs(
    Exec& ex, const View& products, const View& offsets, float limit, const View& y) {
  const auto* first = offsets.as<const int32_t>();
  const int64_t begin = first[0];
  const int64_t count = first[offsets.dim(0) - 1] - begin;
  const int64_t width = y.dim(1);
  const View rows = slice_rows(products, begin, count);
  const View gated = slice_cols(rows, 0, width);
  // The last variant is the one for every CPU.
  const Variant<SiluMul>& portable = *(silu_mul_cpu.end() - 1);
  FATHOM_TRY(portable.run(ex, {.x = rows, .y = gated, .limit = limit}));
  for_rows(ex, count, 6 * width, [&](int64_t from, int64_t past) {
    for (int64_t r = from; r < past; ++r) {
      const float* values = gated.row<const float>(r);
      Bf16* out = y.row<Bf16>(begin + r);
      for (int64_t i = 0; i < width; ++i)
        out[i] = bf16_from_float(values[i]);
    }
  });
  return {};
}

}  // namespace fathom
