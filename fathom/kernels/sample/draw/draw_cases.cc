#include <algorithm>
#include <cmath>
#include <functional>
#include <vector>

#include "fathom/kernels/conformance/kernel_case.h"
#include "fathom/kernels/sample/draw/draw.h"

namespace fathom {
namespace oracle {

/// The first kept token at which the running mass exceeds u times the mass of all kept.
double draw_from(const std::vector<double>& p, const std::vector<bool>& kept, double u) {
  double mass = 0;
  for (size_t v = 0; v < p.size(); ++v)
    mass += kept[v] ? p[v] : 0;
  double running = 0;
  for (size_t v = 0; v < p.size(); ++v) {
    running += kept[v] ? p[v] : 0;
    if (kept[v] && running > u * mass) return static_cast<double>(v);
  }
  return 0;
}

/// Mass and number of what is strictly more probable than token v, by the value of v.
struct Above {
  std::vector<double> sorted, mass;  // descending; mass[i] of the first i

  explicit Above(const std::vector<double>& p) : sorted(p) {
    std::sort(sorted.begin(), sorted.end(), std::greater<>());
    mass.push_back(0);
    for (double v : sorted)
      mass.push_back(mass.back() + v);
  }

  int64_t count_above(double value) const {
    return std::lower_bound(sorted.begin(), sorted.end(), value, std::greater<>()) - sorted.begin();
  }

  double mass_above(double value) const { return mass[static_cast<size_t>(count_above(value))]; }
};

}  // namespace oracle

namespace {

enum class Rows { kOwn, kIndexed };

/// The operands that all samplers share. Probabilities are multiples of 2^-30, so float64 sums of
/// them are exact in any order.
struct SamplerOperands {
  Tensor probs, uniform, indices, ids;

  template <class K>
  SamplerOperands(CaseBuilder<K>& c, int64_t tokens, int64_t V, Rows rows) {
    const bool own = rows == Rows::kOwn;
    if (own) c.set_batch(tokens);
    const int64_t batch = own ? 1 : 0;
    probs = c.input({tokens, V}, Format::kF32, {.dist = Dist::kUniform},
                    {.row_gap = 3, .rows_per_batch = batch});
    probs.fill([&](int64_t i) { return std::floor(std::pow(probs[i], 9) * 0x1p20) * 0x1p-30; });
    for (int64_t t = 0; t < tokens; ++t)
      probs.set(t * V + V / 2, 0x1p-8);
    uniform = c.input({tokens}, Format::kF32, {.dist = Dist::kUniform},
                      {.row_gap = 0, .rows_per_batch = batch});
    if (tokens > 1) uniform.set(0, 0.0);
    if (tokens > 2) uniform.set(1, 1.0 - 0x1p-24);
    if (!own) {
      indices = c.input({tokens}, Format::kI32);
      indices.fill([&](int64_t b) { return (b * 3 + 1) % tokens; });
    }
    ids = c.output({tokens}, Format::kI32, {.row_gap = 0, .rows_per_batch = batch});
  }

  std::vector<double> row(int64_t b) const {
    return probs.row(indices.present() ? static_cast<int64_t>(indices[b]) : b);
  }
};

CaseSpec spec_of(int64_t tokens, int64_t V, std::string_view suffix, bool bench) {
  return {.name = str_cat("t", tokens, "_v", V, suffix),
          .op = "sampler",
          .bench = bench,
          .phase = bench ? "decode" : "",
          .columns = str_cat("M=", tokens, ";N=", V)};
}

void add_min_p(CaseList& list, int64_t tokens, int64_t V, Rows rows, bool bench = false) {
  add_case<SampleMinP>(list, spec_of(tokens, V, rows == Rows::kOwn ? "" : "_indexed", bench),
                       [=](CaseBuilder<SampleMinP>& c) {
                         const SamplerOperands o(c, tokens, V, rows);
                         const Tensor min_p =
                             c.input({tokens}, Format::kF32, {},
                                     {.row_gap = 0, .rows_per_batch = rows == Rows::kOwn ? 1 : 0});
                         const double choices[] = {0.05, 0, 1, 0.2, 0.7};
                         min_p.fill([&](int64_t b) { return choices[b % 5]; });
                         c.bind([=](const Binding& at) {
                           return SampleMinP::Args{.probs = at(o.probs),
                                                   .min_p = at(min_p),
                                                   .uniform = at(o.uniform),
                                                   .indices = at(o.indices),
                                                   .ids = at(o.ids)};
                         });
                         c.expect_all(o.ids, gates::exact(), [=](std::span<double> out) {
                           for (int64_t b = 0; b < tokens; ++b) {
                             const std::vector<double> p = o.row(b);
                             const double least = min_p[b] * *std::max_element(p.begin(), p.end());
                             std::vector<bool> kept;
                             for (double v : p)
                               kept.push_back(v >= least);
                             out[static_cast<size_t>(b)] = oracle::draw_from(p, kept, o.uniform[b]);
                           }
                         });
                       });
}

void add_top_k_top_p(
    CaseList& list, int64_t tokens, int64_t V, Rows rows, FilterOrder order, bool bench = false) {
  const std::string suffix =
      str_cat(order == FilterOrder::kJoint ? "_joint" : "", rows == Rows::kOwn ? "" : "_indexed");
  add_case<SampleTopKTopP>(
      list, spec_of(tokens, V, suffix, bench), [=](CaseBuilder<SampleTopKTopP>& c) {
        const SamplerOperands o(c, tokens, V, rows);
        const Placement parameter{.row_gap = 0, .rows_per_batch = rows == Rows::kOwn ? 1 : 0};
        const Tensor k = c.input({tokens}, Format::kI32, {}, parameter);
        const Tensor top_p = c.input({tokens}, Format::kF32, {}, parameter);
        const int64_t ks[] = {50, 1, 3, 1 << 30, 17};
        k.fill([&](int64_t b) { return ks[b % 5]; });
        // Joint masses are those of the row itself, which does not sum to 1.
        top_p.fill([&](int64_t b) {
          double mass = 0;
          for (double v : o.row(b))
            mass += v;
          const double part = b % 3 == 2 ? 0.4 : 0.95;
          return b % 7 == 3 ? 1.0 : (order == FilterOrder::kJoint ? part * mass : part);
        });
        c.bind([=](const Binding& at) {
          return SampleTopKTopP::Args{.probs = at(o.probs),
                                      .k = at(k),
                                      .top_p = at(top_p),
                                      .uniform = at(o.uniform),
                                      .indices = at(o.indices),
                                      .ids = at(o.ids),
                                      .order = order};
        });
        c.expect_all(o.ids, gates::exact(), [=](std::span<double> out) {
          for (int64_t b = 0; b < tokens; ++b) {
            std::vector<double> p = o.row(b);
            const oracle::Above above(p);
            std::vector<bool> in_k;
            for (double v : p)
              in_k.push_back(static_cast<double>(above.count_above(v)) < k[b]);
            double total = 1;
            if (order == FilterOrder::kTopKFirst) {  // masses relative to what top-k left
              total = 0;
              for (size_t v = 0; v < p.size(); ++v)
                total += in_k[v] ? p[v] : 0;
            }
            std::vector<bool> kept;
            for (size_t v = 0; v < p.size(); ++v) {
              const bool in_p = top_p[b] >= 1 || above.mass_above(p[v]) < top_p[b] * total;
              kept.push_back(in_k[v] && in_p);
            }
            out[static_cast<size_t>(b)] = oracle::draw_from(p, kept, o.uniform[b]);
          }
        });
      });
}

}  // namespace

void add_draw_cases(CaseList& list) {
  for (int64_t t : {0, 1, 2, 3, 37}) {
    add_min_p(list, t, 997, Rows::kOwn);
    add_top_k_top_p(list, t, 997, Rows::kOwn, FilterOrder::kTopKFirst);
    add_top_k_top_p(list, t, 997, Rows::kOwn, FilterOrder::kJoint);
  }
  for (int64_t v : {1, 2, 3, 17, 111}) {
    add_min_p(list, 25, v, Rows::kOwn);
    add_top_k_top_p(list, 25, v, Rows::kOwn, FilterOrder::kTopKFirst);
    add_top_k_top_p(list, 25, v, Rows::kOwn, FilterOrder::kJoint);
  }
  add_min_p(list, 10, 501, Rows::kIndexed);
  add_top_k_top_p(list, 10, 501, Rows::kIndexed, FilterOrder::kTopKFirst);
  add_top_k_top_p(list, 10, 501, Rows::kIndexed, FilterOrder::kJoint);
  for (int64_t t : {1, 8, 32}) {
    add_min_p(list, t, 129280, Rows::kOwn, true);
    add_top_k_top_p(list, t, 129280, Rows::kOwn, FilterOrder::kTopKFirst, true);
  }
}

}  // namespace fathom
