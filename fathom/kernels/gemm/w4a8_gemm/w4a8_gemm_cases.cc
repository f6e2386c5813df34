#include "fathom/formats/integer/qserve.h"
#include "fathom/kernels/gemm/product_cases.h"
#include "fathom/kernels/gemm/w4a8_gemm/w4a8_gemm.h"

namespace fathom {
namespace {

struct Shape {
  int64_t t = 0;
  int64_t n = 0;
  int64_t k = 0;
  Dist dist = Dist::kNormal;
  bool wraps = false;  ///< random group scales and zeros, beyond what the quantiser gives
  const char* op = "";
  Format result = Format::kF16;
};

std::string suffix(const Shape& s) {
  if (s.result != Format::kF16) return std::string(format_name(s.result));
  return s.dist != Dist::kNormal ? "mixed" : s.wraps ? "wraps" : "";
}

/// Activations: codes, scales and sums in float16, and what they were made of.
struct Activations {
  Tensor codes, scales, sums;
  std::shared_ptr<std::vector<float>> exact;
};

Activations activations(CaseData& c, const Shape& s) {
  const int64_t gap = *s.op != '\0' ? 0 : 5;
  Activations x;
  x.codes = c.input({s.t, s.k}, Format::kI8, {}, {.row_gap = gap, .rows_per_batch = 1});
  x.scales = c.input({s.t}, Format::kF16, {}, {.rows_per_batch = 1});
  x.sums = c.input({s.t}, Format::kF16, {}, {.rows_per_batch = 1});
  x.exact = random_values(c, s.t, s.k, {.dist = s.dist});
  std::vector<int8_t> codes(x.exact->size());
  std::vector<F16> scales(static_cast<size_t>(s.t)), sums(static_cast<size_t>(s.t));
  qserve_quantize_activations(x.exact->data(), s.t, s.k, codes.data(), scales.data(), sums.data());
  put_codes(x.codes, codes);
  put_codes(x.scales, scales);
  put_codes(x.sums, sums);
  return x;
}

/// Weights: packed codes, and what the two kernels want beside them. The exact values are null for
/// random codes.
struct PackedWeight {
  Tensor codes, scales, zeros, group_scales, group_zeros;
  std::shared_ptr<std::vector<float>> exact;
};

void check_ok(const Status& status) {
  FATHOM_CHECK(status.ok(), status.message());
}

double code_at(const Tensor& packed, int64_t n, int64_t k, int64_t num_k) {
  const auto byte = static_cast<int>(packed[qserve_packed_offset(n, k, num_k)]);
  return n % 32 < 16 ? byte & 15 : byte >> 4;
}

PackedWeight channel_weight(CaseData& c, const Shape& s) {
  PackedWeight w;
  w.codes = c.input({s.n, s.k / 2}, Format::kU8);
  w.scales = c.input({s.n}, Format::kF16, {.scale = 0.01});
  w.zeros = c.input({s.n}, Format::kF16, {.scale = 0.08});
  if (*s.op != '\0') {
    put_random_bytes(c, w.codes, [](uint8_t b) { return b; });
    return w;
  }
  w.exact = random_values(c, s.n, s.k, {.scale = 1.0 / std::sqrt(double(s.k))});
  std::vector<uint8_t> codes(w.exact->size()), packed(codes.size() / 2);
  std::vector<F16> scales(static_cast<size_t>(s.n)), zeros(scales.size());
  check_ok(qserve_quantize_channels(w.exact->data(), s.n, s.k, codes.data(), scales.data(),
                                    zeros.data()));
  check_ok(qserve_pack(codes.data(), s.n, s.k, packed.data()));
  put_codes(w.codes, packed);
  put_codes(w.scales, scales);
  put_codes(w.zeros, zeros);
  return w;
}

PackedWeight group_weight(CaseData& c, const Shape& s) {
  const int64_t groups = s.k / kQserveGroup;
  PackedWeight w;
  w.codes = c.input({s.n, s.k / 2}, Format::kU8);
  w.scales = c.input({s.n}, Format::kF16, {.scale = 0.001});
  w.group_scales = c.input({groups, s.n}, Format::kI8);
  w.group_zeros = c.input({groups, s.n}, Format::kI8);
  if (*s.op != '\0' || s.wraps) {
    const uint8_t most = s.wraps ? 0xFF : 0x0F;
    put_random_bytes(c, w.codes, [](uint8_t b) { return b; });
    put_random_bytes(c, w.group_scales, [&](uint8_t b) { return static_cast<uint8_t>(b & most); });
    put_random_bytes(c, w.group_zeros, [](uint8_t b) { return b; });
    return w;
  }
  w.exact = random_values(c, s.n, s.k, {.scale = 1.0 / std::sqrt(double(s.k))});
  std::vector<uint8_t> codes(w.exact->size()), packed(codes.size() / 2);
  std::vector<F16> scales(static_cast<size_t>(s.n));
  std::vector<int8_t> by_row[2], by_group[2];
  for (int i = 0; i < 2; ++i) {
    by_row[i].resize(static_cast<size_t>(s.n * groups));
    by_group[i].resize(static_cast<size_t>(s.n * groups));
  }
  check_ok(qserve_quantize_groups(w.exact->data(), s.n, s.k, codes.data(), scales.data(),
                                  by_row[0].data(), by_row[1].data()));
  check_ok(qserve_pack(codes.data(), s.n, s.k, packed.data()));
  for (int i = 0; i < 2; ++i)
    check_ok(qserve_interleave(by_row[i].data(), s.n, groups, by_group[i].data()));
  put_codes(w.codes, packed);
  put_codes(w.scales, scales);
  put_codes(w.group_scales, by_group[0]);
  put_codes(w.group_zeros, by_group[1]);
  return w;
}

/// Gate B: `diff` is one and a half times what was measured (7.2e-3 per channel, 5.3e-3 per group),
/// on enough outputs of plain data.
template <class K>
void expect_unquantised(CaseBuilder<K>& c,
                        const Shape& s,
                        const Tensor& y,
                        const Activations& x,
                        const PackedWeight& w,
                        double diff) {
  if (w.exact == nullptr || s.dist != Dist::kNormal || s.t * s.n < 4096) return;
  c.expect_full_precision(y, {.diff = diff}, [=](int64_t t, int64_t n) {
    return dot_rows(*x.exact, t, *w.exact, n, s.k);
  });
}

void add_channel(CaseList& list, const Shape& s) {
  using K = W4a8GemmChannel;
  add_case<K>(list, product_case_spec(s.op, s.t, s.n, s.k, suffix(s)), [s](CaseBuilder<K>& c) {
    c.set_batch(s.t);
    const Activations x = activations(c, s);
    const PackedWeight w = channel_weight(c, s);
    const Tensor y =
        c.output({s.t, s.n}, s.result, {.row_gap = *s.op != '\0' ? 0 : 3, .rows_per_batch = 1});
    c.bind([=](const Binding& at) {
      return K::Args{.x = at(x.codes),
                     .x_scales = at(x.scales),
                     .x_sums = at(x.sums),
                     .w = as_format(at(w.codes), Format::kW4a8Channel, s.k),
                     .w_scales = at(w.scales),
                     .w_zeros = at(w.zeros),
                     .y = at(y)};
    });
    const auto rows = std::make_shared<RowCache>(
        s.k, [=](int64_t n, int64_t k) { return code_at(w.codes, n, k, s.k); });
    c.expect_each(y, gates::gemm(s.result), [=](int64_t t, int64_t n) {
      return dot(x.codes.row(t), (*rows)(n)) * x.scales[t] * w.scales[n] - x.sums[t] * w.zeros[n];
    });
    expect_unquantised(c, s, y, x, w, 1.1e-2);
  });
}

void add_group(CaseList& list, const Shape& s) {
  using K = W4a8GemmGroup;
  add_case<K>(list, product_case_spec(s.op, s.t, s.n, s.k, suffix(s)), [s](CaseBuilder<K>& c) {
    c.set_batch(s.t);
    const Activations x = activations(c, s);
    const PackedWeight w = group_weight(c, s);
    const Tensor y =
        c.output({s.t, s.n}, s.result, {.row_gap = *s.op != '\0' ? 0 : 3, .rows_per_batch = 1});
    c.bind([=](const Binding& at) {
      return K::Args{.x = at(x.codes),
                     .x_scales = at(x.scales),
                     .w = as_format(at(w.codes), Format::kW4a8Group, s.k),
                     .group_scales = at(w.group_scales),
                     .group_zeros = at(w.group_zeros),
                     .w_scales = at(w.scales),
                     .y = at(y)};
    });
    const auto rows = std::make_shared<RowCache>(s.k, [=](int64_t n, int64_t k) {
      // The equation on numbers, brought into int8 by whole turns of 256.
      const int64_t at = k / kQserveGroup * s.n + qserve_scale_position(n);
      const double value = code_at(w.codes, n, k, s.k) * w.group_scales[at] + w.group_zeros[at];
      return value - 256.0 * std::floor((value + 128.0) / 256.0);
    });
    c.expect_each(y, gates::gemm(s.result), [=](int64_t t, int64_t n) {
      return dot(x.codes.row(t), (*rows)(n)) * x.scales[t] * w.scales[n];
    });
    expect_unquantised(c, s, y, x, w, 8e-3);
  });
}

}  // namespace

void add_w4a8_gemm_cases(CaseList& list) {
  const auto add = [&](const Shape& s) {
    if (!s.wraps) add_channel(list, s);
    if (s.k % kQserveGroup == 0) add_group(list, s);
  };
  for (int64_t t : {0, 1, 2, 3, 5, 6, 7, 13, 63, 64, 65})
    add({.t = t, .n = 64, .k = 128});
  for (int64_t n : {32, 96, 160})
    add({.t = 4, .n = n, .k = 384});
  for (int64_t k : {32, 64, 96, 224, 256, 288, 640, 4096})
    add({.t = 3, .n = 64, .k = k});
  add({.t = 70, .n = 96, .k = 512});
  add({.t = 12, .n = 32, .k = 256, .dist = Dist::kMixedRows});
  add({.t = 7, .n = 64, .k = 384, .wraps = true});
  for (const Format result : {Format::kBf16, Format::kF32})
    add({.t = 5, .n = 96, .k = 256, .result = result});
  for (int64_t t : {1, 16, 512}) {
    const auto bench = [&](const char* op, int64_t n, int64_t k) {
      add({.t = t, .n = n, .k = k, .op = op});
    };
    bench("r1_fused_qkv_a_proj", 2112, 7168);
    bench("r1_q_b_proj", 24576, 1536);
    bench("r1_shared_down_proj", 7168, 2048);
    if (t <= 16) bench("r1_o_proj", 7168, 16384);
  }
}

}  // namespace fathom
