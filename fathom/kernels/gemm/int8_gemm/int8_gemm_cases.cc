#include "fathom/formats/integer/group_int.h"
#include "fathom/kernels/gemm/int8_gemm/int8_gemm.h"
#include "fathom/kernels/gemm/product_cases.h"

namespace fathom {
namespace {

struct Shape {
  int64_t t = 0;
  int64_t n = 0;
  int64_t k = 0;
  Format y = Format::kBf16;
  Format bias = Format::kNone;
  Dist dist = Dist::kNormal;
  bool negative_scales = false;
  bool extreme = false;  ///< all codes -128: the largest sums
  const char* op = "";
};

std::string suffix(const Shape& s) {
  std::string out = std::string(format_name(s.y));
  if (s.bias != Format::kNone) str_append(out, str_cat("_bias_", format_name(s.bias)));
  if (s.dist != Dist::kNormal) out += "_mixed";
  if (s.negative_scales) out += "_negative_scales";
  if (s.extreme) out += "_extreme";
  return out;
}

/// int8 codes and scales of random rows; their exact values, or null for random codes.
std::shared_ptr<std::vector<float>> fill_rows(
    CaseData& c, const Shape& s, const Tensor& codes, const Tensor& scales, const Fill& fill) {
  const int64_t rows = codes.dim(0);
  const int64_t k = codes.dim(1);
  if (*s.op != '\0' || s.extreme) {
    put_random_bytes(c, codes, [&](uint8_t b) { return s.extreme ? uint8_t{0x80} : b; });
    scales.fill([&](int64_t i) { return fill.scale * (1.0 + double(i % 7)) / 128; });
    return nullptr;
  }
  auto exact = random_values(c, rows, k, fill);
  std::vector<int8_t> quantised(exact->size());
  std::vector<float> scale(static_cast<size_t>(rows));
  int8_quantize_rows(exact->data(), rows, k, quantised.data(), scale.data());
  put_codes(codes, quantised);
  scales.fill([&](int64_t i) {
    return scale[static_cast<size_t>(i)] * (s.negative_scales && i % 2 == 1 ? -1.0 : 1.0);
  });
  return exact;
}

void add(CaseList& list, const Shape& s) {
  add_case<Int8Gemm>(
      list, product_case_spec(s.op, s.t, s.n, s.k, suffix(s)), [s](CaseBuilder<Int8Gemm>& c) {
        c.set_batch(s.t);
        const int64_t gap = *s.op != '\0' ? 0 : 5;
        const Tensor x =
            c.input({s.t, s.k}, Format::kI8, {}, {.row_gap = gap, .rows_per_batch = 1});
        const Tensor x_scales = c.input({s.t}, Format::kF32, {}, {.rows_per_batch = 1});
        const Tensor w = c.input({s.n, s.k}, Format::kI8);
        const Tensor w_scales = c.input({s.n}, Format::kF32);
        const double w_size = 1.0 / std::sqrt(double(std::max<int64_t>(1, s.k)));
        const auto x_exact = fill_rows(c, s, x, x_scales, {.dist = s.dist});
        const auto w_exact = fill_rows(c, s, w, w_scales, {.scale = w_size});
        const Tensor bias = s.bias == Format::kNone ? Tensor() : c.input({s.n}, s.bias);
        const Tensor y = c.output({s.t, s.n}, s.y, {.row_gap = gap, .rows_per_batch = 1});
        c.bind([=](const Binding& at) {
          QuantView weight = QuantView::dense(as_format(at(w), Format::kInt8Channel, s.k));
          weight.scales = at(w_scales);
          return Int8Gemm::Args{
              .x = at(x), .x_scales = at(x_scales), .w = weight, .bias = at(bias), .y = at(y)};
        });
        const auto rows =
            std::make_shared<RowCache>(s.k, [=](int64_t n, int64_t k) { return w.at(n, k); });
        c.expect_each(y, gates::gemm(s.y), [=](int64_t t, int64_t n) {
          const double b = bias.present() ? bias[n] : 0.0;
          return dot(x.row(t), (*rows)(n)) * x_scales[t] * w_scales[n] + b;
        });
        const bool plain = s.dist == Dist::kNormal && !s.negative_scales && !bias.present();
        if (x_exact == nullptr || !plain || s.t * s.n < 4096) return;
        // Steps of 1/127 of the largest of K normal values on both sides: 4.8e-5 was measured.
        c.expect_full_precision(y, {.diff = 1e-4}, [=](int64_t t, int64_t n) {
          return dot_rows(*x_exact, t, *w_exact, n, s.k);
        });
      });
}

}  // namespace

void add_int8_gemm_cases(CaseList& list) {
  for (int64_t t : {0, 1, 2, 3, 5, 6, 7, 13, 63, 64, 65})
    add(list, {.t = t, .n = 40, .k = 144});
  for (int64_t n : {1, 8, 15, 16, 17, 63, 64, 65, 80})
    add(list, {.t = 5, .n = n, .k = 128, .y = Format::kF16, .bias = Format::kF16});
  for (int64_t k : {1, 2, 3, 4, 5, 16, 63, 64, 65, 131, 255, 256, 257, 512, 4112})
    add(list, {.t = 3, .n = 33, .k = k, .y = Format::kF32, .bias = Format::kF32});
  add(list, {.t = 70, .n = 96, .k = 320});
  add(list, {.t = 9, .n = 40, .k = 160, .bias = Format::kBf16});
  add(list, {.t = 9, .n = 40, .k = 160, .y = Format::kF32, .negative_scales = true});
  add(list, {.t = 14, .n = 40, .k = 160, .dist = Dist::kMixedRows});
  add(list, {.t = 2, .n = 17, .k = 131071, .y = Format::kF32, .extreme = true});
  add(list, {.t = 600, .n = 16, .k = 64});  // more rows than are decoded at once
  for (int64_t t : {1, 16, 512}) {
    const auto bench = [&](const char* op, int64_t n, int64_t k) {
      add(list, {.t = t, .n = n, .k = k, .op = op});
    };
    bench("r1_fused_qkv_a_proj", 2112, 7168);
    bench("r1_q_b_proj", 24576, 1536);
    bench("r1_shared_down_proj", 7168, 2048);
    if (t <= 16) bench("r1_o_proj", 7168, 16384);
  }
}

}  // namespace fathom
