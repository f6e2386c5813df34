#include "fathom/runtime/sample/logprobs.h"

#include <algorithm>
#include <cmath>

#include "fathom/base/check.h"

namespace fathom {
namespace {

// log(sum(exp(x))) in float64.
double log_sum_exp(std::span<const float> x) {
  const double top = *std::ranges::max_element(x);
  double sum = 0.0;
  for (float v : x)
    sum += std::exp(static_cast<double>(v) - top);
  return top + std::log(sum);
}

// The `count` largest entries, best first, lower ids first on ties.
size_t largest(std::span<const float> x, size_t count, TokenLogprob* out) {
  const auto better = [](const TokenLogprob& a, const TokenLogprob& b) {
    return a.logprob != b.logprob ? a.logprob > b.logprob : a.token < b.token;
  };
  size_t size = 0;
  for (size_t v = 0; v < x.size(); ++v) {
    const TokenLogprob candidate{static_cast<int32_t>(v), x[v]};
    if (size == count) {
      if (count == 0 || !better(candidate, out[size - 1])) continue;
      --size;
    }
    TokenLogprob* place = std::upper_bound(out, out + size, candidate, better);
    std::move_backward(place, out + size, out + size + 1);
    *place = candidate;
    ++size;
  }
  return size;
}

// How many come before a token, lower ids first on ties, and itself.
int32_t rank_of(std::span<const float> x, int32_t token) {
  const auto place = static_cast<size_t>(token);
  const auto before = std::ranges::count_if(x, [&](const float& other) {
    return other > x[place] || (other == x[place] && &other < &x[place]);
  });
  return static_cast<int32_t>(before) + 1;
}

void add_to_row(std::span<const float> x,
                const SampleRow& row,
                TokenLogprob* top,
                SampleResult& result) {
  const double norm = log_sum_exp(x);
  const size_t count = largest(x, static_cast<size_t>(row.params->top_logprobs), top);
  for (size_t j = 0; j < count; ++j)
    top[j].logprob = static_cast<float>(static_cast<double>(top[j].logprob) - norm);
  if (row.scored >= 0) {
    result.token = row.scored;
    result.rank = rank_of(x, row.scored);
  }
  result.logprob =
      static_cast<float>(static_cast<double>(x[static_cast<size_t>(result.token)]) - norm);
  result.top_logprobs = {top, count};
}

}  // namespace

Logprobs::Logprobs(int64_t max_rows) : top_(static_cast<size_t>(max_rows * kMaxTopLogprobs)) {}

void Logprobs::add(ThreadPool& pool,
                   std::span<const float* const> raw,
                   int64_t num_ids,
                   std::span<const SampleRow> rows,
                   std::span<SampleResult> results) {
  FATHOM_CHECK(raw.size() == rows.size() && rows.size() == results.size() &&
                   rows.size() * kMaxTopLogprobs <= top_.size(),
               "raw logits and a result for each row, and room for its best tokens");
  pool.for_blocks(static_cast<int64_t>(rows.size()), [&](int64_t block) {
    const auto i = static_cast<size_t>(block);
    if (!asks_for_logprobs(rows[i]) || !results[i].finite) return;
    add_to_row({raw[i], static_cast<size_t>(num_ids)}, rows[i], &top_[i * kMaxTopLogprobs],
               results[i]);
  });
}

}  // namespace fathom
