// The half of CaseData that knows what outputs should be: which places are compared, the exact
// values there, the verdict.
#include <algorithm>
#include <cmath>

#include "fathom/base/check.h"
#include "fathom/kernels/conformance/operands/operands.h"

namespace fathom {
namespace {

constexpr int64_t kWholeUpTo = 1 << 16;    // outputs compared in full, element oracles
constexpr int64_t kRowsUpTo = 1 << 20;     // row oracles
constexpr int64_t kSampledOutputs = 4096;  // at least so many of larger ones

int64_t last_dim(const Tensor& t) {
  return t.rank() == 0 ? 1 : t.dim(t.rank() - 1);
}

// Up to `wanted` of [0, n): both ends, the edges of tiles of 16 to 128, and random ones. Sorted.
std::vector<int64_t> sample(int64_t n, int64_t wanted, Rng& rng) {
  std::vector<int64_t> out;
  if (n <= wanted) {
    for (int64_t i = 0; i < n; ++i)
      out.push_back(i);
    return out;
  }
  for (int64_t edge : {0, 1, 15, 16, 17, 31, 32, 63, 64, 127, 128}) {
    out.push_back(edge);
    out.push_back(n - 1 - edge);
  }
  std::erase_if(out, [&](int64_t i) { return i < 0 || i >= n; });
  if (static_cast<int64_t>(out.size()) > wanted) {
    // Few are wanted: the ends matter more than inner edges.
    out.resize(static_cast<size_t>(wanted / 2));
  }
  while (static_cast<int64_t>(out.size()) < wanted) {
    out.push_back(static_cast<int64_t>(rng.next_below(static_cast<uint32_t>(n))));
  }
  std::sort(out.begin(), out.end());
  out.erase(std::unique(out.begin(), out.end()), out.end());
  return out;
}

std::string place_text(const Tensor& t, int64_t place) {
  std::string out = "]";
  for (int i = t.rank() - 1; i >= 0; --i) {
    out = str_cat(i > 0 ? "," : "[", place % t.dim(i), out);
    place /= t.dim(i);
  }
  return out;
}

/// How much of an output is compared; empty for all of it.
std::string part_compared(const Expectation& e) {
  const auto places = static_cast<int64_t>(e.places.size());
  if (places >= e.output.numel()) return {};
  const int64_t cols = last_dim(e.output);
  if (e.rows) return str_cat(places / cols, " of ", e.output.numel() / cols, " rows");
  return str_cat(places, " of ", e.output.numel(), " values");
}

/// The exact answers, those of rows with several right ones chosen by what was found.
std::vector<double> settled(const Expectation& e) {
  std::vector<double> expected = e.expected;
  const int64_t cols = last_dim(e.output);
  for (size_t i = 0; e.settle && i < expected.size(); i += static_cast<size_t>(cols)) {
    e.settle(e.places[i] / cols, std::span(expected).subspan(i, static_cast<size_t>(cols)));
  }
  return expected;
}

}  // namespace

double dot(std::span<const double> x, std::span<const float> w) {
  FATHOM_CHECK(x.size() == w.size(), "vectors of one length");
  double sum = 0;
  for (size_t i = 0; i < x.size(); ++i)
    sum += x[i] * double{w[i]};
  return sum;
}

void CaseData::expect_each(const Tensor& output,
                           const Gate& gate,
                           std::function<double(int64_t row, int64_t col)> f,
                           int64_t sampled_rows) {
  expectations_.push_back(
      {.output = output, .gate = gate, .each = std::move(f), .sampled_rows = sampled_rows});
}

void CaseData::expect_rows(const Tensor& output,
                           const Gate& gate,
                           std::function<void(int64_t row, std::span<double> out)> f,
                           std::function<void(int64_t row, std::span<double> expected)> settle) {
  expectations_.push_back(
      {.output = output, .gate = gate, .rows = std::move(f), .settle = std::move(settle)});
}

void CaseData::expect_all(const Tensor& output,
                          const Gate& gate,
                          std::function<void(std::span<double> out)> f) {
  expectations_.push_back({.output = output, .gate = gate, .all = std::move(f)});
}

void CaseData::expect_full_precision(const Tensor& output,
                                     const Gate& gate,
                                     std::function<double(int64_t row, int64_t col)> f) {
  FATHOM_CHECK(output.numel() >= kSampledOutputs, "gate B on fewer than 4,096 outputs says little");
  expectations_.push_back({.output = output, .gate = gate, .letter = 'B', .each = std::move(f)});
}

void CaseData::choose_places(Expectation& e) {
  const int64_t cols = last_dim(e.output);
  const int64_t rows = cols == 0 ? 0 : e.output.numel() / cols;
  if (e.all) return;
  Rng rng(seed_, 2);
  if (e.rows) {
    const int64_t wanted =
        e.output.numel() <= kRowsUpTo
            ? rows
            : std::max<int64_t>(24, kSampledOutputs / std::max<int64_t>(1, cols));
    for (int64_t r : sample(rows, wanted, rng)) {
      for (int64_t c = 0; c < cols; ++c)
        e.places.push_back(r * cols + c);
    }
    return;
  }
  const bool whole = e.output.numel() <= kWholeUpTo;
  const std::vector<int64_t> chosen_rows = sample(rows, whole ? rows : e.sampled_rows, rng);
  const auto num_rows = std::max<int64_t>(1, static_cast<int64_t>(chosen_rows.size()));
  // A quarter more than needed, because random places may coincide.
  const int64_t wanted = whole ? cols : std::max<int64_t>(64, kSampledOutputs * 5 / 4 / num_rows);
  // Columns outside: an oracle then decodes each weight row once.
  for (int64_t c : sample(cols, wanted, rng)) {
    for (int64_t r : chosen_rows)
      e.places.push_back(r * cols + c);
  }
}

void CaseData::evaluate(Expectation& e) const {
  const int64_t cols = last_dim(e.output);
  if (e.all) {
    e.expected.assign(static_cast<size_t>(e.output.numel()), 0.0);
    e.all(e.expected);
    e.places.resize(e.expected.size());
    for (size_t i = 0; i < e.places.size(); ++i)
      e.places[i] = static_cast<int64_t>(i);
    return;
  }
  e.expected.resize(e.places.size());
  if (e.each) {
    for (size_t i = 0; i < e.places.size(); ++i) {
      e.expected[i] = e.each(e.places[i] / cols, e.places[i] % cols);
    }
    return;
  }
  for (size_t i = 0; i < e.places.size(); i += static_cast<size_t>(cols)) {
    e.rows(e.places[i] / cols, std::span(e.expected).subspan(i, static_cast<size_t>(cols)));
  }
}

void CaseData::prepare() {
  for (auto& o : operands_) {
    if (o->role == Role::kInOut) {
      o->first.assign(o->copies[0].data(), o->copies[0].data() + o->bytes);
    } else if (o->role != Role::kOutput) {
      o->first_hash = hash_of(*o, 0);
    }
  }
  FATHOM_CHECK(!expectations_.empty() || !checks_.empty(),
               "a case without an answer checks nothing");
  for (Expectation& e : expectations_) {
    choose_places(e);
    evaluate(e);
  }
}

/// What stands outside of the sample is finite, as all in the sample is; else the oracle says what
/// some of those places should hold. Empty if nothing is wrong. An output that the kernel has read
/// is not asked about again: there all must be finite.
std::string CaseData::unexpected_outside(const Expectation& e,
                                         std::span<const double> expected) const {
  constexpr int kMostAsked = 32;  // places, each at the cost of a row
  const Operand& o = *operands_[static_cast<size_t>(e.output.id_)];
  const bool whole = static_cast<int64_t>(e.places.size()) >= e.output.numel();
  if (whole || !format_info(e.output.format()).is_float || comes_back_in_part(o)) return {};
  const bool in_place =
      std::ranges::any_of(operands_, [](const auto& other) { return other->role == Role::kInOut; });
  if (in_place && !std::ranges::all_of(expected, [](double x) { return std::isfinite(x); }))
    return {};
  const int64_t cols = last_dim(e.output);
  std::vector<double> row(static_cast<size_t>(cols));
  int asked = 0;
  for (int64_t r = 0; r < e.output.numel() / cols && asked < kMostAsked; ++r) {
    const int64_t col = first_not_finite(o.shape.format, row_data(o, r), cols);
    if (col == cols) continue;
    ++asked;
    const double found = e.output[r * cols + col];
    double right = 0;
    if (!in_place && e.each) right = e.each(r, col);
    if (!in_place && e.rows) {
      e.rows(r, row);
      if (e.settle) e.settle(r, row);
      right = row[static_cast<size_t>(col)];
    }
    const bool same = std::isnan(right) ? std::isnan(found) : found == right;
    if (!same) {
      return str_cat("outside of the sample ", o.name, place_text(e.output, r * cols + col), " is ",
                     found, ", expected ", in_place ? "a number" : str_cat(right));
    }
  }
  return {};
}

CaseData::Judged CaseData::judge_outputs() const {
  Judged out;
  for (size_t i = 0; i < expectations_.size(); ++i) {
    const Expectation& e = expectations_[i];
    std::vector<double> found(e.places.size());
    for (size_t p = 0; p < found.size(); ++p)
      found[p] = e.output[e.places[p]];
    const std::vector<double> expected = settled(e);
    const Verdict verdict = judge(e.gate, found, expected);
    const std::string& name = operands_[static_cast<size_t>(e.output.id_)]->name;
    if (i == 0) out.first = verdict.measures;
    str_append(out.budget, str_cat(i == 0 ? "" : "; ", name, " ", std::string(1, e.letter), ": ",
                                   e.gate.text()));
    if (e.letter == 'A' && out.checked.empty()) out.checked = part_compared(e);
    if (verdict.passed && out.passed && e.letter == 'A') {
      const std::string why = unexpected_outside(e, expected);
      if (why.empty()) continue;
      out.passed = false;
      out.why = str_cat(why, "; seed ", seed_);
    }
    if (verdict.passed || !out.passed) continue;
    out.passed = false;
    out.why = str_cat(name, ", gate ", std::string(1, e.letter), ": ", verdict.why);
    if (verdict.first_bad >= 0) {
      const auto at = static_cast<size_t>(verdict.first_bad);
      str_append(out.why, str_cat("; ", name, place_text(e.output, e.places[at]), " is ", found[at],
                                  ", expected ", expected[at]));
    }
    str_append(out.why, str_cat("; seed ", seed_));
  }
  for (const auto& check : checks_) {
    const std::string why = check();
    str_append(out.budget, out.budget.empty() ? "rules" : "; rules");
    if (why.empty() || !out.passed) continue;
    out.passed = false;
    out.why = str_cat(why, "; seed ", seed_);
  }
  return out;
}

}  // namespace fathom
