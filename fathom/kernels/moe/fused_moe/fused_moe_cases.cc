#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "fathom/kernels/conformance/reference_shapes.h"
#include "fathom/kernels/moe/fused_moe/layer_oracle.h"

namespace fathom {
namespace {

/// A code of the activation that sits at the edge of a rounding may come out as its neighbour; one
/// of 4 bits weighs more than one of 8.
Gate layer_gate(const LayerShape& s) {
  Gate gate = gates::gemm(s.y);
  if (s.x == Format::kFp8Group) gate.rel_l2 = 5e-3;
  if (s.x == Format::kNvfp4) gate.rel_l2 = 2e-2;
  // A bf16 activation at such an edge is one step of 2^-9 off, among many.
  if (s.x == Format::kBf16 && s.y == Format::kF32) gate.rel_l2 = 5e-4;
  return gate;
}

template <class K>
typename K::Args common_args(const Layer& l, const Binding& at, const Tensor& y) {
  return {.logits = at(l.logits),
          .bias = at(l.bias),
          .x = l.x_view(at),
          .w_up = l.weight_view(at, l.up),
          .w_down = l.weight_view(at, l.down),
          .y = at(y),
          .routing = l.routing(),
          .act = l.s.act};
}

template <class K>
typename K::Args args_of(const Layer& l, const Binding& at, const Tensor& y) {
  typename K::Args a = common_args<K>(l, at, y);
  if constexpr (requires { a.x_scales; }) a.x_scales = l.x_scale_view(at);
  if constexpr (requires { a.up_scale; }) {
    a.up_scale = at(l.up_scale);
    a.gate_scale = at(l.gate_scale);
    a.down_scale = at(l.down_scale);
    a.bias_up = at(l.bias_up);
    a.bias_down = at(l.bias_down);
    a.alpha = at(l.alpha);
    a.beta = at(l.beta);
    a.clamp = at(l.clamp);
  }
  return a;
}

/// Global scales of row-major weights, for oracles of calls that leave them out.
template <class K>
void note_globals(const Binding& at, Layer& l) {
  const auto copy = [](const QuantView& w, std::vector<double>& out) {
    if (!w.global.readable()) return;  // absent, or on a GPU: those of the host were noted first
    const auto* from = w.global.as<const float>();
    out.assign(from, from + w.global.numel());
  };
  copy(at(l.up), l.up_globals);
  copy(at(l.down), l.down_globals);
}

/// The outputs of do_finalize = false: rows by expert, weights, and where each slot's row is.
void expect_rows_of(CaseBuilder<FusedMoeNvfp4>& c,
                    const std::shared_ptr<Layer>& l,
                    const Tensor& rows,
                    const Tensor& weights,
                    const Tensor& positions) {
  struct Slot {
    int64_t expert, token;
    double weight;
  };

  const auto slots = std::make_shared<std::vector<Slot>>();
  const int64_t K = l->s.top_k;
  for (int64_t t = 0; t < l->s.tokens; ++t) {
    const oracle::Rule r = l->rule(t);
    const std::vector<int> ids = oracle::ids_of(r);
    const std::vector<double> w = oracle::weights_of(r, ids);
    for (int64_t j = 0; j < K; ++j)
      slots->push_back({l->local_expert(ids, j), t, w[static_cast<size_t>(j)]});
  }
  const auto order = std::make_shared<std::vector<size_t>>();
  for (size_t i = 0; i < slots->size(); ++i) {
    if ((*slots)[i].expert >= 0) order->push_back(i);
  }
  std::stable_sort(order->begin(), order->end(),
                   [&](size_t a, size_t b) { return (*slots)[a].expert < (*slots)[b].expert; });
  c.expect_each(rows, layer_gate(l->s), [=](int64_t row, int64_t n) {
    if (row >= static_cast<int64_t>(order->size())) return 0.0;
    const Slot& slot = (*slots)[(*order)[static_cast<size_t>(row)]];
    return l->expert_output(slot.token, slot.expert, n);
  });
  c.expect_each(weights, gates::router_weights(), [=](int64_t t, int64_t j) {
    return (*slots)[static_cast<size_t>(t * K + j)].weight;
  });
  c.expect_each(positions, gates::exact(), [=](int64_t t, int64_t j) {
    const auto at = std::find(order->begin(), order->end(), static_cast<size_t>(t * K + j));
    return at == order->end() ? -1.0 : static_cast<double>(at - order->begin());
  });
}

template <class K>
void build(CaseBuilder<K>& c, const LayerShape& s) {
  const auto l = std::make_shared<Layer>(c, s);
  if (s.rows_per_batch() > 0) c.set_batch(s.tokens);
  Tensor y, rows, weights, positions;
  if (s.rows) {
    rows = c.output({s.tokens * s.top_k, s.hidden}, s.y, {.row_gap = 1});
    weights = c.output({s.tokens, s.top_k}, Format::kF32);
    positions = c.output({s.tokens, s.top_k}, Format::kI32, {.row_gap = 2});
  } else {
    y = c.output({s.tokens, s.hidden}, s.y, {.row_gap = 7, .rows_per_batch = s.rows_per_batch()});
  }
  c.bind([=](const Binding& at) {
    note_globals<K>(at, *l);
    typename K::Args a = args_of<K>(*l, at, y);
    if constexpr (requires { a.rows; }) {
      a.rows = at(rows);
      a.weights = at(weights);
      a.positions = at(positions);
    }
    return a;
  });
  if constexpr (std::is_same_v<K, FusedMoeNvfp4>) {
    if (s.rows) return expect_rows_of(c, l, rows, weights, positions);
  }
  // A token's experts cost a second.
  c.expect_each(
      y, layer_gate(s), [=](int64_t t, int64_t n) { return l->answer(t, n); }, 4);
  if (!s.gate_b) return;
  // Two weights, and where they are codes x and the activation: a rounding each.
  Gate gate = gates::full_precision(s.weight);
  gate.diff *= s.quantised() ? 4 : 2;
  c.expect_full_precision(y, gate, [=](int64_t t, int64_t n) { return l->exact_answer(t, n); });
}

void add(CaseList& list, const LayerShape& s) {
  const bool bench = s.is_timed();
  const CaseSpec spec{.name = layer_case_name(s),
                      .op = "experts",
                      .bench = bench,
                      .phase = phase_of_case(bench, s.tokens),
                      .columns = str_cat("M=", s.tokens, ";E=", s.experts, ";topk=", s.top_k,
                                         ";H=", s.hidden, ";I=", s.intermediate),
                      .note = s.ring_bytes > 0 ? "experts mapped onto a ring" : ""};
  switch (s.weight) {
    case Format::kNvfp4:
      return add_case<FusedMoeNvfp4>(list, spec, [s](auto& c) { build(c, s); });
    case Format::kFp8Block:
    case Format::kFp8BlockUe8m0:
      return add_case<FusedMoeFp8Block>(list, spec, [s](auto& c) { build(c, s); });
    default:
      return add_case<FusedMoeBf16>(list, spec, [s](auto& c) { build(c, s); });
  }
}

/// The codes that a reference call has as x of experts of that format.
Format codes_of(Format weight) {
  if (weight == Format::kNvfp4) return Format::kNvfp4;
  return weight == Format::kBf16 ? Format::kBf16 : Format::kFp8Group;
}

void add_small_cases(CaseList& list, Format weight) {
  const Format codes = codes_of(weight);
  const LayerShape base{.tokens = 7, .weight = weight, .x = codes};
  const auto with = [&](auto change) {
    LayerShape s = base;
    change(s);
    add(list, s);
  };
  for (int64_t t : {0, 1, 2, 3, 17})
    with([&](LayerShape& s) { s.tokens = t; });
  for (int method = 0; method < 6; ++method) {
    with([&](LayerShape& s) {
      s.method = static_cast<RoutingMethod>(method);
      s.top_k = s.method == RoutingMethod::kLlama4 ? 1 : 3;
    });
  }
  with([](LayerShape& s) {
    s.experts = 32;
    s.top_k = 6;
    s.groups = 4;
    s.kept = 2;
  });
  with([](LayerShape& s) {
    s.experts = 16;
    s.top_k = 4;
    s.local = 5;
    s.first = 3;
  });
  with([](LayerShape& s) {
    s.experts = 64;
    s.local = 1;
    s.first = 63;
  });
  with([](LayerShape& s) {
    s.tokens = 40;
    s.gate_b = true;
  });
  with([](LayerShape& s) { s.act = GatedActivation::kGeGlu; });
  with([](LayerShape& s) { s.zeros = true; });
  with([](LayerShape& s) { s.layout = WeightLayout::kRowMajor; });
  with([](LayerShape& s) { s.y = Format::kF32; });
  with([](LayerShape& s) { s.all_on_one = true; });
  with([](LayerShape& s) {
    s.hidden = 192;
    s.intermediate = 80;
    s.tokens = 5;
  });
  // More tokens than are worked on at once.
  with([](LayerShape& s) {
    s.tokens = 520;
    s.hidden = 64;
    s.intermediate = 32;
    s.experts = 4;
    s.top_k = 1;
  });
  for (Format x : {Format::kBf16, Format::kF32}) {
    if (x == codes) continue;
    with([&](LayerShape& s) {
      s.x = x;
      s.y = x;
    });
  }
}

}  // namespace

void add_fused_moe_cases(CaseList& list) {
  for (Format f : {Format::kBf16, Format::kFp8Block, Format::kNvfp4})
    add_small_cases(list, f);
  add(list, {.tokens = 5, .weight = Format::kFp8BlockUe8m0, .x = Format::kFp8Group});
  for (WeightLayout layout : {WeightLayout::kRows16, WeightLayout::kRowMajor}) {
    for (Format x : {Format::kNvfp4, Format::kBf16}) {
      LayerShape s{.tokens = 6, .weight = Format::kNvfp4, .layout = layout, .x = x};
      s.scalars = x == Format::kNvfp4 || layout == WeightLayout::kRows16;
      add(list, s);
      s.biases = true;
      add(list, s);
      s.rows = true;
      s.local = 5;
      s.first = 2;
      add(list, s);
    }
  }

  constexpr int64_t kRing = 1 << 30;
  const LayerShape r1{.top_k = 8,
                      .experts = 256,
                      .hidden = 7168,
                      .intermediate = 2048,
                      .groups = 8,
                      .kept = 4,
                      .op = "r1",
                      .ring_bytes = kRing};
  for (Format f : {Format::kBf16, Format::kFp8Block, Format::kNvfp4}) {
    for (int64_t t : {1, 8}) {
      LayerShape s = r1;
      s.weight = f;
      s.tokens = t;
      s.x = codes_of(f);
      if (f == Format::kBf16 && t > 1) continue;
      add(list, s);
      if (f == Format::kBf16) continue;
      s.x = Format::kBf16;
      add(list, s);
    }
    LayerShape s{.tokens = 256,
                 .top_k = 6,
                 .experts = 64,
                 .hidden = 2048,
                 .intermediate = 1408,
                 .method = RoutingMethod::kSoftmaxTopk,
                 .weight = f,
                 .x = codes_of(f),
                 .op = "v2_lite"};
    add(list, s);
  }
  const ReferenceLimit limit{.most_tokens = 2048,
                             .why = "the published benchmark has fewer tokens"};
  for (const ReferencePoint& p : reference_points(list, "fused_moe_nvfp4", limit)) {
    LayerShape s = r1;
    s.weight = s.x = Format::kNvfp4;
    s.tokens = p.tokens();
    const double flops = 6.0 * 7168 * 2048 * 8 * static_cast<double>(s.tokens);
    add_reference_case(list, p, {.op = "fused_moe", .flops = flops},
                       [&](CaseList& one) { add(one, s); });
  }
}

}  // namespace fathom
