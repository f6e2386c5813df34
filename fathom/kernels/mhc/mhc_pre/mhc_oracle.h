// mhc_pre in float64, for the cases of the kernels that read streams.
#pragma once

#include <cmath>
#include <functional>
#include <map>
#include <span>
#include <utility>
#include <vector>

#include "fathom/kernels/conformance/kernel_case.h"

namespace fathom {

inline constexpr double kMhcEps = 1e-6;

/// What a kernel makes of one token.
struct MhcNumbers {
  std::vector<double> pre;   // [n]
  std::vector<double> post;  // [n]
  std::vector<double> comb;  // [n][n]
};

/// The numbers of each token, worked out once, and x.
class MhcOracle {
 public:
  /// Stream j of token t.
  using Stream = std::function<std::vector<double>(int64_t t, int64_t j)>;

  MhcOracle(int64_t num_streams, Stream stream, Tensor fn, Tensor base, Tensor scale)
      : n_(num_streams), stream_(std::move(stream)), fn_(fn), base_(base), scale_(scale) {}

  const MhcNumbers& of(int64_t t, int iterations) {
    const auto known = numbers_.find(t);
    if (known != numbers_.end()) return known->second;
    const std::vector<double> m = normed_products(t);
    const auto n = static_cast<size_t>(n_);
    const auto logit = [&](size_t q, int64_t scale) {
      return m[q] * scale_[scale] + base_[static_cast<int64_t>(q)];
    };
    MhcNumbers out;
    for (size_t j = 0; j < n; ++j)
      out.pre.push_back(sigmoid(logit(j, 0)) + kMhcEps);
    if (m.size() > n) {
      for (size_t j = 0; j < n; ++j)
        out.post.push_back(2.0 * sigmoid(logit(n + j, 1)));
      for (size_t i = 0; i < n * n; ++i)
        out.comb.push_back(logit(2 * n + i, 2));
      out.comb = sinkhorn(out.comb, n, iterations);
    }
    return numbers_.emplace(t, std::move(out)).first->second;
  }

  void mixed(int64_t t, int iterations, std::span<double> out) {
    const MhcNumbers& numbers = of(t, iterations);
    std::ranges::fill(out, 0.0);
    for (int64_t j = 0; j < n_; ++j) {
      const std::vector<double> x = stream_(t, j);
      for (size_t d = 0; d < out.size(); ++d)
        out[d] += numbers.pre[static_cast<size_t>(j)] * x[d];
    }
  }

 private:
  static double sigmoid(double z) { return 1.0 / (1.0 + std::exp(-z)); }

  static void divide_rows(std::vector<double>& c, size_t n) {
    for (size_t j = 0; j < n; ++j) {
      double sum = kMhcEps;
      for (size_t k = 0; k < n; ++k)
        sum += c[j * n + k];
      for (size_t k = 0; k < n; ++k)
        c[j * n + k] /= sum;
    }
  }

  static void divide_columns(std::vector<double>& c, size_t n) {
    for (size_t k = 0; k < n; ++k) {
      double sum = kMhcEps;
      for (size_t j = 0; j < n; ++j)
        sum += c[j * n + k];
      for (size_t j = 0; j < n; ++j)
        c[j * n + k] /= sum;
    }
  }

  static std::vector<double> sinkhorn(std::vector<double> c, size_t n, int iterations) {
    for (size_t j = 0; j < n; ++j) {
      double sum = 0;
      for (size_t k = 0; k < n; ++k)
        sum += std::exp(c[j * n + k]);
      for (size_t k = 0; k < n; ++k)
        c[j * n + k] = std::exp(c[j * n + k]) / sum + kMhcEps;
    }
    divide_columns(c, n);
    for (int i = 1; i < iterations; ++i) {
      divide_rows(c, n);
      divide_columns(c, n);
    }
    return c;
  }

  std::vector<double> normed_products(int64_t t) {
    if (rows_.empty()) {
      for (int64_t q = 0; q < fn_.dim(0); ++q)
        rows_.push_back(fn_.row(q));
    }
    std::vector<double> v;
    for (int64_t j = 0; j < n_; ++j) {
      const std::vector<double> x = stream_(t, j);
      v.insert(v.end(), x.begin(), x.end());
    }
    double squares = 0;
    for (const double x : v)
      squares += x * x;
    const double rho = 1.0 / std::sqrt(squares / static_cast<double>(v.size()) + kMhcEps);
    std::vector<double> m;
    for (const std::vector<double>& row : rows_) {
      double sum = 0;
      for (size_t i = 0; i < v.size(); ++i)
        sum += row[i] * v[i];
      m.push_back(rho * sum);
    }
    return m;
  }

  int64_t n_;
  Stream stream_;
  Tensor fn_, base_, scale_;
  std::vector<std::vector<double>> rows_;  // of fn
  std::map<int64_t, MhcNumbers> numbers_;
};

/// A number of a token is off by what the float32 sums over all streams are: their terms are many
/// times larger than the sum.
inline Gate mhc_numbers_gate() {
  return {.rel_l2 = 5e-6, .abs = 1e-5};
}

inline Gate mhc_mixed_gate(Format format) {
  return format == Format::kF32 ? gates::gemm(format) : gates::row_op(format);
}

}  // namespace fathom
