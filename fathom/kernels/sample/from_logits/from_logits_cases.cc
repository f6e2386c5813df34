#include <algorithm>
#include <cmath>
#include <functional>
#include <optional>
#include <vector>

#include "fathom/kernels/conformance/kernel_case.h"
#include "fathom/kernels/sample/from_logits/from_logits.h"

namespace fathom {
namespace oracle {

/// What a row is sampled with.
struct Sampling {
  double temperature = 1;
  double top_k = HUGE_VAL;
  double top_p = 1;
  double min_p = 0;
  double uniform = 0;
};

/// The distribution of a row without NaN, not scaled: its largest value is 1.
std::vector<double> softmax_of(const std::vector<double>& z, double temperature) {
  const double max = *std::max_element(z.begin(), z.end());
  std::vector<double> p;
  for (double v : z)
    p.push_back(std::exp((v - max) / temperature));
  return p;
}

/// The smallest value that all filters keep.
double threshold_of(const std::vector<double>& p, const Sampling& s) {
  double threshold = s.min_p;
  const auto count = static_cast<double>(p.size());
  if (s.top_k >= count && s.top_p >= 1) return threshold;
  std::vector<double> sorted = p;
  std::sort(sorted.begin(), sorted.end(), std::greater<>());
  size_t left = sorted.size();
  if (s.top_k < count) {
    const double last = sorted[static_cast<size_t>(s.top_k) - 1];
    threshold = std::max(threshold, last);
    while (sorted[left - 1] < last)
      --left;
  }
  if (s.top_p >= 1) return threshold;
  double mass = 0;
  for (size_t i = 0; i < left; ++i)
    mass += sorted[i];
  double above = 0;
  size_t i = 0;
  while (i + 1 < left && above + sorted[i] < s.top_p * mass)
    above += sorted[i++];
  return std::max(threshold, sorted[i]);
}

/// The first kept token whose running mass exceeds the part `uniform` of theirs; the last kept one
/// where there is none.
size_t draw_above(const std::vector<double>& p, double threshold, double uniform) {
  double mass = 0;
  for (double v : p)
    mass += v >= threshold ? v : 0;
  double running = 0;
  size_t last = 0;
  for (size_t v = 0; v < p.size(); ++v) {
    if (p[v] < threshold || p[v] == 0) continue;
    running += p[v];
    last = v;
    if (running > uniform * mass) break;
  }
  return last;
}

/// Exponents of up to 30, rounded to 2^-24 of themselves, make masses uncertain by 4e-6.
constexpr double kUncertain = 1e-5;

/// True if `token` is drawn with parameters that differ from these by no more than that.
bool may_be_drawn(const std::vector<double>& z, const Sampling& s, size_t token) {
  const std::vector<double> p = softmax_of(z, s.temperature);
  for (const double top_p : {s.top_p, s.top_p * (1 - kUncertain), s.top_p * (1 + kUncertain)}) {
    for (const double min_p : {s.min_p, s.min_p * (1 - kUncertain), s.min_p * (1 + kUncertain)}) {
      Sampling near = s;
      near.top_p = s.top_p >= 1 ? s.top_p : top_p;
      near.min_p = std::min(min_p, 1.0);
      const double threshold = threshold_of(p, near);
      const size_t first = draw_above(p, threshold, s.uniform * (1 - kUncertain));
      const size_t last = draw_above(p, threshold, s.uniform * (1 + kUncertain));
      if (p[token] >= threshold && token >= first && token <= last) return true;
    }
  }
  return false;
}

}  // namespace oracle

namespace {

/// What rows t = 0, 1, 2, ... of a case hold, in turn.
enum class Row { kRandom, kTies, kEqual, kNan, kInfinity, kNothing, kFew, kCount };

void fill_row(const Tensor& logits, int64_t t, Row kind) {
  const int64_t V = logits.dim(1);
  const auto set = [&](int64_t v, double value) { logits.set(t * V + v, value); };
  switch (kind) {
    case Row::kRandom:
    case Row::kCount:
      return;
    case Row::kTies:  // two equal maxima
      set(V / 3, 20);
      set(V - 1, 20);
      return;
    case Row::kEqual:
      for (int64_t v = 0; v < V; ++v)
        set(v, v % 2 == 0 ? -0.0 : 0.0);
      return;
    case Row::kNan:
      set(V / 2, NAN);
      return;
    case Row::kInfinity:
      set(V - 1, HUGE_VAL);
      set(V / 2, HUGE_VAL);
      return;
    case Row::kNothing:
      for (int64_t v = 0; v < V; ++v)
        set(v, v % 2 == 0 ? NAN : -HUGE_VAL);
      return;
    case Row::kFew:  // a masked vocabulary
      for (int64_t v = 0; v < V; ++v) {
        if (v % 5 != 1 && v != V - 1) set(v, -HUGE_VAL);
      }
      return;
  }
}

/// What the rows of a case ask for.
enum class Filters {
  kAll,       ///< everything, in turn
  kNone,      ///< a temperature alone
  kTopP,      ///< top-p 0.95 at temperature 0.6
  kTopKTopP,  ///< top-k 50 as well
};

std::string_view suffix_of(Filters filters) {
  constexpr std::string_view kSuffixes[] = {"", "", "_top_p", "_top_k_top_p"};
  return kSuffixes[static_cast<size_t>(filters)];
}

struct Operands {
  Tensor logits, temperature, top_k, top_p, min_p, uniform;

  oracle::Sampling sampling(int64_t t) const {
    return {temperature[t], top_k[t], top_p[t], min_p[t], uniform[t]};
  }

  /// The row, NaN as -inf.
  std::vector<double> row(int64_t t) const {
    std::vector<double> z = logits.row(t);
    for (double& v : z)
      v = std::isnan(v) ? -HUGE_VAL : v;
    return z;
  }

  /// The token that is not drawn: of temperature 0, and of rows whose largest logit is infinite.
  std::optional<size_t> fixed_token(const std::vector<double>& z, int64_t t) const {
    const auto peak = std::max_element(z.begin(), z.end());
    if (temperature[t] > 0 && std::isfinite(*peak)) return std::nullopt;
    return static_cast<size_t>(peak - z.begin());
  }
};

void set_parameters(const Operands& o, Filters filters) {
  const int64_t tokens = o.logits.dim(0);
  const int64_t V = o.logits.dim(1);
  switch (filters) {
    case Filters::kAll: {
      const double temperatures[] = {1, 0.6, 0, 2, 0.05};
      const int64_t ks[] = {1 << 30, 5, V, 1, 1 << 30, 50, V - 1, 200};
      const double top_ps[] = {1, 0.9, 1, 0.5, 1e-6, 0.999, 1};
      const double min_ps[] = {0, 0, 0.1, 0, 1, 0, 0.001, 0, 0, 0.5, 0};
      o.temperature.fill([&](int64_t t) { return temperatures[t % 5]; });
      o.top_k.fill([&](int64_t t) { return std::max<int64_t>(1, ks[t % 8]); });
      o.top_p.fill([&](int64_t t) { return top_ps[t % 7]; });
      o.min_p.fill([&](int64_t t) { return min_ps[t % 11]; });
      if (tokens > 3) o.uniform.set(3, 0.0);
      if (tokens > 5) o.uniform.set(5, 1.0 - 0x1p-24);
      return;
    }
    case Filters::kNone:
    case Filters::kTopP:
    case Filters::kTopKTopP:
      o.temperature.fill([&](int64_t) { return filters == Filters::kNone ? 1.0 : 0.6; });
      o.top_k.fill([&](int64_t) { return filters == Filters::kTopKTopP ? 50 : 1 << 30; });
      o.top_p.fill([&](int64_t) { return filters == Filters::kNone ? 1.0 : 0.95; });
      return;  // min_p is made of zeros
  }
}

void expect_tokens(CaseBuilder<SampleFromLogits>& c, const Tensor& ids, const Operands& o) {
  const auto exact = [=](int64_t, std::span<double> out) {
    for (int64_t t = 0; t < ids.numel(); ++t) {
      const std::vector<double> z = o.row(t);
      const oracle::Sampling s = o.sampling(t);
      size_t token = 0;
      if (const auto fixed = o.fixed_token(z, t)) {
        token = *fixed;
      } else {
        const std::vector<double> p = oracle::softmax_of(z, s.temperature);
        token = oracle::draw_above(p, oracle::threshold_of(p, s), s.uniform);
      }
      out[static_cast<size_t>(t)] = static_cast<double>(token);
    }
  };
  const auto settle = [=](int64_t, std::span<double> expected) {
    for (int64_t t = 0; t < ids.numel(); ++t) {
      const double found = ids[t];
      double& right = expected[static_cast<size_t>(t)];
      const bool in_range = found >= 0 && found < static_cast<double>(o.logits.dim(1));
      if (found == right || !in_range) continue;
      const std::vector<double> z = o.row(t);
      if (o.fixed_token(z, t)) continue;
      if (oracle::may_be_drawn(z, o.sampling(t), static_cast<size_t>(found))) right = found;
    }
  };
  c.expect_rows(ids, gates::exact(), exact, settle);
}

void add(CaseList& list, int64_t tokens, int64_t V, Filters filters = Filters::kAll) {
  const bool bench = filters != Filters::kAll;
  const CaseSpec spec{
      .name = str_cat(tokens > 128 ? "chunk_t" : "t", tokens, "_v", V, suffix_of(filters)),
      .op = "sampler",
      .bench = bench,
      .phase = bench ? "decode" : "",
      .columns = str_cat("M=", tokens, ";N=", V)};
  add_case<SampleFromLogits>(list, spec, [=](CaseBuilder<SampleFromLogits>& c) {
    c.set_batch(tokens);
    const RowPlacement one{.row_gap = 0, .rows_per_batch = 1};
    Operands o;
    o.logits =
        c.input({tokens, V}, Format::kF32, {.scale = 3}, {.row_gap = 3, .rows_per_batch = 1});
    for (int64_t t = 0; t < tokens && !bench; ++t)
      fill_row(o.logits, t, static_cast<Row>(t % static_cast<int64_t>(Row::kCount)));
    o.temperature = c.input({tokens}, Format::kF32, {}, one);
    o.top_k = c.input({tokens}, Format::kI32, {}, one);
    o.top_p = c.input({tokens}, Format::kF32, {}, one);
    o.min_p = c.input({tokens}, Format::kF32, {}, one);
    o.uniform = c.input({tokens}, Format::kF32, {.dist = Dist::kUniform}, one);
    o.min_p.fill([](int64_t) { return 0.0; });
    set_parameters(o, filters);
    const Tensor ids = c.output({tokens}, Format::kI32, one);
    const Tensor bad = c.output({tokens}, Format::kI32, one);
    c.bind([=](const Binding& at) {
      return SampleFromLogits::Args{.logits = at(o.logits),
                                    .temperature = at(o.temperature),
                                    .top_k = at(o.top_k),
                                    .top_p = at(o.top_p),
                                    .min_p = at(o.min_p),
                                    .uniform = at(o.uniform),
                                    .ids = at(ids),
                                    .bad = at(bad)};
    });
    expect_tokens(c, ids, o);
    c.expect_all(bad, gates::exact(), [=](std::span<double> out) {
      for (int64_t t = 0; t < tokens; ++t) {
        bool usable = true;
        bool any = false;
        for (double v : o.logits.row(t)) {
          usable = usable && !std::isnan(v) && v != HUGE_VAL;
          any = any || v > -HUGE_VAL;
        }
        out[static_cast<size_t>(t)] = usable && any ? 0 : 1;
      }
    });
  });
}

}  // namespace

void add_from_logits_cases(CaseList& list) {
  for (int64_t t : {0, 1, 2, 3, 64})
    add(list, t, 1000);
  for (int64_t v : {1, 2, 3, 7, 31, 33, 127, 129, 1023, 1025, 4099})
    add(list, 40, v);
  add(list, 12, 20011);
  add(list, 9, 129280);
  for (Filters filters : {Filters::kNone, Filters::kTopP, Filters::kTopKTopP}) {
    for (int64_t t : {1, 8, 32, 64})
      add(list, t, 129280, filters);
  }
  // 512 rows are 265 MB, which no cache holds.
  add(list, 512, 129280, Filters::kNone);
}

}  // namespace fathom
