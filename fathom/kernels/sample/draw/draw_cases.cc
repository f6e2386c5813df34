#include <algorithm>
#include <cmath>
#include <functional>
#include <utility>
#include <vector>

#include "fathom/base/rng.h"
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

/// Where outputs take what they need from.
enum class Rows {
  kOwn,      ///< row b of probs; a parameter and a random number for each
  kIndexed,  ///< row indices[b]
  kScalars,  ///< row b; one parameter for all, random numbers from a seed
};

constexpr uint64_t kSamplerSeed = 7;
constexpr uint64_t kSamplerOffset = 3;

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
    for (int64_t t = 0; t < tokens; ++t) {
      for (int64_t v = 0; v < V; ++v) {
        if (t % 11 == 4 && v % 17 == 3) probs.set(t * V + v, v % 2 == 0 ? NAN : -1.0);
        if (t % 11 == 7) probs.set(t * V + v, 0x1p-10);  // all equal
        if (t % 11 == 10) probs.set(t * V + v, 0.0);     // no mass
      }
      if (t % 11 != 10) probs.set(t * V + V / 2, 0x1p-8);
    }
    if (rows != Rows::kScalars) {
      uniform = c.input({tokens}, Format::kF32, {.dist = Dist::kUniform},
                        {.row_gap = 0, .rows_per_batch = batch});
      if (tokens > 1) uniform.set(0, 0.0);
      if (tokens > 2) uniform.set(1, 1.0 - 0x1p-24);
    }
    if (rows == Rows::kIndexed) {
      indices = c.input({tokens}, Format::kI32);
      indices.fill([&](int64_t b) { return (b * 3 + 1) % tokens; });
    }
    ids = c.output({tokens}, Format::kI32, {.row_gap = 0, .rows_per_batch = batch});
  }

  int64_t row_of(int64_t b) const {
    return indices.present() ? static_cast<int64_t>(indices[b]) : b;
  }

  double uniform_of(int64_t b) const {
    if (uniform.present()) return uniform[b];
    return double{Rng(kSamplerSeed, static_cast<uint64_t>(b), kSamplerOffset).next_uniform()};
  }

  /// Row t of probs as samplers read it: NaN and negative values are 0.
  std::vector<double> usable_row(int64_t t) const {
    std::vector<double> row = probs.row(t);
    for (double& p : row)
      p = p > 0 ? p : 0;
    return row;
  }

  std::vector<double> row(int64_t b) const { return usable_row(row_of(b)); }
};

CaseSpec spec_of(int64_t tokens, int64_t V, std::string_view suffix, bool bench) {
  return {.name = str_cat(tokens > 128 ? "chunk_t" : "t", tokens, "_v", V, suffix),
          .op = "sampler",
          .bench = bench,
          .phase = bench ? "decode" : "",
          .columns = str_cat("M=", tokens, ";N=", V)};
}

std::string_view suffix_of(Rows rows) {
  constexpr std::string_view kSuffixes[] = {"", "_indexed", "_scalars"};
  return kSuffixes[static_cast<size_t>(rows)];
}

RowPlacement parameters_of(Rows rows) {
  return {.row_gap = 0, .rows_per_batch = rows == Rows::kOwn ? 1 : 0};
}

void add_min_p(CaseList& list, int64_t tokens, int64_t V, Rows rows, bool bench = false) {
  const CaseSpec spec = spec_of(tokens, V, suffix_of(rows), bench);
  add_case<SampleMinP>(list, spec, [=](CaseBuilder<SampleMinP>& c) {
    const SamplerOperands o(c, tokens, V, rows);
    constexpr float kForAll = 0.125f;
    Tensor min_p;
    if (rows != Rows::kScalars) {
      min_p = c.input({tokens}, Format::kF32, {}, parameters_of(rows));
      const double choices[] = {0.05, 0, 1, 0.2, 0.7};
      min_p.fill([&](int64_t b) { return choices[b % 5]; });
    }
    c.bind([=](const Binding& at) {
      return SampleMinP::Args{.probs = at(o.probs),
                              .min_p = at(min_p),
                              .uniform = at(o.uniform),
                              .indices = at(o.indices),
                              .ids = at(o.ids),
                              .min_p_all = kForAll,
                              .seed = kSamplerSeed,
                              .offset = kSamplerOffset};
    });
    c.expect_all(o.ids, gates::exact(), [=](std::span<double> out) {
      for (int64_t b = 0; b < tokens; ++b) {
        const std::vector<double> p = o.row(b);
        const double part = min_p.present() ? min_p[b] : double{kForAll};
        const double least = part * *std::max_element(p.begin(), p.end());
        std::vector<bool> kept;
        for (double v : p)
          kept.push_back(v >= least);
        out[static_cast<size_t>(b)] = oracle::draw_from(p, kept, o.uniform_of(b));
      }
    });
  });
}

/// Tokens that both filters leave.
std::vector<bool> kept_by(const std::vector<double>& p, double k, double top_p, FilterOrder order) {
  const oracle::Above above(p);
  std::vector<bool> in_k;
  for (double v : p)
    in_k.push_back(static_cast<double>(above.count_above(v)) < k);
  double total = 1;
  if (order == FilterOrder::kTopKFirst) {  // masses relative to what top-k left
    total = 0;
    for (size_t v = 0; v < p.size(); ++v)
      total += in_k[v] ? p[v] : 0;
  }
  std::vector<bool> kept;
  for (size_t v = 0; v < p.size(); ++v)
    kept.push_back(in_k[v] && (top_p >= 1 || above.mass_above(p[v]) < top_p * total));
  return kept;
}

void add_top_k_top_p(
    CaseList& list, int64_t tokens, int64_t V, Rows rows, FilterOrder order, bool bench = false) {
  const std::string suffix = str_cat(order == FilterOrder::kJoint ? "_joint" : "", suffix_of(rows));
  const CaseSpec spec = spec_of(tokens, V, suffix, bench);
  add_case<SampleTopKTopP>(list, spec, [=](CaseBuilder<SampleTopKTopP>& c) {
    const SamplerOperands o(c, tokens, V, rows);
    constexpr int32_t kForAll = 20;
    constexpr float kTopPForAll = 0.75f;
    Tensor k, top_p;
    if (rows != Rows::kScalars) {
      k = c.input({tokens}, Format::kI32, {}, parameters_of(rows));
      top_p = c.input({tokens}, Format::kF32, {}, parameters_of(rows));
      const int64_t ks[] = {50, 1, 3, 1 << 30, 17};
      k.fill([&](int64_t t) { return bench ? 50 : ks[t % 5]; });
      // Joint masses are those of the row itself, which does not sum to 1.
      top_p.fill([&](int64_t t) {
        double mass = 0;
        for (double v : o.usable_row(t))
          mass += v;
        const double part = t % 3 == 2 && !bench ? 0.4 : 0.95;
        const double target = order == FilterOrder::kJoint ? part * mass : part;
        return (t % 7 == 3 && !bench) || target == 0 ? 1.0 : target;
      });
    }
    c.bind([=](const Binding& at) {
      return SampleTopKTopP::Args{.probs = at(o.probs),
                                  .k = at(k),
                                  .top_p = at(top_p),
                                  .uniform = at(o.uniform),
                                  .indices = at(o.indices),
                                  .ids = at(o.ids),
                                  .order = order,
                                  .k_all = kForAll,
                                  .top_p_all = kTopPForAll,
                                  .seed = kSamplerSeed,
                                  .offset = kSamplerOffset};
    });
    c.expect_all(o.ids, gates::exact(), [=](std::span<double> out) {
      for (int64_t b = 0; b < tokens; ++b) {
        const std::vector<double> p = o.row(b);
        const int64_t row = o.row_of(b);
        const double own_k = k.present() ? k[row] : double{kForAll};
        const double own_p = top_p.present() ? top_p[row] : double{kTopPForAll};
        out[static_cast<size_t>(b)] =
            oracle::draw_from(p, kept_by(p, own_k, own_p, order), o.uniform_of(b));
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
  for (int64_t v : {1, 2, 3, 7, 17, 111}) {
    add_min_p(list, 25, v, Rows::kOwn);
    add_top_k_top_p(list, 25, v, Rows::kOwn, FilterOrder::kTopKFirst);
    add_top_k_top_p(list, 25, v, Rows::kOwn, FilterOrder::kJoint);
  }
  for (Rows rows : {Rows::kIndexed, Rows::kScalars}) {
    add_min_p(list, 10, 501, rows);
    add_top_k_top_p(list, 10, 501, rows, FilterOrder::kTopKFirst);
    add_top_k_top_p(list, 10, 501, rows, FilterOrder::kJoint);
  }
  // From 8,192 on a sample of the row bounds the candidates.
  add_min_p(list, 5, 20011, Rows::kOwn);
  add_top_k_top_p(list, 5, 20011, Rows::kOwn, FilterOrder::kTopKFirst);
  add_top_k_top_p(list, 5, 20011, Rows::kOwn, FilterOrder::kJoint);
  for (const auto& [t, v] : {std::pair<int64_t, int64_t>{64, 1025}, {12, 129280}}) {
    add_min_p(list, t, v, Rows::kOwn);
    add_top_k_top_p(list, t, v, Rows::kOwn, FilterOrder::kTopKFirst);
    add_top_k_top_p(list, t, v, Rows::kOwn, FilterOrder::kJoint);
  }
  for (int64_t t : {1, 8, 32, 64}) {
    add_min_p(list, t, 129280, Rows::kOwn, true);
    add_top_k_top_p(list, t, 129280, Rows::kOwn, FilterOrder::kTopKFirst, true);
  }
  // 512 rows that are read: 265 MB, which no cache holds.
  add_min_p(list, 512, 129280, Rows::kOwn, true);
  add_top_k_top_p(list, 512, 129280, Rows::kOwn, FilterOrder::kTopKFirst, true);
}

}  // namespace fathom
