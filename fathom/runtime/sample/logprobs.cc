#include "fathom/runtime/sample/logprobs.h"

#include <algorithm>
#include <array>

#include "fathom/base/check.h"
#include "fathom/kernels/sample/top_logprobs/top_logprobs_row.h"

namespace fathom {
namespace {

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
  const auto logprob_of = [&](int32_t token) {
    return static_cast<float>(static_cast<double>(x[static_cast<size_t>(token)]) - norm);
  };
  std::array<int32_t, kMaxTopLogprobs> places;
  const size_t count = std::min(x.size(), static_cast<size_t>(row.params->top_logprobs));
  find_largest(x, std::span(places).first(count));
  for (size_t j = 0; j < count; ++j)
    top[j] = {places[j], logprob_of(places[j])};
  if (row.scored >= 0) {
    result.token = row.scored;
    result.rank = rank_of(x, row.scored);
  }
  result.logprob = logprob_of(result.token);
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
    if (raw[i] == nullptr || !asks_for_logprobs(rows[i]) || !results[i].finite) return;
    add_to_row({raw[i], static_cast<size_t>(num_ids)}, rows[i], &top_[i * kMaxTopLogprobs],
               results[i]);
  });
}

bool Logprobs::add_best(const BestTokens& best,
                        size_t i,
                        const SampleRow& row,
                        SampleResult& result) {
  const auto ids = best.ids.subspan(i * best.count, best.count);
  const auto logprobs = best.logprobs.subspan(i * best.count, best.count);
  TokenLogprob* top = &top_[i * kMaxTopLogprobs];
  const size_t count = std::min(best.count, static_cast<size_t>(row.params->top_logprobs));
  for (size_t j = 0; j < count; ++j)
    top[j] = {ids[j], logprobs[j]};
  result.top_logprobs = {top, count};
  const auto place = std::ranges::find(ids, result.token) - ids.begin();
  if (place == std::ssize(ids)) return false;
  result.logprob = logprobs[static_cast<size_t>(place)];
  return true;
}

void Logprobs::set_logprob(const BestTokens& best, size_t i, float logit, SampleResult& result) {
  const double below = static_cast<double>(logit) - static_cast<double>(best.largest[i]);
  result.logprob = static_cast<float>(below + static_cast<double>(best.logprobs[i * best.count]));
}

}  // namespace fathom
