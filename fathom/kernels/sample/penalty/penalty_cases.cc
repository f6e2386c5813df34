#include <cmath>
#include <vector>

#include "fathom/kernels/conformance/kernel_case.h"
#include "fathom/kernels/sample/penalty/penalty.h"

namespace fathom {
namespace {

void add(
    CaseList& list, int64_t tokens, int64_t V, int64_t listed, int64_t biased, bool bench = false) {
  const CaseSpec spec{.name = str_cat("t", tokens, "_v", V, "_listed", listed, "_biased", biased),
                      .op = "sampler",
                      .bench = bench,
                      .phase = bench ? "decode" : "",
                      .columns = str_cat("M=", tokens, ";N=", V)};
  add_case<Penalty>(list, spec, [=](CaseBuilder<Penalty>& c) {
    const Tensor logits = c.inout({tokens, V}, Format::kF32, {.scale = 4}, {.row_gap = 3});
    const Tensor ids = c.input({tokens * listed}, Format::kI32);
    const Tensor counts = c.input({tokens * listed}, Format::kI32);
    const Tensor offsets = c.input({tokens + 1}, Format::kI32);
    const Fill around_one{.dist = Dist::kUniform, .offset = 0.75};
    const Tensor presence = c.input({tokens}, Format::kF32);
    const Tensor frequency = c.input({tokens}, Format::kF32);
    const Tensor repetition = c.input({tokens}, Format::kF32, around_one);
    const Tensor bias_ids = c.input({tokens * biased}, Format::kI32);
    const Tensor bias = c.input({tokens * biased}, Format::kF32, {.scale = 10});
    const Tensor bias_offsets = c.input({tokens + 1}, Format::kI32);
    // Neighbours in the list differ up to V of them, as 7 and V have no factor in common.
    ids.fill([&](int64_t i) { return i * 7 % V; });
    counts.fill([](int64_t i) { return i % 4; });
    // The last bias of a row is for the token of its first one.
    bias_ids.fill([&](int64_t i) {
      const int64_t place = i % std::max<int64_t>(1, biased);
      return V - 1 - (place == biased - 1 ? 0 : place);
    });
    if (bias.numel() > 1) bias.set(1, -HUGE_VAL);
    // Lists of unequal length: row 0 gives half of its entries to row 1.
    offsets.fill([&](int64_t t) { return t == 1 && tokens > 1 ? listed / 2 : t * listed; });
    bias_offsets.fill([&](int64_t t) { return t * biased; });
    c.bind([=](const Binding& at) {
      return Penalty::Args{.logits = at(logits),
                           .tokens = at(ids),
                           .counts = at(counts),
                           .token_offsets = at(offsets),
                           .presence = at(presence),
                           .frequency = at(frequency),
                           .repetition = at(repetition),
                           .bias_tokens = at(bias_ids),
                           .bias_values = at(bias),
                           .bias_offsets = at(bias_offsets)};
    });
    // float32 arithmetic of a few operations on values near 10.
    const Gate gate{.abs = 1e-5, .rel = 1e-6};
    c.expect_rows(logits, gate, [=](int64_t t, std::span<double> out) {
      const std::vector<double> row = logits.row(t);
      std::copy(row.begin(), row.end(), out.begin());
      for (auto i = static_cast<int64_t>(offsets[t]); i < static_cast<int64_t>(offsets[t + 1]);
           ++i) {
        double& z = out[static_cast<size_t>(ids[i])];
        z = z > 0 ? z / repetition[t] : z * repetition[t];
        z -= frequency[t] * counts[i] + presence[t] * (counts[i] > 0 ? 1 : 0);
      }
      for (auto i = static_cast<int64_t>(bias_offsets[t]);
           i < static_cast<int64_t>(bias_offsets[t + 1]); ++i) {
        out[static_cast<size_t>(bias_ids[i])] += bias[i];
      }
    });
  });
}

}  // namespace

void add_penalty_cases(CaseList& list) {
  for (int64_t t : {0, 1, 2, 3})
    add(list, t, 101, 10, 4);
  add(list, 2, 101, 0, 3);
  add(list, 2, 101, 9, 0);
  add(list, 1, 1, 1, 1);
  add(list, 64, 997, 300, 300);
  for (int64_t t : {1, 8, 32, 64})
    add(list, t, 129280, 1000, 10, true);
}

}  // namespace fathom
