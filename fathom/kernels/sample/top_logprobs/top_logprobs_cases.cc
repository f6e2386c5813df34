#include <algorithm>
#include <cmath>
#include <numeric>

#include "fathom/kernels/conformance/kernel_case.h"
#include "fathom/kernels/sample/top_logprobs/top_logprobs.h"

namespace fathom {
namespace {

// What rows t = 0, 1, 2, ... of a case are, in turn.
enum class Row {
  kRandom,
  kCoarse,     ///< few distinct values
  kAscending,  ///< each is the best so far
  kOneLane,    ///< the best ones lie 128 apart: a thread of a GPU has all of them
  kFewFinite,  ///< -inf but for every 97th
  kPeaked,     ///< one token has nearly all of the mass
  kZeros,      ///< of both signs
  kNan,
  kInfinity,
  kNothing,
  kCount
};

double value_of(Row kind, int64_t v, int64_t V, double random) {
  switch (kind) {
    case Row::kCoarse:
      return std::floor(random);
    case Row::kAscending:
      return static_cast<double>(v) / 64;
    case Row::kOneLane:
      return v % 128 == 5 ? 20 + random : random;
    case Row::kFewFinite:
      return v % 97 == 0 ? random : -HUGE_VAL;
    case Row::kPeaked:
      return v == V / 2 ? 60 : random;
    case Row::kZeros:
      return v % 2 == 0 ? -0.0 : 0.0;
    case Row::kNan:
      return v == V / 2 ? NAN : random;
    case Row::kInfinity:
      return v == V - 1 ? HUGE_VAL : random;
    case Row::kNothing:
      return -HUGE_VAL;
    case Row::kRandom:
    case Row::kCount:
      break;
  }
  return random;
}

/// The oracle of one row.
struct Best {
  std::vector<int64_t> order;  // places, best first; empty for a bad row
  double norm = 0;

  Best(const Tensor& logits, int64_t t) {
    const int64_t V = logits.dim(1);
    double max = -HUGE_VAL;
    for (int64_t v = 0; v < V; ++v) {
      if (std::isnan(logits.at(t, v)) || logits.at(t, v) == HUGE_VAL) return;
      max = std::max(max, logits.at(t, v));
    }
    if (max == -HUGE_VAL) return;
    for (int64_t v = 0; v < V; ++v)
      norm += std::exp(logits.at(t, v) - max);
    norm = max + std::log(norm);
    order.resize(static_cast<size_t>(V));
    std::iota(order.begin(), order.end(), int64_t{0});
    std::ranges::stable_sort(
        order, [&](int64_t a, int64_t b) { return logits.at(t, a) > logits.at(t, b); });
  }
};

void add(CaseList& list, int64_t tokens, int64_t V, int64_t K, bool bench = false) {
  const CaseSpec spec{.name = str_cat("t", tokens, "_v", V, "_k", K),
                      .op = "sampler",
                      .bench = bench,
                      .phase = bench ? "decode" : "",
                      .columns = str_cat("M=", tokens, ";N=", V, ";topk=", K)};
  add_case<TopLogprobs>(list, spec, [=](CaseBuilder<TopLogprobs>& c) {
    c.set_batch(tokens);
    const Tensor logits = c.input({tokens, V}, Format::kF32, {.scale = 3},
                                  {.row_gap = bench ? 0 : 1, .rows_per_batch = 1});
    for (int64_t t = 0; t < tokens && !bench; ++t) {
      const auto kind = static_cast<Row>(t % static_cast<int64_t>(Row::kCount));
      for (int64_t v = 0; v < V; ++v)
        logits.set(t * V + v, value_of(kind, v, V, logits.at(t, v)));
    }
    const RowPlacement rows{.row_gap = 3, .rows_per_batch = 1};
    const Tensor ids = c.output({tokens, K}, Format::kI32, rows);
    const Tensor logprobs = c.output({tokens, K}, Format::kF32, rows);
    const Tensor largest = c.output({tokens}, Format::kF32, {.rows_per_batch = 1});
    c.bind([=](const Binding& at) {
      return TopLogprobs::Args{
          .logits = at(logits), .ids = at(ids), .logprobs = at(logprobs), .largest = at(largest)};
    });
    const auto for_places = [=](std::span<double> out, int64_t count, double bad, auto value) {
      for (int64_t t = 0; t < tokens; ++t) {
        const Best best(logits, t);
        for (int64_t k = 0; k < count; ++k) {
          out[static_cast<size_t>(t * count + k)] =
              best.order.empty() ? bad : value(t, best.order[static_cast<size_t>(k)], best.norm);
        }
      }
    };
    c.expect_all(ids, gates::exact(), [=](std::span<double> out) {
      for_places(out, K, -1, [](int64_t, int64_t v, double) { return static_cast<double>(v); });
    });
    c.expect_all(logprobs, gates::log_sum_exp(), [=](std::span<double> out) {
      for_places(out, K, NAN,
                 [=](int64_t t, int64_t v, double norm) { return logits.at(t, v) - norm; });
    });
    c.expect_all(largest, gates::exact(), [=](std::span<double> out) {
      for_places(out, 1, NAN, [=](int64_t t, int64_t v, double) { return logits.at(t, v); });
    });
  });
}

}  // namespace

void add_top_logprobs_cases(CaseList& list) {
  for (int64_t t : {0, 1, 2, 3})
    add(list, t, 1000, 4);
  for (int64_t v : {1, 2, 3, 4, 31, 32, 33, 127, 128, 129, 1023, 1024, 1025, 4099})
    add(list, 10, v, std::min<int64_t>(v, 20));
  for (int64_t k : {1, 2, 8, 31, 32})
    add(list, 10, 5000, k);
  add(list, 3, 132003, 20);  // more than the warps of a cluster have one piece each of
  for (int64_t t : {1, 2, 8, 64})
    add(list, t, 129280, 20, true);
}

}  // namespace fathom
