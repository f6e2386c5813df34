#include <cmath>
#include <memory>
#include <vector>

#include "fathom/kernels/conformance/kernel_case.h"
#include "fathom/kernels/conformance/recorded_call.h"
#include "fathom/kernels/mhc/mhc_pre/mhc_oracle.h"
#include "fathom/kernels/mhc/mhc_pre/mhc_pre.h"

namespace fathom {
namespace {

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
  std::shared_ptr<MhcOracle> oracle;

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
    oracle = std::make_shared<MhcOracle>(
        s.streams, [all = streams](int64_t t, int64_t j) { return all.row(t * all.dim(1) + j); },
        fn, base, scale);
  }
};

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
    c.expect_rows(x, mhc_mixed_gate(s.format),
                  [=](int64_t t, std::span<double> out) { o.oracle->mixed(t, s.iterations, out); });
    c.expect_rows(post, mhc_numbers_gate(), [=](int64_t t, std::span<double> out) {
      std::ranges::copy(o.oracle->of(t, s.iterations).post, out.begin());
    });
    c.expect_rows(comb, mhc_numbers_gate(), [=](int64_t row, std::span<double> out) {
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
    c.expect_rows(h, mhc_mixed_gate(s.format),
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
