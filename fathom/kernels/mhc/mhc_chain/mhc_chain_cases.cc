#include <cmath>
#include <memory>
#include <vector>

#include "fathom/kernels/conformance/kernel_case.h"
#include "fathom/kernels/conformance/recorded_call.h"
#include "fathom/kernels/mhc/mhc_chain/mhc_chain.h"
#include "fathom/kernels/mhc/mhc_pre/mhc_oracle.h"

namespace fathom {
namespace {

enum class Where { kApart, kInPlace };

struct Shape {
  int64_t tokens;
  int64_t width;
  int64_t streams = 4;
  Format format = Format::kBf16;
  Format norm = Format::kBf16;
  Fill fill{.dist = Dist::kMixedRows};
  Where where = Where::kApart;
};

CaseSpec spec_of(const Shape& s) {
  return {
      .name = str_cat("t", s.tokens, "_n", s.streams, "_d", s.width, "_", format_name(s.format),
                      "_norm_", format_name(s.norm), s.where == Where::kInPlace ? "_in_place" : ""),
      .op = "hc_post_pre"};
}

float float_of(double value) {
  return static_cast<float>(value);
}

double rounded(Format format, double value) {
  const float f = float_of(value);
  return format == Format::kBf16 ? to_float(bf16_from_float(f)) : f;
}

/// The three steps in float64, rounded where the contract rounds.
class ChainOracle {
 public:
  ChainOracle(Format format, Tensor y, Tensor streams, Tensor post, Tensor comb, Tensor norm)
      : format_(format), y_(y), streams_(streams), post_(post), comb_(comb), norm_(norm) {}

  /// Not rounded.
  std::vector<double> out(int64_t t, int64_t k) const {
    std::vector<double> sum = y_.row(t);
    for (double& v : sum)
      v *= post_.at(t, k);
    for (int64_t j = 0; j < streams_.dim(1); ++j) {
      const std::vector<double> x = streams_.row(t * streams_.dim(1) + j);
      for (size_t d = 0; d < sum.size(); ++d)
        sum[d] += comb_.at(t, j, k) * x[d];
    }
    return sum;
  }

  /// The new stream as it is stored: its bits are part of the contract, and one step of bf16 beside
  /// would be more than the sums that follow may be off.
  std::vector<double> stream(int64_t t, int64_t k) const {
    std::vector<double> row = y_.row(t);
    for (double& v : row)
      v = float_of(post_.at(t, k)) * float_of(v);
    for (int64_t j = 0; j < streams_.dim(1); ++j) {
      const std::vector<double> x = streams_.row(t * streams_.dim(1) + j);
      for (size_t d = 0; d < row.size(); ++d) {
        const float term = float_of(comb_.at(t, j, k)) * float_of(x[d]);
        row[d] = float_of(row[d]) + term;
      }
    }
    for (double& v : row)
      v = rounded(format_, v);
    return row;
  }

  void norm_row(std::span<double> x) const {
    double squares = 0;
    for (double& v : x) {
      v = rounded(format_, v);
      squares += v * v;
    }
    const double r = 1.0 / std::sqrt(squares / static_cast<double>(x.size()) + kMhcEps);
    for (size_t d = 0; d < x.size(); ++d)
      x[d] *= r * norm_[static_cast<int64_t>(d)];
  }

 private:
  Format format_;
  Tensor y_, streams_, post_, comb_, norm_;
};

void add_chain(CaseList& list, const Shape& s, const CaseSpec& spec) {
  add_case<MhcChain>(list, spec, [=](CaseBuilder<MhcChain>& c) {
    c.set_batch(s.tokens);
    const int64_t n = s.streams;
    const int64_t q = n * (n + 2);
    const int64_t gap = spec.bench ? 0 : 8;
    const RowPlacement rows{.row_gap = gap, .rows_per_batch = 1};
    const RowPlacement packed{.rows_per_batch = 1};
    const double size = std::pow(static_cast<double>(n * s.width), -0.5);
    const Tensor y = c.input({s.tokens, s.width}, s.format, s.fill, rows);
    const bool in_place = s.where == Where::kInPlace;
    const Tensor streams = in_place ? c.inout({s.tokens, n, s.width}, s.format, s.fill, rows)
                                    : c.input({s.tokens, n, s.width}, s.format, s.fill, rows);
    const Tensor post = c.input({s.tokens, n}, Format::kF32, {.dist = Dist::kUniform}, packed);
    const Tensor comb = c.input({s.tokens, n, n}, Format::kF32, {.dist = Dist::kUniform}, packed);
    const Tensor fn = c.input({q, n * s.width}, Format::kF32, {.scale = 1.5 * size},
                              {.row_gap = spec.bench ? 0 : 4});
    const Tensor base = c.input({q}, Format::kF32);
    const Tensor scale = c.input({3}, Format::kF32, {.scale = 0.3, .offset = 1.0});
    const Tensor norm = c.input({s.width}, s.norm, {.scale = 0.2, .offset = 1.0});
    const Tensor out = in_place ? streams : c.output({s.tokens, n, s.width}, s.format, rows);
    const Tensor h = c.output({s.tokens, s.width}, s.format, rows);
    const Tensor next_post = c.output({s.tokens, n}, Format::kF32, packed);
    const Tensor next_comb = c.output({s.tokens, n, n}, Format::kF32, packed);
    c.bind([=](const Binding& at) {
      return MhcChain::Args{.y = at(y),
                            .streams = at(streams),
                            .post = at(post),
                            .comb = at(comb),
                            .fn = at(fn),
                            .base = at(base),
                            .scale = at(scale),
                            .norm = at(norm),
                            .out = at(out),
                            .h = at(h),
                            .next_post = at(next_post),
                            .next_comb = at(next_comb)};
    });
    const auto chain = std::make_shared<ChainOracle>(s.format, y, streams, post, comb, norm);
    const auto pre = std::make_shared<MhcOracle>(
        n, [chain](int64_t t, int64_t j) { return chain->stream(t, j); }, fn, base, scale);
    constexpr int kIterations = MhcChain::Args{}.iterations;
    Gate written = gates::row_op(s.format);
    // Rows of values of a thousand lose their digits where they cancel.
    if (s.fill.dist == Dist::kMixedRows) written.abs = 1e-3;
    c.expect_rows(out, written, [=](int64_t row, std::span<double> result) {
      std::ranges::copy(chain->out(row / n, row % n), result.begin());
    });
    c.expect_rows(h, mhc_mixed_gate(s.format), [=](int64_t t, std::span<double> result) {
      pre->mixed(t, kIterations, result);
      chain->norm_row(result);
    });
    c.expect_rows(next_post, mhc_numbers_gate(), [=](int64_t t, std::span<double> result) {
      std::ranges::copy(pre->of(t, kIterations).post, result.begin());
    });
    c.expect_rows(next_comb, mhc_numbers_gate(), [=](int64_t row, std::span<double> result) {
      const std::vector<double>& all = pre->of(row / n, kIterations).comb;
      for (int64_t k = 0; k < n; ++k)
        result[static_cast<size_t>(k)] = all[static_cast<size_t>(row % n * n + k)];
    });
  });
}

Shape shape_of(const RecordedCall& call) {
  return {.tokens = call.dim("streams", 0),
          .width = call.dim("streams", 2),
          .streams = call.dim("streams", 1),
          .format = call.format("streams"),
          .norm = call.format("norm"),
          .fill = {.dist = Dist::kNormal},
          .where = Where::kInPlace};
}

}  // namespace

void add_mhc_chain_cases(CaseList& list) {
  const auto add = [&](Shape s) {
    add_chain(list, s, spec_of(s));
    s.where = Where::kInPlace;
    add_chain(list, s, spec_of(s));
  };
  for (Format format : {Format::kBf16, Format::kF32}) {
    for (int64_t t : {0, 1, 3, 7})
      add({.tokens = t, .width = 96, .format = format, .norm = format});
    for (int64_t d : {1, 15, 33, 1025})
      add({.tokens = 5, .width = d, .format = format, .norm = Format::kF32});
    for (int64_t n : {1, 2, 5, 8})
      add({.tokens = 4, .width = 67, .streams = n, .format = format, .norm = format});
  }
  // Widths of models, whose channels a GPU shares out over many blocks.
  for (int64_t d : {1024, 4096, 5120, 7168}) {
    for (int64_t t : {1, 3, 11, 33})
      add({.tokens = t, .width = d});
  }
  for (int64_t t : {1, 8, 32}) {
    for (const auto& [model, width] : {std::pair("v4_flash", 4096), std::pair("v4_pro", 7168)}) {
      const Shape s{
          .tokens = t, .width = width, .fill = {.dist = Dist::kNormal}, .where = Where::kInPlace};
      add_chain(list, s, timed_spec(model, "hc_post_pre", t));
    }
  }
  list.serve_calls("mhc_chain", [](CaseList& one, const RecordedCall& call, const CaseSpec& spec) {
    add_chain(one, shape_of(call), spec);
  });
}

}  // namespace fathom
