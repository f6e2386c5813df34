#include <algorithm>
#include <cmath>
#include <functional>
#include <utility>
#include <vector>

#include "fathom/kernels/conformance/kernel_case.h"
#include "fathom/kernels/sample/renorm/renorm.h"

namespace fathom {
namespace oracle {

/// The smallest kept value: values descending, until enough(count, mass) of those not below it.
double threshold(std::vector<double> p, const std::function<bool(int64_t, double)>& enough) {
  std::sort(p.begin(), p.end(), std::greater<>());
  double mass = 0;
  for (size_t i = 0; i < p.size(); ++i) {
    mass += p[i];
    const bool last_of_equals = i + 1 == p.size() || p[i + 1] < p[i];
    if (last_of_equals && enough(static_cast<int64_t>(i) + 1, mass)) return p[i];
  }
  return 0;
}

void keep_from(const std::vector<double>& p, double threshold, std::span<double> out) {
  double mass = 0;
  for (double v : p)
    mass += v >= threshold ? v : 0;
  for (size_t i = 0; i < p.size(); ++i)
    out[i] = p[i] >= threshold ? p[i] / mass : 0;
}

}  // namespace oracle

namespace {

CaseSpec spec_of(int64_t tokens, int64_t V, bool bench) {
  return {.name = str_cat(tokens > 128 ? "chunk_t" : "t", tokens, "_v", V),
          .op = "sampler",
          .bench = bench,
          .phase = bench ? "decode" : "",
          .columns = str_cat("M=", tokens, ";N=", V)};
}

/// Multiples of 2^-30 that fall off quickly, with many zeros and ties: float64 sums of them are
/// exact in any order, so the oracle and the kernel agree on what reaches a mass.
template <class K>
Tensor make_probs(CaseBuilder<K>& c, int64_t tokens, int64_t V) {
  const Tensor probs = c.input({tokens, V}, Format::kF32, {.dist = Dist::kUniform},
                               {.row_gap = 5, .rows_per_batch = 1});
  probs.fill([&](int64_t i) { return std::floor(std::pow(probs[i], 9) * 0x1p20) * 0x1p-30; });
  for (int64_t t = 0; t < tokens; ++t) {
    for (int64_t v = 0; v < V && t % 5 == 3; ++v) {
      if (v % 17 == 3) probs.set(t * V + v, v % 2 == 0 ? NAN : -1.0);
    }
    for (int64_t v = 0; v < V && t % 5 == 4; ++v)
      probs.set(t * V + v, 0x1p-8);    // all equal
    probs.set(t * V + V / 2, 0x1p-8);  // never nothing but zeros
  }
  return probs;
}

/// A row as the filters read it: NaN and negative values are 0.
std::vector<double> usable_row(const Tensor& probs, int64_t t) {
  std::vector<double> row = probs.row(t);
  for (double& p : row)
    p = p > 0 ? p : 0;
  return row;
}

double mass_of(const Tensor& probs, int64_t t) {
  double mass = 0;
  for (double p : usable_row(probs, t))
    mass += p;
  return mass;
}

// One division in float64 and one rounding; zeros are exact.
constexpr Gate kRounding{.rel = 1e-7};

void add_softmax(CaseList& list, int64_t tokens, int64_t V, bool bench = false) {
  add_case<SoftmaxTemperature>(
      list, spec_of(tokens, V, bench), [=](CaseBuilder<SoftmaxTemperature>& c) {
        c.set_batch(tokens);
        const RowPlacement rows{.row_gap = 3, .rows_per_batch = 1};
        const Tensor logits = c.input({tokens, V}, Format::kF32, {.scale = 5}, rows);
        const Tensor temperature =
            c.input({tokens}, Format::kF32, {}, {.row_gap = 0, .rows_per_batch = 1});
        temperature.fill([](int64_t t) { return t % 4 == 3 ? 0.0 : 0.3 + 0.4 * double(t % 4); });
        if (!bench && tokens > 1 && V > 1) logits.set(V + V / 2, NAN);
        if (!bench && tokens > 2 && V > 1) logits.set(2 * V, -HUGE_VAL);
        const Tensor probs = c.output({tokens, V}, Format::kF32, rows);
        c.bind([=](const Binding& at) {
          return SoftmaxTemperature::Args{
              .logits = at(logits), .temperature = at(temperature), .probs = at(probs)};
        });
        // The exponent, up to 104 where it matters, is rounded to 2^-24 of itself.
        const Gate gate{.abs = 1e-12, .rel = 2e-5};
        c.expect_rows(probs, gate, [=](int64_t t, std::span<double> out) {
          std::vector<double> z = logits.row(t);
          for (double& v : z)
            v = std::isnan(v) ? -HUGE_VAL : v;
          const auto peak = std::max_element(z.begin(), z.end());
          double sum = 0;
          for (size_t v = 0; v < z.size(); ++v) {
            out[v] = temperature[t] > 0 ? std::exp((z[v] - *peak) / temperature[t])
                                        : (v == static_cast<size_t>(peak - z.begin()) ? 1.0 : 0.0);
            sum += out[v];
          }
          for (double& v : out)
            v /= sum;
        });
      });
}

void add_top_k(CaseList& list, int64_t tokens, int64_t V, bool bench = false) {
  add_case<RenormTopK>(list, spec_of(tokens, V, bench), [=](CaseBuilder<RenormTopK>& c) {
    c.set_batch(tokens);
    const Tensor probs = make_probs(c, tokens, V);
    const Tensor k = c.input({tokens}, Format::kI32, {}, {.row_gap = 0, .rows_per_batch = 1});
    const int64_t choices[] = {50, 1, 2, V, V - 1, 1 << 30, 7};
    k.fill([&](int64_t t) { return std::max<int64_t>(1, bench ? 50 : choices[t % 7]); });
    const Tensor y = c.output({tokens, V}, Format::kF32, {.row_gap = 2, .rows_per_batch = 1});
    c.bind([=](const Binding& at) {
      return RenormTopK::Args{.probs = at(probs), .k = at(k), .y = at(y)};
    });
    c.expect_rows(y, kRounding, [=](int64_t t, std::span<double> out) {
      if (k[t] >= static_cast<double>(V)) {
        const std::vector<double> p = probs.row(t);
        std::copy(p.begin(), p.end(), out.begin());
        return;
      }
      const std::vector<double> p = usable_row(probs, t);
      const auto enough = [&](int64_t n, double) { return static_cast<double>(n) >= k[t]; };
      oracle::keep_from(p, oracle::threshold(p, enough), out);
    });
  });
}

void add_top_p(CaseList& list, int64_t tokens, int64_t V, bool bench = false) {
  add_case<RenormTopP>(list, spec_of(tokens, V, bench), [=](CaseBuilder<RenormTopP>& c) {
    c.set_batch(tokens);
    const Tensor probs = make_probs(c, tokens, V);
    const Tensor p = c.input({tokens}, Format::kF32, {}, {.row_gap = 0, .rows_per_batch = 1});
    // Parts of the mass of the row, above it, and 1: everything.
    const double parts[] = {0.9, 1e-9, 0.5, 0.1, 2.0};
    p.fill([&](int64_t t) {
      return t % 6 == 5 ? 1.0 : std::min(0.99, parts[t % 6] * mass_of(probs, t));
    });
    const Tensor y = c.output({tokens, V}, Format::kF32, {.row_gap = 2, .rows_per_batch = 1});
    c.bind([=](const Binding& at) {
      return RenormTopP::Args{.probs = at(probs), .p = at(p), .y = at(y)};
    });
    c.expect_rows(y, kRounding, [=](int64_t t, std::span<double> out) {
      const std::vector<double> row = usable_row(probs, t);
      const auto enough = [&](int64_t, double mass) { return p[t] < 1 && mass >= p[t]; };
      oracle::keep_from(row, oracle::threshold(row, enough), out);
    });
  });
}

}  // namespace

void add_renorm_cases(CaseList& list) {
  for (int64_t t : {0, 1, 2, 3}) {
    add_softmax(list, t, 1000);
    add_top_k(list, t, 1000);
    add_top_p(list, t, 1000);
  }
  for (int64_t v : {1, 2, 3, 7, 15, 16, 17, 111, 4099}) {
    add_softmax(list, 8, v);
    add_top_k(list, 8, v);
    add_top_p(list, 8, v);
  }
  for (const auto& [t, v] : {std::pair<int64_t, int64_t>{64, 1025}, {5, 129280}}) {
    add_softmax(list, t, v);
    add_top_k(list, t, v);
    add_top_p(list, t, v);
  }
  for (int64_t t : {1, 8, 32, 64}) {
    add_softmax(list, t, 129280, true);
    add_top_k(list, t, 129280, true);
    add_top_p(list, t, 129280, true);
  }
  // 256 rows in and out: 265 MB, which no cache holds.
  add_softmax(list, 256, 129280, true);
  add_top_k(list, 256, 129280, true);
  add_top_p(list, 256, 129280, true);
}

}  // namespace fathom
