#include "fathom/formats/block/block_fp8.h"
#include "fathom/formats/integer/group_int.h"
#include "fathom/kernels/moe/grouped_cases.h"
#include "fathom/kernels/moe/w4a8_group_gemm/w4a8_group_gemm.h"

namespace fathom {
namespace {

struct Shape {
  ExpertLoad load;
  int64_t n = 0;
  int64_t k = 0;
  Format y = Format::kBf16;
  bool checkpoint_scales = false;  // float32 [E, N, K/128]
  Dist dist = Dist::kNormal;
  int64_t top_k = 1;
  const char* op = "";
};

/// Weights as the reference passes them. Real shapes have random codes and scales.
struct Int4Weight {
  Tensor codes, scales;
  std::shared_ptr<std::vector<float>> exact;
  Shape shape;

  Int4Weight(CaseData& c, const Shape& s) : shape(s) {
    const int64_t experts = s.load.experts();
    const int64_t groups = s.k / kW4Group;
    codes = c.input({experts, s.n, s.k / 2}, Format::kU8);
    std::vector<float> linear(static_cast<size_t>(experts * s.n * groups));
    if (*s.op != '\0') {
      put_random_bytes(c, codes, [](uint8_t b) { return b; });
      for (size_t i = 0; i < linear.size(); ++i)
        linear[i] = (0.5f + static_cast<float>(i % 7)) / 4.0f / std::sqrt(static_cast<float>(s.k));
    } else {
      exact = random_values(c, experts * s.n, s.k, {.scale = 1.0 / std::sqrt(double(s.k))});
      std::vector<uint8_t> packed(exact->size() / 2);
      const Status status =
          w4_fp8_quantize(exact->data(), experts * s.n, s.k, packed.data(), linear.data());
      FATHOM_CHECK(status.ok(), status.message());
      put_codes(codes, packed);
    }
    if (s.checkpoint_scales) {
      // Not rounded to bf16 yet, which the kernel has to do.
      scales = c.input({experts, s.n, groups}, Format::kF32);
      scales.fill([&](int64_t i) { return linear[static_cast<size_t>(i)] * 1.001f; });
      return;
    }
    std::vector<Bf16> order(linear.size());
    w4_fp8_kernel_scales(linear.data(), experts, s.n, groups, order.data());
    scales = groups % 4 == 0 ? c.input({experts, groups / 4, s.n * 4}, Format::kBf16)
                             : c.input({experts, groups, s.n}, Format::kBf16);
    put_codes(scales, order);
  }

  double scale(int64_t e, int64_t n, int64_t g) const {
    const int64_t groups = shape.k / kW4Group;
    if (shape.checkpoint_scales) {
      const auto stored = static_cast<float>(scales[(e * shape.n + n) * groups + g]);
      return double{to_float(bf16_from_float(stored))};
    }
    const int64_t first = e * groups * shape.n;
    return groups % 4 == 0 ? scales[first + (g / 4 * shape.n + n) * 4 + g % 4]
                           : scales[first + g * shape.n + n];
  }

  double at(int64_t row, int64_t k) const {
    const auto byte = static_cast<uint8_t>(codes[row * (shape.k / 2) + k / 2]);
    return unpack_int4(&byte, k % 2) * scale(row / shape.n, row % shape.n, k / kW4Group);
  }

  QuantView view(const Binding& at) const {
    QuantView w;
    w.values = as_format(at(codes), Format::kW4Fp8, shape.k);
    w.scales = at(scales);
    return w;
  }
};

void add(CaseList& list, const Shape& s) {
  std::string suffix(format_name(s.y));
  if (s.checkpoint_scales) suffix += "_checkpoint_scales";
  if (s.dist != Dist::kNormal) suffix += "_mixed";
  const CaseSpec spec = grouped_case_spec(s.op, s.load, s.n, s.k, s.top_k, suffix);
  add_case<W4a8GroupGemm>(list, spec, [s](CaseBuilder<W4a8GroupGemm>& c) {
    const bool bench = *s.op != '\0';
    const Tensor offsets = s.load.offsets(c);
    const Tensor x =
        c.input({s.load.rows(), s.k}, Format::kE4m3, {.dist = s.dist}, {.row_gap = bench ? 0 : 7});
    const Tensor x_scale = c.input({1}, Format::kF32, {.dist = Dist::kOneSign});
    const auto w = std::make_shared<Int4Weight>(c, s);
    const Tensor y = c.output({s.load.rows(), s.n}, s.y, {.row_gap = bench ? 0 : 3});
    c.bind([=](const Binding& at) {
      return W4a8GroupGemm::Args{.x = at(x),
                                 .x_scale = at(x_scale),
                                 .w = w->view(at),
                                 .offsets = at(offsets),
                                 .y = at(y),
                                 .top_k = s.top_k};
    });
    const auto row_of =
        std::make_shared<RowCache>(s.k, [w](int64_t row, int64_t k) { return w->at(row, k); });
    c.expect_each(y, gates::gemm(s.y), [=](int64_t r, int64_t n) {
      const int64_t e = s.load.expert_of(r);
      return e < 0 ? untouched() : x_scale[0] * dot(x.row(r), (*row_of)(e * s.n + n));
    });
    if (bench || s.dist != Dist::kNormal || s.checkpoint_scales || s.load.rows() * s.n < 4096)
      return;
    // Four bits with a scale for 128: amax/7 is about 0.4 standard deviations a step, whose square
    // over 12, and half of it in diff, is the bound with a third to spare.
    c.expect_full_precision(y, {.diff = 1e-2}, [=](int64_t r, int64_t n) {
      const int64_t e = s.load.expert_of(r);
      if (e < 0) return untouched();
      const std::vector<double> row = x.row(r);
      double sum = 0;
      for (int64_t k = 0; k < s.k; ++k) {
        sum += row[static_cast<size_t>(k)] *
               double{(*w->exact)[static_cast<size_t>((e * s.n + n) * s.k + k)]};
      }
      return sum * x_scale[0];
    });
  });
}

}  // namespace

void add_w4a8_group_gemm_cases(CaseList& list) {
  for (const ExpertLoad& load : small_loads())
    add(list, {.load = load, .n = 128, .k = 256});
  const ExpertLoad few{.counts = {3, 0, 11, 2}};
  for (int64_t k : {128, 384, 512, 1024, 1152})
    add(list, {.load = few, .n = 48, .k = k});
  for (int64_t n : {1, 15, 17, 63, 64, 65})
    add(list, {.load = few, .n = n, .k = 512});
  for (Format y : {Format::kF32, Format::kF16})
    add(list, {.load = few, .n = 256, .k = 512, .y = y});
  for (int64_t k : {256, 512})
    add(list, {.load = few, .n = 80, .k = k, .checkpoint_scales = true});
  add(list, {.load = few, .n = 64, .k = 256, .dist = Dist::kMixedRows});
  add(list, {.load = {.counts = {4, 4, 4, 4}}, .n = 32, .k = 256});  // the 3-D form
  // R1's experts over eight devices, and some whole ones.
  for (int64_t tokens : {1, 8, 512}) {
    add(list, {.load = even_load(tokens, 8, 256),
               .n = 512,
               .k = 7168,
               .top_k = 8,
               .op = "r1_tp8_experts_gate_up"});
    add(list, {.load = even_load(tokens, 8, 16),
               .n = 7168,
               .k = 2048,
               .top_k = 8,
               .op = "r1_16_experts_down"});
  }
}

}  // namespace fathom
