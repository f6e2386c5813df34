// The operands of a fused layer's case and its exact answer, in double.
#pragma once

#include <algorithm>
#include <cmath>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "fathom/base/checked_math.h"
#include "fathom/formats/block/block_fp4.h"
#include "fathom/formats/block/block_fp8.h"
#include "fathom/kernels/gemm/product_cases.h"
#include "fathom/kernels/moe/fused_moe/fused_moe.h"
#include "fathom/kernels/moe/gate/gate_oracle.h"

namespace fathom {

struct LayerShape {
  int64_t tokens = 0;
  int top_k = 2;
  int64_t experts = 8;
  int64_t hidden = 128;
  int64_t intermediate = 128;
  RoutingMethod method = RoutingMethod::kDeepSeekV3;
  int groups = 1;
  int kept = 1;
  int64_t local = 0;  ///< experts that are here; 0: all
  int64_t first = 0;
  Format weight = Format::kBf16;
  WeightLayout layout = WeightLayout::kRows16;
  Format x = Format::kBf16;  ///< a dense format, or codes of that of the weight
  Format y = Format::kBf16;
  GatedActivation act = GatedActivation::kSwiGlu;
  bool zeros = false;    ///< all-zero x
  bool scalars = false;  ///< the reference's factors of each expert; row-major: no global scales
  bool biases = false;   ///< bias, alpha, beta and clamp
  bool rows = false;     ///< expert outputs instead of y
  bool all_on_one = false;
  bool gate_b = false;
  const char* op = "";
  int64_t ring_bytes = 0;

  int64_t num_local() const { return local == 0 ? experts : local; }

  bool is_timed() const { return *op != '\0'; }

  /// Where sigmoids do not saturate, no bias that tokens share decides: choices of timed cases
  /// reach as many experts as their bytes count.
  double logit_deviation() const { return is_timed() ? 0.5 : 2.0; }

  double bias_deviation() const { return is_timed() ? 0.01 : 0.1; }

  bool quantised() const { return x == Format::kFp8Group || x == Format::kNvfp4; }

  /// Block-major scales cannot be cut by tokens, nor can rows by expert.
  int64_t rows_per_batch() const { return x == Format::kFp8Group || rows ? 0 : 1; }
};

inline std::string layer_case_name(const LayerShape& s) {
  std::string name = *s.op == '\0' ? "" : str_cat(s.op, "_");
  str_append(name, str_cat("t", s.tokens, "_k", s.top_k, "_e", s.experts, "_h", s.hidden, "_i",
                           s.intermediate, "_method", static_cast<int>(s.method), "_",
                           format_name(s.weight), "_x_", format_name(s.x)));
  if (s.groups > 1) str_append(name, str_cat("_g", s.groups, "of", s.kept));
  if (s.local > 0) str_append(name, str_cat("_local", s.first, "+", s.local));
  if (s.layout == WeightLayout::kRowMajor) name += "_row_major";
  if (s.y != Format::kBf16) str_append(name, str_cat("_to_", format_name(s.y)));
  if (s.act == GatedActivation::kGeGlu) name += "_geglu";
  if (s.zeros) name += "_zeros";
  if (s.scalars) name += "_scalars";
  if (s.biases) name += "_biases";
  if (s.rows) name += "_rows";
  if (s.all_on_one) name += "_all_on_one";
  return name;
}

/// The operands of a layer and its exact answer. The activation is quantised by the functions of
/// fathom/formats, from the exact value rounded to float32.
struct Layer {
  LayerShape s;
  Tensor logits, bias, x, x_scales;
  Weight up, down;
  Tensor up_scale, gate_scale, down_scale, bias_up, bias_down, alpha, beta, clamp;
  std::shared_ptr<std::vector<float>> exact_x;  // of x in codes
  using Activations = std::map<std::pair<int64_t, int64_t>, std::vector<double>>;
  Activations activations;        // of (token, expert)
  Activations exact_activations;  // from unquantised operands

  Layer(CaseData& c, const LayerShape& shape) : s(shape) {
    const RowPlacement rows{.row_gap = 3, .rows_per_batch = s.rows_per_batch()};
    const bool v3 = s.method == RoutingMethod::kDeepSeekV3;
    logits = c.input({s.tokens, s.experts}, Format::kF32, {.scale = s.logit_deviation()}, rows);
    if (v3) bias = c.input({s.experts}, Format::kBf16, {.scale = s.bias_deviation()});
    for (int64_t t = 0; t < s.tokens; ++t)
      settle_logits(c, t);
    make_x(c);
    const auto weight = [&](int64_t n, int64_t k) {
      const CaseWeightSpec spec{.num_experts = s.num_local(),
                                .rows = n,
                                .cols = k,
                                .format = s.weight,
                                .layout = s.layout};
      return s.is_timed() ? c.weight_codes(spec, s.ring_bytes) : c.weight(spec);
    };
    up = weight(2 * s.intermediate, s.hidden);
    down = weight(s.hidden, s.intermediate);
    const Fill near_one{.dist = Dist::kUniform, .scale = 0.5, .offset = 0.75};
    const int64_t El = s.num_local();
    if (s.scalars) {
      up_scale = c.input({El}, Format::kF32, near_one);
      gate_scale = c.input({El}, Format::kF32, near_one);
      down_scale = c.input({El}, Format::kF32, near_one);
    }
    if (!s.biases) return;
    bias_up = c.input({El, 2 * s.intermediate}, Format::kBf16, {.scale = 0.3}, {.row_gap = 2});
    bias_down = c.input({El, s.hidden}, Format::kF32, {.scale = 0.3});
    alpha = c.input({El}, Format::kF32, near_one);
    beta = c.input({El}, Format::kF32, near_one);
    clamp = c.input({El}, Format::kF32, near_one);
  }

  /// Draws the logits of a token until float32 cannot choose otherwise.
  void settle_logits(CaseData& c, int64_t t) {
    for (;;) {
      for (int64_t e = 0; e < s.experts && s.all_on_one; ++e)
        logits.set(t * s.experts + e, e == 1 ? 9.0 : -double(e));
      if (oracle::margin(rule(t)) > 1e-4) return;
      for (int64_t e = 0; e < s.experts; ++e)
        logits.set(t * s.experts + e, s.logit_deviation() * double{c.rng().next_normal()});
    }
  }

  oracle::Rule rule(int64_t t) const {
    const std::vector<double> z = logits.row(t);
    std::vector<double> sigmoids = z;
    for (double& v : sigmoids)
      v = 1.0 / (1.0 + std::exp(-v));
    oracle::Rule r{.choice = z, .score = oracle::softmax(z), .count = s.top_k, .scaling = 1.25};
    switch (s.method) {
      case RoutingMethod::kSoftmaxTopk:
        break;
      case RoutingMethod::kTopkSoftmax:
      case RoutingMethod::kSoftmaxTopkRenormalize:
        r.renormalize = true;
        break;
      case RoutingMethod::kDeepSeekV3:
        r.score = r.choice = sigmoids;
        for (size_t e = 0; e < z.size(); ++e)
          r.choice[e] += bias[static_cast<int64_t>(e)];
        r.groups = s.groups;
        r.kept = s.kept;
        r.top = 2;
        r.renormalize = true;
        break;
      case RoutingMethod::kLlama4:
        r.score = sigmoids;
        break;
      case RoutingMethod::kTopk:
        r.score = z;
        break;
    }
    return r;
  }

  void make_x(CaseData& c) {
    const double size = s.zeros ? 0.0 : 1.0;
    if (!s.quantised()) {
      x = c.input({s.tokens, s.hidden}, s.x, {.scale = size},
                  {.row_gap = 5, .rows_per_batch = s.rows_per_batch()});
      return;
    }
    exact_x = random_values(c, s.tokens, s.hidden, {.scale = size});
    const auto& exact = exact_x;
    if (s.x == Format::kFp8Group) {
      const int64_t blocks = ceil_div(s.hidden, kFp8Block);
      std::vector<E4m3> codes(exact->size());
      std::vector<float> scales(static_cast<size_t>(s.tokens * blocks));
      fp8_quantize_groups(exact->data(), s.tokens, s.hidden, kFp8Block, kFp8SglangGroup,
                          codes.data(), scales.data());
      x = c.input({s.tokens, s.hidden}, Format::kE4m3, {},
                  {.row_gap = 5, .rows_per_batch = s.rows_per_batch()});
      put_codes(x, codes);
      x_scales = c.input({blocks, s.tokens}, Format::kF32);  // block-major
      x_scales.fill([&](int64_t i) {
        return scales[static_cast<size_t>(i % s.tokens * blocks + i / s.tokens)];
      });
      return;
    }
    std::vector<uint8_t> packed(exact->size() / 2);
    std::vector<E4m3> scales(exact->size() / 16);
    nvfp4_quantize_activations(exact->data(), s.tokens, s.hidden, 1.0f, packed.data(),
                               scales.data());
    x = c.input({s.tokens, s.hidden / 2}, Format::kU8, {},
                {.row_gap = 3, .rows_per_batch = s.rows_per_batch()});
    put_codes(x, packed);
    x_scales = c.input({s.tokens, s.hidden / 16}, Format::kU8, {},
                       {.row_gap = 1, .rows_per_batch = s.rows_per_batch()});
    put_codes(x_scales, scales);
  }

  View x_view(const Binding& at) const { return as_format(at(x), s.x, s.hidden); }

  View x_scale_view(const Binding& at) const {
    if (!x_scales.present()) return {};
    View v = at(x_scales);
    if (s.x == Format::kNvfp4) {
      v.format = Format::kE4m3;
      return v;
    }
    std::swap(v.dims[0], v.dims[1]);
    std::swap(v.strides[0], v.strides[1]);
    return v;
  }

  QuantView weight_view(const Binding& at, const Weight& w) const {
    QuantView v = at(w);
    if (drops_global()) v.global = {};
    return v;
  }

  bool drops_global() const { return s.scalars && s.layout == WeightLayout::kRowMajor; }

  std::vector<double> x_row(int64_t t) const {
    if (!s.quantised()) return x.row(t);
    std::vector<double> out(static_cast<size_t>(s.hidden));
    for (int64_t k = 0; k < s.hidden; ++k) {
      double& v = out[static_cast<size_t>(k)];
      if (s.x == Format::kFp8Group) {
        v = x.at(t, k) * x_scales.at(k / kFp8Block, t);
      } else {
        const auto byte = static_cast<uint8_t>(x.at(t, k / 2));
        const E4m3 scale{static_cast<uint8_t>(x_scales.at(t, k / 16))};
        v = double{to_float(unpack_e2m1(&byte, k % 2))} * double{to_float(scale)};
      }
    }
    return out;
  }

  static double scalar(const Tensor& t, int64_t e, double absent) {
    return t.present() ? t[e] : absent;
  }

  /// What the second product of expert e reads for token t.
  const std::vector<double>& activation(int64_t t, int64_t e) {
    auto& h = activations[{t, e}];
    if (!h.empty()) return h;
    const std::vector<double> row = x_row(t);
    const int64_t I = s.intermediate;
    for (int64_t i = 0; i < I; ++i) {
      double u = product(row, up, e, i) * scalar(up_scale, e, 1);
      double g = product(row, up, e, I + i) * scalar(gate_scale, e, 1);
      if (bias_up.present()) {
        u += bias_up.at(e, i);
        g += bias_up.at(e, I + i);
      }
      if (clamp.present()) {
        g = std::min(g, clamp[e]);
        u = std::clamp(u, -clamp[e], clamp[e]);
      }
      const double a = scalar(alpha, e, 1) * g;
      h.push_back(s.act == GatedActivation::kGeGlu
                      ? 0.5 * g * (1 + std::erf(g / std::sqrt(2.0))) * u
                      : g / (1 + std::exp(-a)) * (u + scalar(beta, e, 0)));
    }
    round_activation(h);
    return h;
  }

  double product(const std::vector<double>& row, const Weight& w, int64_t e, int64_t n) const {
    const double global = drops_global() ? global_of(w, e) : 1.0;
    return dot(row, w.row(e * w.spec().rows + n)) / global;
  }

  std::vector<double> up_globals, down_globals;  // filled by bind, where they are dropped

  double global_of(const Weight& w, int64_t e) const {
    return w.spec().cols == s.hidden && w.spec().rows == 2 * s.intermediate
               ? up_globals[static_cast<size_t>(e)]
               : down_globals[static_cast<size_t>(e)];
  }

  void round_activation(std::vector<double>& h) const {
    std::vector<float> values(h.begin(), h.end());
    const auto I = static_cast<int64_t>(h.size());
    if (s.x == Format::kFp8Group) {
      std::vector<E4m3> codes(h.size());
      std::vector<float> scales(static_cast<size_t>(ceil_div(I, kFp8Block)));
      fp8_quantize_groups(values.data(), 1, I, kFp8Block, {}, codes.data(), scales.data());
      fp8_dequantize_groups(codes.data(), scales.data(), 1, I, kFp8Block, values.data());
    } else if (s.x == Format::kNvfp4) {
      std::vector<uint8_t> packed(h.size() / 2);
      std::vector<E4m3> scales(h.size() / 16);
      nvfp4_quantize_activations(values.data(), 1, I, 1.0f, packed.data(), scales.data());
      nvfp4_dequantize(packed.data(), scales.data(), 1.0f, 1, I, values.data());
    } else if (s.x == Format::kBf16) {
      for (float& v : values)
        v = to_float(bf16_from_float(v));
    }
    h.assign(values.begin(), values.end());
  }

  double expert_output(int64_t t, int64_t e, int64_t n) {
    const double sum = product(activation(t, e), down, e, n) * scalar(down_scale, e, 1);
    return sum + (bias_down.present() ? bias_down.at(e, n) : 0.0);
  }

  /// The expert here that slot j of token t chose, or -1.
  int64_t local_expert(const std::vector<int>& ids, int64_t j) const {
    const int64_t e = ids[static_cast<size_t>(j)] - s.first;
    return e >= 0 && e < s.num_local() ? e : -1;
  }

  /// The weighted sum of output(e) over the experts here that token t chose.
  template <class Output>
  double sum_of(int64_t t, Output&& output) const {
    const oracle::Rule r = rule(t);
    const std::vector<int> ids = oracle::ids_of(r);
    const std::vector<double> weights = oracle::weights_of(r, ids);
    double sum = 0;
    for (int64_t j = 0; j < s.top_k; ++j) {
      const int64_t e = local_expert(ids, j);
      if (e >= 0) sum += weights[static_cast<size_t>(j)] * output(e);
    }
    return sum;
  }

  double answer(int64_t t, int64_t n) {
    return sum_of(t, [&](int64_t e) { return expert_output(t, e, n); });
  }

  /// The same without any quantisation: of a plain SwiGLU layer.
  double exact_answer(int64_t t, int64_t n) {
    return sum_of(t, [&](int64_t e) {
      return dot(exact_activation(t, e), down.exact_row(e * s.hidden + n));
    });
  }

  const std::vector<double>& exact_activation(int64_t t, int64_t e) {
    auto& h = exact_activations[{t, e}];
    if (!h.empty()) return h;
    std::vector<double> row;
    if (exact_x != nullptr) {
      row.assign(exact_x->begin() + t * s.hidden, exact_x->begin() + (t + 1) * s.hidden);
    } else {
      row = x.row(t);
    }
    for (int64_t i = 0; i < s.intermediate; ++i) {
      const int64_t first = e * 2 * s.intermediate + i;
      const double u = dot(row, up.exact_row(first));
      const double g = dot(row, up.exact_row(first + s.intermediate));
      h.push_back(g / (1 + std::exp(-g)) * u);
    }
    return h;
  }

  MoeRouting routing() const {
    return {.method = s.method,
            .top_k = s.top_k,
            .n_group = s.groups,
            .topk_group = s.kept,
            .scaling = 1.25f,
            .first_expert = s.first};
  }
};

}  // namespace fathom
