#include <vector>

#include "fathom/kernels/conformance/kernel_case.h"
#include "fathom/kernels/conformance/recorded_call.h"
#include "fathom/kernels/mhc/mhc_post/mhc_post.h"

namespace fathom {
namespace {

enum class Where { kApart, kInPlace };

struct Shape {
  int64_t tokens;
  int64_t width;
  int64_t streams = 4;
  Format format = Format::kBf16;
  Fill fill{.dist = Dist::kMixedRows};
  Where where = Where::kApart;
};

CaseSpec spec_of(const Shape& s, std::string_view op) {
  return {.name = str_cat("t", s.tokens, "_n", s.streams, "_d", s.width, "_", format_name(s.format),
                          s.where == Where::kInPlace ? "_in_place" : ""),
          .op = std::string(op)};
}

void add_expand(CaseList& list, const Shape& s, const CaseSpec& spec) {
  add_case<MhcExpand>(list, spec, [=](CaseBuilder<MhcExpand>& c) {
    c.set_batch(s.tokens);
    const RowPlacement rows{.row_gap = spec.bench ? 0 : 3, .rows_per_batch = 1};
    const Tensor x = c.input({s.tokens, s.width}, s.format, s.fill, rows);
    const Tensor streams = c.output({s.tokens, s.streams, s.width}, s.format, rows);
    c.bind([=](const Binding& at) { return MhcExpand::Args{.x = at(x), .streams = at(streams)}; });
    c.expect_rows(streams, gates::exact(), [=](int64_t row, std::span<double> out) {
      std::ranges::copy(x.row(row / s.streams), out.begin());
    });
  });
}

void add_post(CaseList& list, const Shape& s, const CaseSpec& spec) {
  add_case<MhcPost>(list, spec, [=](CaseBuilder<MhcPost>& c) {
    c.set_batch(s.tokens);
    const int64_t n = s.streams;
    const RowPlacement rows{.row_gap = spec.bench ? 0 : 3, .rows_per_batch = 1};
    const Tensor y = c.input({s.tokens, s.width}, s.format, s.fill, rows);
    const bool in_place = s.where == Where::kInPlace;
    const Tensor streams = in_place ? c.inout({s.tokens, n, s.width}, s.format, s.fill, rows)
                                    : c.input({s.tokens, n, s.width}, s.format, s.fill, rows);
    // Weights that tell comb from its transpose.
    const Tensor post = c.input({s.tokens, n}, Format::kF32, {.dist = Dist::kUniform}, rows);
    const Tensor comb = c.input({s.tokens, n, n}, Format::kF32, {.dist = Dist::kUniform}, rows);
    const Tensor out = in_place ? streams : c.output({s.tokens, n, s.width}, s.format, rows);
    c.bind([=](const Binding& at) {
      return MhcPost::Args{
          .y = at(y), .streams = at(streams), .post = at(post), .comb = at(comb), .out = at(out)};
    });
    Gate gate = gates::row_op(s.format);
    // Rows of values of a thousand lose their digits where they cancel.
    if (s.fill.dist == Dist::kMixedRows) gate.abs = 1e-3;
    c.expect_rows(out, gate, [=](int64_t row, std::span<double> result) {
      const int64_t t = row / n;
      const int64_t k = row % n;
      const std::vector<double> added = y.row(t);
      for (size_t d = 0; d < result.size(); ++d)
        result[d] = post.at(t, k) * added[d];
      for (int64_t j = 0; j < n; ++j) {
        const std::vector<double> x = streams.row(t * n + j);
        for (size_t d = 0; d < result.size(); ++d)
          result[d] += comb.at(t, j, k) * x[d];
      }
    });
  });
}

Shape shape_of(const RecordedCall& call) {
  return {.tokens = call.dim("streams", 0),
          .width = call.dim("streams", 2),
          .streams = call.dim("streams", 1),
          .format = call.format("streams"),
          .fill = {.dist = Dist::kNormal}};
}

}  // namespace

void add_mhc_post_cases(CaseList& list) {
  const auto add_both = [&](Shape s) {
    add_expand(list, s, spec_of(s, "hc_expand"));
    add_post(list, s, spec_of(s, "hc_post"));
    s.where = Where::kInPlace;
    add_post(list, s, spec_of(s, "hc_post"));
  };
  for (Format format : {Format::kBf16, Format::kF32}) {
    for (int64_t t : {0, 1, 2, 3, 7})
      add_both({.tokens = t, .width = 96, .format = format});
    for (int64_t d : {1, 2, 15, 16, 17, 33, 1023, 1024, 1025})
      add_both({.tokens = 5,
                .width = d,
                .format = format,
                .fill = {.dist = d < 40 ? Dist::kMixedRows : Dist::kHeavyTail}});
    for (int64_t n : {1, 2, 3, 5, 8})
      add_both({.tokens = 4,
                .width = 67,
                .streams = n,
                .format = format,
                .fill = {.dist = Dist::kNormal}});
  }
  for (int64_t t : {1, 8, 128}) {
    for (const auto& [model, width] : {std::pair("v4_flash", 4096), std::pair("v4_pro", 7168)}) {
      const Shape s{.tokens = t, .width = width, .fill = {.dist = Dist::kNormal}};
      add_expand(list, s, timed_spec(model, "hc_expand", t));
      add_post(list, s, timed_spec(model, "hc_post", t));
    }
  }
  list.serve_calls("mhc_expand", [](CaseList& one, const RecordedCall& call, const CaseSpec& spec) {
    add_expand(one, shape_of(call), spec);
  });
  list.serve_calls("mhc_post", [](CaseList& one, const RecordedCall& call, const CaseSpec& spec) {
    add_post(one, shape_of(call), spec);
  });
}

}  // namespace fathom
