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
    const RowPlacement placed = {.row_gap = s.row_gap, .rows_per_batch = 1};
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

double exact_amax(const std::vector<double>& row) {
  double amax = 1e-10;
  for (double x : row)
    amax = std::max(amax, std::fabs(x));
  return amax;
}

struct Int8Shape {
  TokenShape token;
  Format scales = Format::kF32;
  bool sums = false;
};

void add_int8_case(CaseList& list, const Int8Shape& shape) {
  add_case<TokenQuantInt8>(list, shape.token.spec, [shape](CaseBuilder<TokenQuantInt8>& c) {
    const TokenShape& s = shape.token;
    c.set_batch(s.t);
    const RowPlacement placed = {.row_gap = s.row_gap, .rows_per_batch = 1};
    const Tensor x = c.input({s.t, s.d}, s.format, {.dist = Dist::kMixedRows, .scale = 3}, placed);
    const Tensor q = c.output({s.t, s.d}, Format::kI8, placed);
    const Tensor scales = c.output({s.t}, shape.scales, {.rows_per_batch = 1});
    const bool with_sums = shape.sums;
    const Tensor sums = with_sums ? c.output({s.t}, Format::kF16, {.rows_per_batch = 1}) : scales;
    c.bind([=](const Binding& at) {
      return TokenQuantInt8::Args{
          .x = at(x), .q = at(q), .s = at(scales), .sums = with_sums ? at(sums) : View{}};
    });
    // Half a step of a code, and what float32 loses of the quotient.
    c.expect_rows(q, {.abs = 0.5001}, [=](int64_t row, std::span<double> out) {
      const std::vector<double> values = x.row(row);
      const double amax = exact_amax(values);
      for (size_t i = 0; i < out.size(); ++i)
        out[i] = values[i] * 127.0 / amax;
    });
    const double f16_abs = shape.scales == Format::kF16 ? 0x1p-25 : 0;
    const double scale_rel = shape.scales == Format::kF16 ? 0x1.01p-11 : 0x1p-23;
    c.expect_all(scales, {.abs = f16_abs, .rel = scale_rel}, [=](std::span<double> out) {
      for (size_t t = 0; t < out.size(); ++t)
        out[t] = exact_amax(x.row(static_cast<int64_t>(t))) / 127.0;
    });
    if (with_sums) {
      c.expect_all(sums, {.abs = 0x1p-24, .rel = 0x1.01p-11}, [=](std::span<double> out) {
        for (size_t t = 0; t < out.size(); ++t) {
          out[t] = 0;
          for (const double value : x.row(static_cast<int64_t>(t)))
            out[t] += value;
        }
      });
    }
    if (q.numel() < 4096 || s.d == 0) return;
    c.expect_full_precision(q, {.diff = 1e-3}, [=](int64_t row, int64_t col) {
      return x.at(row, col) * 127.0 / exact_amax(x.row(row));
    });
  });
}

void add_tensor_case(CaseList& list, const TokenShape& s) {
  add_case<TensorQuantFp8>(list, s.spec, [s](CaseBuilder<TensorQuantFp8>& c) {
    c.set_batch(s.t);
    const RowPlacement placed = {.row_gap = s.row_gap, .rows_per_batch = 1};
    const Tensor x = c.input({s.t, s.d}, s.format, {.dist = Dist::kMixedRows, .scale = 3}, placed);
    const Tensor scale = c.input({1}, Format::kF32, {.dist = Dist::kOneSign, .scale = 0.01});
    const Tensor q = c.output({s.t, s.d}, Format::kE4m3, placed);
    c.bind([=](const Binding& at) {
      return TensorQuantFp8::Args{.x = at(x), .s = at(scale), .q = at(q)};
    });
    const auto quotient = [=](double value) { return std::clamp(value / scale[0], -448.0, 448.0); };
    c.expect_rows(q, {.abs = 0x1.001p-10, .rel = 0x1.001p-4},
                  [=](int64_t row, std::span<double> out) {
                    const std::vector<double> values = x.row(row);
                    for (size_t i = 0; i < out.size(); ++i)
                      out[i] = quotient(values[i]);
                  });
    if (q.numel() < 4096 || s.d == 0) return;
    c.expect_full_precision(q, {.diff = 1e-3},
                            [=](int64_t row, int64_t col) { return quotient(x.at(row, col)); });
  });
}

TokenShape small_shape(int64_t t, int64_t d, Format format) {
  return {.spec = {.name = str_cat("t", t, "_d", d, "_", format_name(format))},
          .t = t,
          .d = d,
          .format = format,
          .row_gap = 5};
}

TokenShape r1_shape(std::string_view name, int64_t t, int64_t d) {
  return {.spec = timed_spec(name, "input_quant", t), .t = t, .d = d};
}

void add_int8_and_tensor_cases(CaseList& list) {
  for (const Format format : {Format::kBf16, Format::kF16, Format::kF32}) {
    for (int64_t d : {0, 1, 2, 15, 16, 17, 33, 1409}) {
      add_int8_case(list, {.token = small_shape(7, d, format)});
      TokenShape with_sums = small_shape(7, d, format);
      with_sums.spec.name += "_sums";
      add_int8_case(list, {.token = with_sums, .scales = Format::kF16, .sums = true});
      add_tensor_case(list, small_shape(7, d, format));
    }
  }
  for (int64_t t : {0, 1, 2, 3, 61}) {
    add_int8_case(list, {.token = small_shape(t, 129, Format::kBf16)});
    add_tensor_case(list, small_shape(t, 129, Format::kBf16));
  }
  for (int64_t t : {1, 128, 1024}) {
    add_int8_case(list, {.token = r1_shape("r1_hidden", t, 7168)});
    add_tensor_case(list, r1_shape("r1_hidden", t, 7168));
  }
  add_int8_case(list, {.token = r1_shape("r1_hidden_chunk", 12000, 7168)});
  add_tensor_case(list, r1_shape("r1_hidden_chunk", 12000, 7168));
}

}  // namespace

void add_token_quant_cases(CaseList& list) {
  add_int8_and_tensor_cases(list);
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
  for (int64_t t : {1, 8, 64, 128, 512, 1024}) {
    add_token_case(list, r1_shape("r1_hidden", t, 7168));
    add_token_case(list, r1_shape("r1_q_latent", t, 1536));
  }
  add_token_case(list, r1_shape("r1_heads", 1024, 16384));
  // 12,000 x 7,168 in and half as many bytes out: 258 MB, which no cache holds.
  add_token_case(list, r1_shape("r1_hidden_chunk", 12000, 7168));
}

}  // namespace fathom
