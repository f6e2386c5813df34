#include "fathom/kernels/conformance/operands/compare.h"

#include <algorithm>
#include <cmath>

#include "fathom/base/check.h"
#include "fathom/base/str_cat.h"

namespace fathom {
namespace {

constexpr double kSqnrCap = 300;

// The distance between neighbouring bf16 numbers at y: 8 bits of significand, normal range.
double bf16_step(double y) {
  int exponent = 0;
  std::frexp(y, &exponent);
  return std::ldexp(1.0, std::max(exponent - 8, -133));
}

bool same_class(double found, double expected) {
  if (std::isnan(expected)) return std::isnan(found);
  if (std::isinf(expected)) return found == expected;
  return std::isfinite(found);
}

void append_bound(std::string& out, std::string_view name, double bound) {
  if (bound < 0) return;
  str_append(out, str_cat(out.empty() ? "" : ", ", name, " <= ", bound));
}

// How many times an element exceeds what the gate allows it; at most 1 is fine.
double element_excess(const Gate& gate, double found, double expected) {
  if (gate.abs < 0 && gate.rel < 0 && gate.bf16_ulps < 0) return 0;
  const double error = std::fabs(found - expected);
  if (error == 0) return 0;
  double allowed = 0;
  allowed = std::max(allowed, gate.abs);
  if (gate.rel >= 0) allowed = std::max(allowed, gate.rel * std::fabs(expected));
  if (gate.bf16_ulps >= 0) allowed = std::max(allowed, gate.bf16_ulps * bf16_step(expected));
  return allowed == 0 ? HUGE_VAL : error / allowed;
}

// Fails the verdict for the worst element, unless few enough are beyond the bound and within twice.
void judge_elements(const Gate& gate,
                    std::span<const double> found,
                    std::span<const double> expected,
                    Verdict& verdict) {
  double worst = 0;
  int64_t worst_at = -1;
  int64_t beyond = 0;
  for (size_t i = 0; i < found.size(); ++i) {
    if (!std::isfinite(expected[i])) continue;
    const double excess = element_excess(gate, found[i], expected[i]);
    // A rounding of the comparison itself must not fail an element that sits on the bound.
    if (excess > 1.0 + 1e-9) ++beyond;
    if (excess > worst) {
      worst = excess;
      worst_at = static_cast<int64_t>(i);
    }
  }
  if (beyond == 0) return;
  const double share = static_cast<double>(beyond) / static_cast<double>(found.size());
  if (worst <= 2.0 + 1e-9 && share <= gate.bf16_ulps_doubled) return;
  verdict.passed = false;
  verdict.first_bad = worst_at;
  verdict.why = str_cat(beyond, " of ", static_cast<int64_t>(found.size()),
                        " elements are beyond (", gate.text(), "), the worst ", worst, " times");
}

void judge_total(double value, double bound, std::string_view name, Verdict& verdict) {
  // Not <=, so that a NaN fails.
  if (bound < 0 || value <= bound) return;
  verdict.passed = false;
  verdict.why = str_cat(name, " is ", value, ", allowed ", bound);
}

}  // namespace

Measures measure(std::span<const double> found, std::span<const double> expected) {
  FATHOM_CHECK(found.size() == expected.size(), "as many values found as expected");
  Measures m;
  double error2 = 0;
  double found2 = 0;
  double expected2 = 0;
  double product = 0;
  for (size_t i = 0; i < found.size(); ++i) {
    const double x = found[i];
    const double y = expected[i];
    if (!std::isfinite(y)) continue;
    ++m.count;
    const double error = std::fabs(x - y);
    // max() would drop a NaN.
    if (!(error <= m.max_abs)) m.max_abs = error;
    if (std::fabs(y) >= 1e-30 && !(error / std::fabs(y) <= m.max_rel)) {
      m.max_rel = error / std::fabs(y);
    }
    error2 += error * error;
    found2 += x * x;
    expected2 += y * y;
    product += x * y;
  }
  if (found2 > 0 && expected2 > 0) m.cos = product / std::sqrt(found2 * expected2);
  if (error2 == 0) {
    m.sqnr_db = kSqnrCap;
    return m;
  }
  m.diff = error2 / (found2 + expected2);
  m.rel_l2 = expected2 == 0 ? HUGE_VAL : std::sqrt(error2 / expected2);
  m.sqnr_db = expected2 == 0 ? -kSqnrCap : std::min(kSqnrCap, 10 * std::log10(expected2 / error2));
  return m;
}

std::string Gate::text() const {
  std::string out;
  append_bound(out, "relL2", rel_l2);
  append_bound(out, "diff", diff);
  if (abs == 0 && rel < 0 && bf16_ulps < 0) return out.empty() ? "exact" : out + ", exact";
  append_bound(out, "abs", abs);
  append_bound(out, "rel", rel);
  append_bound(out, "bf16 ulp", bf16_ulps);
  return out;
}

namespace gates {

Gate exact() {
  return {.abs = 0};
}

Gate gemm(Format result) {
  return {.rel_l2 = result == Format::kF32 ? 5e-6 : 3e-3};
}

Gate row_op(Format result) {
  if (result == Format::kF32) return {.rel_l2 = 2e-6, .abs = 1e-6, .rel = 1e-5};
  // A step of f16 is at most 2^-10 of its value, and 2^-24 (below abs) among the subnormals.
  if (result == Format::kF16) return {.abs = 1e-6, .rel = 0x1p-10};
  // abs: where a sum cancels to nearly nothing the float32 error of its terms is many small steps.
  return {.abs = 1e-6, .bf16_ulps = 1, .bf16_ulps_doubled = 0.001};
}

Gate attention(Format result, double o_scale) {
  if (result == Format::kF32) return {.diff = 1e-11, .abs = 1e-5 * o_scale, .rel = 1e-5};
  return {.diff = 5e-6, .abs = 1e-3 * o_scale, .rel = 2.0 / 128};
}

Gate log_sum_exp() {
  return {.abs = 1e-6, .rel = 8.0 / 65536};
}

Gate router_weights() {
  return {.rel = 1e-3};
}

Gate full_precision(Format weight) {
  switch (weight) {
    case Format::kNvfp4:
      return {.diff = 7e-3};
    case Format::kMxfp4:
      return {.diff = 1e-2};  // 6.7e-3 for normal weights; their heavy-tailed rows lose more
    case Format::kFp8Block:
    case Format::kFp8BlockUe8m0:
    case Format::kMxfp8:
      return {.diff = 1e-3};
    default:
      return {.diff = 1e-5};  // bf16 weights: two roundings of 2^-9 each, squared and halved
  }
}

}  // namespace gates

Verdict judge(const Gate& gate, std::span<const double> found, std::span<const double> expected) {
  FATHOM_CHECK(found.size() == expected.size(), "as many values found as expected");
  Verdict verdict;
  verdict.measures = measure(found, expected);
  for (size_t i = 0; i < found.size(); ++i) {
    if (same_class(found[i], expected[i])) continue;
    verdict.passed = false;
    verdict.first_bad = static_cast<int64_t>(i);
    verdict.why = "NaN and infinities are not where they should be (an output starts as NaN)";
    return verdict;
  }
  judge_elements(gate, found, expected, verdict);
  judge_total(verdict.measures.rel_l2, gate.rel_l2, "relL2", verdict);
  judge_total(verdict.measures.diff, gate.diff, "diff", verdict);
  return verdict;
}

}  // namespace fathom
