#include <algorithm>
#include <cmath>

#include "fathom/kernels/conformance/kernel_case.h"
#include "fathom/kernels/quant/token_quant/token_quant.h"

namespace fathom {
namespace {

struct TokenShape {
  CaseSpec spec;
  int64_t t;
  int64_t d;
  Format format = Format::kBf16;
  int64_t row_gap = 0;
};

constexpr double kSmallestScale = 0x1p-126;

double exact_scale(const std::vector<double>& row) {
  double amax = 0;
  for (double x : row)
    amax = std::max(amax, std::fabs(x));
  return amax == 0 ? 0 : std::max(amax / 448.0, kSmallestScale);
}

void add_token_case(CaseList& list, const TokenShape& s) {
  add_case<TokenQuantFp8>(list, s.spec, [s](CaseBuilder<TokenQuantFp8>& c) {
    c.set_batch(s.t);
    const Placement placed = {.row_gap = s.row_gap, .rows_per_batch = 1};
    const Tensor x = c.input({s.t, s.d}, s.format, {.dist = Dist::kMixedRows, .scale = 3}, placed);
    const Tensor q = c.output({s.t, s.d}, Format::kE4m3, placed);
    const Tensor scales = c.output({s.t}, Format::kF32, {.rows_per_batch = 1});
    c.bind([=](const Binding& at) {
      return TokenQuantFp8::Args{.x = at(x), .q = at(q), .s = at(scales)};
    });
    const auto quotients = [=](int64_t row, std::span<double> out) {
      const std::vector<double> values = x.row(row);
      const double scale = exact_scale(values);
      for (size_t i = 0; i < out.size(); ++i)
        out[i] = scale == 0 ? 0 : std::clamp(values[i] / scale, -448.0, 448.0);
    };
    // Half a step of E4M3: 2^-4 of the value, 2^-10 among the subnormals.
    c.expect_rows(q, {.abs = 0x1.001p-10, .rel = 0x1.001p-4}, quotients);
    c.expect_all(scales, {.rel = 0x1p-23}, [=](std::span<double> out) {
      for (size_t t = 0; t < out.size(); ++t)
        out[t] = exact_scale(x.row(static_cast<int64_t>(t)));
    });
    if (q.numel() < 4096 || s.d == 0) return;
    c.expect_full_precision(q, {.diff = 1e-3}, [=](int64_t row, int64_t col) {
      const double scale = exact_scale(x.row(row));
      return scale == 0 ? 0 : x.at(row, col) / scale;
    });
  });
}

}  // namespace

void add_token_quant_cases(CaseList& list) {
  for (int64_t t : {0, 1, 2, 3, 7, 61}) {
    add_token_case(list,
                   {.spec = {.name = str_cat("t", t, "_d129")}, .t = t, .d = 129, .row_gap = 3});
  }
  for (const Format format : {Format::kBf16, Format::kF16, Format::kF32}) {
    for (int64_t d : {0, 1, 2, 15, 16, 17, 31, 32, 33, 1076, 1409}) {
      add_token_case(list, {.spec = {.name = str_cat("t7_d", d, "_", format_name(format))},
                            .t = 7,
                            .d = d,
                            .format = format,
                            .row_gap = 5});
    }
  }
  const auto add_bench = [&](std::string_view name, int64_t t, int64_t d) {
    add_token_case(list, {.spec = {.name = str_cat(name, "_t", t),
                                   .op = "input_quant",
                                   .bench = true,
                                   .phase = t > 128 ? "prefill" : "decode"},
                          .t = t,
                          .d = d});
  };
  for (int64_t t : {1, 8, 64, 128, 512, 1024}) {
    add_bench("r1_hidden", t, 7168);
    add_bench("r1_q_latent", t, 1536);
  }
  add_bench("r1_heads", 1024, 16384);
  // 12,000 x 7,168 in and half as many bytes out: 258 MB, which no cache holds.
  add_bench("r1_hidden_chunk", 12000, 7168);
}

}  // namespace fathom
