#include <cmath>
#include <limits>
#include <map>
#include <memory>
#include <numeric>
#include <utility>
#include <vector>

#include "fathom/kernels/conformance/kernel_case.h"
#include "fathom/kernels/conformance/recorded_call.h"
#include "fathom/kernels/moe/gate/gate_expect.h"
#include "fathom/kernels/moe/route/route_oracle.h"
#include "fathom/kernels/moe/router/router.h"

namespace fathom {
namespace {

struct Shape {
  RouterRule rule;
  int64_t tokens;
  int64_t width;
  int64_t experts;
  int64_t chosen;
  int groups = 1;
  int kept = 1;
  bool hashed = false;
  bool sorted = true;
  bool with_nan = false;
  Format format = Format::kBf16;
  Format gate = Format::kBf16;
};

constexpr int64_t kVocabulary = 129;
constexpr float kScaling = 2.5f;

CaseSpec spec_of(const Shape& s) {
  static constexpr std::string_view kRules[] = {"softmax", "group_limited", "sigmoid",
                                                "sqrtsoftplus"};
  return {.name = str_cat(s.hashed ? "hash" : kRules[static_cast<int>(s.rule)], "_t", s.tokens,
                          "_h", s.width, "_e", s.experts, "_k", s.chosen,
                          s.groups > 1 ? str_cat("_g", s.groups, "of", s.kept) : "", "_",
                          format_name(s.format), "_", format_name(s.gate),
                          s.sorted ? "_sorted" : "", s.with_nan ? "_nan" : ""),
          .op = "gate_topk"};
}

std::vector<double> logits_of(const std::vector<double>& x, const Tensor& gate) {
  std::vector<double> logits;
  for (int64_t e = 0; e < gate.dim(0); ++e) {
    const std::vector<double> w = gate.row(e);
    logits.push_back(std::inner_product(w.begin(), w.end(), x.begin(), 0.0));
  }
  return logits;
}

/// What a token chooses by its exact logits.
oracle::Rule rule_for(const Shape& s, std::vector<double> logits, const Tensor& bias) {
  oracle::Rule rule;
  rule.count = static_cast<int>(s.chosen);
  rule.groups = s.groups;
  rule.kept = s.kept;
  rule.renormalize = s.rule != RouterRule::kSoftmax;
  rule.scaling = kScaling;
  rule.rounding = 0x1p-15;  // of logits that are sums of products
  const bool softmax = s.rule == RouterRule::kSoftmax || s.rule == RouterRule::kGroupLimitedSoftmax;
  if (softmax) {
    rule.score = oracle::softmax(logits);
    rule.choice = oracle::orderly(std::move(logits));
    return rule;
  }
  const bool sigmoid = s.rule == RouterRule::kGroupedSigmoid;
  if (sigmoid) rule.top = 2;
  rule.score = sigmoid ? oracle::sigmoids_of(std::move(logits))
                       : oracle::sqrt_softplus_of(std::move(logits));
  rule.choice = rule.score;
  for (size_t e = 0; bias.present() && e < rule.choice.size(); ++e)
    rule.choice[e] += bias[static_cast<int64_t>(e)];
  rule.choice = oracle::orderly(std::move(rule.choice));
  return rule;
}

/// dest and src_row of the ids found, which are held to the exact ones elsewhere.
void expect_order(CaseBuilder<Router>& c,
                  const Shape& s,
                  const Tensor& ids,
                  const Tensor& offsets,
                  const Tensor& src_row,
                  const Tensor& dest) {
  const int experts = static_cast<int>(s.experts);
  const auto later = [](int64_t, std::span<double> out) { std::ranges::fill(out, 0.0); };
  c.expect_rows(offsets, gates::exact(), later, [=](int64_t, std::span<double> out) {
    const std::vector<double> counts = counts_of_experts(ids, experts);
    for (size_t e = 0; e < counts.size(); ++e)
      out[e + 1] = out[e] + counts[e];
  });
  c.expect_rows(src_row, gates::exact(), later, [=](int64_t, std::span<double> out) {
    const std::vector<int64_t> slots = sorted_slots(ids, experts);
    for (size_t i = 0; i < slots.size(); ++i)
      out[i] = static_cast<double>(slots[i] / s.chosen);
  });
  c.expect_rows(dest, gates::exact(), later, [=](int64_t t, std::span<double> out) {
    const std::vector<int64_t> slots = sorted_slots(ids, experts);
    for (size_t i = 0; i < slots.size(); ++i)
      if (slots[i] / s.chosen == t)
        out[static_cast<size_t>(slots[i] % s.chosen)] = static_cast<double>(i);
  });
}

void add(CaseList& list, const Shape& s, const CaseSpec& spec) {
  add_case<Router>(list, spec, [=](CaseBuilder<Router>& c) {
    if (!s.sorted) c.set_batch(s.tokens);  // the order of slots depends on all tokens
    const int64_t gap = spec.bench ? 0 : 8;
    const RowPlacement rows{.row_gap = gap, .rows_per_batch = s.sorted ? 0 : 1};
    const Tensor x = c.input({s.tokens, s.width}, s.format, {}, rows);
    if (s.with_nan) x.set((s.tokens - 1) * s.width, std::numeric_limits<double>::quiet_NaN());
    // Logits of size 2.
    const double size = 2.0 / std::sqrt(static_cast<double>(s.width));
    const Tensor gate = c.input({s.experts, s.width}, s.gate, {.scale = size});
    const bool biased =
        !s.hashed && (s.rule == RouterRule::kGroupedSigmoid || s.rule == RouterRule::kSqrtSoftplus);
    Tensor bias, token_ids, tid2eid, offsets, src_row, dest;
    if (biased) bias = c.input({s.experts}, Format::kF32, {.scale = 0.1});
    if (s.hashed) {
      token_ids = c.input({s.tokens}, Format::kI32, {}, {.rows_per_batch = rows.rows_per_batch});
      token_ids.fill([](int64_t t) { return (t * 37 + kVocabulary - 1) % kVocabulary; });
      tid2eid = c.input({kVocabulary, s.chosen}, Format::kI32, {}, {.row_gap = gap});
      tid2eid.fill([&](int64_t i) {
        return (i / s.chosen * 7 + i % s.chosen * (i / s.chosen % 5 + 1)) % s.experts;
      });
    }
    const Tensor arrivals = c.inout({1}, Format::kI32);
    arrivals.fill([](int64_t) { return 0; });
    const Tensor weights = c.output({s.tokens, s.chosen}, Format::kF32, rows);
    const Tensor ids = c.output({s.tokens, s.chosen}, Format::kI32, rows);
    if (s.sorted) {
      offsets = c.output({s.experts + 1}, Format::kI32);
      src_row = c.output({s.tokens * s.chosen}, Format::kI32);
      dest = c.output({s.tokens, s.chosen}, Format::kI32, {.row_gap = gap});
    }
    c.bind([=](const Binding& at) {
      return Router::Args{
          .x = at(x),
          .gate = QuantView::dense(at(gate)),
          .bias = at(bias),
          .token_ids = at(token_ids),
          .tid2eid = at(tid2eid),
          .arrivals = at(arrivals),
          .weights = at(weights),
          .ids = at(ids),
          .offsets = at(offsets),
          .src_row = at(src_row),
          .dest = at(dest),
          .rule = s.rule,
          .n_group = s.groups,
          .topk_group = s.kept,
          .renorm = s.rule == RouterRule::kSoftmax ? Renormalize::kNo : Renormalize::kYes,
          .scaling = kScaling};
    });
    c.expect_all(arrivals, gates::exact(), [](std::span<double> out) { out[0] = 0; });
    if (s.sorted) expect_order(c, s, ids, offsets, src_row, dest);
    // Of a model a rule takes millions of products, and each is asked for more than once.
    const auto known = std::make_shared<std::map<int64_t, oracle::Rule>>();
    expect_choice(c, weights, ids, [=](int64_t t) {
      const auto at = known->find(t);
      if (at != known->end()) return at->second;
      oracle::Rule rule = rule_for(s, logits_of(x.row(t), gate), bias);
      for (int64_t k = 0; s.hashed && k < s.chosen; ++k) {
        if (k == 0) rule.choice.assign(rule.choice.size(), -1.0);
        const double id = tid2eid.at(static_cast<int64_t>(token_ids[t]), k);
        rule.choice[static_cast<size_t>(id)] = static_cast<double>(s.chosen - k);
      }
      return known->emplace(t, rule).first->second;
    });
  });
}

Shape shape_of(const RecordedCall& call) {
  const bool hashed = call.has("tid2eid");
  const int groups = call.context().router_groups;
  return {.rule = hashed             ? RouterRule::kSqrtSoftplus
                  : groups > 1       ? RouterRule::kGroupedSigmoid
                  : call.has("bias") ? RouterRule::kSqrtSoftplus
                                     : RouterRule::kSoftmax,
          .tokens = call.dim("x", 0),
          .width = call.dim("x", 1),
          .experts = call.dim("gate", 0),
          .chosen = call.dim("ids", 1),
          .groups = groups,
          .kept = call.context().router_groups_kept,
          .hashed = hashed,
          .sorted = call.has("offsets"),
          .format = call.format("x"),
          .gate = call.format("gate")};
}

}  // namespace

void add_router_cases(CaseList& list) {
  using enum RouterRule;
  const Shape r1{kGroupedSigmoid, 1, 7168, 256, 8, 8, 4};
  const Shape flash{kSqrtSoftplus, 1, 4096, 256, 6};
  const Shape pro{kSqrtSoftplus, 1, 7168, 384, 6};
  const Shape v2{kGroupLimitedSoftmax, 1, 5120, 160, 6, 8, 3};
  const Shape lite{kSoftmax, 1, 2048, 64, 6};
  const auto check = [&](Shape s) { add(list, s, spec_of(s)); };
  for (const Shape& model : {r1, flash, pro, v2, lite}) {
    for (const int64_t tokens : {0, 1, 3, 9, 16}) {
      Shape s = model;
      s.tokens = tokens;
      check(s);
      s.sorted = false;
      check(s);
      s.hashed = true;
      if (s.rule == kSqrtSoftplus) check(s);
    }
  }
  // Layouts and formats of no model, whose parts a GPU runs one by one.
  for (const Format format : {Format::kBf16, Format::kF32}) {
    for (const Format gate : {Format::kBf16, Format::kF32}) {
      for (const bool sorted : {true, false}) {
        check({kSoftmax, 5, 96, 33, 3, 1, 1, false, sorted, false, format, gate});
        check({kGroupedSigmoid, 2, 1024, 64, 4, 8, 2, false, sorted, false, format, gate});
        check({kSqrtSoftplus, 7, 31, 12, 2, 1, 1, true, sorted, false, format, gate});
      }
    }
  }
  for (Shape s : {r1, flash, lite}) {
    s.tokens = 2;
    s.with_nan = true;
    check(s);
  }
  check({kSqrtSoftplus, 16, 1024, 512, 32});
  for (const int64_t t : {1, 4, 16}) {
    for (const auto& [model, shape] :
         {std::pair("r1", r1), std::pair("v4_flash", flash), std::pair("v4_pro", pro)}) {
      Shape s = shape;
      s.tokens = t;
      add(list, s, timed_spec(model, "gate_topk", t));
    }
  }
  list.serve_calls("router", [](CaseList& one, const RecordedCall& call, const CaseSpec& spec) {
    add(one, shape_of(call), spec);
  });
}

}  // namespace fathom
