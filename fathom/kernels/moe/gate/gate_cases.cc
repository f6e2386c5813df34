#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "fathom/kernels/conformance/kernel_case.h"
#include "fathom/kernels/conformance/recorded_call.h"
#include "fathom/kernels/conformance/reference_shapes.h"
#include "fathom/kernels/moe/gate/gate.h"
#include "fathom/kernels/moe/gate/gate_expect.h"

namespace fathom {
namespace {

enum class Logits { kRandom, kEdges };

struct Shape {
  int64_t tokens;
  int64_t experts;
  int64_t chosen;
  int groups = 1;
  int kept = 1;
  Format format = Format::kF32;
  bool with_bias = true;
  Logits values = Logits::kRandom;
};

CaseSpec spec_of(const Shape& s, bool bench) {
  const bool chunk = s.tokens > 100'000;  // logits that no cache holds
  std::string name = str_cat(chunk ? "chunk_t" : "t", s.tokens, "_e", s.experts, "_k", s.chosen);
  if (s.groups > 1) str_append(name, str_cat("_g", s.groups, "of", s.kept));
  if (!s.with_bias) name += "_nobias";
  str_append(name, str_cat("_", format_name(s.format), bench ? "_real" : ""));
  if (s.values == Logits::kEdges) name += "_edges";
  return {.name = name,
          .op = "topk",
          .bench = bench,
          .phase = phase_of_case(bench, s.tokens),
          .columns = str_cat("M=", s.tokens, ";E=", s.experts, ";topk=", s.chosen)};
}

/// Logits where choosing is not plain: rows of nine kinds, whose neighbours are other ones the
/// second time. items: experts of a lane, where a GPU has a warp for a token.
constexpr int64_t kEdgeTokens = 19;

double edge_logit(int64_t t, int64_t e, int64_t items, double random) {
  constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
  constexpr double kInf = std::numeric_limits<double>::infinity();
  const double lower = -1.0 - static_cast<double>(e % 5);
  switch (t % 9) {
    case 0:
      return random;
    case 1:
      return 0.5;
    case 2:
      return e % 3 == 0 ? kNan : random;
    case 3:
      return e % 2 == 0 ? -kInf : random;
    case 4:  // three and 43 equal ones behind them
      return e % 85 == 7 ? 2.0 + static_cast<double>(e) / 512 : e % 6 == 1 ? 1.5 : lower;
    case 5:  // sixteen that are the best of sixteen lanes: three, and thirteen equal ones
      return e % items != 0 || e >= 16 * items ? lower : e % (5 * items) == items ? 2.0 : 1.5;
    case 6:  // the same, and one more
      return e % items != 0 || e > 16 * items ? lower : e % (5 * items) == items ? 2.0 : 1.5;
    case 7:  // the best are neighbours; scores of 1, of 0, and those just above
      return e / items == 5 ? kInf : e % 4 == 1 ? -kInf : e % 4 == 2 ? -88.0 : random;
    default:
      return kNan;
  }
}

/// The operands all routers share.
struct RouterOperands {
  Tensor logits, bias, weights, ids;

  template <class K>
  RouterOperands(CaseBuilder<K>& c,
                 const Shape& s,
                 bool bench,
                 bool has_bias,
                 Format bias_format = Format::kF32) {
    c.set_batch(s.tokens);
    // In a model, and so where it is timed, rows follow each other.
    const RowPlacement rows{.row_gap = bench ? 0 : 3, .rows_per_batch = 1};
    logits = c.input({s.tokens, s.experts}, s.format, {.scale = 2.0}, rows);
    if (s.values == Logits::kEdges) {
      logits.fill([&](int64_t i) {
        return edge_logit(i / s.experts, i % s.experts, s.experts / 32, logits[i]);
      });
    }
    if (has_bias) {
      bias = c.input({s.experts}, bias_format, {.scale = 0.1});
    }
    weights = c.output({s.tokens, s.chosen}, Format::kF32, rows);
    ids = c.output({s.tokens, s.chosen}, Format::kI32, rows);
  }

  double beta(int64_t e) const { return bias.present() ? bias[e] : 0.0; }

  std::vector<double> sigmoids(int64_t t) const { return oracle::sigmoids_of(logits.row(t)); }

  std::vector<double> biased(std::vector<double> score) const {
    for (size_t e = 0; e < score.size(); ++e)
      score[e] += beta(static_cast<int64_t>(e));
    return score;
  }

  template <class K>
  void expect(CaseBuilder<K>& c, const std::function<oracle::Rule(int64_t t)>& rule_of) const {
    expect_choice(c, weights, ids, rule_of);
  }
};

void add_softmax_case(
    CaseList& list, const CaseSpec& spec, const Shape& s, Renormalize renorm, float softcap) {
  add_case<TopkSoftmax>(list, spec, [=, bench = spec.bench](CaseBuilder<TopkSoftmax>& c) {
    const RouterOperands o(c, s, bench, s.with_bias);
    c.bind([=](const Binding& at) {
      return TopkSoftmax::Args{.logits = at(o.logits),
                               .bias = at(o.bias),
                               .weights = at(o.weights),
                               .ids = at(o.ids),
                               .renorm = renorm,
                               .scaling = 1.5f,
                               .softcap = softcap};
    });
    o.expect(c, [=](int64_t t) {
      std::vector<double> z = o.logits.row(t);
      for (double& v : z)
        v = softcap == 0 ? v : softcap * std::tanh(v / softcap);
      z = o.biased(z);
      return oracle::Rule{.choice = oracle::orderly(z),
                          .score = oracle::softmax(z),
                          .count = static_cast<int>(s.chosen),
                          .renormalize = renorm == Renormalize::kYes,
                          .scaling = 1.5};
    });
  });
}

void add_softmax(CaseList& list, const Shape& s, bool bench, Renormalize renorm, float softcap) {
  CaseSpec spec = spec_of(s, bench);
  if (renorm == Renormalize::kYes) spec.name += "_renorm";
  if (softcap != 0) spec.name += "_softcap";
  add_softmax_case(list, spec, s, renorm, softcap);
}

void add_sigmoid(CaseList& list, const Shape& s, bool bench, Renormalize renorm) {
  CaseSpec spec = spec_of(s, bench);
  if (renorm == Renormalize::kYes) spec.name += "_renorm";
  add_case<TopkSigmoid>(list, spec, [=](CaseBuilder<TopkSigmoid>& c) {
    const RouterOperands o(c, s, bench, s.with_bias);
    c.bind([=](const Binding& at) {
      return TopkSigmoid::Args{.logits = at(o.logits),
                               .bias = at(o.bias),
                               .weights = at(o.weights),
                               .ids = at(o.ids),
                               .renorm = renorm,
                               .scaling = 2.5f};
    });
    o.expect(c, [=](int64_t t) {
      const std::vector<double> score = o.sigmoids(t);
      return oracle::Rule{.choice = oracle::orderly(o.biased(score)),
                          .score = score,
                          .count = static_cast<int>(s.chosen),
                          .renormalize = renorm == Renormalize::kYes,
                          .scaling = 2.5};
    });
  });
}

void add_sqrtsoftplus_case(CaseList& list, const CaseSpec& spec, const Shape& s) {
  add_case<TopkSqrtsoftplus>(list, spec, [=](CaseBuilder<TopkSqrtsoftplus>& c) {
    const RouterOperands o(c, s, spec.bench, s.with_bias);
    c.bind([=](const Binding& at) {
      return TopkSqrtsoftplus::Args{.logits = at(o.logits),
                                    .bias = at(o.bias),
                                    .weights = at(o.weights),
                                    .ids = at(o.ids),
                                    .scaling = 1.5f};
    });
    o.expect(c, [=](int64_t t) {
      const std::vector<double> score = oracle::sqrt_softplus_of(o.logits.row(t));
      return oracle::Rule{.choice = oracle::orderly(o.biased(score)),
                          .score = score,
                          .count = static_cast<int>(s.chosen),
                          .renormalize = true,
                          .scaling = 1.5};
    });
  });
}

void add_sqrtsoftplus(CaseList& list, const Shape& s, bool bench) {
  add_sqrtsoftplus_case(list, spec_of(s, bench), s);
}

/// Experts of every token id, distinct and in no order.
int64_t hashed_expert(int64_t token, int64_t k, int64_t num_experts) {
  return (token * 7 + k * (token % 5 + 1)) % num_experts;
}

void add_hash_case(
    CaseList& list, const CaseSpec& spec, const Shape& s, int64_t vocabulary, Format table) {
  add_case<HashRoute>(list, spec, [=](CaseBuilder<HashRoute>& c) {
    const RouterOperands o(c, s, spec.bench, false);
    const Tensor token_ids = c.input({s.tokens}, Format::kI32, {}, {.rows_per_batch = 1});
    token_ids.fill([&](int64_t t) { return (t * 37 + vocabulary - 1) % vocabulary; });
    const Tensor tid2eid =
        c.input({vocabulary, s.chosen}, table, {}, {.row_gap = spec.bench ? 0 : 2});
    tid2eid.fill([&](int64_t i) { return hashed_expert(i / s.chosen, i % s.chosen, s.experts); });
    c.bind([=](const Binding& at) {
      return HashRoute::Args{.logits = at(o.logits),
                             .token_ids = at(token_ids),
                             .tid2eid = at(tid2eid),
                             .weights = at(o.weights),
                             .ids = at(o.ids),
                             .scaling = 2.5f};
    });
    const auto expert = [=](int64_t t, int64_t k) {
      return hashed_expert(static_cast<int64_t>(token_ids[t]), k, s.experts);
    };
    c.expect_rows(o.weights, gates::router_weights(), [=](int64_t t, std::span<double> out) {
      double sum = 0;
      for (size_t k = 0; k < out.size(); ++k) {
        out[k] = oracle::sqrt_softplus(o.logits.at(t, expert(t, static_cast<int64_t>(k))));
        sum += out[k];
      }
      for (double& w : out)
        w = w / sum * 2.5;
    });
    c.expect_rows(o.ids, gates::exact(), [=](int64_t t, std::span<double> out) {
      for (size_t k = 0; k < out.size(); ++k)
        out[k] = static_cast<double>(expert(t, static_cast<int64_t>(k)));
    });
  });
}

void add_hash(CaseList& list, const Shape& s, bool bench, int64_t vocabulary, Format table) {
  CaseSpec spec = spec_of(s, bench);
  str_append(spec.name, str_cat("_v", vocabulary, "_", format_name(table)));
  add_hash_case(list, spec, s, vocabulary, table);
}

/// The routers of DeepSeek-V4: scores of sqrt(softplus), chosen by them or by token id.
void add_v4_routers(CaseList& list) {
  const auto shape = [](int64_t t, int64_t e, int64_t k, Format f = Format::kF32,
                        bool with_bias = true) { return Shape{t, e, k, 1, 1, f, with_bias}; };
  const auto without_bias = [&](int64_t t, int64_t e, int64_t k, Format f = Format::kF32) {
    return shape(t, e, k, f, false);
  };
  for (int64_t t : {0, 1, 2, 3, 7}) {
    add_sqrtsoftplus(list, shape(t, 64, 6), false);
    add_hash(list, without_bias(t, 64, 6), false, 50, Format::kI32);
  }
  for (int64_t e : {1, 2, 3, 15, 16, 17, 31, 33, 127, 257}) {
    add_sqrtsoftplus(list, without_bias(5, e, std::min<int64_t>(e, 3)), false);
    add_hash(list, without_bias(5, e, std::min<int64_t>(e, 1)), false, 11, Format::kI64);
  }
  for (Format f : {Format::kBf16, Format::kF16}) {
    add_sqrtsoftplus(list, shape(3, 48, 6, f), false);
    add_hash(list, without_bias(3, 48, 6, f), false, 9, Format::kI64);
  }
  add_sqrtsoftplus(list, shape(4, 64, 64), false);
  add_sqrtsoftplus(list, shape(4, 2048, 8), false);
  // Equal scores, NaN and infinities.
  for (int64_t k : {1, 5, 6}) {
    for (bool with_bias : {false, true}) {
      add_sqrtsoftplus(
          list, Shape{kEdgeTokens, 256, k, 1, 1, Format::kF32, with_bias, Logits::kEdges}, false);
    }
  }
  add_hash(list, Shape{kEdgeTokens, 256, 6, 1, 1, Format::kF32, false, Logits::kEdges}, false, 30,
           Format::kI32);
  // Flash and Pro.
  for (int64_t t : {1, 8, 128, 4096}) {
    for (int64_t e : {256, 384}) {
      add_sqrtsoftplus(list, shape(t, e, 6), true);
      add_hash(list, without_bias(t, e, 6), true, 129280, Format::kI32);
    }
  }
}

/// Scores as their format holds them.
void round_all(Format format, std::vector<double>& values) {
  alignas(8) std::byte element[8];
  for (double& v : values) {
    store_element(format, element, 0, v);
    v = load_element(format, element, 0);
  }
}

void add_grouped_gate_case(CaseList& list,
                           const CaseSpec& spec,
                           const Shape& s,
                           int num_shared,
                           ScorePrecision precision) {
  const bool rounds = precision == ScorePrecision::kLogits;
  add_case<GroupedTopkGate>(list, spec, [=, bench = spec.bench](CaseBuilder<GroupedTopkGate>& c) {
    Shape with_shared = s;
    with_shared.chosen += num_shared;
    const RouterOperands o(c, with_shared, bench, s.with_bias, rounds ? s.format : Format::kF32);
    c.bind([=](const Binding& at) {
      return GroupedTopkGate::Args{.logits = at(o.logits),
                                   .bias = at(o.bias),
                                   .weights = at(o.weights),
                                   .ids = at(o.ids),
                                   .n_group = s.groups,
                                   .topk_group = s.kept,
                                   .scaling = 2.5f,
                                   .num_shared = num_shared,
                                   .shared_weight = 0.4f,
                                   .precision = precision};
    });
    o.expect(c, [=](int64_t t) {
      std::vector<double> score = o.sigmoids(t);
      if (rounds) round_all(s.format, score);
      std::vector<double> choice = o.biased(score);
      if (rounds) round_all(s.format, choice);
      return oracle::Rule{.choice = oracle::orderly(choice),
                          .score = score,
                          .count = static_cast<int>(s.chosen),
                          .groups = s.groups,
                          .kept = s.kept,
                          .top = 2,
                          .renormalize = true,
                          .epsilon = 1e-20,
                          .scaling = 2.5,
                          .shared = num_shared,
                          .shared_weight = double{0.4f},
                          // A score at the edge of a rounding may be a whole step off.
                          .rounding = rounds ? 0x1p-8 : 0x1p-21};
    });
  });
}

void add_grouped(CaseList& list,
                 const Shape& s,
                 bool bench,
                 int num_shared,
                 ScorePrecision precision = ScorePrecision::kF32) {
  CaseSpec spec = spec_of(s, bench);
  if (precision == ScorePrecision::kLogits) spec.name += "_rounded";
  if (num_shared > 0) str_append(spec.name, str_cat("_shared", num_shared));
  add_grouped_gate_case(list, spec, s, num_shared, precision);
}

void add_group_limited_case(CaseList& list,
                            const CaseSpec& spec,
                            const Shape& s,
                            Renormalize renorm) {
  add_case<GroupLimitedSoftmaxGate>(
      list, spec, [=, bench = spec.bench](CaseBuilder<GroupLimitedSoftmaxGate>& c) {
        const RouterOperands o(c, s, bench, false);
        c.bind([=](const Binding& at) {
          return GroupLimitedSoftmaxGate::Args{.logits = at(o.logits),
                                               .weights = at(o.weights),
                                               .ids = at(o.ids),
                                               .n_group = s.groups,
                                               .topk_group = s.kept,
                                               .scaling = 16.0f,
                                               .renorm = renorm};
        });
        o.expect(c, [=](int64_t t) {
          // Logits are in the order of their probabilities.
          return oracle::Rule{.choice = oracle::orderly(o.logits.row(t)),
                              .score = oracle::softmax(o.logits.row(t)),
                              .count = static_cast<int>(s.chosen),
                              .groups = s.groups,
                              .kept = s.kept,
                              .renormalize = renorm == Renormalize::kYes,
                              .epsilon = 1e-20,
                              .scaling = 16};
        });
      });
}

void add_group_limited(CaseList& list, const Shape& s, bool bench, Renormalize renorm) {
  CaseSpec spec = spec_of(s, bench);
  if (renorm == Renormalize::kYes) spec.name += "_renorm";
  add_group_limited_case(list, spec, s, renorm);
}

/// Of a router: groups are no operand.
Shape shape_of(const RecordedCall& call) {
  return {.tokens = call.dim("logits", 0),
          .experts = call.dim("logits", 1),
          .chosen = call.dim("ids", 1),
          .groups = call.context().router_groups,
          .kept = call.context().router_groups_kept,
          .format = call.format("logits"),
          .with_bias = call.has("bias")};
}

void serve_calls(CaseList& list) {
  list.serve_calls("topk_softmax",
                   [](CaseList& one, const RecordedCall& call, const CaseSpec& spec) {
                     add_softmax_case(one, spec, shape_of(call), Renormalize::kNo, 0);
                   });
  list.serve_calls("topk_sqrtsoftplus",
                   [](CaseList& one, const RecordedCall& call, const CaseSpec& spec) {
                     add_sqrtsoftplus_case(one, spec, shape_of(call));
                   });
  list.serve_calls("hash_route", [](CaseList& one, const RecordedCall& call, const CaseSpec& spec) {
    add_hash_case(one, spec, shape_of(call), call.dim("tid2eid", 0), call.format("tid2eid"));
  });
  list.serve_calls("grouped_topk_gate",
                   [](CaseList& one, const RecordedCall& call, const CaseSpec& spec) {
                     add_grouped_gate_case(one, spec, shape_of(call), 0, ScorePrecision::kF32);
                   });
  list.serve_calls("group_limited_softmax_gate",
                   [](CaseList& one, const RecordedCall& call, const CaseSpec& spec) {
                     add_group_limited_case(one, spec, shape_of(call), Renormalize::kNo);
                   });
}

}  // namespace

void add_gate_cases(CaseList& list) {
  for (int64_t t : {0, 1, 2, 3, 7}) {
    add_softmax(list, {t, 64, 6}, false, Renormalize::kNo, 0);
    add_sigmoid(list, {t, 64, 4}, false, Renormalize::kYes);
    add_grouped(list, {t, 256, 8, 8, 4}, false, 0);
    add_group_limited(list, {t, 160, 6, 8, 3}, false, Renormalize::kNo);
  }
  // Numbers of experts around the width of a vector, and primes.
  for (int64_t e : {1, 2, 3, 15, 16, 17, 31, 33, 127, 257}) {
    add_softmax(list, {5, e, std::min<int64_t>(e, 3)}, false, Renormalize::kYes, 0);
    add_sigmoid(list, {5, e, std::min<int64_t>(e, 3)}, false, Renormalize::kNo);
    add_grouped(list, {5, e, std::min<int64_t>(e, 3)}, false, 0);
    add_group_limited(list, {5, e, std::min<int64_t>(e, 3)}, false, Renormalize::kYes);
  }
  for (Format f : {Format::kBf16, Format::kF16}) {
    add_softmax(list, {3, 48, 6, 1, 1, f}, false, Renormalize::kNo, 0);
    add_sigmoid(list, {3, 48, 6, 1, 1, f}, false, Renormalize::kNo);
    add_grouped(list, {3, 48, 6, 4, 2, f}, false, 0);
    add_group_limited(list, {3, 48, 6, 4, 2, f}, false, Renormalize::kNo);
  }
  add_softmax(list, {4, 512, 8}, false, Renormalize::kNo, 30.0f);
  add_softmax(list, {4, 64, 64}, false, Renormalize::kNo, 0);
  add_softmax(list, {4, 2048, 8, 1, 1, Format::kF32, false}, false, Renormalize::kYes, 0);
  add_sigmoid(list, {4, 2048, 8, 1, 1, Format::kF32, false}, false, Renormalize::kYes);
  for (Format f : {Format::kF32, Format::kBf16, Format::kF16}) {
    add_grouped(list, {7, 128, 4, 4, 2, f}, false, 0, ScorePrecision::kLogits);
    add_grouped(list, {7, 256, 8, 8, 4, f}, false, 1, ScorePrecision::kLogits);
    add_grouped(list, {7, 512, 8, 16, 8, f}, false, 2, ScorePrecision::kLogits);
  }
  add_grouped(list, {4, 128, 4, 4, 2}, false, 1);
  add_grouped(list, {4, 512, 8, 16, 8}, false, 2);
  add_grouped(list, {4, 256, 8, 8, 4, Format::kF32, false}, false, 0);
  add_grouped(list, {4, 24, 8, 24, 8}, false, 0);  // groups of one expert
  add_grouped(list, {4, 32, 8, 4, 1}, false, 0);   // as many as the group holds

  // Equal scores, NaN and infinities: more of the best than a GPU ranks at once, and just as many.
  const auto edges = [](int64_t chosen, Format format, bool with_bias, int groups = 1,
                        int kept = 1) {
    return Shape{kEdgeTokens, 256, chosen, groups, kept, format, with_bias, Logits::kEdges};
  };
  for (int64_t k : {1, 5, 8}) {
    add_softmax(list, edges(k, Format::kF32, false), false, Renormalize::kNo, 0);
    add_sigmoid(list, edges(k, Format::kF32, false), false, Renormalize::kYes);
    add_grouped(list, edges(k, Format::kF32, false, 8, 4), false, 0);
    add_group_limited(list, edges(k, Format::kF32, false, 8, 3), false, Renormalize::kNo);
  }
  // Groups that lie near each other, more and fewer than a GPU takes by lanes, with a bias.
  for (int kept : {1, 2, 4, 5})
    add_grouped(list, edges(8, Format::kF32, true, 8, kept), false, 0);
  add_group_limited(list, edges(6, Format::kF32, false, 8, 5), false, Renormalize::kNo);
  add_grouped(list, edges(8, Format::kBf16, true, 8, 4), false, 1, ScorePrecision::kLogits);
  add_softmax(list, edges(8, Format::kF32, true), false, Renormalize::kNo, 30.0f);
  add_sigmoid(list, edges(8, Format::kF32, true), false, Renormalize::kYes);
  for (Format f : {Format::kBf16, Format::kF16}) {
    add_softmax(list, edges(8, f, true), false, Renormalize::kYes, 0);
    add_sigmoid(list, edges(8, f, true), false, Renormalize::kNo);
    add_grouped(list, edges(8, f, true), false, 0);
    add_grouped(list, edges(8, f, false, 8, 4), false, 1, ScorePrecision::kLogits);
    add_group_limited(list, edges(8, f, false, 8, 3), false, Renormalize::kYes);
  }
  const auto edges_of_160 = [&](int64_t chosen, Format format, bool with_bias, int groups = 1,
                                int kept = 1) {
    Shape s = edges(chosen, format, with_bias, groups, kept);
    s.experts = 160;
    return s;
  };
  for (int64_t k : {1, 5, 6, 8})
    add_group_limited(list, edges_of_160(k, Format::kF32, false, 8, 3), false, Renormalize::kNo);
  for (int kept : {1, 2, 4, 5})
    add_group_limited(list, edges_of_160(6, Format::kF32, false, 8, kept), false,
                      Renormalize::kYes);
  for (Format f : {Format::kBf16, Format::kF16}) {
    add_group_limited(list, edges_of_160(6, f, false, 8, 3), false, Renormalize::kNo);
    add_softmax(list, edges_of_160(6, f, true), false, Renormalize::kYes, 0);
  }
  add_softmax(list, edges_of_160(6, Format::kF32, false), false, Renormalize::kNo, 0);
  add_softmax(list, edges_of_160(8, Format::kF32, true), false, Renormalize::kNo, 30.0f);

  for (int64_t t : {1, 8, 32, 128, 1024, 4096, 262144}) {
    add_softmax(list, {t, 256, 8, 1, 1, Format::kF32, false}, true, Renormalize::kNo, 0);
    add_sigmoid(list, {t, 256, 8}, true, Renormalize::kYes);
    add_grouped(list, {t, 256, 8, 8, 4}, true, 0);
    add_group_limited(list, {t, 160, 6, 8, 3}, true, Renormalize::kNo);
  }
  for (const ReferencePoint& p : reference_points()) {
    const auto reference = [&](const std::function<void(CaseList&)>& add) {
      add_reference_case(list, p, {.op = "topk"}, add);
    };
    const int64_t t = p.tokens();
    reference([&](CaseList& one) {
      add_softmax(one, {t, 256, 8, 1, 1, Format::kF32, false}, true, Renormalize::kNo, 0);
    });
    reference([&](CaseList& one) { add_sigmoid(one, {t, 256, 8}, true, Renormalize::kYes); });
    reference([&](CaseList& one) { add_grouped(one, {t, 256, 8, 8, 4}, true, 0); });
  }
  add_v4_routers(list);
  serve_calls(list);
}

}  // namespace fathom
