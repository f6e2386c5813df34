#include "fathom/runtime/eval/compare_logits.h"

#include <algorithm>
#include <cmath>

namespace fathom {
namespace {

struct Normaliser {
  double largest;
  double log_sum;
};

Normaliser normaliser_of(std::span<const float> row) {
  double largest = -INFINITY;
  for (const float x : row)
    largest = std::max(largest, static_cast<double>(x));
  double sum = 0;
  for (const float x : row)
    sum += std::exp(static_cast<double>(x) - largest);
  return {.largest = largest, .log_sum = std::log(sum)};
}

/// Runs one sequence and keeps its logits, row after row.
Status run(ForwardSession& session,
           std::span<const int32_t> ids,
           const Probe* probe,
           std::vector<float>& rows) {
  rows.clear();
  session.reset();
  return session.prefill(
      0, ids, LogitRows::kAll,
      [&](int64_t first, const StepResults& out) {
        FATHOM_TRY(check_finite_logits(out.logits, first));
        for (int64_t r = 0; r < out.logits.dim(0); ++r) {
          const float* row = out.logits.row<float>(r);
          rows.insert(rows.end(), row, row + out.logits.dim(1));
        }
        return Status{};
      },
      probe);
}

}  // namespace

Status check_finite_logits(const View& logits, int64_t first) {
  for (int64_t r = 0; r < logits.dim(0); ++r) {
    const std::span<const float> row(logits.row<float>(r), static_cast<size_t>(logits.dim(1)));
    if (std::ranges::all_of(row, [](float x) { return std::isfinite(x); })) continue;
    return numerical_error(str_cat("the logits of position ", first + r, " are not finite"));
  }
  return {};
}

double LogitComparison::cosine() const {
  return dot / std::sqrt(std::max(reference_norm * other_norm, 1e-300));
}

double LogitComparison::mean_kl() const {
  return positions == 0 ? 0 : kl_sum / static_cast<double>(positions);
}

double LogitComparison::top1_share() const {
  return positions == 0 ? 1 : static_cast<double>(same_top1) / static_cast<double>(positions);
}

void add_position(std::span<const float> reference,
                  std::span<const float> other,
                  LogitComparison& out) {
  const Normaliser p = normaliser_of(reference);
  const Normaliser q = normaliser_of(other);
  double kl = 0;
  for (size_t i = 0; i < reference.size(); ++i) {
    const double a = reference[i];
    const double b = other[i];
    out.max_abs = std::max(out.max_abs, std::fabs(a - b));
    out.dot += a * b;
    out.reference_norm += a * a;
    out.other_norm += b * b;
    const double log_p = a - p.largest - p.log_sum;
    const double log_q = b - q.largest - q.log_sum;
    kl += std::exp(log_p) * (log_p - log_q);
  }
  kl = std::max(kl, 0.0);  // rounding alone takes it below
  out.kl_sum += kl;
  out.max_kl = std::max(out.max_kl, kl);
  out.same_top1 += std::ranges::max_element(reference) - reference.begin() ==
                   std::ranges::max_element(other) - other.begin();
  ++out.positions;
}

Result<LogitComparison> compare_logits(ForwardSession& reference,
                                       ForwardSession& other,
                                       const std::vector<std::vector<int32_t>>& sequences,
                                       const std::function<void(int64_t, int64_t)>& progress,
                                       TapComparison* taps) {
  int64_t total = 0;
  for (const auto& ids : sequences)
    total += static_cast<int64_t>(ids.size());
  LogitComparison result;
  std::vector<float> expected;
  std::vector<float> found;
  const Probe expecting = taps != nullptr ? taps->reference_probe() : Probe{};
  const Probe finding = taps != nullptr ? taps->other_probe() : Probe{};
  for (const auto& ids : sequences) {
    if (taps != nullptr) taps->next_sequence();
    FATHOM_TRY(run(reference, ids, taps != nullptr ? &expecting : nullptr, expected));
    FATHOM_TRY(run(other, ids, taps != nullptr ? &finding : nullptr, found));
    if (expected.size() != found.size()) {
      return invalid_argument(str_cat("the models have vocabularies of ",
                                      static_cast<int64_t>(expected.size() / ids.size()), " and ",
                                      static_cast<int64_t>(found.size() / ids.size()), " tokens"));
    }
    const size_t width = expected.size() / ids.size();
    for (size_t at = 0; at < expected.size(); at += width) {
      add_position(std::span(expected).subspan(at, width), std::span(found).subspan(at, width),
                   result);
    }
    if (progress) progress(result.positions, total);
  }
  return result;
}

}  // namespace fathom
