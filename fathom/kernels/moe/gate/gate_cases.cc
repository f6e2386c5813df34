#include <algorithm>
#include <cmath>
#include <vector>

#include "fathom/kernels/conformance/kernel_case.h"
#include "fathom/kernels/moe/gate/gate.h"

namespace fathom {
namespace oracle {

struct Choice {
  std::vector<int> ids;
  std::vector<double> weights;
};

/// The `count` largest of `score` in decreasing order, the lower index first among equals.
std::vector<int> best(const std::vector<double>& score, int count) {
  std::vector<int> order(score.size());
  for (size_t i = 0; i < order.size(); ++i)
    order[i] = static_cast<int>(i);
  std::stable_sort(order.begin(), order.end(), [&](int a, int b) {
    return score[static_cast<size_t>(a)] > score[static_cast<size_t>(b)];
  });
  order.resize(static_cast<size_t>(count));
  return order;
}

std::vector<double> softmax(const std::vector<double>& z) {
  const double max = *std::max_element(z.begin(), z.end());
  double sum = 0;
  std::vector<double> p;
  for (double v : z) {
    p.push_back(std::exp(v - max));
    sum += p.back();
  }
  for (double& v : p)
    v /= sum;
  return p;
}

Choice choose(const std::vector<double>& choice,
              const std::vector<double>& score,
              int count,
              bool renormalize,
              double epsilon,
              double scaling) {
  Choice out{.ids = best(choice, count), .weights = {}};
  double sum = 0;
  for (int e : out.ids) {
    out.weights.push_back(score[static_cast<size_t>(e)]);
    sum += out.weights.back();
  }
  for (double& w : out.weights)
    w = w / (renormalize ? sum + epsilon : 1.0) * scaling;
  return out;
}

/// `choice` with -inf outside of the `keep` best groups; the score of a group is the sum of its
/// `top` largest.
std::vector<double> limited(std::vector<double> choice, int groups, int keep, size_t top) {
  const size_t size = choice.size() / static_cast<size_t>(groups);
  std::vector<double> group_score;
  for (size_t g = 0; g < static_cast<size_t>(groups); ++g) {
    std::vector<double> group(choice.begin() + static_cast<int64_t>(g * size),
                              choice.begin() + static_cast<int64_t>((g + 1) * size));
    std::sort(group.rbegin(), group.rend());
    double sum = 0;
    for (size_t i = 0; i < std::min(top, size); ++i)
      sum += group[i];
    group_score.push_back(sum);
  }
  const std::vector<int> kept = best(group_score, keep);
  for (size_t e = 0; e < choice.size(); ++e) {
    const bool in = std::count(kept.begin(), kept.end(), static_cast<int>(e / size)) > 0;
    if (!in) choice[e] = -HUGE_VAL;
  }
  return choice;
}

}  // namespace oracle

namespace {

struct Shape {
  int64_t tokens;
  int64_t experts;
  int64_t chosen;
  int groups = 1;
  int kept = 1;
  Format format = Format::kF32;
  bool with_bias = true;
};

CaseSpec spec_of(const Shape& s, bool bench) {
  std::string name = str_cat("t", s.tokens, "_e", s.experts, "_k", s.chosen);
  if (s.groups > 1) str_append(name, str_cat("_g", s.groups, "of", s.kept));
  if (!s.with_bias) name += "_nobias";
  str_append(name, str_cat("_", format_name(s.format), bench ? "_real" : ""));
  const bool prefill = s.tokens > 128;
  return {.name = name,
          .op = "topk",
          .bench = bench,
          .phase = bench ? (prefill ? "prefill" : "decode") : "",
          .columns = str_cat("M=", s.tokens, ";E=", s.experts, ";topk=", s.chosen)};
}

/// The operands all routers share. Random logits do not tie: the float32 choice is the float64 one.
struct RouterOperands {
  Tensor logits, bias, weights, ids;

  template <class K>
  RouterOperands(CaseBuilder<K>& c, const Shape& s, bool has_bias) {
    c.set_batch(s.tokens);
    const Placement rows{.row_gap = 3, .rows_per_batch = 1};
    logits = c.input({s.tokens, s.experts}, s.format, {.scale = 2.0}, rows);
    if (has_bias) {
      bias = c.input({s.experts}, Format::kF32, {.scale = 0.1});
    }
    weights = c.output({s.tokens, s.chosen}, Format::kF32, rows);
    ids = c.output({s.tokens, s.chosen}, Format::kI32, rows);
  }

  double beta(int64_t e) const { return bias.present() ? bias[e] : 0.0; }

  std::vector<double> sigmoids(int64_t t) const {
    std::vector<double> s = logits.row(t);
    for (double& v : s)
      v = 1.0 / (1.0 + std::exp(-v));
    return s;
  }

  std::vector<double> biased(std::vector<double> score) const {
    for (size_t e = 0; e < score.size(); ++e)
      score[e] += beta(static_cast<int64_t>(e));
    return score;
  }

  template <class K>
  void expect(CaseBuilder<K>& c, const std::function<oracle::Choice(int64_t t)>& choose) const {
    c.expect_rows(weights, gates::router_weights(), [=](int64_t t, std::span<double> out) {
      const oracle::Choice choice = choose(t);
      std::copy(choice.weights.begin(), choice.weights.end(), out.begin());
    });
    c.expect_rows(ids, gates::exact(), [=](int64_t t, std::span<double> out) {
      const oracle::Choice choice = choose(t);
      std::copy(choice.ids.begin(), choice.ids.end(), out.begin());
    });
  }
};

void add_softmax(CaseList& list, const Shape& s, bool bench, Renormalize renorm, float softcap) {
  CaseSpec spec = spec_of(s, bench);
  if (renorm == Renormalize::kYes) spec.name += "_renorm";
  if (softcap != 0) spec.name += "_softcap";
  add_case<TopkSoftmax>(list, spec, [=](CaseBuilder<TopkSoftmax>& c) {
    const RouterOperands o(c, s, s.with_bias);
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
      return oracle::choose(z, oracle::softmax(z), static_cast<int>(s.chosen),
                            renorm == Renormalize::kYes, 0, 1.5);
    });
  });
}

void add_sigmoid(CaseList& list, const Shape& s, bool bench, Renormalize renorm) {
  CaseSpec spec = spec_of(s, bench);
  if (renorm == Renormalize::kYes) spec.name += "_renorm";
  add_case<TopkSigmoid>(list, spec, [=](CaseBuilder<TopkSigmoid>& c) {
    const RouterOperands o(c, s, s.with_bias);
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
      return oracle::choose(o.biased(score), score, static_cast<int>(s.chosen),
                            renorm == Renormalize::kYes, 0, 2.5);
    });
  });
}

void add_grouped(CaseList& list, const Shape& s, bool bench, int num_shared) {
  CaseSpec spec = spec_of(s, bench);
  if (num_shared > 0) str_append(spec.name, str_cat("_shared", num_shared));
  add_case<GroupedTopkGate>(list, spec, [=](CaseBuilder<GroupedTopkGate>& c) {
    Shape with_shared = s;
    with_shared.chosen += num_shared;
    const RouterOperands o(c, with_shared, s.with_bias);
    c.bind([=](const Binding& at) {
      return GroupedTopkGate::Args{.logits = at(o.logits),
                                   .bias = at(o.bias),
                                   .weights = at(o.weights),
                                   .ids = at(o.ids),
                                   .n_group = s.groups,
                                   .topk_group = s.kept,
                                   .scaling = 2.5f,
                                   .num_shared = num_shared,
                                   .shared_weight = 0.4f};
    });
    o.expect(c, [=](int64_t t) {
      const std::vector<double> score = o.sigmoids(t);
      oracle::Choice choice = oracle::choose(oracle::limited(o.biased(score), s.groups, s.kept, 2),
                                             score, static_cast<int>(s.chosen), true, 1e-20, 2.5);
      for (int i = 0; i < num_shared; ++i) {
        choice.ids.push_back(static_cast<int>(s.experts) + i);
        choice.weights.push_back(0.4);
      }
      return choice;
    });
  });
}

void add_group_limited(CaseList& list, const Shape& s, bool bench, Renormalize renorm) {
  CaseSpec spec = spec_of(s, bench);
  if (renorm == Renormalize::kYes) spec.name += "_renorm";
  add_case<GroupLimitedSoftmaxGate>(list, spec, [=](CaseBuilder<GroupLimitedSoftmaxGate>& c) {
    const RouterOperands o(c, s, false);
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
      const std::vector<double> p = oracle::softmax(o.logits.row(t));
      return oracle::choose(oracle::limited(p, s.groups, s.kept, 1), p, static_cast<int>(s.chosen),
                            renorm == Renormalize::kYes, 1e-20, 16);
    });
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
  add_grouped(list, {4, 128, 4, 4, 2}, false, 1);
  add_grouped(list, {4, 512, 8, 16, 8}, false, 2);
  add_grouped(list, {4, 256, 8, 8, 4, Format::kF32, false}, false, 0);
  add_grouped(list, {4, 24, 8, 24, 8}, false, 0);  // groups of one expert
  add_grouped(list, {4, 32, 8, 4, 1}, false, 0);   // as many as the group holds

  for (int64_t t : {1, 8, 32, 128, 1024, 4096}) {
    add_softmax(list, {t, 256, 8, 1, 1, Format::kF32, false}, true, Renormalize::kNo, 0);
    add_sigmoid(list, {t, 256, 8}, true, Renormalize::kYes);
    add_grouped(list, {t, 256, 8, 8, 4}, true, 0);
    add_group_limited(list, {t, 160, 6, 8, 3}, true, Renormalize::kNo);
  }
}

}  // namespace fathom
