#include <cmath>

#include "fathom/kernels/conformance/kernel_case.h"
#include "fathom/kernels/sample/argmax/argmax.h"

namespace fathom {
namespace {

// What rows t = 0, 1, 2, ... of a case are, in turn.
enum class Row { kRandom, kTies, kNan, kInfinity, kNothing, kMinusInfinities, kZeros, kCount };

void fill_row(const Tensor& logits, int64_t t, Row kind) {
  const int64_t V = logits.dim(1);
  const auto set = [&](int64_t v, double value) { logits.set(t * V + v, value); };
  switch (kind) {
    case Row::kRandom:
    case Row::kCount:
      return;
    case Row::kTies:  // two equal maxima, in different vectors if the row is long
      set(V / 3, 50);
      set(V - 1, 50);
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
    case Row::kMinusInfinities:  // masked vocabulary with one token left
      for (int64_t v = 0; v < V; ++v)
        set(v, -HUGE_VAL);
      set(V - 1, -7);
      return;
    case Row::kZeros:
      for (int64_t v = 0; v < V; ++v)
        set(v, v % 2 == 0 ? -0.0 : 0.0);
      return;
  }
}

void add(CaseList& list, int64_t tokens, int64_t V, bool bench = false) {
  const CaseSpec spec{.name = str_cat(tokens > 128 ? "chunk_t" : "t", tokens, "_v", V),
                      .op = "sampler",
                      .bench = bench,
                      .phase = bench ? "decode" : "",
                      .columns = str_cat("M=", tokens, ";N=", V)};
  add_case<Argmax>(list, spec, [=](CaseBuilder<Argmax>& c) {
    c.set_batch(tokens);
    const Tensor logits =
        c.input({tokens, V}, Format::kF32, {.scale = 3}, {.row_gap = 1, .rows_per_batch = 1});
    for (int64_t t = 0; t < tokens && !bench; ++t) {
      fill_row(logits, t, static_cast<Row>(t % static_cast<int64_t>(Row::kCount)));
    }
    const Tensor ids = c.output({tokens}, Format::kI32, {.rows_per_batch = 1});
    const Tensor bad = c.output({tokens}, Format::kI32, {.rows_per_batch = 1});
    c.bind([=](const Binding& at) {
      return Argmax::Args{.logits = at(logits), .ids = at(ids), .bad = at(bad)};
    });
    c.expect_all(ids, gates::exact(), [=](std::span<double> out) {
      for (int64_t t = 0; t < tokens; ++t) {
        int64_t best = 0;
        double max = -HUGE_VAL;
        for (int64_t v = 0; v < V; ++v) {
          if (!(logits.at(t, v) > max)) continue;
          max = logits.at(t, v);
          best = v;
        }
        out[static_cast<size_t>(t)] = static_cast<double>(best);
      }
    });
    c.expect_all(bad, gates::exact(), [=](std::span<double> out) {
      for (int64_t t = 0; t < tokens; ++t) {
        bool usable = true;
        bool any = false;
        for (int64_t v = 0; v < V; ++v) {
          usable = usable && !std::isnan(logits.at(t, v)) && logits.at(t, v) != HUGE_VAL;
          any = any || logits.at(t, v) > -HUGE_VAL;
        }
        out[static_cast<size_t>(t)] = usable && any ? 0 : 1;
      }
    });
  });
}

}  // namespace

void add_argmax_cases(CaseList& list) {
  for (int64_t t : {0, 1, 2, 3})
    add(list, t, 1000);
  for (int64_t v : {1, 2, 3, 7, 15, 16, 17, 63, 64, 65, 127, 129, 4099})
    add(list, 16, v);
  add(list, 1, 20011);  // long enough for several threads
  // 512 rows are 265 MB, which no cache holds.
  for (int64_t t : {1, 8, 32, 64, 128, 512})
    add(list, t, 129280, true);
}

}  // namespace fathom
