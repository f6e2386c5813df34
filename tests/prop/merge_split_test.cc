// Attention over any split of the keys, merged in any order, is attention over all of them.
#include <algorithm>
#include <cmath>
#include <gtest/gtest.h>
#include <memory>

#include "fathom/base/rng.h"
#include "fathom/kernels/attn/merge_state/merge_state.h"
#include "fathom/kernels/attn/ragged_attention/ragged_attention.h"
#include "fathom/kernels/core/test_exec.h"

namespace fathom {
namespace {

constexpr int64_t kQueries = 3;
constexpr int64_t kHeads = 2;
constexpr int64_t kDq = 24;
constexpr int64_t kDv = 16;
constexpr float kScale = 0.3f;

struct Problem {
  int64_t keys;
  TestTensor q;
  TestTensor k;
  TestTensor v;

  Problem(int64_t num_keys, Rng& rng)
      : keys(num_keys),
        q({kQueries, kHeads, kDq}, Format::kF32),
        k({num_keys, kHeads, kDq}, Format::kF32),
        v({num_keys, kHeads, kDv}, Format::kF32) {
    q.randomise(rng, 2.0f);
    k.randomise(rng, 2.0f);
    v.randomise(rng);
  }
};

/// A partial result: attention over some of the keys.
struct State {
  TestTensor o{{kQueries, kHeads, kDv}, Format::kF32, NAN};
  TestTensor lse{{kQueries, kHeads}, Format::kF32, NAN};
};

std::unique_ptr<State> attend(TestExec& ex, const Problem& p, int64_t begin, int64_t end) {
  auto out = std::make_unique<State>();
  const TestTensor q_offsets({2}, Format::kI32, {0.0f, static_cast<float>(kQueries)});
  const TestTensor kv_offsets({2}, Format::kI32, {0.0f, static_cast<float>(end - begin)});
  FATHOM_EXPECT_OK(launch<RaggedAttention>(*ex, "test",
                                           {.q = p.q.view(),
                                            .k = slice_rows(p.k.view(), begin, end - begin),
                                            .v = slice_rows(p.v.view(), begin, end - begin),
                                            .q_offsets = q_offsets.view(),
                                            .kv_offsets = kv_offsets.view(),
                                            .o = out->o.view(),
                                            .lse = out->lse.view(),
                                            .scale = kScale,
                                            .mask = CausalMask::kFull}));
  return out;
}

std::unique_ptr<State> merge(TestExec& ex, const State& a, const State& b) {
  auto out = std::make_unique<State>();
  FATHOM_EXPECT_OK(launch<MergeState>(*ex, "test",
                                      {.o_a = a.o.view(),
                                       .lse_a = a.lse.view(),
                                       .o_b = b.o.view(),
                                       .lse_b = b.lse.view(),
                                       .o = out->o.view(),
                                       .lse = out->lse.view()}));
  return out;
}

/// softmax(scale q k^T) v in double, and its log-sum-exp.
void exact(const Problem& p, std::vector<double>& o, std::vector<double>& lse) {
  for (int64_t row = 0; row < kQueries * kHeads; ++row) {
    const int64_t head = row % kHeads;
    std::vector<double> scores(static_cast<size_t>(p.keys));
    double largest = -std::numeric_limits<double>::infinity();
    for (int64_t j = 0; j < p.keys; ++j) {
      double dot = 0;
      for (int64_t d = 0; d < kDq; ++d)
        dot += double{p.q[row * kDq + d]} * double{p.k[(j * kHeads + head) * kDq + d]};
      scores[static_cast<size_t>(j)] = double{kScale} * dot;
      largest = std::max(largest, scores[static_cast<size_t>(j)]);
    }
    double sum = 0;
    std::vector<double> values(kDv);
    for (int64_t j = 0; j < p.keys; ++j) {
      const double weight = std::exp(scores[static_cast<size_t>(j)] - largest);
      sum += weight;
      for (int64_t d = 0; d < kDv; ++d)
        values[static_cast<size_t>(d)] += weight * double{p.v[(j * kHeads + head) * kDv + d]};
    }
    for (const double value : values)
      o.push_back(value / sum);
    lse.push_back(largest + std::log(sum));
  }
}

/// Borders of a random split, empty pieces among them.
std::vector<int64_t> random_borders(Rng& rng, int64_t keys) {
  std::vector<int64_t> borders = {0, keys};
  for (uint32_t i = 0, n = rng.next_below(7); i < n; ++i)
    borders.push_back(static_cast<int64_t>(rng.next_below(static_cast<uint32_t>(keys) + 1)));
  std::sort(borders.begin(), borders.end());
  return borders;
}

TEST(MergeOfStates, OfAnySplitInAnyOrderIsAttentionOverAllKeys) {
  TestExec ex;
  Rng rng(31, 1);
  for (int round = 0; round < 60; ++round) {
    const Problem p(1 + static_cast<int64_t>(rng.next_below(200)), rng);
    const std::vector<int64_t> borders = random_borders(rng, p.keys);
    std::vector<std::unique_ptr<State>> states;
    for (size_t i = 0; i + 1 < borders.size(); ++i)
      states.push_back(attend(ex, p, borders[i], borders[i + 1]));
    while (states.size() > 1) {
      const auto count = static_cast<uint32_t>(states.size());
      const uint32_t a = rng.next_below(count);
      const uint32_t b = (a + 1 + rng.next_below(count - 1)) % count;
      states[a] = merge(ex, *states[a], *states[b]);
      states.erase(states.begin() + b);
    }

    std::vector<double> o, lse;
    exact(p, o, lse);
    expect_near(states[0]->o.values(), o, 3e-5);
    expect_near(states[0]->lse.values(), lse, 3e-5);
    expect_near(attend(ex, p, 0, p.keys)->o.values(), o, 3e-5);
  }
}

}  // namespace
}  // namespace fathom
