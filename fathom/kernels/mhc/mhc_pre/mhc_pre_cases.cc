#include <cmath>
#include <map>
#include <memory>
#include <vector>

#include "fathom/kernels/conformance/kernel_case.h"
#include "fathom/kernels/conformance/recorded_call.h"
#include "fathom/kernels/mhc/mhc_pre/mhc_pre.h"

namespace fathom {
namespace {

constexpr double kEps = 1e-6;

/// What a kernel makes of one token, in float64.
struct Numbers {
  std::vector<double> pre;   // [n]
  std::vector<double> post;  // [n]
  std::vector<double> comb;  // [n][n]
};

double sigmoid(double z) {
  return 1.0 / (1.0 + std::exp(-z));
}

void divide_rows(std::vector<double>& c, size_t n) {
  for (size_t j = 0; j < n; ++j) {
    double sum = kEps;
    for (size_t k = 0; k < n; ++k)
      sum += c[j * n + k];
    for (size_t k = 0; k < n; ++k)
      c[j * n + k] /= sum;
  }
}

void divide_columns(std::vector<double>& c, size_t n) {
  for (size_t k = 0; k < n; ++k) {
    double sum = kEps;
    for (size_t j = 0; j < n; ++j)
      sum += c[j * n + k];
    for (size_t j = 0; j < n; ++j)
      c[j * n + k] /= sum;
  }
}

std::vector<double> sinkhorn(std::vector<double> c, size_t n, int iterations) {
  for (size_t j = 0; j < n; ++j) {
    double sum = 0;
    for (size_t k = 0; k < n; ++k)
      sum += std::exp(c[j * n + k]);
    for (size_t k = 0; k < n; ++k)
      c[j * n + k] = std::exp(c[j * n + k]) / sum + kEps;
  }
  divide_columns(c, n);
  for (int i = 1; i < iterations; ++i) {
    divide_rows(c, n);
    divide_columns(c, n);
  }
  return c;
}

/// The operands of both kernels, and the numbers of each token, worked out once.
class Oracle {
 public:
  Oracle(Tensor streams, Tensor fn, Tensor base, Tensor scale)
      : streams_(streams), fn_(fn), base_(base), scale_(scale) {}

  const Numbers& of(int64_t t, int iterations) {
    const auto known = numbers_.find(t);
    if (known != numbers_.end()) return known->second;
    const std::vector<double> m = normed_products(t);
    const auto n = static_cast<size_t>(streams_.dim(1));
    const auto logit = [&](size_t q, int64_t scale) {
      return m[q] * scale_[scale] + base_[static_cast<int64_t>(q)];
    };
    Numbers out;
    for (size_t j = 0; j < n; ++j)
      out.pre.push_back(sigmoid(logit(j, 0)) + kEps);
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
    const Numbers& numbers = of(t, iterations);
    std::ranges::fill(out, 0.0);
    for (int64_t j = 0; j < streams_.dim(1); ++j) {
      const std::vector<double> x = streams_.row(t * streams_.dim(1) + j);
      for (size_t d = 0; d < out.size(); ++d)
        out[d] += numbers.pre[static_cast<size_t>(j)] * x[d];
    }
  }

 private:
  std::vector<double> normed_products(int64_t t) {
    if (rows_.empty()) {
      for (int64_t q = 0; q < fn_.dim(0); ++q)
        rows_.push_back(fn_.row(q));
    }
    std::vector<double> v;
    for (int64_t j = 0; j < streams_.dim(1); ++j) {
      const std::vector<double> x = streams_.row(t * streams_.dim(1) + j);
      v.insert(v.end(), x.begin(), x.end());
    }
    double squares = 0;
    for (const double x : v)
      squares += x * x;
    const double rho = 1.0 / std::sqrt(squares / static_cast<double>(v.size()) + kEps);
    std::vector<double> m;
    for (const std::vector<double>& row : rows_) {
      double sum = 0;
      for (size_t i = 0; i < v.size(); ++i)
        sum += row[i] * v[i];
      m.push_back(rho * sum);
    }
    return m;
  }

  Tensor streams_, fn_, base_, scale_;
  std::vector<std::vector<double>> rows_;  // of fn
  std::map<int64_t, Numbers> numbers_;
};

struct Shape {
  int64_t tokens;
  int64_t width;
  int64_t streams = 4;
  Format format = Format::kBf16;
  Fill fill{.dist = Dist::kMixedRows};
  int iterations = 20;
  std::string suffix{};
};

CaseSpec spec_of(const Shape& s) {
  std::string name =
      str_cat("t", s.tokens, "_n", s.streams, "_d", s.width, "_", format_name(s.format), s.suffix);
  return {.name = std::move(name), .op = "hc_pre"};
}

/// Operands that both kernels read. fn times the normed streams gives numbers of the size of 1.
struct StreamOperands {
  Tensor streams, fn, base, scale;
  std::shared_ptr<Oracle> oracle;

  template <class K>
  StreamOperands(CaseBuilder<K>& c, const Shape& s, int64_t rows, int64_t scales, bool bench) {
    c.set_batch(s.tokens);
    const double size = std::pow(static_cast<double>(s.streams * s.width), -0.5);
    const int64_t gap = bench ? 0 : 3;
    streams = c.input({s.tokens, s.streams, s.width}, s.format, s.fill,
                      {.row_gap = gap, .rows_per_batch = 1});
    fn =
        c.input({rows, s.streams * s.width}, Format::kF32, {.scale = 1.5 * size}, {.row_gap = gap});
    base = c.input({rows}, Format::kF32);
    scale = c.input({scales}, Format::kF32, {.scale = 0.3, .offset = 1.0});
    oracle = std::make_shared<Oracle>(streams, fn, base, scale);
  }
};

/// A number of a token is off by what the float32 sums over all streams are: their terms are many
/// times larger than the sum.
Gate numbers_gate() {
  return {.rel_l2 = 5e-6, .abs = 1e-5};
}

Gate mixed_gate(Format format) {
  return format == Format::kF32 ? gates::gemm(format) : gates::row_op(format);
}

void add_pre(CaseList& list, const Shape& s, const CaseSpec& spec) {
  add_case<MhcPre>(list, spec, [=](CaseBuilder<MhcPre>& c) {
    const int64_t n = s.streams;
    const StreamOperands o(c, s, n * (n + 2), 3, spec.bench);
    const RowPlacement rows{.rows_per_batch = 1};
    const Tensor x = c.output({s.tokens, s.width}, s.format,
                              {.row_gap = spec.bench ? 0 : 5, .rows_per_batch = 1});
    const Tensor post = c.output({s.tokens, n}, Format::kF32, rows);
    const Tensor comb = c.output({s.tokens, n, n}, Format::kF32, rows);
    c.bind([=](const Binding& at) {
      return MhcPre::Args{.streams = at(o.streams),
                          .fn = at(o.fn),
                          .base = at(o.base),
                          .scale = at(o.scale),
                          .x = at(x),
                          .post = at(post),
                          .comb = at(comb),
                          .iterations = s.iterations};
    });
    c.expect_rows(x, mixed_gate(s.format),
                  [=](int64_t t, std::span<double> out) { o.oracle->mixed(t, s.iterations, out); });
    c.expect_rows(post, numbers_gate(), [=](int64_t t, std::span<double> out) {
      std::ranges::copy(o.oracle->of(t, s.iterations).post, out.begin());
    });
    c.expect_rows(comb, numbers_gate(), [=](int64_t row, std::span<double> out) {
      const std::vector<double>& all = o.oracle->of(row / n, s.iterations).comb;
      for (int64_t k = 0; k < n; ++k)
        out[static_cast<size_t>(k)] = all[static_cast<size_t>(row % n * n + k)];
    });
  });
}

void add_head(CaseList& list, const Shape& s, CaseSpec spec) {
  if (spec.op == "hc_pre") spec.op = "hc_head";
  add_case<MhcHead>(list, spec, [=](CaseBuilder<MhcHead>& c) {
    const StreamOperands o(c, s, s.streams, 1, spec.bench);
    const Tensor h = c.output({s.tokens, s.width}, s.format,
                              {.row_gap = spec.bench ? 0 : 5, .rows_per_batch = 1});
    c.bind([=](const Binding& at) {
      return MhcHead::Args{.streams = at(o.streams),
                           .fn = at(o.fn),
                           .base = at(o.base),
                           .scale = at(o.scale),
                           .h = at(h)};
    });
    c.expect_rows(h, mixed_gate(s.format),
                  [=](int64_t t, std::span<double> out) { o.oracle->mixed(t, s.iterations, out); });
  });
}

void add_both(CaseList& list, const Shape& s) {
  add_pre(list, s, spec_of(s));
  add_head(list, s, spec_of(s));
}

void add_timed(CaseList& list, std::string_view model, int64_t tokens, int64_t width) {
  const Shape s{.tokens = tokens, .width = width, .fill = {.dist = Dist::kNormal}};
  add_pre(list, s, timed_spec(model, "hc_pre", tokens));
  add_head(list, s, timed_spec(model, "hc_head", tokens));
}

Shape shape_of(const RecordedCall& call) {
  return {.tokens = call.dim("streams", 0),
          .width = call.dim("streams", 2),
          .streams = call.dim("streams", 1),
          .format = call.format("streams"),
          .fill = {.dist = Dist::kNormal}};
}

}  // namespace

void add_mhc_pre_cases(CaseList& list) {
  for (Format format : {Format::kBf16, Format::kF32}) {
    for (int64_t t : {0, 1, 2, 3, 7})
      add_both(list, {.tokens = t, .width = 96, .format = format});
    for (int64_t d : {1, 2, 15, 16, 17, 33, 1023, 1024, 1025, 2049})
      add_both(list, {.tokens = 5, .width = d, .format = format});
    for (int64_t n : {1, 2, 3, 5, 8})
      add_both(list, {.tokens = 4, .width = 67, .streams = n, .format = format});
  }
  // More tokens than a block and a group hold.
  for (int64_t t : {16, 17, 19, 64, 65, 131})
    add_both(list, {.tokens = t, .width = 40});
  for (int count : {1, 2, 21}) {
    const Shape s{.tokens = 3,
                  .width = 64,
                  .format = Format::kF32,
                  .iterations = count,
                  .suffix = str_cat("_iterations", count)};
    add_pre(list, s, spec_of(s));
  }
  // Widths of models, whose channels a GPU shares out over many blocks.
  for (int64_t d : {4096, 5120, 7168}) {
    for (int64_t t : {1, 3, 11})
      add_both(list, {.tokens = t, .width = d});
  }
  add_both(list, {.tokens = 33, .width = 4096});
  // Tiles of sixteen, more than eight of them for each of eight clusters.
  add_pre(list, {.tokens = 1050, .width = 4096}, spec_of({.tokens = 1050, .width = 4096}));
  for (int64_t t : {15, 16, 17, 40, 130, 300, 1100})
    add_both(list, {.tokens = t, .width = 512});
  add_both(list, {.tokens = 50, .width = 1536});
  // Streams of a deep layer.
  add_both(list, {.tokens = 3,
                  .width = 200,
                  .fill = {.dist = Dist::kHeavyTail, .scale = 1e6},
                  .suffix = "_large"});
  for (int64_t t : {1, 8, 128}) {
    add_timed(list, "v4_flash", t, 4096);
    add_timed(list, "v4_pro", t, 7168);
  }
  list.serve_calls("mhc_pre", [](CaseList& one, const RecordedCall& call, const CaseSpec& spec) {
    add_pre(one, shape_of(call), spec);
  });
  list.serve_calls("mhc_head", [](CaseList& one, const RecordedCall& call, const CaseSpec& spec) {
    add_head(one, shape_of(call), spec);
  });
}

}  // namespace fathom
