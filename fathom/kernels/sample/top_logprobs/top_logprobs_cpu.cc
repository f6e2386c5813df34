#include <algorithm>
#include <cmath>
#include <limits>

#include "fathom/kernels/core/row_parallel.h"
#include "fathom/kernels/sample/argmax/argmax_rows.h"
#include "fathom/kernels/sample/top_logprobs/top_logprobs.h"
#include "fathom/kernels/sample/top_logprobs/top_logprobs_row.h"

namespace fathom {

double log_sum_exp(std::span<const float> x) {
  const double top = *std::ranges::max_element(x);
  double sum = 0.0;
  for (float v : x)
    sum += std::exp(static_cast<double>(v) - top);
  return top + std::log(sum);
}

void find_largest(std::span<const float> x, std::span<int32_t> places) {
  const auto value = [&](int32_t place) { return x[static_cast<size_t>(place)]; };
  const auto better = [&](int32_t a, int32_t b) {
    return value(a) != value(b) ? value(a) > value(b) : a < b;
  };
  size_t size = 0;
  for (size_t v = 0; v < x.size(); ++v) {
    const auto candidate = static_cast<int32_t>(v);
    if (size == places.size()) {
      if (size == 0 || !better(candidate, places[size - 1])) continue;
      --size;
    }
    const auto end = places.begin() + static_cast<int64_t>(size);
    const auto place = std::upper_bound(places.begin(), end, candidate, better);
    std::move_backward(place, end, end + 1);
    *place = candidate;
    ++size;
  }
}

namespace {

void write_row(const TopLogprobs::Args& a, int64_t t) {
  const int64_t V = a.logits.dim(1);
  const auto K = static_cast<size_t>(a.ids.dim(1));
  const auto* row = a.logits.row<const float>(t);
  const std::span x(row, static_cast<size_t>(V));
  const std::span ids(a.ids.row<int32_t>(t), K);
  const std::span logprobs(a.logprobs.row<float>(t), K);
  const RowPeak peak = find_peak(row, V);
  if (peak.unusable || peak.max == -std::numeric_limits<float>::infinity()) {
    std::ranges::fill(ids, -1);
    std::ranges::fill(logprobs, std::numeric_limits<float>::quiet_NaN());
    a.largest.as<float>()[t] = std::numeric_limits<float>::quiet_NaN();
    return;
  }
  find_largest(x, ids);
  const double norm = log_sum_exp(x);
  std::ranges::transform(ids, logprobs.begin(), [&](int32_t id) {
    return static_cast<float>(static_cast<double>(x[static_cast<size_t>(id)]) - norm);
  });
  a.largest.as<float>()[t] = peak.max;
}

Status top_logprobs(Exec& ex, const TopLogprobs::Args& a) {
  constexpr int64_t kWorkPerLogit = 32;  // an exponential in float64, in bytes of a copy
  for_rows(ex, a.logits.dim(0), kWorkPerLogit * a.logits.dim(1), [&](int64_t begin, int64_t end) {
    for (int64_t t = begin; t < end; ++t)
      write_row(a, t);
  });
  return {};
}

}  // namespace

constinit const VariantTable<TopLogprobs> top_logprobs_cpu{
    {"portable", Isa::kPortable, "", kDeterministic | kBatchInvariant, top_logprobs},
};

}  // namespace fathom
