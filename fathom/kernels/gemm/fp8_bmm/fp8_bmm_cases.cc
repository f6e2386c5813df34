#include "fathom/formats/minifloat.h"
#include "fathom/kernels/gemm/fp8_bmm/fp8_bmm.h"
#include "fathom/kernels/gemm/product_cases.h"

namespace fathom {
namespace {

struct Shape {
  int64_t b = 0;
  int64_t t = 0;
  int64_t n = 0;
  int64_t k = 0;
  Format x = Format::kE4m3;
  Format w = Format::kE4m3;
  Format y = Format::kBf16;
  const char* op = "";
  int64_t x_gap = 7;  ///< between rows of x; 8: they begin at multiples of 8 bytes
};

CaseSpec spec(const Shape& s) {
  CaseSpec out =
      product_case_spec(s.op, s.t, s.n, s.k,
                        str_cat("b", s.b, "_", format_name(s.x), "_", format_name(s.w), "_",
                                format_name(s.y), s.x_gap % 8 == 0 ? "_aligned" : ""));
  str_append(out.columns, str_cat(";B=", s.b));
  return out;
}

double largest(Format format) {
  return format == Format::kE5m2 ? double{kE5m2Max} : double{kE4m3Max};
}

/// Codes of `exact` with the scale that brings its largest magnitude to the largest code.
Tensor quantised(CaseData& c,
                 const std::vector<int64_t>& dims,
                 Format format,
                 const std::vector<float>& exact,
                 const Tensor& scale,
                 const RowPlacement& placement) {
  float amax = 1e-20f;
  for (float v : exact)
    amax = std::max(amax, std::fabs(v));
  scale.set(0, double{amax} / largest(format));
  const Tensor codes = c.input(dims, format, {}, placement);
  codes.fill([&](int64_t i) { return double{exact[static_cast<size_t>(i)]} / scale[0]; });
  return codes;
}

void add(CaseList& list, const Shape& s) {
  add_case<Fp8Bmm>(list, spec(s), [s](CaseBuilder<Fp8Bmm>& c) {
    c.set_batch(s.b);  // matrices do not know of each other
    const bool bench = *s.op != '\0';
    const double w_size = 1.0 / std::sqrt(double(std::max<int64_t>(1, s.k)));
    const auto x_exact = random_values(c, s.b * s.t, s.k, {});
    const auto w_exact = random_values(c, s.b * s.n, s.k, {.scale = w_size});
    const Tensor x_scale = c.input({1}, Format::kF32);
    const Tensor w_scale = c.input({1}, Format::kF32);
    const Tensor x = quantised(c, {s.b, s.t, s.k}, s.x, *x_exact, x_scale,
                               {.row_gap = bench ? 0 : s.x_gap, .rows_per_batch = 1});
    const Tensor w = quantised(c, {s.b, s.n, s.k}, s.w, *w_exact, w_scale, {.rows_per_batch = 1});
    const Tensor y =
        c.output({s.b, s.t, s.n}, s.y, {.row_gap = bench ? 0 : 3, .rows_per_batch = 1});
    c.bind([=](const Binding& at) {
      return Fp8Bmm::Args{
          .x = at(x), .w = at(w), .x_scale = at(x_scale), .w_scale = at(w_scale), .y = at(y)};
    });
    c.expect_each(y, gates::gemm(s.y), [=](int64_t row, int64_t n) {
      return x_scale[0] * w_scale[0] * dot(x.row(row), w.row(row / s.t * s.n + n));
    });
    if (bench || s.b * s.t * s.n < 4096) return;
    // 7.2e-4 was measured for E4M3 on both sides, 1.7e-3 with E5M2, which has a bit less, on one.
    const bool e5m2 = s.x == Format::kE5m2 || s.w == Format::kE5m2;
    c.expect_full_precision(y, {.diff = e5m2 ? 2.5e-3 : 1e-3}, [=](int64_t row, int64_t n) {
      return dot_rows(*x_exact, row, *w_exact, row / s.t * s.n + n, s.k);
    });
  });
}

}  // namespace

void add_fp8_bmm_cases(CaseList& list) {
  constexpr Format kPairs[][2] = {{Format::kE4m3, Format::kE4m3},
                                  {Format::kE5m2, Format::kE4m3},
                                  {Format::kE4m3, Format::kE5m2}};
  for (const auto& pair : kPairs) {
    for (Format y : {Format::kBf16, Format::kF16, Format::kF32}) {
      add(list, {.b = 16, .t = 48, .n = 80, .k = 64, .x = pair[0], .w = pair[1], .y = y});
    }
    add(list, {.b = 3, .t = 5, .n = 17, .k = 131, .x = pair[0], .w = pair[1]});
  }
  for (const auto& pair : kPairs) {
    for (int64_t t : {1, 7, 8, 9, 17, 64, 65}) {
      const Format y = t == 9 ? Format::kF32 : t == 17 ? Format::kF16 : Format::kBf16;
      add(list,
          {.b = 3, .t = t, .n = 130, .k = 144, .x = pair[0], .w = pair[1], .y = y, .x_gap = 8});
    }
  }
  for (int64_t b : {0, 1, 2, 3})
    add(list, {.b = b, .t = 2, .n = 16, .k = 32});
  for (int64_t t : {0, 1, 3, 4, 5, 7, 63, 64, 65})
    add(list, {.b = 3, .t = t, .n = 48, .k = 128, .y = t % 2 == 0 ? Format::kBf16 : Format::kF16});
  for (int64_t n : {1, 15, 16, 31, 33, 64, 65})
    add(list, {.b = 2, .t = 6, .n = n, .k = 80});
  for (int64_t k : {0, 1, 2, 3, 4, 127, 128, 129, 256, 257, 1040})
    add(list, {.b = 2, .t = 3, .n = 20, .k = k, .y = Format::kF32});
  for (int64_t t : {1, 16, 128}) {
    add(list, {.b = 128, .t = t, .n = 512, .k = 128, .op = "r1_w_kc"});
    add(list, {.b = 128, .t = t, .n = 128, .k = 512, .op = "r1_w_vc"});
  }
  const ReferenceLimit decode{.phase = "decode",
                              .why = "a step of the absorbed form, which prefill does not use"};
  for (const ReferencePoint& p : reference_points(list, "fp8_bmm", decode)) {
    const auto reference = [&](const char* op, int64_t n, int64_t k) {
      add_reference_case(list, p, {.op = op}, [&](CaseList& one) {
        add(one, {.b = 128, .t = p.tokens(), .n = n, .k = k, .op = op});
      });
    };
    reference("q_nope_wkc", 512, 128);
    reference("attn_wvc", 128, 512);
  }
}

}  // namespace fathom
