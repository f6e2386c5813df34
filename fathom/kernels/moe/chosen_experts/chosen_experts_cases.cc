#include <algorithm>
#include <cmath>
#include <vector>

#include "fathom/kernels/conformance/kernel_case.h"
#include "fathom/kernels/conformance/recorded_call.h"
#include "fathom/kernels/moe/chosen_experts/chosen_experts.h"

namespace fathom {
namespace {

struct Shape {
  int64_t tokens;
  int64_t hidden;
  int64_t experts;
  int64_t top_k;
  int64_t width;   ///< of an expert
  int64_t shared;  ///< 0: there is no shared expert
  Format format = Format::kBf16;
  bool some_missing = false;
  int64_t gap = 0;     ///< between rows; 8 keeps sixteen bytes
  CaseSpec spec = {};  ///< of a recorded call; others are named after their shape

  int64_t activations() const { return top_k * width + shared; }
};

CaseSpec spec_of(const Shape& s, bool bench) {
  if (!s.spec.name.empty()) return s.spec;
  std::string name =
      str_cat(bench ? "v2_lite_" : "", "t", s.tokens, "_h", s.hidden, "_e", s.experts, "_k",
              s.top_k, "_i", s.width, "_s", s.shared, "_", format_name(s.format));
  if (s.some_missing) name += "_some_missing";
  if (s.gap > 0) str_append(name, str_cat("_gap", s.gap));
  return {.name = name,
          .op = "experts",
          .bench = bench,
          .phase = bench ? "decode" : "",
          .columns = str_cat("M=", s.tokens, ";E=", s.experts, ";topk=", s.top_k, ";H=", s.hidden)};
}

/// Weights whose products with normal rows have about that size.
Fill weights_of(int64_t summed, double size = 1.0) {
  return {.scale = size / std::sqrt(static_cast<double>(std::max<int64_t>(1, summed)))};
}

/// Different experts for each token, in no order; every third left out where some are missing.
Tensor chosen_ids(CaseData& c, const Shape& s) {
  const Tensor ids = c.input({s.tokens, s.top_k}, Format::kI32, {}, {.rows_per_batch = 1});
  ids.fill([&](int64_t slot) {
    return s.some_missing && slot % 3 == 1 ? -1 : (slot / s.top_k * 5 + slot * 7) % s.experts;
  });
  return ids;
}

double dot(const std::vector<double>& a, int64_t first, const std::vector<double>& b) {
  double sum = 0;
  for (size_t i = 0; i < b.size(); ++i)
    sum += a[static_cast<size_t>(first) + i] * b[i];
  return sum;
}

double gated(double gate, double up) {
  return gate / (1.0 + std::exp(-gate)) * up;
}

void add_gate_up(CaseList& list, const Shape& s, bool bench = false) {
  add_case<ChosenExpertsGateUp>(list, spec_of(s, bench), [=](CaseBuilder<ChosenExpertsGateUp>& c) {
    c.set_batch(s.tokens);
    const RowPlacement rows{.row_gap = s.gap, .rows_per_batch = 1};
    const Tensor x = c.input({s.tokens, s.hidden}, s.format, {}, rows);
    const Tensor experts = c.input({s.experts, 2 * s.width, s.hidden}, s.format,
                                   weights_of(s.hidden), {.row_gap = s.gap});
    const Tensor ids = chosen_ids(c, s);
    Tensor shared;
    if (s.shared > 0) {
      shared =
          c.input({2 * s.shared, s.hidden}, s.format, weights_of(s.hidden), {.row_gap = s.gap});
    }
    const Tensor y = c.output({s.tokens, s.activations()}, s.format, rows);
    c.bind([=](const Binding& at) {
      return ChosenExpertsGateUp::Args{
          .x = at(x), .experts = at(experts), .ids = at(ids), .shared = at(shared), .y = at(y)};
    });
    c.expect_rows(y, gates::gemm(s.format), [=](int64_t t, std::span<double> out) {
      const std::vector<double> row = x.row(t);
      for (int64_t column = 0; column < s.activations(); ++column) {
        const int64_t k = column / std::max<int64_t>(1, s.width);
        double& value = out[static_cast<size_t>(column)];
        if (column >= s.top_k * s.width) {
          const int64_t i = column - s.top_k * s.width;
          value = gated(dot(row, 0, shared.row(i)), dot(row, 0, shared.row(s.shared + i)));
        } else if (ids.at(t, k) < 0) {
          value = 0.0;
        } else {
          const int64_t first = static_cast<int64_t>(ids.at(t, k)) * 2 * s.width + column % s.width;
          value = gated(dot(row, 0, experts.row(first)), dot(row, 0, experts.row(first + s.width)));
        }
      }
    });
  });
}

void add_down(CaseList& list, const Shape& s, bool bench = false) {
  add_case<ChosenExpertsDown>(list, spec_of(s, bench), [=](CaseBuilder<ChosenExpertsDown>& c) {
    c.set_batch(s.tokens);
    const RowPlacement rows{.row_gap = s.gap, .rows_per_batch = 1};
    const Tensor x = c.input({s.tokens, s.activations()}, s.format, {}, rows);
    const Tensor experts =
        c.input({s.experts, s.hidden, s.width}, s.format, weights_of(s.width), {.row_gap = s.gap});
    const Tensor ids = chosen_ids(c, s);
    const Tensor weights =
        c.input({s.tokens, s.top_k}, Format::kF32, {.dist = Dist::kUniform}, {.rows_per_batch = 1});
    Tensor shared;
    if (s.shared > 0) {
      shared = c.input({s.hidden, s.shared}, s.format, weights_of(s.shared), {.row_gap = s.gap});
    }
    const Tensor y = c.output({s.tokens, s.hidden}, s.format, rows);
    c.bind([=](const Binding& at) {
      return ChosenExpertsDown::Args{.x = at(x),
                                     .experts = at(experts),
                                     .ids = at(ids),
                                     .weights = at(weights),
                                     .shared = at(shared),
                                     .y = at(y)};
    });
    c.expect_rows(y, gates::gemm(s.format), [=](int64_t t, std::span<double> out) {
      const std::vector<double> row = x.row(t);
      for (int64_t n = 0; n < s.hidden; ++n) {
        double sum = s.shared > 0 ? dot(row, s.top_k * s.width, shared.row(n)) : 0.0;
        for (int64_t k = 0; k < s.top_k; ++k) {
          if (ids.at(t, k) < 0) continue;
          const int64_t at = static_cast<int64_t>(ids.at(t, k)) * s.hidden + n;
          sum += weights.at(t, k) * dot(row, k * s.width, experts.row(at));
        }
        out[static_cast<size_t>(n)] = sum;
      }
    });
  });
}

void add_both(CaseList& list, const Shape& s, bool bench = false) {
  add_gate_up(list, s, bench);
  add_down(list, s, bench);
}

Shape shape_of(const RecordedCall& call, const CaseSpec& spec, int64_t hidden, int64_t width) {
  return {.tokens = call.dim("x", 0),
          .hidden = hidden,
          .experts = call.dim("experts", 0),
          .top_k = call.dim("ids", 1),
          .width = width,
          .shared = 0,
          .format = call.format("x"),
          .spec = spec};
}

}  // namespace

void add_chosen_experts_cases(CaseList& list) {
  for (int64_t t : {0, 1, 2, 5, 16})
    add_both(list, {t, 96, 8, 3, 40, 56});
  // No shared expert; one expert; wide rows; fewer k than lanes; more than a step, with a rest.
  add_both(list, {2, 256, 5, 4, 24, 0});
  add_both(list, {1, 1032, 3, 1, 8, 2056});
  add_both(list, {3, 8, 4, 2, 520, 8});
  add_both(list, {1, 2048, 4, 2, 264, 136});
  add_both(list, {2, 520, 9, 6, 1048, 520});
  // Choices that name nobody, gaps that keep and that break sixteen bytes, odd widths.
  add_both(list, {3, 72, 7, 4, 32, 16, Format::kBf16, true});
  add_both(list, {2, 72, 7, 4, 32, 0, Format::kBf16, true});
  add_both(list, {2, 104, 6, 2, 48, 24, Format::kBf16, false, 8});
  add_both(list, {2, 104, 6, 2, 48, 24, Format::kBf16, false, 3});
  add_both(list, {4, 67, 5, 3, 21, 33, Format::kBf16, true, 1});
  add_both(list, {3, 96, 8, 3, 40, 56, Format::kF32});
  add_both(list, {2, 67, 5, 3, 21, 0, Format::kF32, true, 1});

  add_both(list, {1, 2048, 64, 6, 1408, 2816}, true);
  add_both(list, {2, 2048, 64, 6, 1408, 2816}, true);
  list.serve_calls(
      "chosen_experts_gate_up", [](CaseList& one, const RecordedCall& call, const CaseSpec& spec) {
        Shape s = shape_of(call, spec, call.dim("experts", 2), call.dim("experts", 1) / 2);
        if (call.has("shared")) s.shared = call.dim("shared", 0) / 2;
        add_gate_up(one, s, true);
      });
  list.serve_calls("chosen_experts_down",
                   [](CaseList& one, const RecordedCall& call, const CaseSpec& spec) {
                     Shape s = shape_of(call, spec, call.dim("experts", 1), call.dim("experts", 2));
                     if (call.has("shared")) s.shared = call.dim("shared", 1);
                     add_down(one, s, true);
                   });
}

}  // namespace fathom
